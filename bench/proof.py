"""What a proof that keeps itself current costs, and how fast it answers.

    .venv/bin/python bench/proof.py [--rows 10000000] [--rate 5000] [--seconds 60] [--share 0.05]
                                    [--parts prove,sides,scrub,share] [--syncer subscription|sync]
                                    [--source log|changelog]

Two servers of this machine with PostgreSQL's own replication, or `trueup sync`, between them. (1) A table is scrubbed once; then 1 % of its
rows are updated at random keys, and when the subscription has applied the last one, `prove` is called. (2) At a rate of
changes, the CPU time of the validation process and of both servers, without a validation, with a validation of the
source, and with one of both sides; no scrub. The rate is the one that the writer has reached. (3) With the scrub at its share and without a pause, the latency of single-row updates of
a client, in turns with and without the scrub; (4, `share`) the part of the time that blocks took.
Adds to bench/RESULTS-proof.md.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg
from machine import machine, server_seconds

from trueup.api.sync import Sync
from trueup.api.validate import Validation
from trueup.testing.postgres import Database, Server
from trueup.verbs.validate.proving.scrub import Scrubber

TABLE = "CREATE TABLE load (id int PRIMARY KEY, name text, price numeric, changed timestamptz, note text)"
FILL = "INSERT INTO load SELECT i, 'name ' || i, i, now(), md5(i::text) FROM generate_series(1, {}) i"
SETTINGS = {"shared_buffers": "256MB", "max_wal_size": "8GB"}
BATCH = 100
WINDOWS = 12


class Bench:
    """The servers, and what was measured."""

    def __init__(self, up: Database, down: Database, servers: tuple[Server, Server], syncer: str, source: str) -> None:
        self.up, self.down, self.servers = up, down, servers
        self.syncer, self.source = syncer, source
        self.written = 0
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        """Record a line of the result."""
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
        self.lines.append(text)

    def validation(self, name: str, **settings: Any) -> Validation:
        """Create a validation of the table."""
        validation = Validation(name, nodes={"n1": self.up.uri, "n2": self.down.uri})
        validation.create(
            source="n1", target="n2", tables=("public.load",), changes=self.source, scrub_period=0.0, **settings
        )
        return validation

    def applied(self) -> bool:
        """Return whether the subscription has applied everything."""
        end = self.up.execute("SELECT pg_current_wal_lsn()")[0][0]
        if self.syncer == "sync":
            return self.down.execute("SELECT source_lsn >= %s FROM trueup.sync_mark", [end]) == [(True,)]
        query = "SELECT replay_lsn >= %s FROM pg_stat_replication WHERE application_name = 'bench'"
        return self.up.execute(query, [end]) == [(True,)]


@contextmanager
def replicating(bench: Bench) -> Iterator[None]:
    """Replicate the table with the syncer of the run."""
    if bench.syncer == "subscription":
        bench.up.execute("CREATE PUBLICATION bench FOR TABLE load")
        bench.down.execute(f"CREATE SUBSCRIPTION bench CONNECTION '{bench.up.uri}' PUBLICATION bench")
        until(lambda: not bench.down.execute("SELECT 1 FROM pg_subscription_rel WHERE srsubstate <> 'r'"))
        yield
        return
    sync = Sync("n1", "n2", nodes={"n1": bench.up.uri, "n2": bench.down.uri}, engine="local")
    sync.start()
    nodes = ["--node", f"n1={bench.up.uri}", "--node", f"n2={bench.down.uri}"]
    command = [sys.executable, "-m", "trueup", "sync", "run", "--from", "n1", "--to", "n2", "--follow"]
    process = subprocess.Popen([*command, *nodes], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: bench.down.execute("SELECT 1 FROM trueup.sync_mark"))
        yield
    finally:
        sync.stop()
        process.wait()


@contextmanager
def running(bench: Bench, validation: Validation) -> Iterator[psutil.Process]:
    """Run a validation as a process of its own."""
    nodes = ["--node", f"n1={bench.up.uri}", "--node", f"n2={bench.down.uri}"]
    command = [sys.executable, "-m", "trueup", "validate", "start", "--name", validation.name, "--engine", "local"]
    process = subprocess.Popen([*command, *nodes], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: validation.status().state == "running")
        yield psutil.Process(process.pid)
    finally:
        validation.stop()
        process.wait()


def until(condition: Any) -> None:
    """Wait until a condition holds."""
    give_up = time.monotonic() + 600
    while not condition():
        if time.monotonic() > give_up:
            raise TimeoutError(str(condition))
        time.sleep(0.05)


def cpu(process: psutil.Process) -> float:
    """Return the seconds of CPU that a process has used, with children that have ended."""
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def servers_cpu(bench: Bench) -> float:
    """Return the seconds of CPU that both servers have used."""
    return sum(server_seconds(server.pid or 0) for server in bench.servers)


def prove(bench: Bench, rows: int) -> None:
    """Measure how long a proof takes after 1 % of the rows were changed."""
    validation = bench.validation("prove", both_sides=True, scrub_share=0.9)
    with running(bench, validation):
        start = time.monotonic()
        until(lambda: validation.status().tables and validation.status().tables[0].certificate)
        blocks = validation.status().tables[0].blocks
        bench.say(f"- certificate of {rows:,} rows in {blocks:,} blocks: {time.monotonic() - start:.1f} s at share 0.9")
        validation.update(scrub_share=0.0)
        choose = random.Random(1)
        with psycopg.connect(bench.up.uri, autocommit=True) as connection:
            for _ in range(rows // 100 // BATCH):
                keys = choose.sample(range(1, rows + 1), BATCH)
                connection.execute("UPDATE load SET price = price + 1 WHERE id = ANY (%s)", [keys])
        until(bench.applied)
        start = time.monotonic()
        proof = validation.prove(timeout=120)
        seconds = time.monotonic() - start
        bench.say(f"- `prove` after 1 % of the rows changed at random keys: {proof.verdict} in {seconds:.2f} s")
        start = time.monotonic()
        proof = validation.prove(timeout=120)
        bench.say(f"- `prove` on the idle pair: {proof.verdict} in {time.monotonic() - start:.2f} s")
    validation.delete()


def write(bench: Bench, rows: int, rate: int, stop: threading.Event) -> None:
    """Change rows at a rate, in transactions of 100."""
    choose, began, done = random.Random(2), time.monotonic(), 0
    with psycopg.connect(bench.up.uri, autocommit=True) as connection:
        while not stop.wait(max(0.0, began + done / rate - time.monotonic())):
            first = choose.randrange(1, rows - BATCH)
            connection.execute(
                "UPDATE load SET price = price + 1 WHERE id BETWEEN %s AND %s", [first, first + BATCH - 1]
            )
            done += BATCH
            bench.written = done


@dataclass(frozen=True)
class Cost:
    """Seconds of CPU of the validation and of the servers, and changes per second: written, and judged."""

    own: float
    servers: float
    written: float
    judged: float


def load_cost(bench: Bench, rows: int, rate: int, seconds: float, kind: str) -> Cost:
    """Return what a validation costs under load, per second."""
    stop = threading.Event()
    writer = threading.Thread(target=write, args=(bench, rows, rate, stop))

    def now(process: psutil.Process | None, validation: Validation | None) -> tuple[float, ...]:
        judged = validation.status().total("processed") if validation else 0
        return time.monotonic(), cpu(process) if process else 0.0, servers_cpu(bench), bench.written, judged

    def measure(process: psutil.Process | None, validation: Validation | None) -> Cost:
        time.sleep(5)
        before = now(process, validation)
        time.sleep(seconds)
        passed, *used = (after - start for after, start in zip(now(process, validation), before, strict=True))
        return Cost(*(each / passed for each in used))

    writer.start()
    try:
        if kind == "none":
            return measure(None, None)
        settings = {"both_sides": True, "scrub_share": 0.0} if kind == "both" else {}
        validation = bench.validation(kind, **settings)
        with running(bench, validation) as process:
            found = measure(process, validation)
        status = validation.status()
        if kind == "both":
            bench.say(f"- changes of the target: {status.target_others:,} compared, {status.target_applied:,} not")
        validation.delete()
        return found
    finally:
        stop.set()
        writer.join()
        until(bench.applied)


def both_sides(bench: Bench, rows: int, rate: int, seconds: float) -> None:
    """Compare the CPU of a one-sided and a two-sided validation, per change that was judged."""
    idle = load_cost(bench, rows, rate, seconds, "none")
    bench.say(f"- {idle.written:,.0f} changes/s, no validation: servers {idle.servers:.2f} cores")
    costs: dict[str, tuple[float, float]] = {}
    for kind, name in (("one", "source only"), ("both", "both sides")):
        cost = load_cost(bench, rows, rate, seconds, kind)
        total = cost.own + cost.servers - idle.servers * cost.written / idle.written
        costs[kind] = cost.own / cost.judged, total / cost.judged
        bench.say(
            f"- {cost.written:,.0f} changes/s, {cost.judged:,.0f} judged/s, {name}: process {cost.own:.3f} cores, with its"
            f" part of the servers {total:.3f}"
        )
    ratio = [both / one for one, both in zip(costs["one"], costs["both"], strict=True)]
    bench.say(
        f"- both sides : source only, per judged change = {ratio[0]:.2f} (process), {ratio[1]:.2f} (with the servers)"
    )


def latencies(bench: Bench, rows: int, seconds: float) -> list[float]:
    """Return the milliseconds of single-row updates, 100 per second."""
    choose, found, end = random.Random(3), [], time.monotonic() + seconds
    with psycopg.connect(bench.up.uri, autocommit=True) as connection:
        while time.monotonic() < end:
            start = time.monotonic()
            connection.execute("UPDATE load SET price = price + 1 WHERE id = %s", [choose.randrange(1, rows)])
            found.append((time.monotonic() - start) * 1000)
            time.sleep(max(0.0, start + 0.01 - time.monotonic()))
    return found


class Busy:
    """The time that blocks take, and the part of it in which they are hashed."""

    def __init__(self) -> None:
        self.blocks = self.seconds = self.hashing = 0.0
        whole, hashed = Scrubber._scrub, Scrubber._hash

        def scrub_timed(scrubber: Scrubber, *arguments: Any) -> None:
            start = time.monotonic()
            whole(scrubber, *arguments)
            self.seconds += time.monotonic() - start
            self.blocks += 1

        def hash_timed(scrubber: Scrubber, *arguments: Any) -> Any:
            start = time.monotonic()
            result = hashed(scrubber, *arguments)
            self.hashing += time.monotonic() - start
            return result

        Scrubber._scrub = scrub_timed  # type: ignore[method-assign, assignment]
        Scrubber._hash = hash_timed  # type: ignore[method-assign, assignment]

    def clear(self) -> None:
        """Start again."""
        self.blocks = self.seconds = self.hashing = 0.0


@contextmanager
def scrubbing(bench: Bench, share: float) -> Iterator[tuple[Validation, Busy]]:
    """Run a validation in a thread, with a scrub without a pause."""
    busy = Busy()
    validation = bench.validation("scrub", scrub_share=share)
    worker = threading.Thread(target=validation.start, kwargs={"engine": "local", "log": lambda text: None})
    worker.start()
    until(lambda: validation.status().state == "running")
    try:
        yield validation, busy
    finally:
        validation.stop()
        worker.join()
        validation.delete()


def p95(times: list[float]) -> float:
    """Return the 95th percentile."""
    return statistics.quantiles(times, n=20)[-1]


def scrub(bench: Bench, rows: int, seconds: float, share: float) -> None:
    """Compare the latency of a client in windows with and without the scrub, one after the other."""
    windows: list[tuple[list[float], list[float]]] = []
    used = elapsed = 0.0
    with scrubbing(bench, share) as (validation, busy):
        for number in range(WINDOWS):
            found: dict[bool, list[float]] = {}
            # The order alternates too: what changes slowly concerns both.
            for is_on in (False, True) if number % 2 else (True, False):
                validation.update(scrub_share=share if is_on else 0.0)
                time.sleep(1)
                busy.clear()
                start = time.monotonic()
                found[is_on] = latencies(bench, rows, seconds / WINDOWS / 2)
                if is_on:
                    used, elapsed = used + busy.seconds, elapsed + time.monotonic() - start
            windows.append((found[False], found[True]))
    bench.say(f"- scrub at share {share}: {used / elapsed:.4f} of {elapsed:.0f} s, {WINDOWS} windows with and without")
    for name, of in (("p50", statistics.median), ("p95", p95)):
        off, on = (of([each for window in windows for each in window[side]]) for side in (0, 1))
        ratio = statistics.median(of(on) / of(off) for off, on in windows)
        bench.say(
            f"- {name} of an update: {off:.3f} ms without, {on:.3f} ms with the scrub (x {on / off:.3f}); median of the"
            f" windows x {ratio:.3f}"
        )


def share_of_time(bench: Bench, seconds: float, share: float) -> None:
    """Measure the part of a long time that the scrub takes."""
    with scrubbing(bench, share) as (_, busy):
        time.sleep(2)
        busy.clear()
        start = time.monotonic()
        time.sleep(seconds)
        passed = time.monotonic() - start
        bench.say(
            f"- scrub at share {share}: {busy.seconds / passed:.4f} of {passed:.0f} s, {busy.blocks:,.0f} blocks of"
            f" {1000 * busy.seconds / busy.blocks:.1f} ms, {1000 * busy.hashing / busy.blocks:.1f} ms of them hashing"
        )


def main() -> None:
    """Run all parts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rate", type=int, default=5_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--parts", default="prove,sides,scrub")
    parser.add_argument("--syncer", choices=("subscription", "sync"), default="subscription")
    parser.add_argument("--source", choices=("log", "changelog"), default="log")
    options = parser.parse_args()
    with Server.start(name="up", settings=SETTINGS) as one, Server.start(name="down", settings=SETTINGS) as two:
        up, down = one.database("postgres"), two.database("postgres")
        bench = Bench(up, down, (one, two), options.syncer, options.source)
        bench.up.execute(TABLE)
        bench.down.execute(TABLE)
        bench.up.execute(FILL.format(options.rows))
        parts = options.parts.split(",")
        with replicating(bench):
            if "prove" in parts:
                prove(bench, options.rows)
            if "sides" in parts:
                both_sides(bench, options.rows, options.rate, options.seconds / 2)
            if "scrub" in parts:
                scrub(bench, options.rows, options.seconds, options.share)
            if "share" in parts:
                share_of_time(bench, options.seconds, options.share)
    text = "\n".join(["", machine(), "", f"`{' '.join(sys.argv)}`", "", *bench.lines, ""])
    results = Path(__file__).with_name("RESULTS-proof.md")
    before = results.read_text(encoding="utf-8") if results.exists() else "# Results: proof\n"
    results.write_text(before + text, encoding="utf-8")


if __name__ == "__main__":
    main()
