"""Measure `trueup diff` of PostgreSQL with a Delta and a Parquet copy, beside other tools: wall time and peak memory.

    .venv/bin/python bench/cross.py [--rows 10000000] [--cases none,100,1%] [--only NAME,…] [--output FILE]

The table is that of bench/diff.py. Its copy is written once; the table then gets the differences. Each contestant is a
process, and its start is included. A wrong answer is shown as wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from contestants import floor_query
from cross_contestants import QUERY
from diff import SETTINGS, differences, environment, make_left, make_right
from machine import machine, measure

from trueup.testing.postgres import Database, Server

MB = 1024 * 1024
PEERS = {
    "spark-join": "a full outer join on Spark, which is what spark-extension's diff does; PostgreSQL read in parallel",
    "datacompy": "datacompy's SparkSQLCompare over the same frames",
    "duckdb": "PostgreSQL copied to a Parquet file, then a full outer join of DuckDB",
}
OURS = {"trueup parquet": "parquet", "trueup delta": "delta"}


@dataclass(frozen=True)
class Line:
    """One contestant in one case."""

    case: str
    name: str
    seconds: float
    peak: int
    said: str


def export(database: Database, folder: Path) -> None:
    """Write the table as Parquet files of a million rows, and as a Delta table."""
    import adbc_driver_postgresql.dbapi as adbc
    import pyarrow as pa
    import pyarrow.parquet as pq
    from deltalake import write_deltalake

    (folder / "parquet").mkdir(parents=True)
    with adbc.connect(database.uri) as connection, connection.cursor() as cursor:
        cursor.execute(f"{QUERY} ORDER BY id")
        reader = cursor.fetch_record_batch()
        amount = reader.schema.get_field_index("amount")
        schema = reader.schema.set(amount, pa.field("amount", pa.decimal128(12, 2)))
        batches: list[Any] = []
        number = 0
        for batch in reader:
            batches.append(batch)
            if sum(one.num_rows for one in batches) >= 1_000_000:
                pq.write_table(pa.Table.from_batches(batches).cast(schema), folder / "parquet" / f"{number:04}.parquet")
                batches, number = [], number + 1
        if batches:
            pq.write_table(pa.Table.from_batches(batches).cast(schema), folder / "parquet" / f"{number:04}.parquet")
    files = sorted((folder / "parquet").glob("*.parquet"))
    whole = (batch for path in files for batch in pq.ParquetFile(path).iter_batches(100_000))
    write_deltalake(str(folder / "delta"), pa.RecordBatchReader.from_batches(schema, whole))


def command(name: str, uri: str, lake: Path, work: Path) -> list[str]:
    """Return the command of a contestant."""
    if name in OURS:
        kind = OURS[name]
        nodes = ["--node", f"pg={uri}", "--node", f"lake={kind}:{lake / kind}"]
        return [sys.executable, "-m", "trueup", "diff", "public.orders", "--json", "--recheck", "0", *nodes]
    script = str(Path(__file__).with_name("cross_contestants.py"))
    return [sys.executable, script, name, uri, str(lake / "parquet"), str(work)]


def answer(name: str, out: Path) -> int:
    """Return the number of differences that a contestant has printed."""
    text = out.read_text()
    if name not in OURS:
        return int(text.split()[-1])
    counts = json.loads(text)["pairs"]["pg/lake"]
    return int(counts["missing"] + counts["extra"] + counts["changed"])


def hash_ratio(database: Database) -> float:
    """Return the time of the digests of canonical rows in PostgreSQL, divided by that of its own digest."""
    from trueup.config.model import Node
    from trueup.config.settings import DiffSettings, ExpressionSettings
    from trueup.nodes.base import HashBlocks
    from trueup.nodes.plan import Request, plan_columns
    from trueup.nodes.postgres import Options, PostgresNode

    settings = DiffSettings(max_connections=1)
    node = PostgresNode(Node("pg", database.uri), "public.orders", Options(settings, ExpressionSettings()), "bench")
    try:
        plan = plan_columns({"pg": node.describe()}, Request())
        plan = type(plan)(plan.columns, plan.key, plan.seed, HashBlocks(10))
        node.begin()
        times = []
        for _ in range(2):
            started = time.monotonic()
            node.digests(plan)
            canonical = time.monotonic() - started
            started = time.monotonic()
            database.execute("SET max_parallel_workers_per_gather = 0; " + floor_query(database.uri))
            times.append(canonical / (time.monotonic() - started))
        return min(times)
    finally:
        node.close()


def table(lines: Sequence[Line]) -> list[str]:
    """Return a table per case, with the ratio to the best of the others."""
    text = []
    for case in dict.fromkeys(line.case for line in lines):
        some = [line for line in lines if line.case == case]
        right = [line.seconds for line in some if line.name in PEERS and not line.said.startswith(("WRONG", "FAILED"))]
        text += ["", f"## {'No difference' if case == 'none' else f'{case} different'}", ""]
        text += ["| | seconds | / best other | peak MB | answer |", "|---|--:|--:|--:|---|"]
        for line in some:
            ratio = f"{line.seconds / min(right):.2f}" if right else ""
            text.append(f"| {line.name} | {line.seconds:.1f} | {ratio} | {line.peak / MB:,.0f} | {line.said} |")
    return text


def results(rows: int, here: str, ratio: float, lines: Sequence[Line]) -> str:
    """Return the page of the results."""
    text = [
        "# PostgreSQL beside a copy in files",
        "",
        f"{datetime.now(timezone.utc):%Y-%m-%d}; {here}. {rows:,} rows. Written by `bench/cross.py`.",
        "",
        *(f"- {name}: {what}" for name, what in PEERS.items()),
        "",
        f"The digests of canonical rows take {ratio:.2f} times as long in PostgreSQL as its own digest, in one session.",
        *table(lines),
    ]
    return "\n".join(text) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--cases", default="none,100,1%")
    parser.add_argument("--only", default="", help="contestants by name, separated by commas")
    parser.add_argument("--timeout", type=float, default=1800)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("RESULTS-cross.md"))
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else [*OURS, *PEERS]
    lines: list[Line] = []
    here = machine()
    with Server.start(name="bench", settings=SETTINGS) as server, tempfile.TemporaryDirectory() as temporary:
        left, lake = make_left(server, arguments.rows), Path(temporary) / "lake"
        export(left, lake)
        ratio = hash_ratio(left)
        sys.stdout.write(f"canonical digests / own digests of PostgreSQL: {ratio:.2f}\n")
        for case in arguments.cases.split(","):
            expected = differences(case, arguments.rows)
            right = make_right(server, arguments.rows, expected)
            right.execute("SELECT count(*), max(length(label)) FROM public.orders")
            for name in names:
                work = Path(temporary) / f"{case}-{name}".replace(" ", "-").replace("%", "")
                run = measure(command(name, right.uri, lake, work), work, arguments.timeout, environment(work))
                try:
                    found = answer(name, run.out)
                    said = f"{found:,}" if found == expected else f"WRONG: {found:,} instead of {expected:,}"
                except Exception:
                    said = f"FAILED: {(run.errors.strip().splitlines() or ['too long'])[-1]}".replace("|", "/")[:150]
                lines.append(Line(case, name, run.seconds, run.peak, said))
                sys.stdout.write(f"{case:>5} {name:<16} {run.seconds:8.1f} s {run.peak / MB:7.0f} MB  {said}\n")
                sys.stdout.flush()
            right.drop()
            # After each case: a run that is cut short leaves those that were measured.
            arguments.output.write_text(results(arguments.rows, here, ratio, lines), encoding="utf-8")


if __name__ == "__main__":
    main()
