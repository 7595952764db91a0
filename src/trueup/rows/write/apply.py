"""Rows into a node: delete keys, then COPY the rows as they are now. The caller's transaction holds all of it.

Two ways. Where the role may set `session_replication_role`, no trigger and no foreign key fires: all changed keys are
deleted and the rows copied in, so swaps of unique values, key updates and cycles need no order. Where it may not, rows
are staged and tables are written in the order of their foreign keys (`db.foreign_keys.in_order`): `upsert` parents
first, `delete_keys` children first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from trueup.db.catalog import Table
from trueup.db.connection import Connection, one_row
from trueup.db.copy_out import CopyOut
from trueup.db.names import display_name
from trueup.errors import TrueupError
from trueup.rows.fetch import among
from trueup.rows.keys import KeyValues, source, where
from trueup.rows.spec import TableSpec

if TYPE_CHECKING:
    from psycopg import sql

KEYS_A_STATEMENT = 5000
_numbers = count(1)
_ESCAPES = str.maketrans({"\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"})


@dataclass(frozen=True)
class Target:
    """A table that is written: how its rows are named, and the columns that can be given (generated ones cannot)."""

    spec: TableSpec
    columns: tuple[str, ...]
    # Identity columns that an UPDATE may not set (GENERATED ALWAYS); an INSERT or a COPY may.
    fixed: tuple[str, ...] = ()

    @property
    def others(self) -> tuple[str, ...]:
        """The columns that an UPDATE sets: those besides the key."""
        return tuple(name for name in self.columns if name not in (*self.spec.key_names, *self.fixed))


def target_of(spec: TableSpec, table: Table) -> Target:
    """A table of the catalog as something to write to."""
    return Target(
        spec,
        tuple(column.name for column in table.columns if not column.generated),
        tuple(column.name for column in table.columns if column.identity == "a"),
    )


def silence_triggers(connection: Connection) -> bool:
    """For the transaction at hand no trigger and no foreign key fires; False where the role may not ask for that."""
    try:
        with connection.transaction():
            connection.execute("SET LOCAL session_replication_role = replica")
    except psycopg.errors.InsufficientPrivilege:
        return False
    return True


def delete_keys(connection: Connection, spec: TableSpec, keys: Sequence[KeyValues]) -> int:
    """Delete the rows of these keys; gives how many were there."""
    deleted = 0
    for some in batches(keys):
        # The filter is not asked: a key is a key, also of a row that has left the filter meanwhile.
        query = sql.SQL("DELETE FROM {} WHERE {}").format(sql.Identifier(spec.schema, spec.table), among(spec, some))
        deleted += connection.execute(query).rowcount
    return deleted


def copy_keys(source_node: Any, target_node: Any, target: Target, keys: Sequence[KeyValues]) -> int:
    """COPY the rows of these keys from one node to the other, as they are now, not through Python's hands."""
    return sum(
        pipe(source_node, rows_out(target, among(target.spec, some)), target_node, rows_in(target))
        for some in batches(keys)
    )


def rows_out(target: Target, *conditions: sql.Composable) -> sql.Composed:
    """A COPY that gives the rows for which the conditions hold, also those outside of the table's filter."""
    whole = replace(target.spec, filter="")
    return sql.SQL("COPY (SELECT {columns} FROM {source}{where}) TO STDOUT").format(
        columns=_list(target.columns), source=source(whole), where=where(whole, *conditions)
    )


def rows_in(target: Target, into: sql.Composable | None = None, *, binary: bool = False) -> sql.Composed:
    """A COPY that takes rows; identity columns take the values that are given, whatever they were declared."""
    table = into if into is not None else sql.Identifier(target.spec.schema, target.spec.table)
    form = sql.SQL(" (FORMAT binary)" if binary else "")
    return sql.SQL("COPY {} ({}) FROM STDIN{}").format(table, _list(target.columns), form)


def pipe(source_node: Any, query: sql.Composed, target_node: Any, into: sql.Composed) -> int:
    """The bytes of one COPY into another; gives how many rows arrived."""
    reading = CopyOut(source_node, query)
    with target_node.cursor() as writing:
        with writing.copy(into) as sink:
            for data in reading:
                sink.write(data)
        if reading.rows != writing.rowcount:
            # Both servers count: a row that was given and did not arrive must not pass for copied.
            raise TrueupError(
                f"COPY gave {reading.rows} rows and {writing.rowcount} arrived",
                cure="a trigger or a rule of the target keeps rows out: switch it off, or copy with triggers silenced",
            )
        return int(writing.rowcount)


def insert_texts(connection: Connection, target: Target, rows: Iterable[Sequence[str | None]]) -> int:
    """COPY rows that are given as texts, in the order of the target's columns."""
    with connection.cursor() as cursor:
        with cursor.copy(rows_in(target)) as sink:
            for line in copy_lines(rows):
                sink.write(line)
        return int(cursor.rowcount)


def copy_lines(rows: Iterable[Sequence[str | None]]) -> Iterator[str]:
    """Rows of texts in the text form of COPY."""
    for row in rows:
        yield "\t".join("\\N" if value is None else value.translate(_ESCAPES) for value in row) + "\n"


def stage(connection: Connection, target: Target) -> sql.Composed:
    """An empty table of the session's own, with the target's columns, that ends with the transaction."""
    name = sql.Identifier(f"trueup_stage_{next(_numbers)}")
    connection.execute(
        sql.SQL("CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA").format(
            name, _list(target.columns), source(target.spec)
        )
    )
    return sql.SQL("pg_temp.{}").format(name)


def upsert(connection: Connection, target: Target, staged: sql.Composable) -> tuple[int, int]:
    """Rows of a staging table into the target without deleting any: gives how many were new, and how many were set.

    Whoever refers to a row keeps what it refers to, and no ON DELETE fires. Unique values that swap places between rows
    fail here, unless the constraint is deferred.
    """
    mine = sql.Identifier(target.spec.schema, target.spec.table)
    same = sql.SQL(" AND ").join(
        sql.SQL("t.{0} = s.{0}").format(sql.Identifier(name)) for name in target.spec.key_names
    )
    connection.execute(sql.SQL("ANALYZE {}").format(staged))
    _check_fixed(connection, target, staged, same)
    sets = sql.SQL(", ").join(sql.SQL("{0} = s.{0}").format(sql.Identifier(name)) for name in target.others)
    # One statement: foreign keys are looked at when it ends, so rows may refer to one another either way. What is set
    # comes first, for a new row may take a unique value that an old one has given up.
    update = sql.SQL("UPDATE {mine} t SET {sets} FROM {staged} s WHERE {same} RETURNING 1")
    query = sql.SQL(
        "WITH changed AS ({update}), done AS (SELECT count(*) AS changed FROM changed), new AS ("
        "INSERT INTO {mine} ({columns}) OVERRIDING SYSTEM VALUE SELECT {given} FROM {staged} s CROSS JOIN done"
        " WHERE NOT EXISTS (SELECT FROM {mine} t WHERE {same}) RETURNING 1)"
        " SELECT (SELECT count(*) FROM new), changed FROM done"
    )
    names: dict[str, sql.Composable] = {"mine": mine, "staged": staged, "same": same}
    new, changed = one_row(
        connection.execute(
            query.format(
                update=update.format(sets=sets, **names) if target.others else sql.SQL("SELECT WHERE false"),
                columns=_list(target.columns),
                given=sql.SQL(", ").join(sql.SQL("s.{}").format(sql.Identifier(name)) for name in target.columns),
                **names,
            )
        )
    )
    return new, changed


def _check_fixed(connection: Connection, target: Target, staged: sql.Composable, same: sql.Composed) -> None:
    """An identity column that no UPDATE may set has to be right already: left alone it would stay different unseen."""
    for name in set(target.fixed) - set(target.spec.key_names):
        query = sql.SQL(
            "SELECT 1 FROM {mine} t JOIN {staged} s ON {same} WHERE t.{name} IS DISTINCT FROM s.{name} LIMIT 1"
        )
        if connection.execute(
            query.format(
                mine=sql.Identifier(target.spec.schema, target.spec.table),
                staged=staged,
                same=same,
                name=sql.Identifier(name),
            )
        ).fetchone():
            raise TrueupError(
                f"column {name} is GENERATED ALWAYS AS IDENTITY, and rows differ in it",
                cure="let the role set session_replication_role: rows are then deleted and copied, which may set it",
                table=display_name(target.spec.schema, target.spec.table),
            )


def batches(keys: Sequence[KeyValues]) -> Iterator[Sequence[KeyValues]]:
    """Keys in portions that one statement can name."""
    for at in range(0, len(keys), KEYS_A_STATEMENT):
        yield keys[at : at + KEYS_A_STATEMENT]


def _list(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))
