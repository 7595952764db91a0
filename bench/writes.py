"""What the triggers of a sync and of a switchover cost those who write: TPC-B of pgbench, 4 clients.

    .venv/bin/python bench/writes.py [--rounds 7] [--seconds 4] [--clients 4]

Four databases of one server with the same tables: without triggers, with the change log of a sync, with that and the
guards of a switchover, and with guards alone. They take turns, so that what else the machine does meets all of them; a
ratio is the median of those of the rounds. A server that waits for the disk at each commit, as servers do, and one that
does not, where a trigger weighs the most. Each transaction has 4 statements that write one row each.

And what an application pays that follows the pointer: one client, with and without `switchover_enter` at the begin of a
transaction that only reads a constant.
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
from datetime import datetime, timezone
from pathlib import Path

from trueup.config.model import Node
from trueup.config.settings import SparkSettings
from trueup.engine.progress import Silent
from trueup.testing.postgres import Database, Server
from trueup.verbs.switchover.prepare import prepare_only
from trueup.verbs.switchover.request import SwitchoverRequest
from trueup.verbs.sync import run as sync
from trueup.verbs.sync.request import Scope, SyncRequest

SETTINGS = {"shared_buffers": "256MB", "max_wal_size": "4GB"}
COLUMNS = "state, next_name, next_address, token, next_given"
WAYS = ("no trigger", "change log", "change log and guards", "guards")


def pgbench(server: Server, database: Database, *arguments: str) -> float:
    """Run pgbench; return the transactions per second, or 0."""
    command = [str(server.bin_dir / "pgbench"), "-n", *arguments, database.uri]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"tps = ([\d.]+)", result.stdout)
    return float(found[1]) if found else 0.0


def prepared(server: Server, other: Server, way: str) -> Database:
    """Create a database with the triggers of this way."""
    name = re.sub(r"\W", "_", way)
    source, target = server.create_database(name), other.create_database(name)
    for database in (source, target):
        pgbench(server, database, "-i", "-I", "dtgp", "-s", "10", "-q")
        database.execute("ALTER TABLE pgbench_history ADD id bigserial PRIMARY KEY")
    target.execute("TRUNCATE pgbench_accounts, pgbench_branches, pgbench_tellers, pgbench_history")
    if way != WAYS[0]:
        first, second = Node("old", source.uri), Node("new", target.uri)
        sync.start(SyncRequest(first, second, Scope("main"), SparkSettings(engine="local")), Silent())
        if "guards" in way:
            prepare_only(SwitchoverRequest("main", first, second))
        if way == WAYS[3]:
            for (drop,) in source.execute(
                "SELECT format('DROP TRIGGER %I ON %s', tgname, tgrelid::regclass) FROM pg_trigger"
                " WHERE NOT tgisinternal AND tgname NOT LIKE 'trueup_guard%'"
            ):
                source.execute(drop)
    source.execute("VACUUM ANALYZE")
    return source


def entered(server: Server, database: Database, arguments: argparse.Namespace) -> float:
    """Return the microseconds that `switchover_enter` adds to a transaction."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        scripts = [Path(folder) / "without.sql", Path(folder) / "with.sql"]
        for script, first in zip(
            scripts, ("", f"SELECT {COLUMNS} FROM trueup_app.switchover_enter('main');\n"), strict=True
        ):
            script.write_text(f"BEGIN;\n{first}SELECT 1;\nEND;\n", encoding="utf-8")
        for _ in range(arguments.rounds):
            without, with_it = (pgbench(server, database, "-T", "1", "-f", str(script)) for script in scripts)
            found.append(1e6 / with_it - 1e6 / without)
    return statistics.median(found)


def measure(arguments: argparse.Namespace, fsync: str) -> tuple[dict[str, list[float]], float]:
    """Return the transactions per second of each way, round by round, and what `switchover_enter` adds."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    settings = {**SETTINGS, "fsync": fsync, "synchronous_commit": fsync}
    with Server.start(name="writes", settings=settings) as server, Server.start(name="target") as other:
        databases = {way: prepared(server, other, way) for way in WAYS}
        clients = ["-c", str(arguments.clients), "-j", "2"]
        for number in range(arguments.rounds + 1):
            for way, database in databases.items():
                tps = pgbench(server, database, *clients, "-T", str(arguments.seconds))
                if number:  # the first round warms up
                    found[way].append(tps)
        return found, entered(server, databases[WAYS[2]], arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--clients", type=int, default=4)
    arguments = parser.parse_args()
    load = os.getloadavg()[1]
    rows = []
    for fsync in ("on", "off"):
        found, micros = measure(arguments, fsync)
        rates = [f"{statistics.median(found[way]):,.0f}/s" for way in WAYS]
        pairs = [[mine / none for mine, none in zip(found[way], found[WAYS[0]], strict=True)] for way in WAYS[1:]]
        rows.append(f"| {' | '.join([fsync, *rates, *(f'{statistics.median(each):.2f}' for each in pairs)])} |")
    text = [
        "# What the triggers of a sync and of a switchover cost writers",
        "",
        f"{datetime.now(timezone.utc):%Y-%m-%d}; {os.cpu_count()} cores, {platform.machine()}, load {load:.1f} from other"
        f" work; TPC-B of pgbench, {arguments.clients} clients, {arguments.rounds} interleaved rounds.",
        "Written by `bench/writes.py`, which describes what is measured.",
        "",
        "| fsync | " + " | ".join(WAYS) + " | " + " | ".join(f"{way} / none" for way in WAYS[1:]) + " |",
        "|---" * 8 + "|",
        *rows,
        "",
        "The ratios are speeds: 1.00 is as fast as without a trigger.",
        "",
        f"`switchover_enter`, with its round trip, adds {micros:,.0f} microseconds to a transaction (one client).",
    ]
    sys.stdout.write("\n".join(text) + "\n")
    Path(__file__).with_name("RESULTS-writes.md").write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
