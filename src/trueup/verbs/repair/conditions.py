"""Conditions in SQL over the rows of a key: asked of a node, for only a database can say what an expression means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from psycopg import sql

from trueup.rows.write.copy_text import split, text_of_field
from trueup.task.job import Job
from trueup.verbs.repair.layout import Layout
from trueup.verbs.repair.lines import Line
from trueup.verbs.repair.modes import Batch, Mode

if TYPE_CHECKING:
    from psycopg import sql

_KEYS_A_STATEMENT = 500


@runtime_checkable
class Conditions(Protocol):
    """A mode that has to ask a node before it can decide."""

    def known(self, job: Job, batch: Batch) -> Mode:
        """The mode with the answers for these keys."""
        ...


def answers(job: Job, batch: Batch, conditions: Sequence[sql.Composable]) -> list[list[bool]]:
    """For every key, which of the conditions hold; the rows of the nodes go by their names, and `key` is the key."""
    found: list[list[bool]] = [[False] * len(conditions) for _ in batch.keys]
    first = batch.nodes[0]
    for start in range(0, len(batch.keys), _KEYS_A_STATEMENT):
        places = range(start, min(start + _KEYS_A_STATEMENT, len(batch.keys)))
        query = _query(batch, places, conditions)
        rows = job.read((first,), lambda reader, query=query: reader.rows(query, timeout=job.timeout * 4))[first]  # type: ignore[misc]
        for place, *holds in rows:
            found[place] = [each is True for each in holds]
    return found


def _query(batch: Batch, places: Sequence[int], conditions: Sequence[sql.Composable]) -> sql.Composed:
    layout, spec = batch.layout, batch.layout.spec
    lines = sql.SQL(", ").join(_values(batch, at) for at in places)
    names = [f"{prefix}{at}" for prefix in _prefixes(batch) for at in range(_width(layout, prefix))]
    tables = [_row(layout, node, f"n{number}_") for number, node in enumerate(batch.nodes)]
    key = sql.SQL(", ").join(
        sql.SQL("v.{}::{} AS {}").format(
            sql.Identifier(f"k_{at}"), sql.SQL(part.column.type), sql.Identifier(part.column.name)
        )
        for at, part in enumerate(spec.key)
    )
    tables.append(sql.SQL("LATERAL (SELECT {}) AS key").format(key))
    return sql.SQL("SELECT v.place, {conditions} FROM (VALUES {lines}) AS v (place, {names}), {tables}").format(
        conditions=sql.SQL(", ").join(sql.SQL("({})").format(each) for each in conditions),
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
        sql.SQL("v.{}::{} AS {}").format(
            sql.Identifier(f"{prefix}{at}"), sql.SQL(column.type), sql.Identifier(column.name)
        )
        for at, column in enumerate(layout.carried)
    )
    return sql.SQL("LATERAL (SELECT {}) AS {}").format(columns, sql.Identifier(node))


def _values(batch: Batch, at: int) -> sql.Composed:
    width = len(batch.layout.carried)
    texts: list[str | None] = [*batch.keys[at]]
    for line in batch.lines(at):
        texts += _texts(line, width)
    values = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Literal(text)) for text in texts)
    return sql.SQL("({}, {})").format(sql.Literal(at), values)


def _texts(line: Line | None, width: int) -> list[str | None]:
    """A row that is not there has no values."""
    if line is None:
        return [None] * width
    return [text_of_field(field) for field in split(line.fields)[:width]]
