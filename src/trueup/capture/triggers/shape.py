"""What enrichment must know of the attached tables: columns, key, predicates, routing; read again when one changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from trueup.capture.triggers.document import SourceTable
from trueup.capture.triggers.session import Session, block
from trueup.db.catalog import Column, read_table
from trueup.rows.encode import column_spec, scalar_value
from trueup.rows.types import TypeRow, type_named


@dataclass(frozen=True)
class Shape:
    """One attached table, ready to be read by key: what is selected is SQL that was made from its catalog."""

    source: int
    table: str
    # None: the table is gone, and with it the rows.
    relation: str | None
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]
    # As SQL: the base type of each column of the key, its equality, how pods write it, and the columns' values.
    key_types: tuple[str, ...]
    equals: tuple[str, ...]
    key_sql: str
    values_sql: str
    is_integer: bool
    # The shard of a row; None where the table has a fixed one.
    shard_sql: str | None
    condition: str
    # Where in a row the floats are, and the texts.
    floats: tuple[int, ...]
    texts: tuple[int, ...]

    @property
    def for_sink(self) -> SourceTable:
        """As a sink is told of it."""
        return SourceTable(self.table, self.columns, self.key, routed=self.shard_sql is not None)


class Shapes:
    """The shapes of a tube's tables, kept as long as they are true."""

    def __init__(self, session: Session, tube: str) -> None:
        self._session = session
        self._tube = tube
        self._known: dict[int, tuple[str, Shape]] = {}

    def attached(self) -> list[int]:
        """The sources of all tables that are attached now."""
        return [row[0] for row in self._rows("attached", {"tube": self._tube})]

    def get(self, sources: Collection[int]) -> tuple[dict[int, Shape], bool]:
        """The shapes of these sources as they are now, and whether one is new or has changed."""
        wanted = {"tube": self._tube, "sources": sorted(sources)}
        prints = dict(self._rows("prints", wanted))
        stale = [each for each, text in prints.items() if each not in self._known or self._known[each][0] != text]
        if stale:
            query = block(self._session, "sources")
            for row in self._session.records(query, {**wanted, "sources": stale}):
                self._known[row["source"]] = prints[row["source"]], _shape(self._session, row)
        return {each: self._known[each][1] for each in prints}, bool(stale)

    def forget(self) -> None:
        """Read all of them again next time."""
        self._known.clear()

    def _rows(self, name: str, values: Mapping[str, Any]) -> list[Any]:
        return self._session.rows(block(self._session, name), values)

    def all(self) -> list[Shape]:
        """All that are known."""
        return [shape for _, shape in self._known.values()]


def tables_of(shapes: Mapping[int, Shape] | Sequence[Shape]) -> list[SourceTable]:
    """What a sink is set up with: tables that are gone are left out."""
    found = shapes.values() if isinstance(shapes, Mapping) else shapes
    return [each.for_sink for each in found if each.relation is not None]


def _shape(session: Session, row: Mapping[str, Any]) -> Shape:
    found = None
    if row["relation"] is not None and len(row["key"]) == row["key_size"]:
        with session.errors():
            found = read_table(session.connection, row["schema"], row["relation"])
    if found is None:
        return Shape(row["source"], row["name"], None, (), (), (), (), "", "", False, None, "true", (), ())
    only = "" if row["kind"] == "p" else "ONLY "
    keys = [column for name in row["key"] if (column := found.column(name)) is not None]
    is_integer = len(keys) == 1 and _type(keys[0]).integer_bytes > 0
    relation = sql.SQL("{}{}").format(sql.SQL(only), sql.Identifier(found.schema, found.name))
    types = [_type(column) for column in found.columns]
    return Shape(
        source=row["source"],
        table=row["name"],
        relation=relation.as_string(session.connection),
        columns=tuple((column.name, column.type) for column in found.columns),
        key=tuple(column.name for column in keys),
        key_types=tuple(column_spec(column).type for column in keys),
        equals=tuple(_equality(column) for column in keys),
        key_sql=_joined([_key_text(column, plain=is_integer) for column in keys], session),
        values_sql=_joined([scalar_value(column) for column in found.columns], session),
        is_integer=is_integer,
        shard_sql=row["shard_sql"] if row["is_routed"] else None,
        condition=row["condition"],
        floats=tuple(place for place, kind in enumerate(types) if kind.is_float),
        texts=tuple(place for place, kind in enumerate(types) if kind.is_python_text),
    )


def _type(column: Column) -> TypeRow:
    return type_named(column.base_schema, column.base_name)


def _joined(parts: Sequence[sql.Composable], session: Session) -> str:
    return sql.SQL(", ").join(parts).as_string(session.connection)


def _equality(column: Column) -> str:
    """Other people's types bring their own, in their own schema; the search path is pinned to the server's."""
    if column.base_schema == "pg_catalog" or column.base_kind != "b" or column.base_name.startswith("_"):
        return "="
    return sql.SQL("OPERATOR({}.=)").format(sql.Identifier(column.base_schema)).as_string(None)


def _key_text(column: Column, *, plain: bool) -> sql.Composed:
    """As a pod has it: an integer, or the text of the column."""
    return sql.SQL("r.{}::{}").format(sql.Identifier(column.name), sql.SQL("int8" if plain else "text"))
