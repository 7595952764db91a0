"""Checks whether a table of the target can take the rows of the source: same columns and key, empty, writable."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from psycopg import sql
from psycopg.rows import dict_row

from trueup.db import catalog
from trueup.db.connection import Connection, one_value
from trueup.db.foreign_code import FOREIGN_CODE_CURE, foreign_code
from trueup.db.statements import load
from trueup.errors import CheckFailed
from trueup.rows.write.disabled_triggers import firing
from trueup.rows.write.target import target_of
from trueup.verbs.sync.model import ORDERED, Problem, SyncTable

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


def check_target(
    target: Connection,
    table: SyncTable,
    read: tuple[catalog.Table, catalog.Table | CheckFailed | None],
    mode: str,
    problems: list[Problem],
    progress: TargetState,
) -> SyncTable | None:
    """Return the table with its columns in the target's order, or None after adding the reasons to `problems`.

    `read` is the table of the source and that of the target, as `read_tables` returns it.
    """
    on_source, on_target = read
    if isinstance(on_target, CheckFailed):
        # Code of another role, which a query would run.
        problems.append(Problem(str(table), f"on the target, {on_target.message}", on_target.cure))
        return None
    if on_target is None or on_target.kind not in ("r", "p"):
        what = "it does not exist on the target" if on_target is None else "it is not a table on the target"
        problems.append(Problem(str(table), what, "create the table there, or start with --create-schema"))
        return None
    reasons = [*_columns(on_source, on_target), *([] if progress.is_bare else _key(table, on_target))]
    reasons += _state(target, table, on_target, mode, is_filled=progress.is_filled)
    foreign = foreign_code(target, *table.name, writes=True, silenced=mode != ORDERED, disabled=True)
    reasons += [(reason, FOREIGN_CODE_CURE) for reason in foreign]
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
        return [(f"it has no key on the source, and the key ({key}) on the target", "make both tables the same")]
    if table.spec.is_keyless:
        return []
    if any(set(key.columns) == set(table.spec.key_names) for key in on_target.keys):
        return []
    key = ", ".join(table.spec.key_names)
    return [(f"its key ({key}) is not a key on the target", "create the same primary key or unique index there")]


def _state(
    target: Connection, table: SyncTable, on_target: catalog.Table, mode: str, *, is_filled: bool
) -> list[Reason]:
    with target.cursor(row_factory=dict_row) as cursor:
        row: Any = cursor.execute(load("trueup.verbs.sync", "plan.sql")["target"], {"oid": on_target.oid}).fetchone()
    if row["secured"]:
        return [("row security applies to the role on the target", "use a role with BYPASSRLS, or the owner")]
    if not row["may_write"] or not on_target.usage:
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
    for trigger in firing(target, [table.name], mode):
        if not trigger.is_owned:
            cure = "use the role that owns the table, which disables it until the switchover; or disable it there" + (
                ", or let the role set session_replication_role" if mode == ORDERED else ""
            )
            reasons.append((f"the {trigger} would fire on the target and could change rows", cure))
            break
    if not is_filled:
        query = sql.SQL("SELECT EXISTS (SELECT FROM {})").format(sql.Identifier(*table.name))
        if one_value(target.execute(query)):
            reasons.append(("it is not empty on the target", "delete its rows there: the copy needs an empty table"))
    return reasons
