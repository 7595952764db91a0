"""Read the rows of keys as lines of COPY, with their hashes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from psycopg import sql

from trueup.db.reader import Reader
from trueup.errors import CheckFailed
from trueup.rows.encode import row_hash
from trueup.rows.fetch import among
from trueup.rows.keys import KeyValues, canonical, key_texts, source, where
from trueup.rows.spec import TableSpec
from trueup.rows.write.copy_text import key_id, key_of
from trueup.verbs.repair.layout import Layout


class Line(NamedTuple):
    """One row of a node: its hash over the compared columns, its guard, and its fields."""

    hash: bytes
    guard: bytes
    fields: bytes


def lines_by_key(
    reader: Reader, layout: Layout, keys: Sequence[KeyValues], *, timeout: float, most_bytes: int
) -> dict[bytes, Line]:
    """Return the rows of these keys on a node by `key_id`, including rows that do not match the filter."""
    spec, guard = layout.spec, layout.guard(reader.node.name)
    width = len(spec.key)
    one_hash = spec.columns == guard.columns and spec.numeric == guard.numeric
    lines: dict[bytes, Line] = {}
    query = _query(layout, reader.node.name, guard, keys, one_hash=one_hash)
    has_numbers = any(part.column.encoding == "numeric" for part in spec.key)
    rows = reader.lines(query, timeout=timeout, max_bytes=most_bytes)
    # The constructor of a named tuple takes twice the time.
    make = tuple.__new__
    for line in rows:
        parts = line.split(b"\t", width + (1 if one_hash else 2))
        key = parts[0] if width == 1 else b"\t".join(parts[:width])
        if has_numbers:
            key = key_id(canonical(spec, key_of(key)))
        lines[key] = make(Line, (parts[width], parts[-2], parts[-1]))
    if len(lines) < len(rows):
        raise CheckFailed(
            [f"the key ({', '.join(spec.key_names)}) is not unique: several rows have the same values"],
            cure="run the diff again with a --key that is unique",
            node=reader.node.name,
            table=f"{spec.schema}.{spec.table}",
        )
    return lines


def _query(layout: Layout, node: str, guard: TableSpec, keys: Sequence[KeyValues], *, one_hash: bool) -> sql.Composed:
    unfiltered = replace(layout.spec, filter="")
    selected: list[sql.Composable] = [key_texts(unfiltered), row_hash(unfiltered)]
    if not one_hash:
        selected.append(row_hash(guard))
    selected += [sql.Identifier(column.name) for column in layout.read_from(node)]
    return sql.SQL("COPY (SELECT {selected} FROM {source}{where}) TO STDOUT").format(
        selected=sql.SQL(", ").join(selected),
        source=source(unfiltered),
        where=where(unfiltered, among(unfiltered, keys)),
    )


def inside_filter(reader: Reader, spec: TableSpec, keys: Sequence[KeyValues], *, timeout: float) -> set[bytes]:
    """Return the keys whose rows match the table's filter, by `key_id`."""
    query = sql.SQL("SELECT {keys} FROM {source}{where}").format(
        keys=key_texts(spec), source=source(spec), where=where(spec, among(spec, keys))
    )
    return {key_id(canonical(spec, row)) for row in reader.rows(query, timeout=timeout)}
