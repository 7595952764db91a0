"""Enrichment: reads the current rows of touched keys, with one query per source and group of keys.

A key has no row (None) if the row does not exist or does not match the predicates, if its key has another text (numeric
1.0 and 1.00 are equal, but different documents), or, with a routing expression, if the row belongs to another shard.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from psycopg import sql

from trueup.capture.triggers.batch import Key, Keys, Refused, texts, written
from trueup.capture.triggers.document import Document
from trueup.capture.triggers.shape import Shape
from trueup.db.reader import Reader
from trueup.errors import QueryError

# Classes of errors that are not caused by a row: conflicts, resources, locks, operator intervention, system errors; and
# a missing table or column, where the catalog must be read again.
TEMPORARY = ("08", "25", "40", "42", "53", "55", "57", "58", "XX")
# Attempts to repeat a read after a lost connection.
RETRIES = 2
_FIRST_GROUP = 100


class Groups:
    """The number of keys to read with one query, so that the rows need at most `max_bytes`."""

    def __init__(self, max_keys: int, max_bytes: int) -> None:
        self.max_keys = max_keys
        self.max_bytes = max_bytes
        self._sizes: dict[int, int] = {}

    def size(self, source: int) -> int:
        """Return the number of keys of the next group; small until the size of the rows is known."""
        return self._sizes.get(source, min(_FIRST_GROUP, self.max_keys))

    def learn(self, source: int, keys: int, read: int) -> None:
        """Adapt to a group of `keys` keys whose rows had `read` bytes."""
        fitting = int(self.max_bytes / 2 / max(read / max(keys, 1), 1))
        self._sizes[source] = max(1, min(self.max_keys, fitting, self.size(source) * 8))


def enriched(
    reader: Reader, keys: Keys, shapes: Mapping[int, Shape], groups: Groups, refused: list[Refused]
) -> Iterator[list[Document]]:
    """Yield the documents of all keys in chunks of bounded size; add keys whose row cannot be read to `refused`."""
    chunk: list[Document] = []
    room = groups.max_bytes
    for source, operations in keys.items():
        shape = shapes[source]
        if shape.relation is None:
            continue
        waiting = [item for item in operations if fits(shape, item[1])]
        if len(waiting) < len(operations):
            refused += [
                Refused(source, shard, written(key), op, "the key of the table has changed since the touch")
                for (shard, key), op in operations.items()
                if not fits(shape, key)
            ]
        while waiting:
            group, waiting = waiting[: groups.size(source)], waiting[groups.size(source) :]
            documents, read = _group(reader, shape, group, operations, refused)
            groups.learn(source, len(group), read)
            if chunk and (read > room or len(chunk) >= groups.max_keys):
                yield chunk
                chunk, room = [], groups.max_bytes
            chunk += documents
            room -= read
    if chunk:
        yield chunk


def fits(shape: Shape, key: Key) -> bool:
    """Whether a key has the form of the current key of the table, which may have changed since the touch."""
    return shape.is_integer if isinstance(key, int) else len(key) == len(shape.key) and not shape.is_integer


def _group(
    reader: Reader,
    shape: Shape,
    group: Sequence[tuple[int, Key]],
    ops: Mapping[tuple[int, Key], str],
    refused: list[Refused],
) -> tuple[list[Document], int]:
    """Return the documents of a group and their size in bytes. An error of one row is narrowed down to that row."""
    try:
        rows = reader.rows(rows_query(shape, {key for _, key in group}))
    except QueryError as error:
        if error.sqlstate[:2] in TEMPORARY:
            error.table = error.table or shape.table
            raise
        if len(group) == 1:
            shard, key = group[0]
            why = _unreadable(reader, shape, key)
            reason = why or f"the row cannot be read: {error}"
            refused.append(Refused(shape.source, shard, written(key), ops[shard, key], reason, is_unreadable=bool(why)))
            return [], 0
        half = len(group) // 2
        first, first_bytes = _group(reader, shape, group[:half], ops, refused)
        second, second_bytes = _group(reader, shape, group[half:], ops, refused)
        return first + second, first_bytes + second_bytes
    rows_by_key, read = _by_key(shape, rows)
    table, get = shape.table, rows_by_key.get
    if shape.shard_sql is None:
        return [Document(table, item[0], texts(item[1]), ops[item], get(item[1])) for item in group], read
    return [Document(table, item[0], texts(item[1]), ops[item], get(item)) for item in group], read


def _unreadable(reader: Reader, shape: Shape, key: Key) -> str:
    """Return why a key is no value of the types of the key columns; an empty text if it is."""
    try:
        reader.rows(sql.SQL("SELECT {}").format(sql.SQL(", ").join(_arrays(shape, {key}))))
    except QueryError as error:
        if error.sqlstate[:2] != "22":
            raise
        return f"the key cannot be read: {error}"
    return ""


def _by_key(shape: Shape, rows: list[tuple[Any, ...]]) -> tuple[dict[Any, dict[str, Any]], int]:
    """Return the rows by key (and shard, with a routing expression), and their size in bytes."""
    size = len(shape.key)
    first = size + (shape.shard_sql is not None)
    names = [name for name, _ in shape.columns]
    read = 64 * len(rows) * (len(names) + 2)
    for position in shape.texts:
        read += sum(len(row[first + position]) for row in rows if row[first + position] is not None)
    if shape.shard_sql is None and shape.is_integer:
        rows_by_key: dict[Any, dict[str, Any]] = {row[0]: dict(zip(names, row[1:], strict=True)) for row in rows}
    elif shape.shard_sql is None:
        rows_by_key = {row[:size]: dict(zip(names, row[size:], strict=True)) for row in rows}
    else:
        rows_by_key = {
            (row[size], row[0] if shape.is_integer else row[:size]): dict(zip(names, row[first:], strict=True))
            for row in rows
        }
    for position in shape.floats:
        name = names[position]
        for row in rows_by_key.values():
            if row[name] is not None and not math.isfinite(row[name]):
                row[name] = _not_finite(row[name])
    return rows_by_key, read


def _not_finite(value: float) -> str:
    """Return the text that PostgreSQL writes; JSON has no such number."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def rows_query(shape: Shape, keys: set[Key]) -> sql.Composed:
    """Return the query for the rows of keys. Its inner query finds them, so that predicates see touched rows only."""
    names = [_raw(f"k{number}") for number in range(len(shape.key))]
    joined = [
        sql.SQL("{} {} k.{}").format(_raw(column), _raw(equals), name)
        for column, equals, name in zip(shape.looked_up, shape.equals, names, strict=True)
    ]
    selected = [shape.key_sql, shape.shard_sql, shape.values_sql]
    return sql.SQL(
        "SELECT {selected} FROM (SELECT t.* FROM unnest({arrays}) k({names}) JOIN {table} t ON {joined} OFFSET 0) r"
        " WHERE {condition}"
    ).format(
        selected=sql.SQL(", ").join(_raw(part) for part in selected if part is not None),
        arrays=sql.SQL(", ").join(_arrays(shape, keys)),
        names=sql.SQL(", ").join(names),
        table=_raw(shape.relation or ""),
        joined=sql.SQL(" AND ").join(joined),
        condition=_raw(shape.condition),
    )


def _arrays(shape: Shape, keys: set[Key]) -> list[sql.Composed]:
    """Return an array of values per key column."""
    columns = zip(*(texts(key) for key in keys), strict=True) if keys else [()] * len(shape.key)
    return [
        sql.SQL("{}::{}[]").format(sql.Literal(_array(column, shape.is_integer)), _raw(kind))
        for column, kind in zip(columns, ("int8",) if shape.is_integer else shape.key_types, strict=True)
    ]


def _raw(text: str) -> sql.SQL:
    """Return trusted SQL: quoted when the shape was read, or written by the owner of the tube."""
    return sql.SQL(text)


def _array(values: Sequence[str], is_plain: bool) -> str:
    """Return an array literal."""
    if is_plain:
        return "{" + ",".join(values) + "}"
    return "{" + ",".join('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values) + "}"
