"""Checks whether a table of the target can take the rows of the source: same columns and key, empty, writable."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from psycopg import sql
from psycopg.rows import dict_row

from trueup.db import catalog
from trueup.db.connection import Connection, one_value
from trueup.db.foreign_code import FOREIGN_CODE_CURE, foreign_code_of
from trueup.db.foreign_keys import TableName
from trueup.db.statements import load
from trueup.errors import CheckFailed
from trueup.rows.write.disabled_triggers import firing
from trueup.rows.write.target import target_of
from trueup.verbs.sync.model import ORDERED, Problem, SyncTable

KEY_CURE = "create the same primary key or unique index there"
# What must be the same for a value to mean the same on both sides.
_COMPARED = ("type", "not_null", "generated", "identity", "collation", "labels", "made_of")
# A reason why a table cannot be used, and its cure.
Reason = tuple[str, str]


@dataclass(frozen=True)
class TargetState:
    """What the target of a started sync has: rows of this sync; tables that trueup made, still without keys.

    `is_brief`: differences that lose no rows are not looked for.
    """

    is_filled: bool = False
    is_bare: bool = False
    is_brief: bool = False


@dataclass(frozen=True)
class Found:
    """What was read of the tables of the target, with a number of queries that does not depend on their number."""

    tables: Mapping[TableName, catalog.Table | CheckFailed]
    # By oid: see the statement `targets`.
    states: Mapping[int, Mapping[str, Any]]
    foreign: Mapping[TableName, list[str]]
    filled: Container[TableName]
    # Whether a trigger of a table that the role does not own would fire.
    has_others_triggers: bool


def check_targets(
    target: Connection,
    candidates: Sequence[tuple[SyncTable, catalog.Table]],
    mode: str,
    problems: list[Problem],
    progress: TargetState,
) -> list[SyncTable]:
    """Return the tables with their columns in the target's order, after adding the reasons of others to `problems`.

    The candidates are the tables of the sync, and as the source has them.
    """
    names = [table.name for table, _ in candidates]
    tables = catalog.read_tables(target, names)
    read = [table for table in tables.values() if isinstance(table, catalog.Table) and table.kind in ("r", "p")]
    usable = [(table.schema, table.name) for table in read]
    rows = _states(target, [table.oid for table in read])
    found = Found(
        tables,
        {row["oid"]: row for row in rows},
        foreign_code_of(target, usable, writes=True, silenced=mode != ORDERED, disabled=True),
        () if progress.is_filled else _filled(target, rows),
        not all(trigger.is_owned for trigger in firing(target, usable, mode)),
    )
    checked = [_check(target, *candidate, found, mode, problems, progress) for candidate in candidates]
    return [table for table in checked if table]


def filled_tables(target: Connection, tables: Iterable[SyncTable]) -> set[TableName]:
    """Return the tables of the target that have rows."""
    return _filled(target, _states(target, [table.target_oid for table in tables]))


def _states(target: Connection, oids: list[int]) -> list[dict[str, Any]]:
    query = load("trueup.verbs.sync.target_schema", "plan_target.sql")["targets"]
    with target.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query, {"oids": oids}).fetchall()


def _filled(target: Connection, rows: Iterable[Mapping[str, Any]]) -> set[TableName]:
    """Return the tables that have rows; those without files are not read."""
    query = sql.SQL("SELECT EXISTS (SELECT FROM {})")
    readable = (row for row in rows if row["may_write"] and not row["secured"] and not row["foreign_part"])
    names = [(row["schema"], row["name"]) for row in readable if not row["has_no_pages"]]
    return {name for name in names if one_value(target.execute(query.format(sql.Identifier(*name))))}


def _check(
    target: Connection,
    table: SyncTable,
    on_source: catalog.Table,
    found: Found,
    mode: str,
    problems: list[Problem],
    progress: TargetState,
) -> SyncTable | None:
    """Return the table with its columns in the target's order, or None after adding the reasons to `problems`."""
    on_target = found.tables.get(table.name)
    if isinstance(on_target, CheckFailed):
        # Code of another role, which a query would run.
        problems += [Problem(str(table), f"on the target, {reason}", on_target.cure) for reason in on_target.reasons]
        return None
    if on_target is None or on_target.kind not in ("r", "p"):
        what = "it does not exist on the target" if on_target is None else "it is not a table on the target"
        problems.append(Problem(str(table), what, "create the table there, or start with --create-schema"))
        return None
    reasons = [*_columns(on_source, on_target), *([] if progress.is_bare else _key(table, on_target))]
    reasons += _state(target, table, on_target, found, mode)
    reasons += [(reason, FOREIGN_CODE_CURE) for reason in found.foreign.get(table.name, ())]
    problems += [Problem(str(table), what, cure) for what, cure in reasons]
    if reasons:
        return None
    columns = tuple(column.name for column in on_target.columns)
    return replace(table, target=target_of(table.spec, on_target), row=columns, target_oid=on_target.oid)


def _columns(on_source: catalog.Table, on_target: catalog.Table) -> list[Reason]:
    """Compare columns by name; their order may differ."""
    cure = "make both tables the same"
    reasons = []
    for column in on_source.columns:
        other = on_target.column(column.name)
        if other is None:
            reasons.append((f"column {column.name} does not exist on the target", cure))
            continue
        for attribute in _COMPARED:
            expected, actual = getattr(column, attribute), getattr(other, attribute)
            if expected != actual:
                label = f"{attribute.replace('_', ' ')} of column {column.name} differs"
                reasons.append((f"{label}: {expected!r} on the source, {actual!r} on the target", cure))
                break
    names = {column.name for column in on_source.columns}
    return reasons + [
        (f"column {column.name} exists only on the target", cure)
        for column in on_target.columns
        if column.name not in names
    ]


def _key(table: SyncTable, on_target: catalog.Table) -> list[Reason]:
    if table.spec.is_keyless and on_target.keys:
        key = ", ".join(on_target.keys[0].columns)
        cure = "create the key on the source again, or drop it on the target"
        return [(f"it has no key on the source, and the key ({key}) on the target", cure)]
    if table.spec.is_keyless:
        return []
    if any(set(key.columns) == set(table.spec.key_names) for key in on_target.keys):
        return []
    key = ", ".join(table.spec.key_names)
    return [(f"its key ({key}) is not a key on the target", KEY_CURE)]


def _state(target: Connection, table: SyncTable, on_target: catalog.Table, found: Found, mode: str) -> list[Reason]:
    row = found.states.get(on_target.oid)
    if row is None:
        return [("it was dropped on the target a moment ago", "run the command again")]
    if row["secured"]:
        return [("row security applies to the role on the target", "use a role with BYPASSRLS, or the owner")]
    if not row["may_write"]:
        return [
            (
                "the role may not SELECT, INSERT, UPDATE and DELETE on the target",
                "grant these privileges, and USAGE on the schema",
            )
        ]
    if row["foreign_part"]:
        what = f"on the target, its partition {row['foreign_part']} is a foreign table: rows would leave the database"
        return [(what, "detach that partition there")]
    reasons: list[Reason] = []
    if row["is_subscribed"]:
        reasons.append(("on the target, a subscription writes to it too", "drop the subscription"))
    for trigger in firing(target, [table.name], mode) if found.has_others_triggers else ():
        if not trigger.is_owned:
            cure = "use the role that owns the table, which disables it until the switchover; or disable it there" + (
                ", or let the role set session_replication_role" if mode == ORDERED else ""
            )
            reasons.append((f"the {trigger} would fire on the target and could change rows", cure))
            break
    if table.name in found.filled:
        reasons.append(("it is not empty on the target", "delete its rows there: the copy needs an empty table"))
    return reasons
