"""Write rows of several tables where triggers and foreign keys fire: in the order of the foreign keys.

All of it is one transaction of the target. Rows that no other row refers to are deleted and inserted, so they can swap
unique values; so are the rows of keyless tables, to which no row may refer. Rows that others refer to are updated in
place, because deleting them would fail or fire an ON DELETE action; their unique values that change are NULL in
between, where the column allows it. Foreign keys inside a cycle are checked late: deferrable ones at the commit, the
others are NULL until both rows exist.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from psycopg import sql

from trueup.db.connection import Connection
from trueup.db.foreign_keys import ForeignKey, TableName, in_order, refers
from trueup.rows.encode import row_id
from trueup.rows.write.copy import pipe, rows_in, rows_out
from trueup.rows.write.copy_text import key_id
from trueup.rows.write.guarded import KEYS_PER_STATEMENT
from trueup.rows.write.key_lists import in_key_list, key_batches
from trueup.rows.write.stage import stage, stage_keys
from trueup.rows.write.target import Target, column_list, same_key
from trueup.rows.write.upsert import insert_staged_rows, upsert

_numbers = count(1)


@dataclass(frozen=True)
class Staged:
    """One table to write: its new rows and the keys to write, both in staging tables."""

    target: Target
    rows: sql.Composable
    # None: all keys of the table.
    keys: sql.Composable | None


def write_ordered(
    source: Connection,
    target: Connection,
    tables: Sequence[Target],
    keys: Mapping[TableName, Sequence[str] | None],
    foreign_keys: Sequence[ForeignKey],
) -> int:
    """Make these keys on the target as they are on the source, in the caller's transaction; return the number of rows.

    `keys` has the texts of the keys per table (None: all rows), as a change log writes them. The session with the
    source must be in one consistent snapshot.
    """
    target.execute("SET CONSTRAINTS ALL DEFERRED")
    names = [table.table for table in tables]
    groups = {name: group for group in in_order(names, foreign_keys).groups for name in group}
    inside = [
        key for key in foreign_keys if groups.get(key.child_root) == groups.get(key.parent_root) and can_wait(key)
    ]
    # Inside a cycle, the foreign keys that cannot be checked late determine the order.
    order = in_order(names, [key for key in foreign_keys if key not in inside]).tables
    staged, rows = [], 0
    for table in sorted(tables, key=lambda table: order.index(table.table)):
        if table.table in keys:
            entry, arrived = _stage(source, target, table, keys[table.table])
            staged.append(entry)
            rows += arrived
    _clear_references_to_gone(target, staged, foreign_keys)
    for entry in reversed(staged):
        _delete_unreferenced(target, entry, foreign_keys)
    deferred = [
        (entry, key, _take_references(target, entry, key))
        for entry in staged
        for key in inside
        if key.child_root == entry.target.table and _waits_as_null(key)
    ]
    for entry in staged:
        if entry.target.spec.is_keyless:
            # All rows to write were deleted: no row refers to a keyless one.
            insert_staged_rows(target, entry.target, entry.rows)
            continue
        _clear_unique_values(target, entry)
        upsert(target, entry.target, entry.rows)
    for entry, key, references in deferred:
        _set_references(target, entry, key, references)
    for entry in reversed(staged):
        if not entry.target.spec.is_keyless:
            _delete_gone(target, entry)
    return rows


def can_wait(key: ForeignKey) -> bool:
    """Return whether a row of the child can exist before its parent inside one transaction."""
    # The columns of a partition may be NULL where those of its table and of other partitions may not.
    return key.deferrable or (key.nullable and key.child == key.child_root)


def _waits_as_null(key: ForeignKey) -> bool:
    # A row that refers to itself or to another row of the same statement is checked at the end of the statement.
    return can_wait(key) and not key.deferrable and key.child_root != key.parent_root


def _stage(source: Connection, target: Connection, table: Target, texts: Sequence[str] | None) -> tuple[Staged, int]:
    staged = stage(target, table.name, table.columns)
    into = rows_in(table, staged)
    if texts is None:
        return Staged(table, staged, None), pipe(source, rows_out(table.columns, table.name), target, into)
    arrived = sum(
        pipe(source, rows_out(table.columns, table.name, in_key_list(table.spec, batch)), target, into)
        for batch in key_batches(table.spec, texts, KEYS_PER_STATEMENT)
    )
    is_single = len(table.spec.key) <= 1
    keys = stage_keys(target, table, (key_id((text,) if is_single else tuple(json.loads(text))) for text in texts))
    target.execute(sql.SQL("ANALYZE {}").format(keys))
    return Staged(table, staged, keys), arrived


def _is_written(staged: Staged, row: str = "t") -> sql.Composable:
    """Return the condition that a row of the table has one of the keys to write."""
    if staged.keys is None:
        return sql.SQL("true")
    spec = staged.target.spec
    if spec.is_keyless:
        return sql.SQL("{} IN (SELECT k.id FROM {} k)").format(row_id(spec.hashed, row), staged.keys)
    same = same_key(spec.key_names, row, "k")
    return sql.SQL("EXISTS (SELECT FROM {} k WHERE {})").format(staged.keys, same)


def _is_gone(staged: Staged) -> sql.Composed:
    """Return the condition that a row `t` has one of the keys to write and no new row."""
    return sql.SQL("{} AND NOT EXISTS (SELECT FROM {} s WHERE {})").format(
        _is_written(staged), staged.rows, same_key(staged.target.spec.key_names, "t", "s")
    )


def _to_null(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(sql.SQL("{} = NULL").format(sql.Identifier(name)) for name in columns)


def _clear_references_to_gone(target: Connection, staged: Sequence[Staged], foreign_keys: Sequence[ForeignKey]) -> None:
    """Set references of rows to write that point to gone rows to NULL where the columns allow it.

    These rows get another reference or are deleted later in this transaction; until then they would keep the gone row
    from being deleted.
    """
    by_name = {entry.target.table: entry for entry in staged}
    for key in foreign_keys:
        child, parent = by_name.get(key.child_root), by_name.get(key.parent_root)
        if child is None or parent is None or not key.nullable:
            continue
        target.execute(
            sql.SQL("UPDATE {} c SET {} WHERE {} AND EXISTS (SELECT FROM {} t WHERE {} AND {})").format(
                sql.Identifier(*key.child),
                _to_null(key.child_columns),
                _is_written(child, "c"),
                sql.Identifier(*key.parent),
                refers(key, "t"),
                _is_gone(parent),
            )
        )


def _delete_unreferenced(target: Connection, staged: Staged, foreign_keys: Sequence[ForeignKey]) -> None:
    """Delete the rows to write that no row refers to: no ON DELETE action fires, and their unique values are free."""
    conditions: list[sql.Composable] = [_is_written(staged)]
    for key in foreign_keys:
        # If all rows of a table are deleted in one statement, references inside the table do not matter at its end.
        if key.parent_root != staged.target.table or (key.child_root == key.parent_root and staged.keys is None):
            continue
        conditions.append(
            sql.SQL("NOT EXISTS (SELECT FROM {} c WHERE {})").format(sql.Identifier(*key.child), refers(key, "t"))
        )
    _delete(target, staged, sql.SQL(" AND ").join(conditions))


def _clear_unique_values(target: Connection, staged: Staged) -> None:
    """Set unique values that an update changes to NULL where the column allows it: another row may take them."""
    table = staged.target.name
    columns = target.execute(
        "SELECT DISTINCT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid"
        " AND a.attnum = ANY(i.indkey) WHERE i.indrelid = %s::regclass AND i.indisunique AND NOT a.attnotnull"
        " AND a.attgenerated = ''",
        [table.as_string(target)],
    ).fetchall()
    same = same_key(staged.target.spec.key_names, "t", "s")
    for (name,) in columns:
        target.execute(
            sql.SQL("UPDATE {} t SET {c} = NULL FROM {} s WHERE {} AND t.{c} IS DISTINCT FROM s.{c}").format(
                table, staged.rows, same, c=sql.Identifier(name)
            )
        )


def _take_references(target: Connection, staged: Staged, key: ForeignKey) -> sql.Composable:
    """Move the references of a foreign key out of the staged rows into a staging table of their own."""
    name = sql.Identifier("pg_temp", f"trueup_references_{next(_numbers)}")
    columns = dict.fromkeys([*staged.target.spec.key_names, *key.child_columns])
    target.execute(
        sql.SQL("CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT {} FROM {}").format(
            name, column_list(columns), staged.rows
        )
    )
    target.execute(sql.SQL("UPDATE {} SET {}").format(staged.rows, _to_null(key.child_columns)))
    return name


def _set_references(target: Connection, staged: Staged, key: ForeignKey, references: sql.Composable) -> None:
    sets = sql.SQL(", ").join(sql.SQL("{0} = r.{0}").format(sql.Identifier(name)) for name in key.child_columns)
    target.execute(
        sql.SQL("UPDATE {} t SET {} FROM {} r WHERE {}").format(
            staged.target.name, sets, references, same_key(staged.target.spec.key_names, "t", "r")
        )
    )


def _delete_gone(target: Connection, staged: Staged) -> None:
    """Delete the gone rows that are left: by now nothing refers to them."""
    _delete(target, staged, _is_gone(staged))


def _delete(target: Connection, staged: Staged, condition: sql.Composable) -> None:
    target.execute(sql.SQL("DELETE FROM {} t WHERE {}").format(staged.target.name, condition))
