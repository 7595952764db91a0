"""A round where triggers and foreign keys of the target cannot be silenced: in the order of foreign keys.

All of it is one transaction of the target. Rows that nobody else refers to are deleted and inserted, so unique values
may change places among them. Rows that others refer to are set in place, for deleting them would fail, or take others
along; unique values of theirs that change are NULL for a moment, where they may be. Links inside of a cycle wait:
deferrable ones until the commit, the others as NULL until both rows are there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from psycopg import sql

from trueup.db.connection import Connection
from trueup.db.foreign_keys import ForeignKey, in_order
from trueup.rows.write.apply import copy_lines, pipe, rows_in, stage, upsert
from trueup.rows.write.key_lists import among, portions
from trueup.verbs.sync.model import SyncTable
from trueup.verbs.sync.plan import can_wait

if TYPE_CHECKING:
    from psycopg import sql

KEYS_A_STATEMENT = 5_000
_numbers = count(1)


@dataclass(frozen=True)
class Staged:
    """One table of a round: its new rows, and the keys that are in the round, both in tables of the session."""

    table: SyncTable
    rows: sql.Composable
    # None: all keys are.
    keys: sql.Composable | None


def apply_ordered(
    source: Connection,
    target: Connection,
    tables: Sequence[SyncTable],
    keys: Mapping[int, Sequence[str] | None],
    foreign_keys: Sequence[ForeignKey],
) -> int:
    """Carry keys over (of each table by oid: texts, or None for all rows) in the caller's transaction; gives the rows.

    `tables` stand parents first. The source's session is in one consistent view.
    """
    target.execute("SET CONSTRAINTS ALL DEFERRED")
    names = [table.name for table in tables]
    groups = {name: group for group in in_order(names, foreign_keys).groups for name in group}
    inside = [key for key in foreign_keys if groups.get(key.child) == groups.get(key.parent) and can_wait(key)]
    # Inside of a cycle, those that cannot wait give the order.
    order = in_order(names, [key for key in foreign_keys if key not in inside]).tables
    waiting = [key for key in inside if _waits_as_null(key)]
    rows = 0
    staged: list[Staged] = []
    for table in sorted(tables, key=lambda each: order.index(each.name)):
        if table.oid in keys:
            found, arrived = _stage(source, target, table, keys[table.oid])
            staged.append(found)
            rows += arrived
    _let_go(target, staged, foreign_keys)
    for each in reversed(staged):
        _delete_unreferred(target, each, foreign_keys)
    later = [(each, key, _take_links(target, each, key)) for each in staged for key in waiting if _is_of(key, each)]
    for each in staged:
        _free_unique(target, each)
        upsert(target, each.table.target, each.rows)
    for each, key, links in later:
        _give_links(target, each, key, links)
    for each in reversed(staged):
        _delete_gone(target, each)
    return rows


def _waits_as_null(key: ForeignKey) -> bool:
    # A row that refers to itself, or to one of the same statement, needs no help.
    return key.nullable and not key.deferrable and key.child != key.parent


def _is_of(key: ForeignKey, staged: Staged) -> bool:
    return key.child == staged.table.name


def _stage(source: Connection, target: Connection, table: SyncTable, texts: Sequence[str] | None) -> tuple[Staged, int]:
    rows = stage(target, table.target)
    columns = sql.SQL(", ").join(sql.SQL("t.{}").format(sql.Identifier(name)) for name in table.target.columns)
    out = sql.SQL("COPY (SELECT {} FROM {} t WHERE {{}}) TO STDOUT").format(columns, sql.Identifier(*table.name))
    template = sql.SQL(out.as_string(source))
    if texts is None:
        return Staged(table, rows, None), pipe(
            source, template.format(sql.SQL("true")), target, rows_in(table.target, rows)
        )
    arrived = sum(
        pipe(source, template.format(among(table, some)), target, rows_in(table.target, rows))
        for some in portions(table, texts, KEYS_A_STATEMENT)
    )
    return Staged(table, rows, _stage_keys(target, table, texts)), arrived


def _stage_keys(target: Connection, table: SyncTable, texts: Sequence[str]) -> sql.Composable:
    """The keys of the round as a table of the session, with the columns of the key."""
    name = sql.Identifier(f"trueup_keys_{next(_numbers)}")
    names = sql.SQL(", ").join(map(sql.Identifier, table.spec.key_names))
    target.execute(
        sql.SQL("CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA").format(
            name, names, sql.Identifier(*table.name)
        )
    )
    place = sql.SQL("pg_temp.{}").format(name)
    rows = ([text] if len(table.spec.key) == 1 else json.loads(text) for text in texts)
    with target.cursor() as cursor, cursor.copy(sql.SQL("COPY {} ({}) FROM STDIN").format(place, names)) as sink:
        for line in copy_lines(rows):
            sink.write(line)
    target.execute(sql.SQL("ANALYZE {}").format(place))
    return place


def _in_round(staged: Staged, row: str = "t") -> sql.Composable:
    """The condition that a row of the table is one of the round."""
    if staged.keys is None:
        return sql.SQL("true")
    return sql.SQL("EXISTS (SELECT FROM {} k WHERE {})").format(
        staged.keys, _same(staged.table.spec.key_names, row, "k")
    )


def _is_gone(staged: Staged) -> sql.Composed:
    """The condition that a row `t` of the round is not among the new rows."""
    return sql.SQL("{} AND NOT EXISTS (SELECT FROM {} s WHERE {})").format(
        _in_round(staged), staged.rows, _same(staged.table.spec.key_names, "t", "s")
    )


def _same(names: Sequence[str], row: str, other: str) -> sql.Composed:
    return sql.SQL(" AND ").join(
        sql.SQL("{1}.{0} = {2}.{0}").format(sql.Identifier(name), sql.Identifier(row), sql.Identifier(other))
        for name in names
    )


def _let_go(target: Connection, staged: Sequence[Staged], foreign_keys: Sequence[ForeignKey]) -> None:
    """Rows of the round that refer to a row that is gone let go of it, where they may: it can be deleted soon then.

    They refer to something else by now, or are gone themselves: what they get is set later.
    """
    by_name = {each.table.name: each for each in staged}
    for key in foreign_keys:
        child, parent = by_name.get(key.child), by_name.get(key.parent)
        if child is None or parent is None or not key.nullable:
            continue
        pairs = sql.SQL(" AND ").join(
            sql.SQL("t.{} {} c.{}").format(sql.Identifier(theirs), sql.SQL(operator), sql.Identifier(own))
            for theirs, operator, own in zip(key.parent_columns, key.operators, key.child_columns, strict=True)
        )
        query = sql.SQL(
            "UPDATE {child} c SET {sets} WHERE {mine} AND EXISTS (SELECT FROM {parent} t WHERE {pairs} AND {theirs})"
        )
        target.execute(
            query.format(
                child=sql.Identifier(*key.child),
                parent=sql.Identifier(*key.parent),
                sets=sql.SQL(", ").join(sql.SQL("{} = NULL").format(sql.Identifier(n)) for n in key.child_columns),
                mine=_in_round(child, "c"),
                pairs=pairs,
                theirs=_is_gone(parent),
            )
        )


def _delete_unreferred(target: Connection, staged: Staged, foreign_keys: Sequence[ForeignKey]) -> None:
    """Delete the rows of the round that no row refers to: no ON DELETE of anybody fires, and unique values are free."""
    conditions: list[sql.Composable] = [_in_round(staged)]
    for key in foreign_keys:
        if key.parent != staged.table.name:
            continue
        if key.child == key.parent and staged.keys is None:
            # All rows go in one statement; at its end nobody is left to refer to another.
            continue
        pairs = sql.SQL(" AND ").join(
            sql.SQL("t.{} {} c.{}").format(sql.Identifier(theirs), sql.SQL(operator), sql.Identifier(own))
            for theirs, operator, own in zip(key.parent_columns, key.operators, key.child_columns, strict=True)
        )
        conditions.append(sql.SQL("NOT EXISTS (SELECT FROM {} c WHERE {})").format(sql.Identifier(*key.child), pairs))
    target.execute(
        sql.SQL("DELETE FROM {} t WHERE {}").format(
            sql.Identifier(*staged.table.name), sql.SQL(" AND ").join(conditions)
        )
    )


def _free_unique(target: Connection, staged: Staged) -> None:
    """Rows that are set in place give up unique values that change, where these may be NULL: others may take them."""
    mine = sql.Identifier(*staged.table.name)
    found = target.execute(
        "SELECT DISTINCT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid"
        " AND a.attnum = ANY(i.indkey) WHERE i.indrelid = %s::regclass AND i.indisunique AND NOT a.attnotnull"
        " AND a.attgenerated = ''",
        [mine.as_string(target)],
    ).fetchall()
    for (name,) in found:
        target.execute(
            sql.SQL("UPDATE {} t SET {c} = NULL FROM {} s WHERE {} AND t.{c} IS DISTINCT FROM s.{c}").format(
                mine, staged.rows, _same(staged.table.spec.key_names, "t", "s"), c=sql.Identifier(name)
            )
        )


def _take_links(target: Connection, staged: Staged, key: ForeignKey) -> sql.Composable:
    """The links of a cycle out of the new rows, kept aside by key."""
    name = sql.Identifier(f"trueup_links_{next(_numbers)}")
    columns = list(dict.fromkeys([*staged.table.spec.key_names, *key.child_columns]))
    target.execute(
        sql.SQL("CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT {} FROM {}").format(
            name, sql.SQL(", ").join(map(sql.Identifier, columns)), staged.rows
        )
    )
    sets = sql.SQL(", ").join(sql.SQL("{} = NULL").format(sql.Identifier(name)) for name in key.child_columns)
    target.execute(sql.SQL("UPDATE {} SET {}").format(staged.rows, sets))
    return sql.SQL("pg_temp.{}").format(name)


def _give_links(target: Connection, staged: Staged, key: ForeignKey, links: sql.Composable) -> None:
    sets = sql.SQL(", ").join(sql.SQL("{0} = l.{0}").format(sql.Identifier(name)) for name in key.child_columns)
    target.execute(
        sql.SQL("UPDATE {} t SET {} FROM {} l WHERE {}").format(
            sql.Identifier(*staged.table.name), sets, links, _same(staged.table.spec.key_names, "t", "l")
        )
    )


def _delete_gone(target: Connection, staged: Staged) -> None:
    """What is left of the round and is gone: by now nothing should refer to it."""
    target.execute(sql.SQL("DELETE FROM {} t WHERE {}").format(sql.Identifier(*staged.table.name), _is_gone(staged)))
