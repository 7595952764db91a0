"""What capture costs: no trigger, a tube of trueup, and a row-level trigger that logs (table, id), in one run, as ratios.

    .venv/bin/python bench/tube.py [--rounds 9] [--rows 100000] [--seconds 2]

Bulk: one INSERT and one UPDATE of all rows, of a table with nothing but its key, and of one with two more indexes.
Single rows: UPDATEs by key from 4 clients of pgbench, on a server that waits for the disk at each commit, as servers
do, and on one that does not, where the cost of a trigger weighs the most. The three ways take turns, so that what else
the machine does meets all of them; a ratio is the median of those of the rounds. Log and tube are emptied in between.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

from trueup.demo.postgres import Database, Server
from trueup.tube.call import open as open_tubes

WAYS = ("none", "trueup", "row trigger")
SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "4GB"}
TABLE = """
CREATE TABLE {name} (id bigint PRIMARY KEY, name text, price numeric, note text, other bigint, changed timestamptz);
"""
INDEXES = "CREATE INDEX ON {name} (other); CREATE INDEX ON {name} (name);"
LOG = "CREATE TABLE row_log (n bigserial PRIMARY KEY, tab text NOT NULL, id bigint NOT NULL);"
ROW_TRIGGER = """
CREATE OR REPLACE FUNCTION log_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO row_log (tab, id) VALUES (TG_TABLE_NAME, coalesce(NEW.id, OLD.id));
    RETURN NULL;
END $$;
CREATE TRIGGER log_row AFTER INSERT OR UPDATE OR DELETE ON {name} FOR EACH ROW EXECUTE FUNCTION log_row();
"""
# Work -> way -> what was measured in each round: seconds, or seconds a transaction.
Times = dict[str, dict[str, list[float]]]


def prepare(database: Database, indexes: str) -> dict[str, str]:
    """A table for each way."""
    tables = {way: f"bench_{number}" for number, way in enumerate(WAYS)}
    database.execute(LOG)
    for name in tables.values():
        database.execute((TABLE + indexes).format(name=name))
    with open_tubes(database.uri) as tubes:
        tubes.install()
        tubes.ensure("bench")
        tubes.attach("bench", tables["trueup"], shard=1)
    database.execute(ROW_TRIGGER.format(name=tables["row trigger"]))
    return tables


def bulk(database: Database, name: str, rows: int) -> tuple[float, float]:
    """Seconds of an INSERT and of an UPDATE of all rows."""
    database.execute(f"TRUNCATE {name}, row_log; TRUNCATE tube.pods_bench")
    database.execute("CHECKPOINT")
    began = time.perf_counter()
    database.execute(
        f"INSERT INTO {name} SELECT g, 'name ' || g, g / 7.0, repeat('x', 40), g * 7919 % 1000003, now()"
        f" FROM generate_series(1, {rows}) g"
    )
    inserted = time.perf_counter()
    database.execute(f"UPDATE {name} SET price = price + 1, changed = now()")
    return inserted - began, time.perf_counter() - inserted


def single(server: Server, database: Database, name: str, rows: int, seconds: int) -> float:
    """Seconds a transaction of single-row updates."""
    for statement in ("TRUNCATE row_log, tube.pods_bench", f"VACUUM {name}", "CHECKPOINT"):
        database.execute(statement)
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(f"\\set id random(1, {rows})\nUPDATE {name} SET price = price + 1 WHERE id = :id;\n")
        script.flush()
        options = ["-n", "-M", "prepared", "-c", "4", "-j", "2", "-T", str(seconds), "-f", script.name]
        done = subprocess.run(
            [server.bin_dir / "pgbench", *options, database.uri], capture_output=True, text=True, check=True
        )
    found = re.search(r"tps = ([\d.]+)", done.stdout)
    assert found, done.stdout
    return 1 / float(found[1])


def run_bulk(server: Server, times: Times, arguments: argparse.Namespace, label: str, indexes: str) -> None:
    database = server.create_database(f"bulk_{len(times)}")
    tables = prepare(database, indexes)
    for number in range(arguments.rounds + 1):
        for way in WAYS:
            for work, seconds in zip(("insert", "update"), bulk(database, tables[way], arguments.rows), strict=True):
                if number:  # the first round fills caches
                    times.setdefault(f"bulk {work}, {label}", {}).setdefault(way, []).append(seconds)


def run_single(server: Server, times: Times, arguments: argparse.Namespace, label: str) -> None:
    database = server.create_database(f"single_{len(times)}")
    tables = prepare(database, "")
    for name in tables.values():
        bulk(database, name, arguments.rows)
    for number in range(arguments.rounds + 1):
        for way in WAYS:
            seconds = single(server, database, tables[way], arguments.rows, arguments.seconds)
            if number:
                times.setdefault(f"single-row updates, 4 clients, {label}", {}).setdefault(way, []).append(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--seconds", type=int, default=2)
    arguments = parser.parse_args()
    times: Times = {}
    with Server.start(name="bench", settings=SETTINGS) as server:
        version = str(server.database("postgres").execute("SHOW server_version")[0][0])
        run_bulk(server, times, arguments, "key only", "")
        run_bulk(server, times, arguments, "two more indexes", INDEXES)
        run_single(server, times, arguments, "fsync off")
    with Server.start(name="bench", settings={**SETTINGS, "fsync": "on"}) as server:
        run_single(server, times, arguments, "fsync on")
    write_results(times, arguments, version)


def write_results(times: Times, arguments: argparse.Namespace, version: str) -> None:
    """The table, with the machine and the versions."""
    text = [
        "# Tubes: what capture costs",
        "",
        f"{datetime.now(timezone.utc):%Y-%m-%d}; {os.cpu_count()} cores shared with other work, {platform.machine()},"
        f" PostgreSQL {version}, {arguments.rows:,} rows, {arguments.rounds} interleaved rounds.",
        "Written by `bench/tube.py`; see there what is counted.",
        "",
        "| work | no trigger | trueup | row trigger | trueup / none | row trigger / none |",
        "|---|---|---|---|---|---|",
    ]
    for work, found in times.items():
        cells = [_shown(work)(statistics.median(found[way])) for way in WAYS]
        ratios = [
            f"{statistics.median(none / each for none, each in zip(found['none'], found[way], strict=True)):.2f}"
            for way in WAYS[1:]
        ]
        text.append(f"| {' | '.join([work, *cells, *ratios])} |")
    text += ["", "The ratios are speeds: 1.00 is as fast as without a trigger."]
    sys.stdout.write("\n".join(text) + "\n")
    Path(__file__).with_name("RESULTS-tube.md").write_text("\n".join(text) + "\n", encoding="utf-8")


def _shown(work: str) -> Callable[[float], str]:
    return (lambda x: f"{1 / x:,.0f}/s") if work.startswith("single") else (lambda x: f"{1000 * x:,.0f} ms")


if __name__ == "__main__":
    main()
