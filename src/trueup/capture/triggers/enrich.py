"""Enrichment: the rows of touched keys as they are now, a query a group of keys and source; what is absent is None.

A row counts as absent if it is not there, does not meet the predicates, is written with another key text (numeric 1.0
and 1.00 are equal, and not the same document), or, where a table has a routing expression, belongs to another shard.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from trueup.capture.triggers.batch import Key, Keys, texts, written
from trueup.capture.triggers.document import Document
from trueup.capture.triggers.shape import Shape
from trueup.db.reader import Reader
from trueup.errors import QueryError

# Classes of errors that say nothing of the row: conflicts, resources, locks, operators, the system; and that a table
# or column is not there any more, which reading the catalog again cures.
PASSING = ("08", "25", "40", "42", "53", "55", "57", "58", "XX")
# Attempts to repeat a read after a lost connection.
RETRIES = 2
_FIRST_GROUP = 100


@dataclass(frozen=True)
class Refused:
    """A key that could not be delivered, written as in a pod, and why."""

    source: int
    shard: int
    key: str
    op: str
    error: str


class Groups:
    """How many keys of a table to read at once, so that their rows stay within so many bytes."""

    def __init__(self, most_keys: int, most_bytes: int) -> None:
        self.most_keys = most_keys
        self.most_bytes = most_bytes
        self._sizes: dict[int, int] = {}

    def size(self, source: int) -> int:
        """Keys of the next group; small as long as nothing is known of the rows."""
        return self._sizes.get(source, min(_FIRST_GROUP, self.most_keys))

    def learn(self, source: int, keys: int, read: int) -> None:
        """A group of so many keys had so many bytes."""
        fitting = int(self.most_bytes / 2 / max(read / max(keys, 1), 1))
        self._sizes[source] = max(1, min(self.most_keys, fitting, self.size(source) * 8))


def enriched(
    reader: Reader, keys: Keys, shapes: Mapping[int, Shape], groups: Groups, refused: list[Refused]
) -> Iterator[list[Document]]:
    """The documents of all keys, in chunks of bounded size; keys whose row cannot be read go to `refused`."""
    chunk: list[Document] = []
    room = groups.most_bytes
    for source, wanted in keys.items():
        shape = shapes[source]
        if shape.relation is None:
            continue
        waiting = [each for each in wanted if fits(shape, each[1])]
        if len(waiting) < len(wanted):
            refused += [
                Refused(source, shard, written(key), op, "the table has another key by now")
                for (shard, key), op in wanted.items()
                if not fits(shape, key)
            ]
        while waiting:
            group, waiting = waiting[: groups.size(source)], waiting[groups.size(source) :]
            documents, read = _group(reader, shape, group, wanted, refused)
            groups.learn(source, len(group), read)
            if chunk and (read > room or len(chunk) >= groups.most_keys):
                yield chunk
                chunk, room = [], groups.most_bytes
            chunk += documents
            room -= read
    if chunk:
        yield chunk


def fits(shape: Shape, key: Key) -> bool:
    """Whether a key is of the kind that the table has now; one that was attached again may have another."""
    return shape.is_integer if isinstance(key, int) else len(key) == len(shape.key) and not shape.is_integer


def _group(
    reader: Reader,
    shape: Shape,
    group: Sequence[tuple[int, Key]],
    ops: Mapping[tuple[int, Key], str],
    refused: list[Refused],
) -> tuple[list[Document], int]:
    """The documents of a group, and their bytes. An error that is of one row is narrowed down to it."""
    try:
        rows = reader.rows(_select(shape, {key for _, key in group}))
    except QueryError as error:
        if error.sqlstate[:2] in PASSING:
            raise
        if len(group) == 1:
            shard, key = group[0]
            reason = f"its row cannot be read: {error}"
            refused.append(Refused(shape.source, shard, written(key), ops[shard, key], reason))
            return [], 0
        half = len(group) // 2
        parts = [_group(reader, shape, part, ops, refused) for part in (group[:half], group[half:])]
        return parts[0][0] + parts[1][0], parts[0][1] + parts[1][1]
    found, read = _by_key(shape, rows)
    table, get = shape.table, found.get
    if shape.shard_sql is None:
        return [Document(table, each[0], texts(each[1]), ops[each], get(each[1])) for each in group], read
    return [Document(table, each[0], texts(each[1]), ops[each], get(each)) for each in group], read


def _by_key(shape: Shape, rows: list[tuple[Any, ...]]) -> tuple[dict[Any, dict[str, Any]], int]:
    """Rows by their key (and shard, if that is computed for each row), and their bytes."""
    size = len(shape.key)
    first = size + (shape.shard_sql is not None)
    names = [name for name, _ in shape.columns]
    read = 64 * len(rows) * (len(names) + 2)
    for at in shape.texts:
        read += sum(len(row[first + at]) for row in rows if row[first + at] is not None)
    if shape.shard_sql is None and shape.is_integer:
        found: dict[Any, dict[str, Any]] = {row[0]: dict(zip(names, row[1:], strict=True)) for row in rows}
    elif shape.shard_sql is None:
        found = {row[:size]: dict(zip(names, row[size:], strict=True)) for row in rows}
    else:
        found = {
            (row[size], row[0] if shape.is_integer else row[:size]): dict(zip(names, row[first:], strict=True))
            for row in rows
        }
    for at in shape.floats:
        name = names[at]
        for row in found.values():
            if row[name] is not None and not math.isfinite(row[name]):
                row[name] = _not_finite(row[name])
    return found, read


def _not_finite(value: float) -> str:
    """As PostgreSQL writes it; JSON has no such number."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _select(shape: Shape, keys: set[Key]) -> sql.Composed:
    """The inner query finds rows by key alone, so that a predicate is never tried on rows that were not touched."""
    names = [_raw(f"k{at}") for at in range(len(shape.key))]
    columns = zip(*(texts(key) for key in keys), strict=True)
    arrays = [
        sql.SQL("{}::{}[]").format(sql.Literal(_array(column, shape.is_integer)), _raw(kind))
        for column, kind in zip(columns, ("int8",) if shape.is_integer else shape.key_types, strict=True)
    ]
    joined = [
        sql.SQL("t.{} {} k.{}").format(sql.Identifier(column), _raw(equals), name)
        for column, equals, name in zip(shape.key, shape.equals, names, strict=True)
    ]
    selected = [shape.key_sql, shape.shard_sql, shape.values_sql]
    return sql.SQL(
        "SELECT {selected} FROM (SELECT t.* FROM unnest({arrays}) k({names}) JOIN {table} t ON {joined} OFFSET 0) r"
        " WHERE {condition}"
    ).format(
        selected=sql.SQL(", ").join(_raw(part) for part in selected if part is not None),
        arrays=sql.SQL(", ").join(arrays),
        names=sql.SQL(", ").join(names),
        table=_raw(shape.relation or ""),
        joined=sql.SQL(" AND ").join(joined),
        condition=_raw(shape.condition),
    )


def _raw(text: str) -> sql.SQL:
    """SQL that was quoted when the shape was made, or that the tube's owner wrote."""
    return sql.SQL(text)


def _array(values: Sequence[str], is_plain: bool) -> str:
    """An array as the server reads it."""
    if is_plain:
        return "{" + ",".join(values) + "}"
    return "{" + ",".join('"' + each.replace("\\", "\\\\").replace('"', '\\"') + '"' for each in values) + "}"
