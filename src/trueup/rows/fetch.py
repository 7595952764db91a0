"""Rows out of a node: keys with their row hash by block, whole rows by key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from psycopg import sql

from trueup.db.reader import Reader
from trueup.errors import CheckFailed
from trueup.rows.encode import Value, decode, row_hash, value_of
from trueup.rows.keys import (
    Block,
    KeyValues,
    canonical,
    in_block,
    key_texts,
    literals,
    ordered,
    source,
    where,
)
from trueup.rows.spec import TableSpec
from trueup.rows.types import type_of

if TYPE_CHECKING:
    from psycopg import sql

_KEYS_A_STATEMENT = 5000


class Row(NamedTuple):
    """One row as a node holds it: its hash and, where asked for, its values in the order of the spec."""

    hash: int
    values: tuple[Value, ...] | None = None


def hashes_in_block(
    reader: Reader, spec: TableSpec, block: Block, *, timeout: float, also: Sequence[sql.Composable] = ()
) -> dict[KeyValues, Row]:
    """Key and row hash of the rows of a block that meet further conditions: a few bytes a row instead of the row."""
    query = sql.SQL("SELECT {keys}, {hash} FROM {source}{where}").format(
        keys=key_texts(spec),
        hash=row_hash(spec),
        source=source(spec),
        where=where(spec, *in_block(spec, block), *also),
    )
    width = len(spec.key)
    return _by_key(reader, spec, ((row[:width], Row(row[width])) for row in reader.rows(query, timeout=timeout)))


def rows_by_key(
    reader: Reader, spec: TableSpec, keys: Sequence[KeyValues], *, values: bool, timeout: float
) -> dict[KeyValues, Row]:
    """The rows of these keys as they are now; a key that is not there has no row."""
    wanted: list[sql.Composable] = [key_texts(spec), row_hash(spec)]
    if values:
        wanted += [value_of(column, spec) for column in spec.columns]
    width = len(spec.key)
    found: dict[KeyValues, Row] = {}
    for at in range(0, len(keys), _KEYS_A_STATEMENT):
        query = sql.SQL("SELECT {wanted} FROM {source}{where}").format(
            wanted=sql.SQL(", ").join(wanted),
            source=source(spec),
            where=where(spec, among(spec, keys[at : at + _KEYS_A_STATEMENT])),
        )
        fetched = reader.rows(query, timeout=timeout)
        values_of = _decoded(spec, width + 1) if values else lambda row: None
        found.update(_by_key(reader, spec, ((row[:width], Row(row[width], values_of(row))) for row in fetched)))
    return found


def among(spec: TableSpec, keys: Sequence[KeyValues]) -> sql.Composed:
    """The condition that a row's key is one of these."""
    mine = sql.SQL(", ").join(ordered(part) for part in spec.key)
    if len(spec.key) == 1:
        part = spec.key[0]
        if part.order == "type" and type_of(part.column).unquoted:
            # One literal: thousands of them cost the node more time to read than the rows do.
            listed = sql.Literal("{" + ",".join(key[0] for key in keys) + "}")
            return sql.SQL("{} = ANY({}::{}[])").format(mine, listed, sql.SQL(part.column.type))
        return sql.SQL("{} IN ({})").format(mine, sql.SQL(", ").join(literals(spec.key, key)[0] for key in keys))
    lines = sql.SQL(", ").join(sql.SQL("({})").format(sql.SQL(", ").join(literals(spec.key, key))) for key in keys)
    return sql.SQL("({}) IN (VALUES {})").format(mine, lines)


def _decoded(spec: TableSpec, start: int) -> Callable[[Sequence[str | None]], tuple[Value, ...]]:
    """A function that gives the values of a fetched row; most columns come as they are."""
    marked = [(number, column) for number, column in enumerate(spec.columns) if column.may_be_long]

    def values_of(row: Sequence[str | None]) -> tuple[Value, ...]:
        values: list[Value] = list(row[start:])
        for number, column in marked:
            values[number] = decode(column, row[start + number])
        return tuple(values)

    return values_of


def _by_key(reader: Reader, spec: TableSpec, pairs: Iterable[tuple[Sequence[str], Row]]) -> dict[KeyValues, Row]:
    """Rows by key; a key that comes twice is no key, and nothing can be said of its rows."""
    found: dict[KeyValues, Row] = {}
    twice: Counter[KeyValues] = Counter()
    as_it_is = all(part.column.encoding != "numeric" for part in spec.key)
    for texts, row in pairs:
        key = tuple(texts) if as_it_is else canonical(spec, texts)
        if key in found:
            twice[key] += 1
        found[key] = row
    if twice:
        example = ", ".join(next(iter(twice)))
        raise CheckFailed(
            [f"the key ({', '.join(spec.key_names)}) is not unique: ({example}) stands on more than one row"],
            cure="name columns that are unique with --key",
            node=reader.node.name,
        )
    return found
