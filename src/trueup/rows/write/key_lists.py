"""Lists of keys as they come from the change log and go into statements: one array literal for each key column.

The server writes them and the server reads them; of a key of one column, Python never looks at a single value.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from psycopg import sql

from trueup.rows.spec import KeySpec
from trueup.verbs.sync.model import SyncTable

if TYPE_CHECKING:
    from psycopg import sql


@dataclass(frozen=True)
class KeyList:
    """Some keys of a table: how many, and for each key column an array literal of their texts."""

    count: int
    literals: tuple[str, ...]


def key_list(table: SyncTable, texts: Sequence[str]) -> KeyList:
    """Keys as the change log writes them: the text of the column, or a JSON array of texts."""
    if len(table.spec.key) == 1:
        return KeyList(len(texts), (literal(texts),))
    split = [json.loads(text) for text in texts]
    return KeyList(len(texts), tuple(literal(column) for column in zip(*split, strict=True)))


def portions(table: SyncTable, texts: Sequence[str], size: int) -> Iterator[KeyList]:
    """The keys in lists of at most so many; neighbours stay together where keys are numbers."""
    ordered = sorted(texts, key=_number) if all(_is_number(text) for text in texts) else sorted(texts)
    for at in range(0, len(ordered), size):
        yield key_list(table, ordered[at : at + size])


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and text.isascii()


def _number(text: str) -> int:
    return int(text)


def literal(values: Iterable[str]) -> str:
    """An array of texts as PostgreSQL reads it."""
    return "{" + ",".join(map(_quoted, values)) + "}"


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def among(table: SyncTable, keys: KeyList | None = None) -> sql.Composed:
    """The condition that the key of a row `t` is in a list: this one, or one whose literals are parameters."""
    key = table.spec.key
    values: list[sql.Composable] = [sql.Placeholder()] * len(key)
    if keys is not None:
        values = [sql.Literal(text) for text in keys.literals]
    if len(key) == 1 and not _is_array(key[0]):
        return sql.SQL("{} = ANY({}::{}[])").format(_column(key[0]), values[0], sql.SQL(key[0].column.type))
    names = [sql.Identifier(f"k{number}") for number in range(len(key))]
    # An array of arrays would be taken apart to its elements: there, texts are unnested and read one by one.
    given = sql.SQL(", ").join(
        sql.SQL("{}::{}[]").format(value, sql.SQL("text" if _is_array(part) else part.column.type))
        for part, value in zip(key, values, strict=True)
    )
    read = sql.SQL(", ").join(
        sql.SQL("l.{}::{}").format(name, sql.SQL(part.column.type)) if _is_array(part) else sql.SQL("l.{}").format(name)
        for part, name in zip(key, names, strict=True)
    )
    return sql.SQL("({mine}) IN (SELECT {read} FROM unnest({given}) l({names}))").format(
        mine=sql.SQL(", ").join(map(_column, key)), read=read, given=given, names=sql.SQL(", ").join(names)
    )


def _column(part: KeySpec) -> sql.Composable:
    name = sql.SQL("t.{}").format(sql.Identifier(part.column.name))
    return sql.SQL("{}::{}").format(name, sql.SQL(part.column.type)) if part.column.is_domain else name


def _is_array(part: KeySpec) -> bool:
    return part.column.type.rpartition(".")[2].startswith('"_')
