"""Rows as COPY writes them: read by key with their hashes, taken apart into fields and put together again.

A field is the bytes between two tabs, escaped as COPY does it. Values are never read as Python values, so what arrives
on another node is what the first one wrote, however long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from psycopg import sql

from trueup.db.reader import Reader
from trueup.errors import CheckFailed
from trueup.rows.encode import row_hash
from trueup.rows.fetch import among
from trueup.rows.keys import KeyValues, canonical, key_texts, source, where
from trueup.rows.spec import TableSpec
from trueup.rows.write.copy_text import key_id, key_of
from trueup.verbs.repair.layout import Layout

if TYPE_CHECKING:
    from psycopg import sql


class Line(NamedTuple):
    """One row of a node: its hash as it is compared, its hash as it can be written, and its fields."""

    hash: bytes
    guard: bytes
    fields: bytes


def lines_by_key(
    reader: Reader, layout: Layout, keys: Sequence[KeyValues], *, timeout: float, most_bytes: int
) -> dict[bytes, Line]:
    """The rows of these keys as a node holds them, whether or not they are in the filter, by `key_id`."""
    spec, guard = layout.spec, layout.guard(reader.node.name)
    width = len(spec.key)
    one_hash = same_hash(spec, guard)
    found: dict[bytes, Line] = {}
    query = _query(layout, reader.node.name, guard, keys, one_hash=one_hash)
    numbers = any(part.column.encoding == "numeric" for part in spec.key)
    rows = reader.lines(query, timeout=timeout, most_bytes=most_bytes)
    # A named tuple's own way to be made takes twice the time.
    make = tuple.__new__
    for line in rows:
        parts = line.split(b"\t", width + (1 if one_hash else 2))
        key = parts[0] if width == 1 else b"\t".join(parts[:width])
        if numbers:
            key = key_id(canonical(spec, key_of(key)))
        found[key] = make(Line, (parts[width], parts[-2], parts[-1]))
    if len(found) < len(rows):
        raise CheckFailed(
            [f"the key ({', '.join(spec.key_names)}) is not unique: rows share it"],
            cure="repair needs a key that names one row: compare again with another --key",
            node=reader.node.name,
            table=f"{spec.schema}.{spec.table}",
        )
    return found


def same_hash(spec: TableSpec, guard: TableSpec) -> bool:
    """Whether both hashes are one and the same."""
    return spec.columns == guard.columns and spec.numeric == guard.numeric


def _query(layout: Layout, node: str, guard: TableSpec, keys: Sequence[KeyValues], *, one_hash: bool) -> sql.Composed:

    whole = replace(layout.spec, filter="")
    wanted: list[sql.Composable] = [key_texts(whole), row_hash(whole)]
    if not one_hash:
        wanted.append(row_hash(guard))
    wanted += [sql.Identifier(column.name) for column in layout.columns_of(node)]
    return sql.SQL("COPY (SELECT {wanted} FROM {source}{where}) TO STDOUT").format(
        wanted=sql.SQL(", ").join(wanted), source=source(whole), where=where(whole, among(whole, keys))
    )


def inside_filter(reader: Reader, spec: TableSpec, keys: Sequence[KeyValues], *, timeout: float) -> set[bytes]:
    """Those of the keys whose rows meet the table's filter, by `key_id`."""
    query = sql.SQL("SELECT {keys} FROM {source}{where}").format(
        keys=key_texts(spec), source=source(spec), where=where(spec, among(spec, keys))
    )
    return {key_id(canonical(spec, row)) for row in reader.rows(query, timeout=timeout)}
