"""Check whether a node can be written; all nodes are checked before the first write on any."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from psycopg.rows import dict_row

from trueup.db.catalog import READABLE_KINDS
from trueup.db.connection import one_value
from trueup.db.foreign_code import FOREIGN_CODE_CURE, foreign_code
from trueup.db.foreign_keys import read_foreign_keys
from trueup.db.names import display_name
from trueup.db.own_path import OwnPath, own_path
from trueup.db.snapshot import Control
from trueup.db.statements import load
from trueup.rows.spec import TableSpec
from trueup.rows.write.references import deferrable_constraints, partitions, table_and_ancestors
from trueup.verbs.repair.layout import Layout
from trueup.verbs.repair.modes import Act


@dataclass(frozen=True)
class Rights:
    """How a node can be written: with triggers silenced, or in foreign-key order; and reasons why it cannot."""

    silent: bool
    # Whether triggers or rules fire that may change what is written, and the schemas of their search_path (None: those
    # of a new session).
    watched: bool = False
    schemas: tuple[str, ...] | None = None
    reasons: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def rights_on(
    control: Control, layout: Layout, acts: Mapping[Act, int], changed: Collection[int], *, fire_triggers: bool
) -> Rights:
    """Return what the role may do with the table on a node, for the planned acts.

    `changed` are the places of the columns that updates change.
    """
    spec, node = layout.spec, control.node.name
    columns = [column.name for column in layout.columns_of(node)]
    updated = [columns[place] for place in sorted(changed) if columns[place] not in layout.fixed[node]]
    with control.connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(
            load("trueup.verbs.repair", "rights.sql")["rights"],
            {"schema": spec.schema, "table": spec.table, "inserted": columns, "updated": updated},
        ).fetchone()
    assert row is not None
    excluded = [name for name, _ in deferrable_constraints(control.connection, spec, kinds=("x",))]
    may_silence = _may_silence(control, row)
    parents = _parents_without_lock(control, spec) if may_silence else []
    silent = may_silence and not (fire_triggers or excluded or parents)
    shown = display_name(spec.schema, spec.table)
    reasons = [f"node {node}: {reason}" for reason in _reasons(row, shown, acts, silent=silent)]
    if any(acts.values()):
        foreign = foreign_code(control.connection, spec.schema, spec.table, writes=True, silenced=silent)
        reasons += [f"node {node}: {reason}; {FOREIGN_CODE_CURE}" for reason in foreign]
    remarks = []
    if not silent and not fire_triggers and any(acts.values()):
        why = (
            f"deferrable constraint {excluded[0]} is checked by a trigger"
            if excluded
            else f"role {row['role']} may not lock rows of {parents[0]} (GRANT UPDATE ON it)"
            if parents
            else f"role {row['role']} may not set session_replication_role"
        )
        fires = f": {row['triggers']} triggers of the table fire" if row["triggers"] else ""
        remarks.append(f"{node}: {why}, so triggers are not silenced{fires}, and rows are written in foreign-key order")
    watched = bool(row["always"] or (row["triggers"] and not silent))
    path = own_path(control.connection) if any(acts.values()) and (watched or not silent) else OwnPath()
    if watched:
        remarks += [f"{node}: the search_path of triggers is without a schema: {reason}" for reason in path.left_out]
    return Rights(silent, watched, path.schemas, tuple(reasons), tuple(remarks))


def _parents_without_lock(control: Control, spec: TableSpec) -> list[str]:
    """Return the tables that the table refers to, and whose rows this role may not lock."""
    tables = [*table_and_ancestors(control.connection, spec), *partitions(control.connection, spec)]
    keys = read_foreign_keys(control.connection, tables)
    parents = sorted({key.parent for key in keys if key.child in tables})
    query = "SELECT has_any_column_privilege(format('%%I.%%I', %s::text, %s::text), 'UPDATE')"
    return [display_name(*each) for each in parents if not one_value(control.connection.execute(query, each))]


def _may_silence(control: Control, row: Mapping[str, Any]) -> bool:
    if row["is_superuser"]:
        return True
    if control.connection.info.server_version < 150000:
        return False
    query = "SELECT has_parameter_privilege('session_replication_role', 'SET')"
    return bool(one_value(control.connection.execute(query)))


def _reasons(row: Mapping[str, Any], table: str, acts: Mapping[Act, int], *, silent: bool) -> list[str]:
    if not any(acts.values()):
        return []
    role, reasons = row["role"], []
    inserts, updates, deletes = (acts.get(act, 0) for act in ("insert", "update", "delete"))
    if row["kind"] not in ("r", "p"):
        reasons.append(f"{table} is a {READABLE_KINDS.get(row['kind'], 'relation')}: its rows cannot be written")
    if row["has_heirs"]:
        reasons.append(f"other tables inherit from {table}: a row could be written to a table it was not in")
    if row["in_recovery"]:
        reasons.append("the server is a standby, which is read-only")
    if deletes and not row["may_delete"]:
        reasons.append(f"role {role} may not DELETE from {table}; GRANT DELETE ON {table}")
    if inserts and row["no_insert"]:
        columns = ", ".join(row["no_insert"])
        reasons.append(f"role {role} may not INSERT {columns} into {table}; GRANT INSERT ON {table}")
    if updates and row["no_update"]:
        columns = ", ".join(row["no_update"])
        reasons.append(f"role {role} may not UPDATE {columns} of {table}; GRANT UPDATE ON {table}")
    if (updates or (deletes and not silent)) and not row["may_stage"]:
        reasons.append(f"role {role} may not create temporary tables; GRANT TEMP ON DATABASE")
    return reasons
