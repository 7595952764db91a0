"""The copy of a sync beside `pg_dump | psql`, parallel dump and restore, and pgcopydb; and what triggers cost writers.

    .venv/bin/python bench/sync.py [--rows 10000000] [--rounds 3] [--pg-bin DIR] [--engine local]

Copy: five tables of together so many rows, with primary keys, two more indexes and foreign keys, into an empty database;
each way makes the schema, copies the rows, builds the indexes. The ways take turns; the table shows the medians. trueup
and pgcopydb also collect statistics, and trueup installs its change log and removes it again. CPU seconds are those of
the client's processes and of the server; on a machine with other work they say more than the time. Bytes over the
loopback interface are those of all processes of the machine. Writes: single-row updates by 4 clients of pgbench,
without triggers and with those of a sync.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from machine import client_seconds, loopback_bytes, server_seconds

from trueup.config.model import Node
from trueup.config.settings import SparkSettings
from trueup.engine.progress import Silent
from trueup.testing.postgres import Database, Server
from trueup.verbs.sync import ending
from trueup.verbs.sync import run as sync
from trueup.verbs.sync.request import Scope, SyncRequest

SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "8GB", "maintenance_work_mem": "256MB"}
TABLES = """
CREATE TABLE customers (id bigint PRIMARY KEY, name text, email text, made timestamptz, notes text);
CREATE TABLE items (id bigint PRIMARY KEY, name text, price numeric);
CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint REFERENCES customers, at timestamptz, total numeric);
CREATE TABLE lines (id bigint PRIMARY KEY, "order" bigint REFERENCES orders, item bigint REFERENCES items, n int, price numeric);
CREATE TABLE events (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), at timestamptz, kind text, body jsonb);
CREATE INDEX ON orders (customer); CREATE INDEX ON lines ("order");
"""
ROWS = """
INSERT INTO customers SELECT g, 'name ' || g, 'c' || g || '@example.org', now(), repeat('x', 60) FROM generate_series(1, {n}::bigint) g;
INSERT INTO items SELECT g, 'item ' || g, g / 7.0 FROM generate_series(1, {n}::bigint) g;
INSERT INTO orders SELECT g, g, now(), g / 3.0 FROM generate_series(1, {n}::bigint) g;
INSERT INTO lines SELECT g, g, g, g % 9, g / 11.0 FROM generate_series(1, {n}::bigint) g;
INSERT INTO events (at, kind, body) SELECT now(), 'k' || g % 9, jsonb_build_object('n', g) FROM generate_series(1, {n}::bigint) g;
"""
NAMES = ("customers", "items", "orders", "lines", "events")


def by_trueup(source: Database, target: Database, programs: Path, engine: str) -> None:
    """`trueup sync start --create-schema`, and away with its change log."""
    request = SyncRequest(
        Node("n1", source.uri),
        Node("n2", target.uri),
        Scope("bench", create_schema=True),
        SparkSettings(engine=engine),
        pg_bin=str(programs),
    )
    sync.start(request, Silent())
    ending.drop(request, timeout=30)


def by_pg_dump(source: Database, target: Database, programs: Path, engine: str) -> None:
    """`pg_dump | psql`."""
    dump = subprocess.Popen([programs / "pg_dump", source.uri], stdout=subprocess.PIPE)
    subprocess.run(
        [programs / "psql", "-q", "-v", "ON_ERROR_STOP=1", target.uri],
        stdin=dump.stdout,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    if dump.wait():
        raise SystemExit("pg_dump failed")


def by_parallel_dump(source: Database, target: Database, programs: Path, engine: str) -> None:
    """`pg_dump -j` into a folder, then `pg_restore -j`, with as many jobs as there are cores."""
    jobs = str(os.cpu_count() or 1)
    with tempfile.TemporaryDirectory() as folder:
        dump = [programs / "pg_dump", "-Fd", "-j", jobs, "-Z0", "-f", f"{folder}/dump", source.uri]
        subprocess.run(dump, check=True)
        subprocess.run([programs / "pg_restore", "-j", jobs, "-d", target.uri, f"{folder}/dump"], check=True)


def by_pgcopydb(source: Database, target: Database, programs: Path, engine: str) -> None:
    """`pgcopydb clone` with as many jobs as there are cores."""
    jobs = str(os.cpu_count() or 1)
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
        command = ["pgcopydb", "clone", "--dir", folder, "--restart", "--table-jobs", jobs, "--index-jobs", jobs]
        command += ["--source", source.uri, "--target", target.uri, "--not-consistent"]
        subprocess.run(command, check=True, env=environment, capture_output=True)


def check(source: Database, target: Database) -> None:
    """The same number of rows, or the way did not do it."""
    for name in NAMES:
        query = f"SELECT count(*), coalesce(sum(hashtextextended(t::text, 0)), 0) FROM {name} t"
        if source.execute(query) != target.execute(query):
            raise SystemExit(f"{name} is not the same")


@dataclass(frozen=True)
class Run:
    """One copy: seconds, CPU seconds of the client and of the server, bytes over the loopback interface."""

    seconds: float
    client: float
    server: float
    sent: int


def measured(server: Server, action: Callable[[], None]) -> Run:
    """Run a copy, and measure it."""
    client, backends, sent = client_seconds(), server_seconds(server.pid), loopback_bytes()
    began = time.perf_counter()
    action()
    seconds = time.perf_counter() - began
    # Sessions end a moment after their client.
    time.sleep(0.3)
    return Run(seconds, client_seconds() - client, server_seconds(server.pid) - backends, loopback_bytes() - sent)


def copies(server: Server, source: Database, arguments: argparse.Namespace, programs: Path) -> dict[str, list[Run]]:
    ways: dict[str, Callable[[Database, Database, Path, str], None]] = {
        "trueup sync": by_trueup,
        "pg_dump | psql": by_pg_dump,
        "pg_dump -j, pg_restore -j": by_parallel_dump,
    }
    if shutil.which("pgcopydb"):
        ways["pgcopydb"] = by_pgcopydb
    runs: dict[str, list[Run]] = {way: [] for way in ways}
    for number in range(arguments.rounds):
        for way, run in ways.items():
            target = server.create_database(f"target_{number}")
            source.execute("CHECKPOINT")
            runs[way].append(measured(server, partial(run, source, target, programs, arguments.engine)))
            sys.stderr.write(f"{way}: {runs[way][-1]}, load {os.getloadavg()[0]:.1f}\n")
            check(source, target)
            target.drop()
    return runs


def writes(server: Server, source: Database, target: Database, seconds: int) -> tuple[float, float]:
    """Transactions a second without and with the triggers of a sync."""
    rows = source.execute("SELECT count(*) FROM orders")[0][0]

    def pgbench() -> float:
        with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
            script.write(f"\\set id random(1, {rows})\nUPDATE orders SET total = total + 1 WHERE id = :id;\n")
            script.flush()
            options = ["-n", "-M", "prepared", "-c", "4", "-j", "2", "-T", str(seconds), "-f", script.name]
            done = subprocess.run(
                [server.bin_dir / "pgbench", *options, source.uri], capture_output=True, text=True, check=True
            )
        found = re.search(r"tps = ([\d.]+)", done.stdout)
        assert found, done.stdout
        return float(found[1])

    target.execute(TABLES)
    request = SyncRequest(Node("n1", source.uri), Node("n2", target.uri), Scope("bench"), SparkSettings(engine="local"))
    pgbench()
    without = pgbench()
    sync.start(request, Silent())
    with_triggers = pgbench()
    ending.drop(request, timeout=30)
    return without, with_triggers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--engine", default="local", choices=["local", "spark", "auto"])
    parser.add_argument(
        "--pg-bin", default=None, help="another PostgreSQL: pgcopydb of Debian wants the server of Debian"
    )
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    with Server.start(name="bench", settings=SETTINGS, bin_dir=arguments.pg_bin) as server:
        source = server.create_database("source")
        source.execute(TABLES)
        for statement in ROWS.format(n=arguments.rows // len(NAMES)).strip().splitlines():
            source.execute(statement)
        source.execute("ANALYZE")
        version = source.execute("SHOW server_version")[0][0]
        runs = copies(server, source, arguments, server.bin_dir)
        speeds = writes(server, source, server.create_database("written"), arguments.seconds)
    text = [
        "# The copy of a sync beside its peers",
        "",
        f"{datetime.now(timezone.utc):%Y-%m-%d}; {os.cpu_count()} cores, {platform.machine()}, PostgreSQL {version},"
        f" {arguments.rows:,} rows in {len(NAMES)} tables, {arguments.rounds} interleaved rounds, engine {arguments.engine},"
        f" load {load:.1f} at the start and {os.getloadavg()[0]:.1f} at the end.",
        "Written by `bench/sync.py`; see there what is counted.",
        "",
        "| way | seconds (median) | rows/s | against trueup | CPU seconds of the client | of the server | MB over loopback |",
        "|---|---|---|---|---|---|---|",
    ]
    ours = statistics.median(run.seconds for run in runs["trueup sync"])
    for way, found in runs.items():
        seconds, client, backends, sent = (
            statistics.median(getattr(run, name) for run in found) for name in ("seconds", "client", "server", "sent")
        )
        text.append(
            f"| {way.replace(chr(124), chr(92) + chr(124))} | {seconds:.1f} | {arguments.rows / seconds:,.0f} |"
            f" {seconds / ours:.2f} | {client:.1f} | {backends:.1f} | {sent / 1e6:,.0f} |"
        )
    if "pgcopydb" not in runs:
        text.append("| pgcopydb | skipped: it is not installed | | | | | |")
    text += [
        "",
        f"Single-row updates, 4 clients: {speeds[0]:,.0f}/s without triggers, {speeds[1]:,.0f}/s with them"
        f" ({speeds[1] / speeds[0]:.2f}).",
    ]
    sys.stdout.write("\n".join(text) + "\n")
    Path(__file__).with_name("RESULTS-sync.md").write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
