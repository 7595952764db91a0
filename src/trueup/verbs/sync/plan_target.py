"""Whether a table of the target can take the rows of the source: same columns and key, empty, ours to write."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from psycopg import sql
from psycopg.rows import dict_row

from trueup.db import catalog
from trueup.db.connection import Connection
from trueup.db.statements import load
from trueup.rows.write.target import target_of
from trueup.verbs.sync.model import ORDERED, Problem, SyncTable


@dataclass(frozen=True)
class Begun:
    """How far the sync is: its rows are there already, the keys of a target that we make are not there yet."""

    is_begun: bool = False
    is_bare: bool = False


def check_target(
    target: Connection, table: SyncTable, here: catalog.Table, mode: str, problems: list[Problem], begun: Begun
) -> SyncTable | None:
    """The table with the columns in the target's order; or None, and why is in the problems."""
    shown = str(table)
    there = catalog.read_table(target, *table.name)
    if there is None or there.kind not in ("r", "p"):
        what = "it is not there on the target" if there is None else "it is no table on the target"
        problems.append(Problem(shown, what, "make it there, or start with --create-schema"))
        return None
    wrong = [*_columns(here, there), *([] if begun.is_bare else _key(table, there))]
    wrong += _state(target, table, there, mode, is_begun=begun.is_begun)
    problems += [Problem(shown, what, cure) for what, cure in wrong]
    if wrong:
        return None
    return replace(table, target=target_of(table.spec, there), row=tuple(column.name for column in there.columns))


def _columns(here: catalog.Table, there: catalog.Table) -> list[tuple[str, str]]:
    """Columns are matched by name; their order may differ."""
    cure = "make the tables the same"
    wrong = []
    for column in here.columns:
        other = there.column(column.name)
        if other is None:
            wrong.append((f"column {column.name} is not there on the target", cure))
            continue
        for what in _COMPARED:
            mine, theirs = getattr(column, what), getattr(other, what)
            if mine != theirs:
                shown = f"{what.replace('_', ' ')} of column {column.name} differs"
                wrong.append((f"{shown}: {mine!r} on the source, {theirs!r} on the target", cure))
                break
    names = {column.name for column in here.columns}
    return wrong + [
        (f"column {column.name} is only on the target", cure) for column in there.columns if column.name not in names
    ]


# What must be the same for a row to mean the same on both sides.
_COMPARED = ("type", "not_null", "generated", "identity", "collation", "labels", "made_of")


def _key(table: SyncTable, there: catalog.Table) -> list[tuple[str, str]]:
    if any(set(key.columns) == set(table.spec.key_names) for key in there.keys):
        return []
    key = ", ".join(table.spec.key_names)
    return [(f"its key ({key}) is no key on the target", "make the same primary key or unique index there")]


def _state(
    target: Connection, table: SyncTable, there: catalog.Table, mode: str, *, is_begun: bool
) -> list[tuple[str, str]]:
    with target.cursor(row_factory=dict_row) as cursor:
        row: Any = cursor.execute(load("trueup.verbs.sync", "plan.sql")["target"], {"oid": there.oid}).fetchone()
    if row["secured"]:
        return [("row security applies to this role on the target", "use a role with BYPASSRLS, or the owner")]
    if not row["may_write"] or not there.usage:
        return [
            ("the role may not SELECT, INSERT, UPDATE and DELETE on the target", "grant it, with USAGE on the schema")
        ]
    wrong: list[tuple[str, str]] = []
    if row["is_subscribed"]:
        wrong.append(("on the target it is filled by a subscription, which would write too", "drop the subscription"))
    firing = row["triggers"] if mode == ORDERED else row["always"]
    rules = row["rules"] if mode == ORDERED else row["always_rules"]
    if firing:
        cure = "disable it on the target until the switchover" + (
            "" if mode != ORDERED else ", or let the role set session_replication_role"
        )
        wrong.append((f"its trigger {firing[0]} would fire on the target and might change rows", cure))
    if rules:
        wrong.append((f"its rule {rules[0]} would apply on the target", "drop it there until the switchover"))
    if not is_begun:
        query = sql.SQL("SELECT EXISTS (SELECT FROM {})").format(sql.Identifier(*table.name))
        found: Any = target.execute(query).fetchone()
        if found[0]:
            wrong.append(("it is not empty on the target", "empty it there: a copy cannot be told from other rows"))
    return wrong
