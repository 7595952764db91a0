"""Lists of keys as they come from a change log and go into statements: one array literal per key column.

A server writes the literals and a server parses them. Python does not look at the values of a key of one column.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from psycopg import sql

from trueup.db.casts import is_array
from trueup.rows.encode import row_id
from trueup.rows.keys import ordered
from trueup.rows.spec import ColumnSpec, KeySpec, TableSpec


@dataclass(frozen=True)
class KeyList:
    """Keys of one table: their number, and per key column an array literal of their texts."""

    count: int
    literals: tuple[str, ...]


def key_list(spec: TableSpec, texts: Sequence[str]) -> KeyList:
    """Return the list of keys that a change log wrote: the text of the column, or a JSON array of texts.

    A key with a NULL is left out: the row had no key at that time. Keys of a keyless table are numbers, see
    `encode.row_id`.
    """
    if len(spec.key) <= 1:
        return KeyList(len(texts), (array_literal(texts),))
    keys = [key for key in map(json.loads, texts) if None not in key]
    columns = zip(*keys, strict=True) if keys else [()] * len(spec.key)
    return KeyList(len(keys), tuple(array_literal(column) for column in columns))


def key_batches(spec: TableSpec, texts: Sequence[str], size: int) -> Iterator[KeyList]:
    """Yield the keys in lists of at most `size`, in the order of the numbers if all keys are integers.

    Those of a keyless table are one list: each list is a scan of the table.
    """
    if spec.is_keyless:
        yield key_list(spec, texts)
        return
    ordered = sorted(texts, key=int if all(map(_is_integer, texts)) else None)
    for start in range(0, len(ordered), size):
        yield key_list(spec, ordered[start : start + size])


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and text.isascii()


def array_literal(values: Iterable[str]) -> str:
    """Return texts as a PostgreSQL array literal."""
    return "{" + ",".join(map(_quoted, values)) + "}"


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def in_key_list(spec: TableSpec, keys: KeyList | None = None) -> sql.Composed:
    """Return the condition that the key of a row `t` is in a list; without `keys`, the literals are parameters."""
    if spec.is_keyless:
        hashed = spec.hashed if keys is not None else tuple(_for_parameters(column) for column in spec.hashed)
        value = sql.Literal(keys.literals[0]) if keys is not None else sql.Placeholder()
        return sql.SQL("{} = ANY({}::int8[])").format(row_id(hashed, "t"), value)
    key = spec.key
    values: list[sql.Composable] = [sql.Placeholder()] * len(key)
    if keys is not None:
        values = [sql.Literal(text) for text in keys.literals]
    else:
        # In a statement with parameters, a percent sign is doubled.
        key = tuple(_with_parameters(part) for part in key)
    columns = [ordered(part, "t") for part in key]
    types = [sql.SQL("text" if part.order == "bytes" else part.column.type) for part in key]
    arrays = [_is_array(part) for part in key]
    if len(key) == 1 and not arrays[0]:
        return sql.SQL("{} = ANY({}::{}[])").format(columns[0], values[0], types[0])
    names = [sql.Identifier(f"k{number}") for number in range(len(key))]
    # unnest would split an array of arrays into its elements: such keys are unnested as texts and cast one by one.
    lists = sql.SQL(", ").join(
        sql.SQL("{}::{}[]").format(value, sql.SQL("text") if is_array else type_name)
        for value, type_name, is_array in zip(values, types, arrays, strict=True)
    )
    selected = sql.SQL(", ").join(
        sql.SQL("l.{}::{}").format(name, type_name) if is_array else sql.SQL("l.{}").format(name)
        for name, type_name, is_array in zip(names, types, arrays, strict=True)
    )
    return sql.SQL("({key}) IN (SELECT {selected} FROM unnest({lists}) l({names}))").format(
        key=sql.SQL(", ").join(columns), selected=selected, lists=lists, names=sql.SQL(", ").join(names)
    )


def _with_parameters(part: KeySpec) -> KeySpec:
    return replace(part, column=_for_parameters(part.column))


def _for_parameters(column: ColumnSpec) -> ColumnSpec:
    return replace(column, name=column.name.replace("%", "%%"), type=column.type.replace("%", "%%"))


def _is_array(part: KeySpec) -> bool:
    return part.order == "type" and is_array(part.column.type)
