"""Find the keys that split a table into blocks of about the same size, from a sample of its rows."""

from __future__ import annotations

from psycopg import sql

from trueup.db import catalog
from trueup.db.connection import Connection
from trueup.rows.keys import KeyValues, key_texts, order_by, ordered, source, where
from trueup.rows.spec import TableSpec

_BILLION = 1_000_000_000
# Sampled keys per block; with 50, the sizes of blocks differ by some tens of percent.
_SAMPLES_PER_BLOCK = 50


def sampling(connection: Connection, spec: TableSpec, rows: int, blocks: int) -> str:
    """Return the TABLESAMPLE method: pages of large tables, rows of small ones."""
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
    needed = 100.0 * _SAMPLES_PER_BLOCK * blocks / max(rows, 1)
    if spec.filter:
        # The percentage is of all rows of the table; only a part of them passes the filter.
        unfiltered = max(catalog.estimate_rows(connection, source(spec)), 1)
        percent /= min(1.0, max(rows, 1) / unfiltered)
    return f"{method} ({min(100.0, max(percent, needed)):.6g})"


def first_keys(connection: Connection, spec: TableSpec, blocks: int, sample: str) -> list[KeyValues]:
    """Return the first key of each bucket of the sample, which always includes the first and last key of the table."""
    tablesample = sql.SQL(f"TABLESAMPLE {sample} REPEATABLE ({spec.sample_seed})")
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
    return [tuple(row) for row in connection.execute(query, binary=True)]


def _backwards(spec: TableSpec) -> sql.Composed:
    return sql.SQL(", ").join(sql.SQL("{} DESC").format(ordered(part)) for part in spec.key)
