"""Evaluate the SQL conditions of a plan on a node, over the rows of all nodes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

from psycopg import sql

from trueup.config.settings import ExpressionSettings
from trueup.db.expressions import Expression, check
from trueup.db.reader import Reader
from trueup.db.snapshot import Control
from trueup.rows.write.copy_text import split, text_of_field
from trueup.task.job import Job
from trueup.verbs.repair.layout import Layout
from trueup.verbs.repair.lines import Line
from trueup.verbs.repair.modes import Batch, Mode

_KEYS_PER_STATEMENT = 500


@runtime_checkable
class Conditions(Protocol):
    """A mode with SQL conditions, which a node evaluates before the mode can decide."""

    def known(self, job: Job, batch: Batch) -> Mode:
        """Return the mode with the values of its conditions for these keys."""
        ...


def evaluate(job: Job, batch: Batch, conditions: Sequence[sql.Composable]) -> list[list[bool]]:
    """Return for every key which conditions hold.

    In a condition, the row of a node has the name of the node, and `key` is the key.
    """
    values: list[list[bool]] = [[False] * len(conditions) for _ in batch.keys]
    first = batch.nodes[0]
    for start in range(0, len(batch.keys), _KEYS_PER_STATEMENT):
        places = range(start, min(start + _KEYS_PER_STATEMENT, len(batch.keys)))
        query = _query(batch, places, conditions)
        rows = job.read((first,), partial(_rows, query, job.timeout * 4))[first]
        for place, *holds in rows:
            values[place] = [value is True for value in holds]
    return values


def check_conditions(
    control: Control, nodes: Sequence[str], layout: Layout, conditions: Sequence[str], allowed: ExpressionSettings
) -> None:
    """Raise CheckFailed if a condition calls a function that is not allowed, on the node that evaluates it."""
    spec, carried = layout.spec, [column.name for column in layout.carried]
    columns = {**dict.fromkeys(nodes, carried), "key": list(spec.key_names)}
    source = sql.SQL(", ").join(
        sql.SQL("(SELECT {} FROM {}) AS {}").format(
            sql.SQL(", ").join(map(sql.Identifier, names)),
            sql.Identifier(spec.schema, spec.table),
            sql.Identifier(name),
        )
        for name, names in columns.items()
    )
    for text in conditions:
        check(control.connection, control.node, Expression("the plan: where", text, source), allowed)


def _rows(query: sql.Composed, timeout: float, reader: Reader) -> list[tuple[Any, ...]]:
    return reader.rows(query, timeout=timeout)


def _query(batch: Batch, places: Sequence[int], conditions: Sequence[sql.Composable]) -> sql.Composed:
    layout, spec = batch.layout, batch.layout.spec
    lines = sql.SQL(", ").join(_values(batch, place) for place in places)
    names = [f"{prefix}{number}" for prefix in _prefixes(batch) for number in range(_width(layout, prefix))]
    tables = [_row(layout, node, f"n{number}_") for number, node in enumerate(batch.nodes)]
    key = sql.SQL(", ").join(
        sql.SQL("v.{} AS {}").format(sql.Identifier(f"k_{number}"), sql.Identifier(part.column.name))
        for number, part in enumerate(spec.key)
    )
    tables.append(sql.SQL("LATERAL (SELECT {}) AS key").format(key))
    return sql.SQL("SELECT v.place, {conditions} FROM (VALUES {lines}) AS v (place, {names}), {tables}").format(
        conditions=sql.SQL(", ").join(sql.SQL("({})").format(condition) for condition in conditions),
        lines=lines,
        names=sql.SQL(", ").join(map(sql.Identifier, names)),
        tables=sql.SQL(", ").join(tables),
    )


def _prefixes(batch: Batch) -> list[str]:
    return ["k_", *(f"n{number}_" for number in range(len(batch.nodes)))]


def _width(layout: Layout, prefix: str) -> int:
    return len(layout.spec.key) if prefix == "k_" else len(layout.carried)


def _row(layout: Layout, node: str, prefix: str) -> sql.Composed:
    columns = sql.SQL(", ").join(
        sql.SQL("v.{} AS {}").format(sql.Identifier(f"{prefix}{number}"), sql.Identifier(column.name))
        for number, column in enumerate(layout.carried)
    )
    return sql.SQL("LATERAL (SELECT {}) AS {}").format(columns, sql.Identifier(node))


def _values(batch: Batch, place: int) -> sql.Composed:
    layout = batch.layout
    texts: list[str | None] = [*batch.keys[place]]
    types = [part.column.type for part in layout.spec.key]
    for line in batch.lines(place):
        texts += _texts(line, len(layout.carried))
        types += [column.type for column in layout.carried]
    # The input function of the type reads a literal. A text would be cast, maybe by a function of the type's owner.
    values = sql.SQL(", ").join(
        sql.SQL("{}::{}").format(sql.Literal(text), sql.SQL(type_name))
        for text, type_name in zip(texts, types, strict=True)
    )
    return sql.SQL("({}, {})").format(sql.Literal(place), values)


def _texts(line: Line | None, width: int) -> list[str | None]:
    """Return the values of a row; all NULL if there is no row."""
    if line is None:
        return [None] * width
    return [text_of_field(field) for field in split(line.fields)[:width]]
