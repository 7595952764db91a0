"""Change rows in place: UPDATE of exactly the columns that differ, from a staging table.

A staged row has the number of its set of columns, the key of the row to change, and the new row. Number 0 is a row that
is inserted; where it has to replace a row, that one is deleted first (`delete_replaced`).

The statements that write the target name every function and operator with its schema: triggers of the target need the
search_path of the application, see `triggers.application_path`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count

from psycopg import sql

from trueup.db.casts import is_scalar
from trueup.db.connection import Connection, one_row
from trueup.rows.encode import base_value, text_of
from trueup.rows.keys import canonical
from trueup.rows.spec import ColumnSpec
from trueup.rows.write.copy import send_lines
from trueup.rows.write.copy_text import key_id
from trueup.rows.write.target import Target, column_list, same_key_value
from trueup.rows.write.unique import UniqueIndex

INSERTED = 0

_numbers = count(1)


@dataclass(frozen=True)
class Staged:
    """A staging table with changes of a target; `sets` are the sets of columns, the first has the number 1."""

    target: Target
    name: sql.Identifier
    sets: tuple[tuple[str, ...], ...]


def stage_changes(connection: Connection, target: Target, sets: Sequence[tuple[str, ...]]) -> Staged:
    """Create an empty staging table, which ends with the transaction."""
    name = sql.Identifier("pg_temp", f"trueup_changes_{next(_numbers)}")
    keys = [sql.SQL("{} AS {}").format(_name(key), _key(place)) for place, key in enumerate(target.spec.key_names)]
    values = [sql.SQL("{} AS {}").format(_name(column), _value(place)) for place, column in enumerate(target.columns)]
    connection.execute(
        sql.SQL("CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT 0::int2 AS number, {} FROM {} WITH NO DATA").format(
            name, sql.SQL(", ").join([*keys, *values]), target.name
        )
    )
    return Staged(target, name, tuple(sets))


def staged_line(number: int, key: bytes, line: bytes) -> bytes:
    """Return the line of COPY for a row: the number of its set, its key as `copy_text.key_id`, and the new row."""
    return b"%d\t%s\t%s" % (number, key, line)


def fill(connection: Connection, staged: Staged, lines: Iterable[bytes]) -> int:
    """COPY lines of `staged_line` into the staging table and return their number."""
    return send_lines(connection, sql.SQL("COPY {} FROM STDIN").format(staged.name), lines)


def update_staged(connection: Connection, staged: Staged) -> int:
    """Update the rows in place, one statement per set of columns; return their number."""
    return sum(connection.execute(_update(staged, number)).rowcount for number in _numbered(staged))


def upsert_staged(connection: Connection, staged: Staged) -> int:
    """Update and insert in one statement; return the number of rows.

    Foreign keys are checked at its end, so its rows may refer to each other. Updates come first, because an inserted
    row may have a unique value that an updated row had.
    """
    names = [sql.Identifier(f"updated_{number}") for number in _numbered(staged)]
    updates = [
        sql.SQL("{} AS ({} RETURNING 1)").format(name, _update(staged, number))
        for name, number in zip(names, _numbered(staged), strict=True)
    ]
    counts = [sql.SQL("(SELECT pg_catalog.count(*) FROM {})").format(name) for name in names]
    query = sql.SQL(
        "WITH {updates}counted AS (SELECT {counts} AS updated), inserted AS ({insert} RETURNING 1)"
        " SELECT (SELECT pg_catalog.count(*) FROM inserted), updated FROM counted"
    ).format(
        updates=sql.SQL("").join(sql.SQL("{}, ").format(update) for update in updates),
        counts=sql.SQL(" OPERATOR(pg_catalog.+) ").join(counts) if counts else sql.SQL("0::pg_catalog.int8"),
        insert=_insert(staged, sql.SQL(" CROSS JOIN counted")),
    )
    return sum(one_row(connection.execute(query)))


def delete_replaced(connection: Connection, staged: Staged) -> int:
    """Delete the rows that staged rows with the number 0 replace; return their number."""
    query = sql.SQL("DELETE FROM {} t USING {} s WHERE {} AND {}").format(
        staged.target.name, staged.name, _has_number(INSERTED), _same_row(staged, "t", "s")
    )
    return connection.execute(query).rowcount


def insert_staged(connection: Connection, staged: Staged) -> int:
    """Insert the staged rows with the number 0; return their number."""
    return connection.execute(_insert(staged, sql.SQL(""))).rowcount


def park_holders(connection: Connection, staged: Staged, indexes: Sequence[UniqueIndex]) -> int:
    """Set a unique value to NULL where another staged row takes it, in rows that get another one; return their number.

    Then `update_staged` can give each row its value in place. Rows whose columns may not be NULL stay as they are.
    """
    parked = 0
    for index in indexes:
        numbers = [number for number in _numbered(staged) if index.is_touched_by(staged.sets[number - 1])]
        for name in index.nullable if index.by_value and index.columns else ():
            changing = [number for number in numbers if name in staged.sets[number - 1]]
            if not changing:
                continue
            query = sql.SQL(
                "UPDATE {table} t SET {column} = NULL FROM {staged} h WHERE {held} AND h.number = ANY({changing})"
                " AND EXISTS (SELECT FROM {staged} s WHERE {taken} AND s.number = ANY({numbers}) AND NOT ({own}))"
            ).format(
                table=staged.target.name,
                column=_name(name),
                staged=staged.name,
                held=_same_row(staged, "t", "h"),
                changing=sql.Literal(changing),
                taken=_same_values(staged, index),
                numbers=sql.Literal(numbers),
                own=_same_row(staged, "t", "s"),
            )
            parked += connection.execute(query).rowcount
    return parked


def replace_holders(connection: Connection, staged: Staged, indexes: Sequence[UniqueIndex]) -> int:
    """Replace the staged rows whose old unique values other staged rows take; return their number.

    Values are compared as far as PostgreSQL itself knows their type, so a collision may remain.
    """
    found = 0
    for index in indexes:
        numbers = [number for number in _numbered(staged) if index.is_touched_by(staged.sets[number - 1])]
        if not numbers or index.columns is None:
            continue
        query = sql.SQL(
            "UPDATE {staged} h SET number = 0 FROM {table} t JOIN {staged} s ON {taken} AND s.number = ANY({numbers})"
            " WHERE h.number > 0 AND {held} AND NOT ({own})"
        ).format(
            staged=staged.name,
            table=staged.target.name,
            taken=_same_values(staged, index),
            numbers=sql.Literal(numbers),
            held=_same_row(staged, "t", "h"),
            own=_same_row(staged, "t", "s"),
        )
        found += connection.execute(query).rowcount
    return found


def replace_touching(connection: Connection, staged: Staged, indexes: Sequence[UniqueIndex]) -> int:
    """Replace the staged rows in which a column of one of these indexes changes; return their number."""
    numbers = [
        number for number in _numbered(staged) if any(index.is_touched_by(staged.sets[number - 1]) for index in indexes)
    ]
    query = sql.SQL("UPDATE {} SET number = 0 WHERE number = ANY({})").format(staged.name, sql.Literal(numbers))
    return connection.execute(query).rowcount


def taken_values(
    connection: Connection, staged: Staged, indexes: Sequence[UniqueIndex], *, are_new: bool
) -> list[tuple[str, bytes, bytes]]:
    """Return the staged rows whose new unique values another row has, which is not staged.

    Each is its place in the staging table (for `unstage`), its id, and the id of the other row. `are_new`: the staged
    rows are inserted, so that a row with the same key is another row as well.
    """
    spec, found = staged.target.spec, list[tuple[str, bytes, bytes]]()
    own = [text_of(replace(part.column, name=f"k{place}"), "s") for place, part in enumerate(spec.key)]
    other = [text_of(part.column, "t") for part in spec.key]
    for index in indexes:
        if index.columns is None or index.is_partial or not index.by_value:
            continue
        if not set(index.columns) <= set(staged.target.columns):
            continue
        numbers = [number for number in _numbered(staged) if index.is_touched_by(staged.sets[number - 1])]
        query = sql.SQL(
            "SELECT s.ctid::text, {texts} FROM {staged} s JOIN {table} t ON {taken}"
            " WHERE s.number = ANY({numbers}) AND NOT {known}"
        ).format(
            texts=sql.SQL(", ").join([*own, *other]),
            staged=staged.name,
            table=staged.target.name,
            taken=_same_values(staged, index),
            numbers=sql.Literal([INSERTED, *numbers]),
            known=sql.SQL("false")
            if are_new
            else sql.SQL("EXISTS (SELECT FROM {} h WHERE {})").format(staged.name, _same_row(staged, "t", "h")),
        )
        width = len(spec.key) + 1
        found += [
            (row[0], key_id(canonical(spec, row[1:width])), key_id(canonical(spec, row[width:])))
            for row in connection.execute(query).fetchall()
        ]
    return found


def unstage(connection: Connection, staged: Staged, places: Iterable[str]) -> None:
    """Remove rows, given by their places, from the staging table."""
    query = sql.SQL("DELETE FROM {} WHERE ctid = ANY({}::tid[])").format(staged.name, sql.Literal(list(places)))
    connection.execute(query)


def _same_row(staged: Staged, row: str, change: str) -> sql.Composed:
    spec = staged.target.spec
    return same_key_value(spec, row, change, names=[f"k{place}" for place in range(len(spec.key))])


def _same_values(staged: Staged, index: UniqueIndex) -> sql.Composed:
    """Return the condition that a row `t` has the values that the staged row `s` gets in the columns of an index."""
    return sql.SQL(" AND ").join(_same_value(staged, column) for column in index.columns or ())


def _same_value(staged: Staged, name: str) -> sql.Composed:
    """Return the condition that a row `t` has the value that the staged row `s` gets in a column."""
    target = staged.target
    column = next(column for column in target.spec.columns if column.name == name)
    new = replace(column, name=f"v{target.columns.index(name)}")
    return sql.SQL("{} = {}").format(_comparable(column, "t"), _comparable(new, "s"))


def _comparable(column: ColumnSpec, row: str) -> sql.Composable:
    return base_value(column, row) if is_scalar(column.type) else text_of(column, row)


def _update(staged: Staged, number: int) -> sql.Composed:
    target = staged.target
    return sql.SQL("UPDATE {} t SET {} FROM {} s WHERE {} AND {}").format(
        target.name,
        sql.SQL(", ").join(
            sql.SQL("{} = s.{}").format(_name(name), _value(target.columns.index(name)))
            for name in staged.sets[number - 1]
        ),
        staged.name,
        _has_number(number),
        _same_row(staged, "t", "s"),
    )


def _insert(staged: Staged, joined: sql.SQL) -> sql.Composed:
    target = staged.target
    return sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {} s{} WHERE {}").format(
        target.name,
        column_list(target.columns),
        sql.SQL(", ").join(sql.SQL("s.{}").format(_value(place)) for place in range(len(target.columns))),
        staged.name,
        joined,
        _has_number(INSERTED),
    )


def _numbered(staged: Staged) -> range:
    return range(1, len(staged.sets) + 1)


def _has_number(number: int) -> sql.Composed:
    return sql.SQL("s.number OPERATOR(pg_catalog.=) {}::pg_catalog.int2").format(sql.Literal(number))


def _name(name: str) -> sql.Identifier:
    return sql.Identifier(name)


def _key(place: int) -> sql.Identifier:
    return sql.Identifier(f"k{place}")


def _value(place: int) -> sql.Identifier:
    return sql.Identifier(f"v{place}")
