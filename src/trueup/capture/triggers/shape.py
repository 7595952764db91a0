"""The shape of an attached table (columns, key, predicates, routing), read again when it changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from psycopg import sql

from trueup.capture.triggers.document import SourceTable
from trueup.capture.triggers.expressions import refused
from trueup.capture.triggers.session import Session, block
from trueup.db.casts import is_scalar, output_of
from trueup.db.catalog import Column, Table, read_tables
from trueup.db.foreign_keys import TableName
from trueup.errors import CheckFailed, QueryError
from trueup.rows.encode import base_value, column_spec, equality, scalar_value, text_of
from trueup.rows.types import TypeRow, type_named

# Classes of errors that are no property of a table: conflicts, resources, locks, operator intervention.
_PASSING = ("25", "40", "53", "55", "57", "58")
# What was read of tables; None: the table does not exist any more.
Tables = Mapping[TableName, Table | CheckFailed | None]


@dataclass(frozen=True)
class Shape:
    """What is needed to read an attached table by key: SQL fragments built from the catalog."""

    source: int
    table: str
    # None: the table does not exist any more, or the source is superseded.
    relation: str | None
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]
    # SQL: type, column of a row t and equality operator of each part of the key, the key as in pods, and the values.
    key_types: tuple[str, ...]
    looked_up: tuple[str, ...]
    equals: tuple[str, ...]
    key_sql: str
    values_sql: str
    is_integer: bool
    # The shard of a row; None if the table has a fixed shard.
    shard_sql: str | None
    condition: str
    # Positions of floats and of texts in a row.
    floats: tuple[int, ...]
    texts: tuple[int, ...]
    # The table has another key and another source since: a backfill has replaced the touches of this one.
    is_superseded: bool = False
    # Why the rows cannot be read, if that is known.
    problem: str = ""
    is_detached: bool = False

    @property
    def for_sink(self) -> SourceTable:
        """Return the table as sinks see it."""
        return SourceTable(self.table, self.columns, self.key, routed=self.shard_sql is not None)


class Shapes:
    """The shapes of the tables of a tube, cached until they change. `changed` is set when one was read again."""

    def __init__(self, session: Session, tube: str) -> None:
        self._session = session
        self._tube = tube
        self._known: dict[int, tuple[str, Shape]] = {}
        self.changed = False

    def attached(self) -> list[int]:
        """Return the sources of all attached tables."""
        return [row[0] for row in self._rows("attached", {"tube": self._tube})]

    def get(self, sources: Collection[int]) -> dict[int, Shape]:
        """Return the current shapes of these sources."""
        values = {"tube": self._tube, "sources": sorted(sources)}
        prints = dict(self._rows("prints", values))
        stale = [source for source, text in prints.items() if self._is_stale(source, text)]
        if stale:
            self.changed = True
            only = stale[0] if len(stale) == 1 else None
            unusable = refused(self._session, self._tube, source=only)
            rows = self._source_rows([source for source in stale if source not in unusable])
            tables = self._tables(rows.values())
            for source in stale:
                shape = self._read(source, unusable.get(source, ""), rows.get(source), tables)
                self._known[source] = prints[source], shape
        return {source: self._known[source][1] for source in prints}

    def _is_stale(self, source: int, text: str) -> bool:
        known = self._known.get(source)
        # The cause of a problem may be outside of the table: a function, a privilege.
        return known is None or known[0] != text or bool(known[1].problem)

    def _source_rows(self, sources: Sequence[int]) -> dict[int, Mapping[str, Any]]:
        """Return the rows of sources with one query; none if it fails for one of them."""
        try:
            query = block(self._session, "sources")
            rows = self._session.records(query, {"tube": self._tube, "sources": list(sources)})
            return {row["source"]: row for row in rows}
        except QueryError as error:
            if error.sqlstate[:2] in _PASSING:
                raise
            return {}

    def _tables(self, rows: Iterable[Mapping[str, Any]]) -> Tables:
        """Return the tables of sources with a few queries; none if one of these fails for one of them."""
        names = {(row["schema"], row["relation"]): None for row in rows if _is_readable(row)}
        try:
            with self._session.errors():
                return {**names, **read_tables(self._session.connection, names)}
        except QueryError as error:
            if error.sqlstate[:2] in _PASSING:
                raise
            return {}

    def _read(self, source: int, problem: str, row: Mapping[str, Any] | None, tables: Tables) -> Shape:
        """Read a shape; a table that cannot be read has a shape with a problem, so that others are not affected."""
        if not problem:
            try:
                if row is None:
                    query = block(self._session, "sources")
                    (row,) = self._session.records(query, {"tube": self._tube, "sources": [source]})
                return _shape(self._session, row, tables)
            except QueryError as error:
                if error.sqlstate[:2] in _PASSING:
                    raise
                problem = error.message
            except CheckFailed as error:
                # The planner would run code of another role.
                problem = f"{error.message}: {error.cure}"
        table, is_detached = self._rows("source_names", {"source": source})[0]
        return _no_shape(source, table, is_detached, problem=problem)

    def forget(self) -> None:
        """Clear the cache."""
        self._known.clear()

    def _rows(self, name: str, values: Mapping[str, Any]) -> list[Any]:
        return self._session.rows(block(self._session, name), values)

    def all(self) -> list[Shape]:
        """Return the current shapes of the attached tables, and of all sources that were read before."""
        return list(self.get({*self.attached(), *self._known}).values())


def tables_of(shapes: Sequence[Shape]) -> list[SourceTable]:
    """Return the existing tables for `Sink.setup`."""
    return [shape.for_sink for shape in shapes if shape.relation is not None]


def _is_readable(row: Mapping[str, Any]) -> bool:
    """Return whether the table of a source exists with its key."""
    return row["relation"] is not None and len(row["key"]) == row["key_size"] and not row["is_superseded"]


def _shape(session: Session, row: Mapping[str, Any], tables: Tables) -> Shape:
    table = None
    if row["relation"] is not None and row["name_in_sink"] not in (None, row["name"]):
        problem = f"it was renamed from {row['name_in_sink']} to {row['name']}"
        return _no_shape(row["source"], row["name"], row["is_detached"], problem=problem)
    if _is_readable(row):
        name = (row["schema"], row["relation"])
        with session.errors():
            read = tables[name] if name in tables else read_tables(session.connection, [name]).get(name)
        if isinstance(read, CheckFailed):
            raise read
        table = read
    if table is None:
        return _no_shape(row["source"], row["name"], row["is_detached"], is_superseded=row["is_superseded"])
    only = "" if row["kind"] == "p" else "ONLY "
    keys = [column for name in row["key"] if (column := table.column(name)) is not None]
    is_integer = len(keys) == 1 and _type(keys[0]).integer_bytes > 0
    relation = sql.SQL("{}{}").format(sql.SQL(only), sql.Identifier(table.schema, table.name))
    types = [_type(column) for column in table.columns]
    operators = [equality(column) for column in keys]
    return Shape(
        source=row["source"],
        table=row["name"],
        relation=relation.as_string(session.connection),
        columns=tuple((column.name, column.type) for column in table.columns),
        key=tuple(column.name for column in keys),
        key_types=tuple(
            column_spec(column).type if operator else "text" for column, operator in zip(keys, operators, strict=True)
        ),
        looked_up=tuple(
            _looked_up(column, operator).as_string(session.connection)
            for column, operator in zip(keys, operators, strict=True)
        ),
        equals=tuple(operator or "=" for operator in operators),
        key_sql=_joined([_key_text(column, plain=is_integer) for column in keys], session),
        values_sql=_joined([scalar_value(column) for column in table.columns], session),
        is_integer=is_integer,
        shard_sql=row["shard_sql"] if row["is_routed"] else None,
        condition=row["condition"],
        floats=tuple(place for place, kind in enumerate(types) if kind.is_float),
        texts=tuple(place for place, kind in enumerate(types) if kind.is_python_text),
        is_detached=row["is_detached"],
    )


def _no_shape(
    source: int, table: str, is_detached: bool = False, *, is_superseded: bool = False, problem: str = ""
) -> Shape:
    """Return the shape of a table that does not exist or cannot be read."""
    gone = Shape(source, table, None, (), (), (), (), (), "", "", False, None, "true", (), ())
    return replace(gone, is_superseded=is_superseded, is_detached=is_detached, problem=problem)


def _type(column: Column) -> TypeRow:
    return type_named(column.base_schema, column.base_name)


def _joined(parts: Sequence[sql.Composable], session: Session) -> str:
    return sql.SQL(", ").join(parts).as_string(session.connection)


def _looked_up(column: Column, operator: str | None) -> sql.Composable:
    """Return the key column of a row t as it is compared with a list of keys."""
    spec = column_spec(column)
    return base_value(spec, "t") if operator else output_of(sql.Identifier("t", column.name))


def _key_text(column: Column, *, plain: bool) -> sql.Composed:
    """Return the key column as it is in pods: an integer, or text."""
    spec = column_spec(column)
    if plain:
        return sql.SQL("{}::int8").format(base_value(spec, "r"))
    return sql.SQL("{}::text").format(base_value(spec, "r")) if is_scalar(spec.type) else text_of(spec, "r")
