"""Where to cut: block boundaries from the planner's estimates and a sample, never from a full count.

A wrong estimate costs balance only: the chain of blocks covers every row of every node in any case.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trueup.db import catalog
from trueup.db.node import named
from trueup.db.snapshot import Control
from trueup.diff.together import together
from trueup.errors import QueryError
from trueup.rows.keys import Block, KeyValues, chain, key_texts, order_by, source, where
from trueup.rows.spec import TableSpec

if TYPE_CHECKING:
    from psycopg import sql

_BILLION = 1_000_000_000
# So many sampled keys a block keep blocks within some tens of percent of each other.
_SAMPLES_A_BLOCK = 50


@dataclass(frozen=True)
class Ranges:
    """The blocks of a run and how they came about."""

    blocks: tuple[Block, ...]
    anchor: str
    estimates: Mapping[str, int]
    sample: str


def plan_ranges(controls: Sequence[Control], spec: TableSpec, block_size: int) -> Ranges:
    """Blocks of about `block_size` rows, cut on the node that seems to have the most."""
    estimates = dict(together(controls, lambda control: (control.node.name, _rows_on(control, spec))))
    by_size = sorted(controls, key=lambda control: estimates[control.node.name], reverse=True)
    if spec.is_keyless:
        return Ranges((Block(None, None),), by_size[0].node.name, estimates, "")
    for control in by_size:
        rows = estimates[control.node.name]
        blocks = max(1, math.ceil(rows / block_size))
        sample = _sample(control, spec, rows, blocks)
        cuts = _cuts(control, spec, blocks, sample)
        if cuts:
            return Ranges(tuple(chain(cuts)), control.node.name, estimates, sample)
        # Statistics lied: the anchor is empty. The next one may not be.
    return Ranges((Block(None, None),), by_size[0].node.name, estimates, "")


def _rows_on(control: Control, spec: TableSpec) -> int:
    """The planner's estimate or, behind a filter, whose effect no planner knows, a count."""
    from psycopg import sql

    try:
        if not spec.filter:
            return catalog.estimate_rows(control.connection, source(spec))
        query = sql.SQL("SELECT count(*) FROM {}{}").format(source(spec), where(spec))
        row: Any = control.connection.execute(query, binary=True).fetchone()
        return int(row[0])
    except Exception as error:
        found = named(error, control.node)
        if spec.filter and isinstance(found, QueryError) and not found.cure:
            found.message = f"--table-filter: {found.message}"
            found.cure = "change the filter: it must give true or false for every row, and may only read"
        raise found from None


def _sample(control: Control, spec: TableSpec, rows: int, blocks: int) -> str:
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
        whole = max(catalog.estimate_rows(control.connection, source(spec)), 1)
        kept = min(1.0, max(rows, 1) / whole)
        percent /= kept
    return f"{method} ({min(100.0, max(percent, wanted)):.6g})"


def _cuts(control: Control, spec: TableSpec, blocks: int, sample: str) -> list[KeyValues]:
    """The first key of each bucket of the sample; the table's first and last key are always in it."""
    from psycopg import sql

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
    try:
        rows: list[Any] = control.connection.execute(query, binary=True).fetchall()
    except Exception as error:
        raise named(error, control.node) from None
    return [tuple(row) for row in rows]


def _backwards(spec: TableSpec) -> sql.Composed:
    from psycopg import sql

    from trueup.rows.keys import ordered

    return sql.SQL(", ").join(sql.SQL("{} DESC").format(ordered(part)) for part in spec.key)
