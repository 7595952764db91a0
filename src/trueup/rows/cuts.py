"""Keys that cut a table into blocks of about the same size, from a sample of its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg import sql

from trueup.db import catalog
from trueup.db.connection import Connection
from trueup.rows.keys import KeyValues, key_texts, order_by, ordered, source, where
from trueup.rows.spec import TableSpec

if TYPE_CHECKING:
    from psycopg import sql

_BILLION = 1_000_000_000
# So many sampled keys a block keep blocks within some tens of percent of each other.
_SAMPLES_A_BLOCK = 50


def sampling(connection: Connection, spec: TableSpec, rows: int, blocks: int) -> str:
    """The sampling method by size class: pages for large tables, rows for small ones."""
    if rows >= 100 * _BILLION:
        method, percent = "SYSTEM", 0.01
    elif rows >= _BILLION:
        method, percent = "SYSTEM", 0.1
    elif rows >= 1_000_000:
        method, percent = "SYSTEM", 0.5
    elif rows >= 100_000:
        method, percent = "BERNOULLI", 1.0
    else:
        method, percent = "BERNOULLI", min(100.0, 100.0 * 10_000 / max(rows, 1))
    wanted = 100.0 * _SAMPLES_A_BLOCK * blocks / max(rows, 1)
    if spec.filter:
        # The percentage counts rows of the table, of which the filter keeps only some.
        whole = max(catalog.estimate_rows(connection, source(spec)), 1)
        kept = min(1.0, max(rows, 1) / whole)
        percent /= kept
    return f"{method} ({min(100.0, max(percent, wanted)):.6g})"


def first_keys(connection: Connection, spec: TableSpec, blocks: int, sample: str) -> list[KeyValues]:
    """The first key of each bucket of the sample; the table's first and last key are always in it."""
    tablesample = sql.SQL(f"TABLESAMPLE {sample} REPEATABLE ({spec.seed % 1_000_000})")
    names = sql.SQL(", ").join(sql.Identifier(name) for name in spec.key_names)
    query = sql.SQL(
        "WITH kept AS ((SELECT {names} FROM {sampled}{where})"
        " UNION (SELECT {names} FROM {source}{where} ORDER BY {order} LIMIT 1)"
        " UNION (SELECT {names} FROM {source}{where} ORDER BY {backwards} LIMIT 1)),"
        " bucketed AS (SELECT {names}, ntile({blocks}) OVER (ORDER BY {order}) AS trueup_bucket FROM kept),"
        " firsts AS (SELECT DISTINCT ON (trueup_bucket) * FROM bucketed ORDER BY trueup_bucket, {order})"
        " SELECT {texts} FROM firsts ORDER BY trueup_bucket"
    ).format(
        names=names,
        sampled=source(spec, tablesample),
        source=source(spec),
        where=where(spec),
        order=order_by(spec),
        backwards=_backwards(spec),
        blocks=sql.Literal(blocks),
        texts=key_texts(spec),
    )
    rows: list[Any] = connection.execute(query, binary=True).fetchall()
    return [tuple(row) for row in rows]


def _backwards(spec: TableSpec) -> sql.Composed:
    return sql.SQL(", ").join(sql.SQL("{} DESC").format(ordered(part)) for part in spec.key)
