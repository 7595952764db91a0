"""May it be written? Asked of every node before the first write on any, all reasons at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from psycopg.rows import dict_row

from trueup.db.catalog import READABLE_KINDS
from trueup.db.names import display_name
from trueup.db.snapshot import Control
from trueup.db.statements import load
from trueup.rows.write.references import deferrable_constraints
from trueup.verbs.repair.layout import Layout
from trueup.verbs.repair.modes import Act


@dataclass(frozen=True)
class Rights:
    """How a node can be written: without triggers or in the order of foreign keys; or why not at all."""

    silent: bool
    # Whether triggers fire that may change what is written.
    is_watched: bool = False
    reasons: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def rights_on(control: Control, layout: Layout, acts: Mapping[Act, int], *, fire_triggers: bool) -> Rights:
    """What the role may do with the table on a node, for what is planned there."""
    spec, node = layout.spec, control.node.name
    given = [column.name for column in layout.columns_of(node)]
    others = [name for name in given if name not in (*spec.key_names, *layout.fixed[node])]
    names = {"schema": spec.schema, "table": spec.table}
    with control.connection.cursor(row_factory=dict_row) as cursor:
        blocks = load("trueup.verbs.repair", "rights.sql")
        row = cursor.execute(blocks["rights"], {**names, "given": given, "set": others}).fetchone()
    assert row is not None
    may_silence = _may_silence(control, row)
    excluded = [name for name, _ in deferrable_constraints(control.connection, spec, kinds=("x",))]
    silent = may_silence and not fire_triggers and not excluded
    shown = display_name(spec.schema, spec.table)
    reasons = [f"node {node}: {reason}" for reason in _reasons(row, shown, acts, silent=silent)]
    remarks = []
    if not silent and not fire_triggers and any(acts.values()):
        why = f"constraint {excluded[0]} is checked by a trigger" if excluded else _NO_RIGHT.format(row["role"])
        fires = f": {row['triggers']} of the table fire" if row["triggers"] else ""
        remarks.append(f"{node}: {why}; so triggers are not switched off{fires}, and rows go in foreign-key order")
    is_watched = bool(row["always"] or (row["triggers"] and not silent))
    return Rights(silent, is_watched, tuple(reasons), tuple(remarks))


_NO_RIGHT = "role {} may not set session_replication_role"


def _may_silence(control: Control, row: Mapping[str, Any]) -> bool:
    if row["is_superuser"]:
        return True
    if control.connection.info.server_version < 150000:
        return False
    found: Any = control.connection.execute(
        "SELECT has_parameter_privilege('session_replication_role', 'SET')"
    ).fetchone()
    return bool(found[0])


def _reasons(row: Mapping[str, Any], shown: str, acts: Mapping[Act, int], *, silent: bool) -> list[str]:
    if not any(acts.values()):
        return []
    role, reasons = row["role"], []
    if row["kind"] not in ("r", "p"):
        reasons.append(f"{shown} is a {READABLE_KINDS.get(row['kind'], 'relation')}: its rows cannot be written")
    if row["has_heirs"]:
        reasons.append(f"other tables inherit from {shown}: a row might come back into another table than it was in")
    if row["in_recovery"]:
        reasons.append("it is a standby, which cannot be written to")
    replaces = silent and acts.get("update", 0)
    if (acts.get("delete", 0) or replaces) and not row["may_delete"]:
        reasons.append(f"role {role} may not DELETE from {shown}; GRANT DELETE ON {shown} to it")
    if (acts.get("insert", 0) or replaces) and row["no_insert"]:
        columns = ", ".join(row["no_insert"])
        reasons.append(f"role {role} may not INSERT {columns} into {shown}; GRANT INSERT ON {shown} to it")
    if acts.get("update", 0) and not silent and row["no_update"]:
        columns = ", ".join(row["no_update"])
        reasons.append(f"role {role} may not UPDATE {columns} of {shown}; GRANT UPDATE ON {shown} to it")
    if not silent and (acts.get("update", 0) or acts.get("delete", 0)) and not row["may_stage"]:
        reasons.append(f"role {role} may not make temporary tables; GRANT TEMP ON DATABASE … to it")
    return reasons
