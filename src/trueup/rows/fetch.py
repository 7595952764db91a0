"""Read rows from a node: keys and row hashes of a block, or all values of given keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

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

_KEYS_PER_STATEMENT = 5000


class Row(NamedTuple):
    """One row of a node: its hash and, if requested, its values in the order of the spec, and a second hash."""

    hash: int
    values: tuple[Value, ...] | None = None
    proof: int | None = None


def hashes_in_block(
    reader: Reader, spec: TableSpec, block: Block, *, timeout: float, also: Sequence[sql.Composable] = ()
) -> dict[KeyValues, Row]:
    """Return the row hashes of a block by key, for the rows that also meet the conditions `also`."""
    query = sql.SQL("SELECT {keys}, {hash} FROM {source}{where}").format(
        keys=key_texts(spec),
        hash=row_hash(spec),
        source=source(spec),
        where=where(spec, *in_block(spec, block), *also),
    )
    width = len(spec.key)
    found = reader.rows(query, timeout=timeout, scan="pages")
    return _by_key(reader, spec, ((row[:width], Row(row[width])) for row in found))


def rows_by_key(
    reader: Reader, spec: TableSpec, keys: Sequence[KeyValues], *, values: bool, timeout: float, proof: int = 0
) -> dict[KeyValues, Row]:
    """Return the current rows of these keys; a key without a row is missing in the result.

    `proof`: the seed of a second hash, for rows whose first one may have been known when they were written.
    """
    selected: list[sql.Composable] = [key_texts(spec), row_hash(spec)]
    if proof:
        selected.append(row_hash(replace(spec, seed=proof)))
    if values:
        selected += [value_of(column, spec) for column in spec.columns]
    width = len(spec.key)
    first = width + (2 if proof else 1)
    rows: dict[KeyValues, Row] = {}
    for start in range(0, len(keys), _KEYS_PER_STATEMENT):
        query = sql.SQL("SELECT {selected} FROM {source}{where}").format(
            selected=sql.SQL(", ").join(selected),
            source=source(spec),
            where=where(spec, among(spec, keys[start : start + _KEYS_PER_STATEMENT])),
        )
        fetched = reader.rows(query, timeout=timeout)
        values_of = _decoded(spec, first) if values else lambda row: None
        made = ((row[:width], Row(row[width], values_of(row), row[width + 1] if proof else None)) for row in fetched)
        rows.update(_by_key(reader, spec, made))
    return rows


def among(spec: TableSpec, keys: Sequence[KeyValues]) -> sql.Composed:
    """Return the condition that the key of a row is one of these."""
    key_columns = sql.SQL(", ").join(ordered(part) for part in spec.key)
    if len(spec.key) == 1:
        part = spec.key[0]
        if part.order == "type" and type_of(part.column).unquoted:
            # One literal: parsing thousands of literals takes longer than reading the rows.
            listed = sql.Literal("{" + ",".join(key[0] for key in keys) + "}")
            return sql.SQL("{} = ANY({}::{}[])").format(key_columns, listed, sql.SQL(part.column.type))
        return sql.SQL("{} IN ({})").format(key_columns, sql.SQL(", ").join(literals(spec.key, key)[0] for key in keys))
    lines = sql.SQL(", ").join(sql.SQL("({})").format(sql.SQL(", ").join(literals(spec.key, key))) for key in keys)
    return sql.SQL("({}) IN (VALUES {})").format(key_columns, lines)


def _decoded(spec: TableSpec, start: int) -> Callable[[Sequence[str | None]], tuple[Value, ...]]:
    """Return a function that decodes a fetched row; only columns that may be long need decoding."""
    long_columns = [(number, column) for number, column in enumerate(spec.columns) if column.may_be_long]

    def values_of(row: Sequence[str | None]) -> tuple[Value, ...]:
        values: list[Value] = list(row[start:])
        for number, column in long_columns:
            values[number] = decode(column, row[start + number])
        return tuple(values)

    return values_of


def _by_key(reader: Reader, spec: TableSpec, pairs: Iterable[tuple[Sequence[str], Row]]) -> dict[KeyValues, Row]:
    """Return the rows by key; raise CheckFailed if a key occurs twice."""
    rows: dict[KeyValues, Row] = {}
    twice: Counter[KeyValues] = Counter()
    is_canonical = all(part.column.encoding != "numeric" for part in spec.key)
    for texts, row in pairs:
        if None in texts:
            raise CheckFailed(
                [f"a row has NULL in its key ({', '.join(spec.key_names)})"],
                cure="choose columns without NULLs with --key",
                node=reader.node.name,
            )
        key = tuple(texts) if is_canonical else canonical(spec, texts)
        if key in rows:
            twice[key] += 1
        rows[key] = row
    if twice:
        example = ", ".join(next(iter(twice)))
        raise CheckFailed(
            [f"the key ({', '.join(spec.key_names)}) is not unique: more than one row has ({example})"],
            cure="choose unique columns with --key",
            node=reader.node.name,
        )
    return rows
