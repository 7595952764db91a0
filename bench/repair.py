"""The speed of a repair compared with the bare minimum of SQL: rows per second of both, and their ratio.

    .venv/bin/python bench/repair.py [--rows 100000] [--rounds 5] [--table 1000000]

A third of the rows is changed, a third is missing, a third is extra. The bare minimum knows the keys, copies the rows
into a temporary table, then deletes and inserts them, in one transaction. It keeps no old rows, ignores concurrent
writes, and verifies nothing. The repair does all of that, and reads its report first. Both alternate on the same
differences; the ratio is the median over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path

import psycopg
from machine import machine

import trueup
from trueup.testing.postgres import Database, Server

SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "4GB"}
TABLE = """
CREATE TABLE orders (id bigint PRIMARY KEY, name text, price numeric, note text, other bigint, changed timestamptz);
INSERT INTO orders SELECT i, 'order ' || i, i / 7.0, repeat('n', 40), i % 1000, '2026-01-01'::timestamptz + i * interval '1 s'
  FROM generate_series(1, {rows}) i;
CREATE INDEX ON orders (other);
ANALYZE orders;
"""
# `each` rows are changed, as many are missing and as many are extra, spread over the table.
DRIFT = """
UPDATE orders SET price = price + 1, note = 'drifted' WHERE id % {step} = 0;
DELETE FROM orders WHERE id % {step} = 1;
INSERT INTO orders SELECT -i, 'extra ' || i, 1, 'extra', 1, now() FROM generate_series(1, {each}) i;
"""


def drift(database: Database, rows: int, each: int) -> None:
    """Reset the target to its state before a repair."""
    database.execute("DROP TABLE orders")
    database.execute(TABLE.format(rows=rows))
    database.execute(DRIFT.format(step=rows // each, each=each))
    for statement in ("VACUUM ANALYZE orders", "CHECKPOINT"):
        database.execute(statement)


def bare(source: str, target: str, keys: list[str]) -> float:
    """Run the bare minimum and return its seconds."""
    started = time.monotonic()
    with psycopg.connect(source) as reading, psycopg.connect(target) as writing:
        for connection in (reading, writing):
            connection.execute("CREATE TEMP TABLE wanted (id bigint) ON COMMIT DROP")
            with connection.cursor().copy("COPY wanted FROM STDIN") as copy:
                copy.write("\n".join(keys) + "\n")
            connection.execute("ANALYZE wanted")
        writing.execute("CREATE TEMP TABLE staged (LIKE orders) ON COMMIT DROP")
        rows = "COPY (SELECT o.* FROM orders o JOIN wanted USING (id)) TO STDOUT"
        with reading.cursor().copy(rows) as out, writing.cursor().copy("COPY staged FROM STDIN") as into:
            for data in out:
                into.write(data)
        writing.execute("DELETE FROM orders o USING wanted w WHERE o.id = w.id")
        writing.execute("INSERT INTO orders SELECT * FROM staged")
    return time.monotonic() - started


def repaired(report: str, nodes: dict[str, str], engine: str) -> float:
    """Run a repair and return its seconds."""
    started = time.monotonic()
    result = trueup.repair(report, nodes=nodes, source_of_truth="n1", execute=True, engine=engine)
    seconds = time.monotonic() - started
    assert result.verdict == "REPAIRED", result
    return seconds


def main() -> None:
    """Measure, and write bench/RESULTS-repair.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--table", type=int, default=1_000_000)
    parser.add_argument("--engine", default="local")
    parser.add_argument("--dry", action="store_true", help="print the results, write no file")
    options = parser.parse_args()
    results = Path(__file__).with_name("RESULTS-repair.md")
    each = options.rows // 3
    with tempfile.TemporaryDirectory() as folder, Server.start(name="bench", settings=SETTINGS) as server:
        os.chdir(folder)
        os.environ["TRUEUP_TASKS_DB"] = f"{folder}/tasks.db"
        source, target = (server.create_database(name) for name in ("source", "target"))
        source.execute(TABLE.format(rows=options.table))
        target.execute("CREATE TABLE orders ()")
        nodes = {"n1": source.uri, "n2": target.uri}
        times: dict[str, list[float]] = {"bare": [], "repair": []}
        for number in range(options.rounds):
            for method in ("bare", "repair") if number % 2 else ("repair", "bare"):
                drift(target, options.table, each)
                diff = trueup.diff("orders", nodes=nodes, recheck=0, engine="local")
                rows = diff.pairs["n1/n2"].total
                assert rows >= 0.95 * options.rows, diff
                if method == "bare":
                    diffs = json.loads(Path(diff.report).read_text())["diffs"]["n1/n2"]["differences"]
                    times[method].append(
                        bare(source.uri, target.uri, [difference["key"]["id"] for difference in diffs])
                    )
                    check = trueup.check("orders", nodes=nodes, recheck=0, engine="local")
                    assert check.verdict == "MATCH", check
                else:
                    times[method].append(repaired(diff.report, nodes, options.engine))
        text = table(times, rows, options)
    sys.stdout.write(text)
    if not options.dry:
        results.write_text(text, encoding="utf-8")


def table(times: dict[str, list[float]], rows: int, options: argparse.Namespace) -> str:
    """Return the results as Markdown."""
    ratio = statistics.median(repair / bare for repair, bare in zip(times["repair"], times["bare"], strict=True))
    lines = [
        "# Repair beside the bare minimum",
        "",
        f"{datetime.now(timezone.utc):%Y-%m-%d}, {machine()}",
        "",
        f"{rows:,} rows of a table of {options.table:,}: a third changed, a third missing, a third extra; median of"
        f" {options.rounds} rounds, engine {options.engine}.",
        "",
        "| method | seconds | rows/s |",
        "|---|---:|---:|",
    ]
    for method, seconds in times.items():
        middle = statistics.median(seconds)
        lines.append(f"| {method} | {middle:.2f} | {rows / middle:,.0f} |")
    return "\n".join([*lines, "", f"The repair takes {ratio:.2f} times the bare minimum.", ""])


if __name__ == "__main__":
    main()
