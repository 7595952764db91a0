"""A table whose key order has nothing to do with its physical order: blocks by key, or one scan bucketed by block?

Raw queries, both databases at once, one connection each, as trueup has on two cores. By key: one digest query a block.
In physical order: one query for each range of pages, whose rows are put into blocks by `width_bucket` on the way; the
partial digests are added up. Cold means a server that was just started and, where root can, no file in the system's
memory. That says little of a table larger than memory, for after the first block most pages are in memory. So there is
a third measure, of one database: the system's memory of files is dropped before each query, and the server has next to
none of its own.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
from contestants import table_spec
from machine import drop_caches
from psycopg import sql

from trueup.rows.cuts import first_keys, sampling
from trueup.rows.digest import digest_query
from trueup.rows.encode import row_hash
from trueup.rows.keys import KeyValues, chain, in_block, literals, source, where
from trueup.rows.pages import on_pages, page_count
from trueup.rows.spec import TableSpec
from trueup.testing.postgres import Database, Server

TABLE = "public.events"
BLOCK_SIZE = 100_000
CREATE = """
CREATE TABLE public.events AS
SELECT gen_random_uuid() AS id, hashint8(g) % 1000000 AS quantity, md5(g::text) || lpad((g % 100000000)::text, 8, '0') AS label,
       round((hashint8(g) & 16777215) / 100.0, 2) AS amount, timestamptz '2024-01-01 00:00+00' + g * interval '1.7 s' AS placed_at,
       jsonb_build_object('number', g % 1000, 'paid', g % 2 = 0, 'tags', jsonb_build_array('a', g % 7)) AS details
  FROM generate_series(1, {}::int8) g
"""

Digests = dict[int, tuple[int, int]]
Queries = Callable[[TableSpec, Sequence[KeyValues], int], list[sql.Composed]]


def by_key(spec: TableSpec, cuts: Sequence[KeyValues], pages: int) -> list[sql.Composed]:
    """What trueup does: a range of keys a query."""
    return [digest_query(spec, sql.Literal(at), in_block(spec, block)) for at, block in enumerate(chain(cuts))]


def by_page(spec: TableSpec, cuts: Sequence[KeyValues], pages: int) -> list[sql.Composed]:
    """A range of pages a query, as many as there are blocks."""
    step = math.ceil(pages / (len(cuts) + 1))
    starts = range(0, pages, step)
    return [bucketed(spec, cuts, on_pages(first, first + step if first + step < pages else None)) for first in starts]


def at_once(spec: TableSpec, cuts: Sequence[KeyValues], pages: int) -> list[sql.Composed]:
    """The whole table in one query."""
    return [bucketed(spec, cuts, [])]


# The planner does not know that there are few blocks, and may sort the rows by block unless it is kept from it.
HASHED = "SET enable_sort = off"
WAYS: dict[str, tuple[Queries, str]] = {
    "by key": (by_key, ""),
    "physical, as planned": (by_page, ""),
    "physical, enable_sort = off": (by_page, HASHED),
    "physical, one query, enable_sort = off": (at_once, HASHED),
}


def bucketed(spec: TableSpec, cuts: Sequence[KeyValues], conditions: Sequence[sql.Composable]) -> sql.Composed:
    """Partial digests of all blocks over the rows that meet the conditions."""
    edges = sql.SQL(", ").join(literals(spec.key, cut)[0] for cut in cuts)
    return sql.SQL(
        "SELECT width_bucket({key}, ARRAY[{edges}]), count(*), sum({hash})::text FROM {source}{where} GROUP BY 1"
    ).format(
        key=sql.Identifier(spec.key_names[0]),
        edges=edges,
        hash=row_hash(spec),
        source=source(spec),
        where=where(spec, *conditions),
    )


def compare(server: Server, rows: int) -> list[str]:
    """All ways on a cold server, on a warm one, and with no memory for files, as lines of the results."""
    pair = _make(server, rows)
    with psycopg.connect(pair[0].uri) as connection:
        spec = table_spec(connection, TABLE)
        blocks = math.ceil(rows / BLOCK_SIZE)
        cuts = first_keys(connection, spec, blocks, sampling(connection, spec, rows, blocks))
        pages = page_count(connection, spec)
    lines, answers = [], []
    can_drop = drop_caches()
    for name, (queries, setting) in WAYS.items():
        every = queries(spec, cuts, pages)
        shown = [name]
        for warmth in ("cold", "warm"):
            if warmth == "cold":
                _restart(server, {})
            seconds, read, found = _timed(every, setting, pair)
            answers += found
            shown += [f"{seconds:.2f}", f"{read / 2**20:,.0f}"]
        if can_drop:
            _restart(server, {"shared_buffers": "4MB"})
            seconds, found = _uncached(every, setting, pair[0])
            answers += found
            shown.append(f"{seconds:.2f}")
        else:
            shown.append("")
        lines.append(f"| {' | '.join(shown)} | {_plan(every[len(every) // 2], setting, pair[0])} |")
        sys.stdout.write(f"uuid, {rows:,} rows: {lines[-1]}\n")
        sys.stdout.flush()
    _restart(server, {})
    for database in pair:
        database.drop()
    same = "all digests are the same" if all(answer == answers[0] for answer in answers) else "THE DIGESTS DIFFER"
    return [
        "", f"## Keys in no physical order: {rows:,} random uuids, {len(cuts) + 1} blocks, {pages / 128:,.0f} MB a table", "",
        f"Raw queries, one connection to each of two databases; {same}. Cold: the server was just started, and the",
        f"system's cache of files was {'dropped' if can_drop else 'NOT dropped (only root can): only the server was cold'}.",
        "Read: what the server did not find in its own shared buffers, from the system's cache or from disk. Uncached: one",
        "database, shared_buffers = 4MB, and the cache dropped before each query, as if the table were larger than memory.",
        "",
        "| way | cold s | read MB | warm s | read MB | uncached s | plan of a query |",
        "|---|--:|--:|--:|--:|--:|---|",
        *lines,
    ]  # fmt: skip


def _make(server: Server, rows: int) -> tuple[Database, Database]:
    left = server.create_database("uuid_left")
    left.execute(CREATE.format(rows))
    left.execute("ALTER TABLE public.events ADD PRIMARY KEY (id)")
    left.execute("VACUUM (FREEZE, ANALYZE) public.events")
    server.database("postgres").execute("CREATE DATABASE uuid_right TEMPLATE uuid_left STRATEGY file_copy")
    return left, server.database("uuid_right")


def _restart(server: Server, settings: dict[str, str]) -> None:
    """Start the server again with other settings, and with no file in the system's memory, if that can be done."""
    usual = dict(server.settings)
    server.stop()
    drop_caches()
    server.settings.update(settings)
    server.restart()
    server.settings = usual


def _timed(
    queries: Sequence[sql.Composed], setting: str, pair: tuple[Database, Database]
) -> tuple[float, int, list[Digests]]:
    """Seconds of both databases at once, bytes that the server read, and the digests."""

    def work(database: Database) -> Digests:
        with psycopg.connect(database.uri, autocommit=True) as connection:
            connection.execute(setting or "SELECT 1")
            return _added(row for query in queries for row in connection.execute(query))

    before = sum(_blocks_read(database) for database in pair)
    started = time.monotonic()
    with ThreadPoolExecutor(len(pair)) as threads:
        found = list(threads.map(work, pair))
    seconds = time.monotonic() - started
    return seconds, 8192 * (sum(_blocks_read(database) for database in pair) - before), found


def _uncached(queries: Sequence[sql.Composed], setting: str, database: Database) -> tuple[float, list[Digests]]:
    """Seconds of the queries alone on one database, each with no file in the system's memory."""
    seconds, rows = 0.0, []
    with psycopg.connect(database.uri, autocommit=True) as connection:
        connection.execute(setting or "SELECT 1")
        for query in queries:
            drop_caches()
            started = time.monotonic()
            rows += connection.execute(query).fetchall()
            seconds += time.monotonic() - started
    return seconds, [_added(rows)]


def _added(rows: Iterable[Any]) -> Digests:
    """The partial digests summed up for each block."""
    counts: Counter[int] = Counter()
    sums: Counter[int] = Counter()
    for at, count, total in rows:
        counts[at] += count
        sums[at] += int(total)
    # A block without rows has a digest in one way and none in the other.
    return {at: (count, sums[at]) for at, count in counts.items() if count}


def _blocks_read(database: Database) -> int:
    query = "SELECT heap_blks_read + idx_blks_read FROM pg_statio_user_tables WHERE relname = 'events'"
    return int(database.execute(query)[0][0])


def _plan(query: sql.Composed, setting: str, database: Database) -> str:
    """The nodes of a plan from the scan upwards, in short."""
    with psycopg.connect(database.uri, autocommit=True) as connection:
        connection.execute(setting or "SELECT 1")
        rows = connection.execute(sql.SQL("EXPLAIN (COSTS OFF) {}").format(query)).fetchall()
    nodes = [row[0].replace("->", "").strip() for row in rows if "->" in row[0] or not row[0].startswith(" ")]
    return " < ".join(node.split(" using ")[0].split(" on ")[0] for node in reversed(nodes))
