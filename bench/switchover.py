"""The pause of a switchover with 0, 1,000, 10,000 and 50,000 pending keys, while 4 clients of pgbench write.

    .venv/bin/python bench/switchover.py [--rounds 5] [--rows 100000] [--rate 1000] [--pending 0,1000,10000,50000]

Two servers. The tables are those of pgbench without its history, which has no key. Each switchover is one of
`--proof keys`: rounds bring the copy close, then that many rows are updated in one statement, and the pause begins at
once. The rollback is measured as well, with as many keys. The pause is what a writer waits: from the request for the
lock to the commit that opens the new database. All clients together write `--rate` transactions per second (0: as fast
as they can); what they wrote between the last round and the pause adds to the keys.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from trueup.config.model import Node
from trueup.config.settings import SparkSettings
from trueup.engine.progress import Silent
from trueup.store import TaskStore
from trueup.testing.postgres import Database, Server
from trueup.verbs.switchover import pause as pauses
from trueup.verbs.switchover import run as switchover
from trueup.verbs.switchover.outcome import Outcome
from trueup.verbs.switchover.phases import PAUSE
from trueup.verbs.switchover.prepare import prepare_only
from trueup.verbs.switchover.request import EXECUTE, ROLLBACK, SwitchoverRequest
from trueup.verbs.sync import run as sync
from trueup.verbs.sync.request import Scope, SyncRequest

SETTINGS = {"shared_buffers": "256MB", "max_wal_size": "4GB", "fsync": "on"}
SCHEMA = """
CREATE TABLE accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84));
CREATE TABLE tellers (tid int PRIMARY KEY, bid int, tbalance int, filler char(84));
CREATE TABLE branches (bid int PRIMARY KEY, bbalance int, filler char(88));
ALTER TABLE tellers ADD FOREIGN KEY (bid) REFERENCES branches;
ALTER TABLE accounts ADD FOREIGN KEY (bid) REFERENCES branches;
"""
ROWS = """
INSERT INTO branches SELECT g, 0, '' FROM generate_series(1, 10) g;
INSERT INTO tellers SELECT g, 1 + g % 10, 0, '' FROM generate_series(1, 100) g;
INSERT INTO accounts SELECT g, 1 + g % 10, 0, '' FROM generate_series(1, {rows}) g;
"""
SCRIPT = """
\\set aid random(1, {rows})
\\set tid random(1, 100)
\\set delta random(-5000, 5000)
BEGIN;
UPDATE accounts SET abalance = abalance + :delta WHERE aid = :aid;
UPDATE tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
END;
"""


@contextmanager
def load(server: Server, database: Database, rows: int, rate: int) -> Iterator[None]:
    """Run four clients of pgbench during the block; writes that are refused at its end are ignored."""
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(SCRIPT.format(rows=rows))
        script.flush()
        command = [str(server.bin_dir / "pgbench"), "-n", "-c", "4", "-j", "1", "-T", "600", "-f", script.name]
        command += ["-R", str(rate)] if rate else []
        process = subprocess.Popen([*command, database.uri], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until = time.monotonic() + 30
            while not database.execute("SELECT 1 FROM accounts WHERE abalance <> 0 LIMIT 1"):
                assert time.monotonic() < until, "pgbench does not write"
                time.sleep(0.05)
            yield
        finally:
            process.kill()
            process.wait()


@contextmanager
def pending(database: Database, keys: int) -> Iterator[None]:
    """Update this many rows just before the pause begins."""
    original = pauses.pause

    def pause(*arguments: Any) -> Any:
        if keys:
            database.execute(f"UPDATE accounts SET abalance = abalance + 1 WHERE aid <= {keys}")
        return original(*arguments)

    pauses.pause = pause  # type: ignore[assignment]
    try:
        yield
    finally:
        pauses.pause = original


def measure(keys: Sequence[int], arguments: argparse.Namespace, folder: Path) -> dict[int, list[Outcome]]:
    """Measure every number of keys in both directions, repeatedly."""
    found: dict[int, list[Outcome]] = {each: [] for each in keys}
    with (
        Server.start(name="old", settings=SETTINGS) as one,
        Server.start(name="new", settings=SETTINGS) as other,
        TaskStore(folder / "tasks.db") as store,
    ):
        databases = [server.create_database("bench") for server in (one, other)]
        for database in databases:
            database.execute(SCHEMA)
        databases[0].execute(ROWS.format(rows=arguments.rows))
        first, second = (Node(name, each.uri) for name, each in zip(("old", "new"), databases, strict=True))
        sync.start(SyncRequest(first, second, Scope("main"), SparkSettings(engine="local")), Silent())
        request = SwitchoverRequest(
            "main", first, second, budget=60.0, proof="keys", close_keys=5000, report_dir=str(folder)
        )
        prepare_only(request)
        for database in databases:
            database.execute("VACUUM ANALYZE")
        for number in range(arguments.rounds + 1):
            for each in keys:
                for action, server, database in (
                    (EXECUTE, one, databases[0]),
                    (ROLLBACK, other, databases[1]),
                ):
                    with load(server, database, arguments.rows, arguments.rate), pending(database, each):
                        outcome = switchover.move(request, action, store=store, progress=Silent())
                    if number:  # the first round warms up
                        found[each].append(outcome)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--pending", default="0,1000,10000,50000")
    arguments = parser.parse_args()
    keys = [int(each) for each in arguments.pending.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        found = measure(keys, arguments, Path(folder))
    text = [
        "# The pause of a switchover",
        "",
        f"{datetime.now(timezone.utc):%Y-%m-%d}; {os.cpu_count()} cores, {platform.machine()}; {arguments.rows:,} rows,"
        f" 4 clients of pgbench at {arguments.rate or 'all the'} transactions a second, `--proof keys`, median of"
        f" {2 * arguments.rounds} runs in both directions.",
        "Written by `bench/switchover.py`, which describes what is measured.",
        "",
        f"| pending keys | keys in the pause | pause | slowest | {' | '.join(PAUSE)} |",
        "|---|---|---|---|" + "---|" * len(PAUSE),
    ]
    for each, outcomes in found.items():
        times = [outcome.pause_ms for outcome in outcomes]
        phases = [statistics.median(outcome.milliseconds[name] for outcome in outcomes) for name in PAUSE]
        final_keys = statistics.median(outcome.keys for outcome in outcomes)
        cells = [f"{each:,}", f"{final_keys:,.0f}", f"{statistics.median(times):,.1f} ms", f"{max(times):,.1f} ms"]
        text.append(f"| {' | '.join([*cells, *(f'{value:,.1f}' for value in phases)])} |")
    sys.stdout.write("\n".join(text) + "\n")
    Path(__file__).with_name("RESULTS-switchover.md").write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
