"""Blocks and lists of keys, as values and as SQL conditions that select the same rows on every node.

A chain of blocks `(-∞, b1), [b1, b2), …, [bn, ∞)` covers every row for any boundaries, even if they are not in order:
every row is at or after one boundary and before the next one at least once. Bad statistics or an unusual collation can
therefore make blocks uneven, but cannot lose rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from psycopg import sql

from trueup.rows.encode import base_value, text_of, trim_scale
from trueup.rows.spec import KeySpec, TableSpec

KeyValues = tuple[str, ...]
_Expressions = Sequence[sql.Composable]
_SIGNS = {"=": sql.SQL("="), ">": sql.SQL(">"), ">=": sql.SQL(">="), "<": sql.SQL("<")}


@dataclass(frozen=True)
class Block:
    """A half-open key range `[start, end)`; None is an open end."""

    start: KeyValues | None
    end: KeyValues | None

    def __str__(self) -> str:
        return f"block [{_shown(self.start, '-∞')}, {_shown(self.end, '∞')})"


def chain(boundaries: Iterable[KeyValues], within: Block | None = None) -> list[Block]:
    """Return the blocks between the boundaries; they cover `within`, or all keys."""
    within = within or Block(None, None)
    edges = [within.start, *boundaries, within.end]
    return [Block(start, end) for start, end in pairwise(edges)]


def source(spec: TableSpec, sample: sql.Composable | None = None) -> sql.Composed:
    """Return the FROM clause: the table, optionally with TABLESAMPLE."""
    table = sql.Identifier(spec.schema, spec.table)
    return sql.SQL("{} {}").format(table, sample) if sample else sql.SQL("{}").format(table)


def where(spec: TableSpec, *conditions: sql.Composable) -> sql.Composed:
    """Return a WHERE clause of the filter of the table and these conditions; empty without any."""
    parts = list(conditions)
    if spec.filter:
        # On its own line, because the filter may end with a comment.
        parts.insert(0, sql.SQL("(\n{}\n)").format(sql.SQL(spec.filter)))
        if spec.filter_guard:
            parts.insert(0, sql.SQL(spec.filter_guard))
    if not parts:
        return sql.SQL("").format()
    return sql.SQL(" WHERE ") + sql.SQL(" AND ").join(parts)


def in_block(spec: TableSpec, block: Block) -> list[sql.Composable]:
    """Return the conditions that select the rows of a block: those with `(key) >= (start) AND (key) < (end)`.

    The planner estimates the two comparisons of rows each by its first column: together up to a quarter of the table
    for any block, so above some size it would scan the whole table for each block. Servers below 18 also read an index
    on while the first column of a compared row stays the same. So columns in which both edges agree are compared with
    `=`, and a comparison of rows has the ranges of single columns beside it that follow from it.
    """
    columns = [ordered(part) for part in spec.key]
    start, end = (None if edge is None else literals(spec.key, edge) for edge in (block.start, block.end))
    same = 0
    if block.start is not None and block.end is not None:
        # The last column always has a range: a block from a key to itself has no rows.
        while same < len(columns) - 1 and block.start[same] == block.end[same]:
            same += 1
    rest = columns[same:]
    conditions: list[sql.Composable] = []
    if start is not None:
        conditions += [_compared([columns[place]], "=", [start[place]]) for place in range(same)]
        conditions.append(_compared(rest, ">=", start[same:]))
    if end is not None:
        conditions.append(_compared(rest, "<", end[same:]))
    if start is not None and end is not None and len(rest) > 1:
        conditions.append(_ranges(rest, start[same:], end[same:]))
    return conditions


def _ranges(columns: _Expressions, start: _Expressions, end: _Expressions) -> sql.Composed:
    """Return ranges of single columns that together contain the rows from `start` up to `end`."""
    last = len(columns) - 1
    ranges = [[_compared(columns[:1], ">", start[:1]), _compared(columns[:1], "<", end[:1])]]
    for place in range(1, last + 1):
        for edge, sign in ((start, ">=" if place == last else ">"), (end, "<")):
            same = [_compared([columns[before]], "=", [edge[before]]) for before in range(place)]
            ranges.append([*same, _compared([columns[place]], sign, [edge[place]])])
    return sql.SQL("({})").format(sql.SQL(" OR ").join(sql.SQL(" AND ").join(tests) for tests in ranges))


def _compared(columns: _Expressions, sign: str, values: _Expressions) -> sql.Composed:
    comma = sql.SQL(", ")
    return sql.SQL("({}) {} ({})").format(comma.join(columns), _SIGNS[sign], comma.join(values))


def has_null(columns: Iterable[str]) -> sql.Composed:
    """Return the condition that a row has NULL in one of these columns, which the planner does not answer by itself.

    It answers IS NULL where the catalog says NOT NULL, which need not be true of the rows.
    """
    names = sql.SQL(", ").join(sql.Identifier(name) for name in columns)
    return sql.SQL("(pg_catalog.num_nulls({}) OPERATOR(pg_catalog.>) 0)").format(names)


def order_by(spec: TableSpec) -> sql.Composed:
    """Return the key columns as an ORDER BY list."""
    return sql.SQL(", ").join(ordered(part) for part in spec.key)


def ordered(part: KeySpec, row: str = "") -> sql.Composable:
    """Return the expression by which a key column, of the row `row`, is ordered and looked up."""
    if part.order == "bytes":
        return sql.SQL('({} COLLATE pg_catalog."C")').format(text_of(part.column, row))
    return base_value(part.column, row)


def literals(key: Sequence[KeySpec], values: KeyValues) -> list[sql.Composable]:
    """Return key values as typed literals that can be compared with `ordered`."""
    return [
        sql.SQL("{}::{}").format(
            sql.Literal(value),
            sql.SQL('text COLLATE "C"') if part.order == "bytes" else sql.SQL(part.column.type),
        )
        for part, value in zip(key, values, strict=True)
    ]


def key_texts(spec: TableSpec) -> sql.Composed:
    """Return the texts of the key columns as a select list."""
    return sql.SQL(", ").join(text_of(part.column) for part in spec.key)


def canonical(spec: TableSpec, values: Sequence[str]) -> KeyValues:
    """Return the canonical form of a key: keys that are equal for the nodes have equal forms."""
    return tuple(
        trim_scale(value) if part.column.encoding == "numeric" else value
        for part, value in zip(spec.key, values, strict=True)
    )


def _shown(edge: KeyValues | None, default: str) -> str:
    return default if edge is None else ", ".join(edge)
