"""What a validation keeps up with: changes a second beside PostgreSQL's own replication, time to an error, memory.

    .venv/bin/python bench/validate.py [--rates 5000,10000,15000,20000] [--seconds 30] [--engines local,spark]
                                       [--fast-seconds 20] [--memory-seconds 120] [--memory-rate 5000]

Two servers of this machine, a table of 200,000 rows, native replication between them. Upstream, transactions of 100
changes each (updates by key, some inserts and deletes) come at a given rate; the validation is a process of its own,
and shares the cores with both servers and the load. A rate is kept if at its end less than two seconds of it wait.
Beside the load, a row is spoiled by a trigger of the target every half second: the time until it is listed as an error,
with --check-interval 0.25 and --row-error-delay 1. What is behind because the subscription has not applied it yet is not
the validation's doing: its share is told. Then changes come as fast as they are validated. Then they come at a low
rate, and memory is watched: of the process and its children (Java, Python workers, and the Python processes that plan
the batches), pages that several of them share counted once. The engines take turns, each with its own slot, in the same databases. Writes bench/RESULTS-validate.md.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from machine import machine, memory_by_kind

from trueup.api.validate import Validation
from trueup.capture.log.slot import lsn_number
from trueup.testing.postgres import Database, Server
from trueup.verbs.validate.status import status_text

ROWS = 200_000
BATCH = 100
TABLES = """
CREATE TABLE load (id int PRIMARY KEY, name text, price numeric, changed timestamptz, note text);
CREATE TABLE probe (id int PRIMARY KEY, n int);
"""
SPOIL = """
CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.n = -1; RETURN NEW; END $$;
CREATE TRIGGER spoil BEFORE INSERT ON probe FOR EACH ROW EXECUTE FUNCTION spoil();
ALTER TABLE probe ENABLE ALWAYS TRIGGER spoil;
"""
UPDATE = "UPDATE load SET price = price + 1, changed = clock_timestamp() WHERE id BETWEEN %s AND %s"
SETTINGS = {"shared_buffers": "256MB", "max_wal_size": "8GB"}


class Load:
    """Changes on the source at a rate (0: as fast as they are validated)."""

    def __init__(self, database: Database, validation: Validation, rate: int) -> None:
        self.changes = 0
        self._database = database
        self._validation = validation
        self._rate = rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        began = time.monotonic()
        choose = random.Random(1)
        with psycopg.connect(self._database.uri, autocommit=True) as connection:
            while not self._stop.is_set():
                first = choose.randrange(1, ROWS - BATCH)
                connection.execute(UPDATE, [first, first + BATCH - 1])
                self.changes += BATCH
                if self._rate:
                    time.sleep(max(0.0, began + self.changes / self._rate - time.monotonic()))
                elif self.changes % 5_000 == 0:
                    while self.changes - processed(self._validation) > 50_000 and not self._stop.is_set():
                        time.sleep(0.05)


def processed(validation: Validation) -> int:
    """How many changes of the load were looked at since the beginning of the run."""
    status = validation.status()
    return next(table.processed for table in status.tables if table.source == "public.load") - base[0]


base = [0]


def keeps_up(up: Database, down: Database, validation: Validation, rate: int, seconds: float) -> dict[str, Any]:
    """A rate for some time: how much of it was validated, and how far behind at its end."""
    base[0] = 0
    base[0] = processed(validation)
    began = time.monotonic()
    load = Load(up, validation, rate)
    probes = Probes(up, validation)
    time.sleep(seconds)
    behind = load.changes - processed(validation)
    made = load.changes / (time.monotonic() - began)
    now = int(up.execute("SELECT pg_current_wal_lsn() - '0/0'")[0][0])
    applied = int(down.execute("SELECT max(remote_lsn) - '0/0' FROM pg_replication_origin_status")[0][0])
    waiting = now - lsn_number(validation.status().position or "0/0")
    load.stop()
    times = probes.stop()
    fence = validation.fence(timeout=300)
    return {
        "rate": rate, "made": made, "behind": behind, "kept": behind < 2 * max(rate, 1),
        "of_syncer": min(1.0, max(0.0, (now - applied) / max(waiting, 1))), "catch_up": fence.seconds,
        "p50": statistics.median(times) if times else float("nan"),
        "p99": max(times) if len(times) < 100 else statistics.quantiles(times, n=100)[98], "probes": len(times),
    }  # fmt: skip


class Probes:
    """Rows that the target spoils, and when they are listed as errors."""

    number = 0

    def __init__(self, up: Database, validation: Validation) -> None:
        self._up = up
        self._validation = validation
        self._made: dict[str, float] = {}
        self._seen: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        at = time.monotonic()
        while not self._stop.is_set() or (len(self._seen) < len(self._made) and time.monotonic() - at < 60):
            if not self._stop.is_set() and time.monotonic() >= at:
                Probes.number += 1
                self._up.execute("INSERT INTO probe VALUES (%s, 1)", [Probes.number])
                self._made[str(Probes.number)] = time.monotonic()
                at = time.monotonic() + 0.5
            for error in self._validation.errors():
                if error.key[0] in self._made:
                    self._seen.setdefault(error.key[0], time.monotonic())
            time.sleep(0.1)
        self._validation.ignore(None)

    def stop(self) -> list[float]:
        """End it; the seconds of each."""
        self._stop.set()
        self._thread.join()
        lost = self._made.keys() - self._seen.keys()
        if lost:
            raise SystemExit(f"{len(lost)} of {len(self._made)} spoiled rows were never listed: {sorted(lost)[:5]}")
        return [self._seen[key] - made for key, made in self._made.items()]


def fastest(up: Database, validation: Validation, seconds: float) -> float:
    """Changes a second if they come as fast as they are validated."""
    base[0] = 0
    base[0] = processed(validation)
    load = Load(up, validation, 0)
    began = time.monotonic()
    time.sleep(seconds)
    rate = processed(validation) / (time.monotonic() - began)
    load.stop()
    validation.fence(timeout=300)
    return rate


def memory(
    up: Database, validation: Validation, process: subprocess.Popen[bytes], rate: int, seconds: float
) -> list[tuple[float, dict[str, int]]]:
    """Bytes by kind of process after so many seconds at a rate, every half minute."""
    load = Load(up, validation, rate)
    found: list[tuple[float, dict[str, int]]] = []
    began = time.monotonic()
    every = min(30.0, seconds / 4)
    while (now := time.monotonic() - began) < seconds:
        time.sleep(every * (len(found) + 1) - now)
        found.append((every * (len(found) + 1), memory_by_kind(process.pid)))
        assert process.poll() is None, "the validation has ended"
    load.stop()
    return found


def main() -> None:
    """Start the servers and the validation, measure, and write the results."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rates", default="5000,10000,15000,20000")
    options.add_argument("--seconds", type=float, default=30)
    options.add_argument("--fast-seconds", type=float, default=20)
    options.add_argument("--memory-seconds", type=float, default=120)
    options.add_argument("--memory-rate", type=int, default=5_000)
    options.add_argument("--engines", default="local,spark")
    options.add_argument("--no-file", action="store_true")
    given = options.parse_args()
    computer = machine()
    with Server.start(name="up", settings=SETTINGS) as one, Server.start(name="down", settings=SETTINGS) as two:
        up, down = one.database("postgres"), two.database("postgres")
        up.execute(TABLES)
        down.execute(TABLES)
        up.execute(
            f"INSERT INTO load SELECT i, 'name ' || i, i, now(), repeat('x', 60) FROM generate_series(1, {ROWS}) i"
        )
        up.execute("CREATE PUBLICATION p FOR ALL TABLES")
        down.execute(f"CREATE SUBSCRIPTION s CONNECTION '{up.uri}' PUBLICATION p")
        while down.execute("SELECT 1 FROM pg_subscription_rel WHERE srsubstate <> 'r'"):
            time.sleep(0.1)
        down.execute(SPOIL)
        up.execute("VACUUM ANALYZE")
        down.execute("VACUUM ANALYZE")
        nodes = {"n1": up.uri, "n2": down.uri}
        engines = given.engines.split(",")
        found = {engine: measured(given, up, down, engine, nodes) for engine in engines}
        lines = report(found, computer, given.memory_rate)
    text = "\n".join(lines)
    sys.stdout.write(text + "\n")
    if not given.no_file:
        (Path(__file__).parent / "RESULTS-validate.md").write_text(text + "\n", encoding="utf-8")


@dataclass
class Found:
    """What was measured on one engine."""

    rates: list[dict[str, Any]]
    fastest: float
    sizes: list[tuple[float, dict[str, int]]]
    status: str


def measured(given: argparse.Namespace, up: Database, down: Database, engine: str, nodes: dict[str, str]) -> Found:
    """All numbers of one engine, with a validation of its own."""
    name = f"bench_{engine}"
    validation = Validation(name, nodes=nodes)
    validation.create(source="n1", target="n2", tables=("public.*",), check_interval=0.25, row_error_delay=1.0)
    command = [sys.executable, "-m", "trueup", "validate", "start", "--name", name, "--engine", engine, "-q"]
    process = subprocess.Popen([*command, *(f"--node={node}={uri}" for node, uri in nodes.items())])
    try:
        while validation.status().engine.get("name") != engine:
            assert process.poll() is None, "the validation has ended"
            time.sleep(0.1)
        validation.fence()
        rates = []
        for rate in (int(each) for each in given.rates.split(",") if each):
            rates.append(keeps_up(up, down, validation, rate, given.seconds))
            sys.stdout.write(f"{engine}: {rates[-1]}\n")
        speed = fastest(up, validation, given.fast_seconds) if given.fast_seconds else 0.0
        sizes = memory(up, validation, process, given.memory_rate, given.memory_seconds)
        return Found(rates, speed, sizes, status_text(validation.status()).splitlines()[3].strip())
    finally:
        process.terminate()
        process.wait()
        validation.delete()


def report(found: dict[str, Found], computer: str, memory_rate: int) -> list[str]:
    """The lines of the report."""
    lines = ["# Validation beside native replication", "", computer, ""]
    lines += [
        "| engine | changes/s wanted | made | behind at the end | not applied yet | kept | caught up after | error p50 | p99 |"
    ]
    lines += ["|---|---|---|---|---|---|---|---|---|"]
    for engine, numbers in found.items():
        for rate in numbers.rates:
            lines.append(
                f"| {engine} | {rate['rate']:,} | {rate['made']:,.0f} | {rate['behind']:,} changes |"
                f" {rate['of_syncer']:.0%} of it | {'yes' if rate['kept'] else 'no'} |"
                f" {rate['catch_up']:.1f} s | {rate['p50']:.2f} s | {rate['p99']:.2f} s ({rate['probes']} rows) |"
            )
    speeds = ", ".join(f"{engine} {numbers.fastest:,.0f} changes/s" for engine, numbers in found.items())
    lines += ["", f"As fast as they are validated: {speeds}", ""]
    lines += [f"Memory of all processes at {memory_rate:,} changes/s, in MB:", ""]
    kinds = ("driver", "Java", "workers", "planners")
    lines += [f"| engine | after | all | {' | '.join(kinds)} |", "|---|--:|--:|" + "--:|" * len(kinds)]
    for engine, numbers in found.items():
        for seconds, sizes in numbers.sizes:
            parts = " | ".join(f"{sizes.get(kind, 0) / 1e6:,.0f}" for kind in kinds)
            lines.append(f"| {engine} | {seconds:,.0f} s | {sum(sizes.values()) / 1e6:,.0f} | {parts} |")
    return [*lines, "", *(f"Status at the end ({engine}): {numbers.status}" for engine, numbers in found.items())]


if __name__ == "__main__":
    main()
