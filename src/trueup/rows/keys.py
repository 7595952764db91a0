"""Blocks and lists of keys, as values and as predicates that mean the same on every node.

A chain of blocks `(-∞, b1), [b1, b2), …, [bn, ∞)` covers every row whatever the boundaries are, even out of order:
walking along the chain, a row is at or after one boundary and before the next at least once. So bad statistics or a
strange collation can cost balance, never coverage.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from psycopg import sql

from trueup.rows.encode import base_value, text_of, trim_scale
from trueup.rows.spec import KeySpec, TableSpec

if TYPE_CHECKING:
    from psycopg import sql

KeyValues = tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """A half-open key range `[start, end)`; None is an open end."""

    start: KeyValues | None
    end: KeyValues | None

    def __str__(self) -> str:
        return f"block [{_shown(self.start, '-∞')}, {_shown(self.end, '∞')})"


def chain(boundaries: Iterable[KeyValues], within: Block | None = None) -> list[Block]:
    """The blocks between boundaries, open at both ends, or filling `within`."""
    within = within or Block(None, None)
    edges = [within.start, *boundaries, within.end]
    return [Block(start, end) for start, end in pairwise(edges)]


def source(spec: TableSpec, sample: sql.Composable | None = None) -> sql.Composed:
    """What stands behind FROM: the table."""
    table = sql.Identifier(spec.schema, spec.table)
    return sql.SQL("{} {}").format(table, sample) if sample else sql.SQL("{}").format(table)


def where(spec: TableSpec, *conditions: sql.Composable) -> sql.Composed:
    """A WHERE of the table's filter and more conditions, or nothing."""
    parts = list(conditions)
    if spec.filter:
        # A line of its own: a comment at the end of the filter must not swallow the bracket.
        parts.insert(0, sql.SQL("(\n{}\n)").format(sql.SQL(spec.filter)))
    if not parts:
        return sql.SQL("").format()
    return sql.SQL(" WHERE ") + sql.SQL(" AND ").join(parts)


def in_block(spec: TableSpec, block: Block) -> list[sql.Composable]:
    """The conditions that hold for the rows of a block."""
    conditions: list[sql.Composable] = []
    for edge, sign in ((block.start, sql.SQL(">=")), (block.end, sql.SQL("<"))):
        if edge is not None:
            conditions.append(
                sql.SQL("({}) {} ({})").format(order_by(spec), sign, sql.SQL(", ").join(literals(spec.key, edge)))
            )
    return conditions


def order_by(spec: TableSpec) -> sql.Composed:
    """The key as an ordering list."""
    return sql.SQL(", ").join(ordered(part) for part in spec.key)


def ordered(part: KeySpec) -> sql.Composable:
    """One key column in the form it is ordered and looked up by."""
    if part.order == "bytes":
        return sql.SQL('({} COLLATE "C")').format(text_of(part.column))
    return base_value(part.column)


def literals(key: Sequence[KeySpec], values: KeyValues) -> list[sql.Composable]:
    """Key values as typed literals that compare with `ordered`."""
    return [
        sql.SQL("{}::{}").format(
            sql.Literal(value),
            sql.SQL('text COLLATE "C"') if part.order == "bytes" else sql.SQL(part.column.type),
        )
        for part, value in zip(key, values, strict=True)
    ]


def key_texts(spec: TableSpec) -> sql.Composed:
    """The key's values as text, as a select list."""
    return sql.SQL(", ").join(text_of(part.column) for part in spec.key)


def canonical(spec: TableSpec, values: Sequence[str]) -> KeyValues:
    """The key in the one form that is equal whenever the nodes would call two keys equal."""
    return tuple(
        trim_scale(value) if part.column.encoding == "numeric" else value
        for part, value in zip(spec.key, values, strict=True)
    )


def _shown(edge: KeyValues | None, otherwise: str) -> str:
    return otherwise if edge is None else ", ".join(edge)
