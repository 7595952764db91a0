"""Evaluate the SQL conditions of a plan on a node, over the rows of all nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

from psycopg import sql

from trueup.db.names import display_name
from trueup.db.reader import Reader
from trueup.errors import QueryError
from trueup.rows.write.copy_text import split, text_of_field
from trueup.task.job import Job
from trueup.verbs.repair.layout import Layout
from trueup.verbs.repair.lines import Line
from trueup.verbs.repair.modes import Batch, Mode

_KEYS_PER_STATEMENT = 500
# Classes of SQLSTATE that are not caused by an expression: transaction, resources, locks, time limits, system, defects.
_OTHER_CAUSES = ("25", "40", "53", "55", "57", "58", "XX")


@dataclass(frozen=True)
class Condition:
    """An SQL condition of a plan, and its place in the plan for messages."""

    place: str
    text: sql.Composable


@runtime_checkable
class Conditions(Protocol):
    """A mode with SQL conditions, which a node evaluates before the mode can decide."""

    def known(self, job: Job, batch: Batch) -> Mode:
        """Return the mode with the values of its conditions for these keys."""
        ...


def name_of_key(nodes: Sequence[str]) -> str:
    """Return the name of the key in a condition: `key`, with underscores after it if nodes have this name."""
    return _free_name("key", nodes)


def evaluate(job: Job, batch: Batch, conditions: Sequence[Condition]) -> list[list[bool]]:
    """Return for every key which conditions hold; an error names the condition and the key.

    In a condition, the row of a node has the name of the node, and `name_of_key` is the key.
    """
    values: list[list[bool]] = [[False] * len(conditions) for _ in batch.keys]
    for start in range(0, len(batch.keys), _KEYS_PER_STATEMENT):
        places = range(start, min(start + _KEYS_PER_STATEMENT, len(batch.keys)))
        try:
            rows = _read(job, batch, places, conditions)
        except QueryError as error:
            raise _located(job, batch, places, conditions, error) from None
        for place, *holds in rows:
            values[place] = holds
    return values


def _read(job: Job, batch: Batch, places: Sequence[int], conditions: Sequence[Condition]) -> list[tuple[Any, ...]]:
    first = batch.nodes[0]
    query = _query(batch, places, conditions)
    return job.read((first,), partial(_rows, query, job.timeout * 4))[first]


def _located(
    job: Job, batch: Batch, places: Sequence[int], conditions: Sequence[Condition], error: QueryError
) -> QueryError:
    """Return the error with the condition and the key that cause it; as it is if none of them does alone."""
    if error.sqlstate[:2] in _OTHER_CAUSES:
        return error
    for condition in conditions:
        left = places
        failure = _failure(job, batch, left, condition)
        while failure and len(left) > 1:
            half = left[: len(left) // 2]
            failure_of_half = _failure(job, batch, half, condition)
            left = half if failure_of_half else left[len(left) // 2 :]
            failure = failure_of_half or _failure(job, batch, left, condition)
        if failure:
            return _naming(batch, left[0], condition, failure)
    return error


def _failure(job: Job, batch: Batch, places: Sequence[int], condition: Condition) -> QueryError | None:
    try:
        _read(job, batch, places, [condition])
    except QueryError as error:
        return error
    return None


def _naming(batch: Batch, place: int, condition: Condition, error: QueryError) -> QueryError:
    spec = batch.layout.spec
    key = ", ".join(f"{name} {value}" for name, value in zip(spec.key_names, batch.keys[place], strict=True))
    return QueryError(
        f"{condition.place}: {error.message}",
        sqlstate=error.sqlstate,
        cure="change the condition: it is evaluated for every key of the report, also where another rule decides",
        node=error.node,
        table=display_name(spec.schema, spec.table),
        block=f"key ({key})",
    )


def _rows(query: sql.Composed, timeout: float, reader: Reader) -> list[tuple[Any, ...]]:
    return reader.rows(query, timeout=timeout)


def _query(batch: Batch, places: Sequence[int], conditions: Sequence[Condition]) -> sql.Composed:
    layout, spec = batch.layout, batch.layout.spec
    # The names of nodes are chosen by the user: no other name in the statement may be one of them.
    values = sql.Identifier(_free_name("v", batch.nodes))
    lines = sql.SQL(", ").join(_values(batch, place) for place in places)
    names = [f"{prefix}{number}" for prefix in _prefixes(batch) for number in range(_width(layout, prefix))]
    tables = [
        _row(values, f"n{number}_", [column.name for column in layout.carried], node)
        for number, node in enumerate(batch.nodes)
    ]
    tables.append(_row(values, "k_", spec.key_names, name_of_key(batch.nodes)))
    return sql.SQL("SELECT {v}.place, {conditions} FROM (VALUES {lines}) AS {v} (place, {names}), {tables}").format(
        v=values,
        # IS TRUE: the server refuses a value that is not boolean.
        conditions=sql.SQL(", ").join(sql.SQL("({}) IS TRUE").format(condition.text) for condition in conditions),
        lines=lines,
        names=sql.SQL(", ").join(map(sql.Identifier, names)),
        tables=sql.SQL(", ").join(tables),
    )


def _free_name(name: str, nodes: Sequence[str]) -> str:
    """Return the name, with as many underscores after it as are needed to differ from the names of all nodes."""
    while name in nodes:
        name += "_"
    return name


def _prefixes(batch: Batch) -> list[str]:
    return ["k_", *(f"n{number}_" for number in range(len(batch.nodes)))]


def _width(layout: Layout, prefix: str) -> int:
    return len(layout.spec.key) if prefix == "k_" else len(layout.carried)


def _row(values: sql.Identifier, prefix: str, names: Sequence[str], alias: str) -> sql.Composed:
    columns = sql.SQL(", ").join(
        sql.SQL("{}.{} AS {}").format(values, sql.Identifier(f"{prefix}{number}"), sql.Identifier(name))
        for number, name in enumerate(names)
    )
    return sql.SQL("LATERAL (SELECT {}) AS {}").format(columns, sql.Identifier(alias))


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
