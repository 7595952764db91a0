"""What no trigger has checked: foreign keys either way, and unique values that are checked late. Nothing may dangle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from psycopg import sql

from trueup.db.connection import Connection
from trueup.db.foreign_keys import ForeignKey, orphans, read_foreign_keys
from trueup.db.names import display_name
from trueup.db.statements import load
from trueup.errors import QueryError
from trueup.rows.fetch import among
from trueup.rows.keys import KeyValues, literals, source
from trueup.rows.spec import TableSpec

# Portions of keys whose rows were written, and of keys whose rows are gone; small enough for a statement each.
Portions = Callable[[], Iterable[tuple[Sequence[KeyValues], Sequence[KeyValues]]]]


def check_references(connection: Connection, spec: TableSpec, portions: Portions) -> None:
    """Raise where a row that was written refers to nothing, or a row that is gone is still referred to."""
    table = (spec.schema, spec.table)
    for key in read_foreign_keys(connection, [table]):
        if key.child == table:
            for written, _ in portions():
                _refuse(key, orphans(connection, key, among=among(spec, written), most=1) if written else ())
        if key.parent == table:
            _refuse_orphans_of(connection, spec, key, portions)
    for name, columns in _late_uniques(connection, spec):
        for written, _ in portions():
            if written:
                _refuse_twins(connection, spec, name, columns, written)


def _refuse_orphans_of(connection: Connection, spec: TableSpec, key: ForeignKey, portions: Portions) -> None:
    if set(key.parent_columns) != set(spec.key_names):
        # It refers to columns that a repair may have changed: all of its rows have to be looked at.
        _refuse(key, orphans(connection, key, most=1))
        return
    parts = {part.column.name: at for at, part in enumerate(spec.key)}
    order = [parts[name] for name in key.parent_columns]
    mine = sql.SQL(", ").join(sql.SQL("c.{}").format(sql.Identifier(name)) for name in key.child_columns)
    for _, gone in portions():
        if not gone:
            continue
        values = sql.SQL(", ").join(
            sql.SQL("({})").format(
                sql.SQL(", ").join(literals([spec.key[at] for at in order], tuple(each[at] for at in order)))
            )
            for each in gone
        )
        condition = sql.SQL("({}) IN (VALUES {})").format(mine, values)
        _refuse(key, orphans(connection, key, among=condition, most=1))


def _refuse(key: ForeignKey, found: Sequence[tuple[str, ...]]) -> None:
    if found:
        raise QueryError(
            f"foreign key {key} would be violated: ({', '.join(found[0])}) is not in {display_name(*key.parent)}",
            sqlstate="23503",
            cure=f"repair {display_name(*key.parent)} first, or {display_name(*key.child)} with it",
        )


def _late_uniques(connection: Connection, spec: TableSpec) -> Iterator[tuple[str, list[str]]]:
    names = {"schema": spec.schema, "table": spec.table}
    for name, kind, columns in connection.execute(
        load("trueup.verbs.repair", "rights.sql")["deferrable"], names
    ).fetchall():
        if kind in ("p", "u"):
            yield name, columns


def _refuse_twins(
    connection: Connection, spec: TableSpec, name: str, columns: Sequence[str], keys: Sequence[KeyValues]
) -> None:
    listed = sql.SQL(", ").join(map(sql.Identifier, columns))
    query = sql.SQL(
        "SELECT {listed} FROM {source} WHERE ({listed}) IN (SELECT {listed} FROM {source} WHERE {keys})"
        " GROUP BY {listed} HAVING count(*) > 1 LIMIT 1"
    ).format(listed=listed, source=source(spec), keys=among(spec, keys))
    found = connection.execute(query).fetchone()
    if found:
        raise QueryError(
            f"unique constraint {name} would be violated: ({', '.join(map(str, found))}) would stand there twice",
            sqlstate="23505",
            cure="another row of the table holds that value: compare the whole table, and repair all that differs",
        )
