"""Tubes: what capture costs, and how fast a tube is worked off into a PostgreSQL table.

    .venv/bin/python bench/tube.py [--only capture|replay] [--rounds 9] [--rows 100000] [--seconds 2] [--keys 1000000]
                                   [--engines local,spark] [--live 20]

Capture: no trigger, a tube of trueup, and a row-level trigger that logs (table, id), in one run, as ratios.

Bulk: one INSERT and one UPDATE of all rows, of a table with nothing but its key, and of one with two more indexes.
Single rows: UPDATEs by key from 4 clients of pgbench, on a server that waits for the disk at each commit, as servers
do, and on one that does not, where the cost of a trigger weighs the most. The three ways take turns, so that what else
the machine does meets all of them; a ratio is the median of those of the rounds. Log and tube are emptied in between.

Replay: all keys of a table are in the tube by a backfill; `trueup tube run` starts and writes them into a table of
another database of the same server. Meanwhile single rows are updated, and seen in the target: the time from the commit
until then is the latency of a live touch, during the backfill, and for some seconds after it. At the end both tables
are compared. Once per engine. The rate does not contain the start of the job: it counts from the first row in the target
on, and for Spark the job waits for its session before it delivers anything. Memory is that of the job and its children
(Java, Python workers) together, shared pages counted once.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import psycopg
from machine import memory_of

import trueup
from trueup.api.tube import Tube
from trueup.engine.progress import Silent
from trueup.sinks.postgres_target import MARKS
from trueup.testing.postgres import Database, Server

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
    Tube.install(database.uri)
    with Tube("bench", database.uri) as tube:
        tube.ensure()
        tube.attach(tables["trueup"], shard=1)
    database.execute(ROW_TRIGGER.format(name=tables["row trigger"]))
    return tables


def bulk(database: Database, name: str, rows: int) -> tuple[float, float]:
    """Seconds of an INSERT and of an UPDATE of all rows."""
    database.execute(f"TRUNCATE {name}, row_log; TRUNCATE tube.pods_bench")
    database.execute("CHECKPOINT")
    began = time.perf_counter()
    database.execute(
        f"INSERT INTO {name} SELECT g, 'name ' || g, g / 7.0, repeat('x', 40), (g::int8 * 7919 % 1000003)::int, now()"
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


class Prober(threading.Thread):
    """Updates a row every few milliseconds, and looks when the target has it."""

    def __init__(self, source: str, target: str, keys: int) -> None:
        super().__init__(daemon=True)
        self._source, self._target, self._keys = source, target, keys
        self.stop = threading.Event()
        self.latencies: list[float] = []

    def run(self) -> None:
        chance, number = random.Random(1), 0
        waiting: dict[int, tuple[str, float]] = {}
        with (
            psycopg.connect(self._source, autocommit=True) as source,
            psycopg.connect(self._target, autocommit=True) as target,
        ):
            while not self.stop.wait(0.01):
                number += 1
                if number % 3 == 0:
                    key, note = chance.randint(1, self._keys), f"live {number}"
                    source.execute("UPDATE bench SET note = %s WHERE id = %s", [note, key])
                    waiting[key] = note, time.perf_counter()
                found = target.execute("SELECT id, note FROM bench WHERE id = ANY (%s)", [list(waiting)]).fetchall()
                now = time.perf_counter()
                for key, note in found:
                    if waiting[key][0] == note:
                        self.latencies.append(now - waiting.pop(key)[1])
        # What never came counts with the time that it was waited for.
        self.latencies += [time.perf_counter() - began for _, began in waiting.values()]


def run_replay(server: Server, keys: int, engine: str, live: float) -> dict[str, float]:
    """Keys a second from tube to target, the latency of live touches during and after the backfill, and memory."""
    source, target = server.create_database(f"replay_{engine}"), server.create_database(f"copy_{engine}")
    source.execute(TABLE.format(name="bench"))
    source.execute(
        f"INSERT INTO bench SELECT g, 'name ' || g, g / 7.0, repeat('x', 40), (g::int8 * 7919 % 1000003)::int, now()"
        f" FROM generate_series(1, {keys}) g"
    )
    source.execute("ANALYZE bench")
    Tube.install(source.uri)
    with Tube("bench", source.uri) as tube, tempfile.TemporaryDirectory() as folder:
        tube.ensure()
        tube.attach("bench", shard=1)
        began = time.perf_counter()
        tube.backfill("bench")
        filled = time.perf_counter() - began
        command = [
            sys.executable,
            "-m",
            "trueup",
            "tube",
            "run",
            "bench",
            "--to",
            "target",
            "--on",
            "source",
            "--quiet",
        ]
        command += ["--engine", engine, "--task-db", f"{folder}/tasks.db"]
        command += ["--node", f"source={source.uri}", "--node", f"target={target.uri}"]
        job = subprocess.Popen(command)
        started = time.perf_counter()
        _wait_for(lambda: bool(target.execute("SELECT to_regclass('bench') IS NOT NULL")[0][0]), job)
        _wait_for(lambda: bool(target.execute("SELECT FROM bench LIMIT 1")), job)
        began = time.perf_counter()
        memory = Memory(job.pid)
        prober = Prober(source.uri, target.uri, keys)
        prober.start()
        _wait_for(lambda: not source.execute("SELECT FROM tube.pods_bench WHERE op = 'B' LIMIT 1"), job)
        seconds = time.perf_counter() - began
        prober.stop.set()
        prober.join()
        after = Prober(source.uri, target.uri, keys)
        after.start()
        time.sleep(live)
        after.stop.set()
        after.join()
        _wait_for(lambda: not source.execute("SELECT FROM tube.pods_bench LIMIT 1"), job)
        sys.stdout.write(f"{engine}: {tube.stats()[0].engine}\n")
        first, peak = memory.stop()
        job.terminate()
        assert job.wait(60) == 0
    result = trueup.diff(
        "public.bench", nodes={"source": source.uri, "target": target.uri}, exclude_columns=MARKS, engine="local",
        report_dir=tempfile.gettempdir(), progress=Silent(), task_db=f"{tempfile.gettempdir()}/bench-tasks.db"
    )  # fmt: skip
    assert result.verdict == "MATCH", result
    busy, idle = sorted(prober.latencies), sorted(after.latencies)
    return {
        "keys": keys,
        "backfill": keys / filled,
        "start": began - started,
        "rate": keys / seconds,
        "seconds": seconds,
        "touches": len(busy),
        "p50": busy[len(busy) // 2],
        "p99": busy[int(len(busy) * 0.99)],
        "worst": busy[-1],
        "idle_p50": idle[len(idle) // 2],
        "idle_p99": idle[int(len(idle) * 0.99)],
        "first": first,
        "peak": peak,
    }


class Memory:
    """The memory of a job and its children, twice per second."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._sizes: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            self._sizes.append(memory_of(self._pid))

    def stop(self) -> tuple[int, int]:
        """End it; the median of the first tenth, and the peak."""
        self._stop.set()
        self._thread.join()
        return int(statistics.median(self._sizes[: max(1, len(self._sizes) // 10)])), max(self._sizes)


def _wait_for(condition: Callable[[], bool], job: subprocess.Popen[bytes]) -> None:
    while not condition():
        assert job.poll() is None, "the job has ended"
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["capture", "replay"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--engines", default="local,spark")
    parser.add_argument("--live", type=float, default=20, help="seconds of live touches after the backfill")
    arguments = parser.parse_args()
    if arguments.only != "replay":
        times: Times = {}
        with Server.start(name="bench", settings=SETTINGS) as server:
            version = str(server.database("postgres").execute("SHOW server_version")[0][0])
            run_bulk(server, times, arguments, "key only", "")
            run_bulk(server, times, arguments, "two more indexes", INDEXES)
            run_single(server, times, arguments, "fsync off")
        with Server.start(name="bench", settings={**SETTINGS, "fsync": "on"}) as server:
            run_single(server, times, arguments, "fsync on")
        write_capture(times, arguments, version)
    if arguments.only != "capture":
        with Server.start(name="bench", settings=SETTINGS) as server:
            version = str(server.database("postgres").execute("SHOW server_version")[0][0])
            engines = arguments.engines.split(",")
            found = {engine: run_replay(server, arguments.keys, engine, arguments.live) for engine in engines}
            write_replay(found, version)


def write_capture(times: Times, arguments: argparse.Namespace, version: str) -> None:
    """The table, with the machine and the versions."""
    text = [
        f"{_machine(version)}, {arguments.rows:,} rows, {arguments.rounds} interleaved rounds.",
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
    write_section("What capture costs", text)


def write_replay(found: dict[str, dict[str, float]], version: str) -> None:
    """Rates, latencies and memory, a line per engine."""
    text = [
        f"{_machine(version)}. From tube to a PostgreSQL table by `trueup tube run`, while rows are updated one by one;",
        "source, target and job share the machine. At the end both tables were equal (MATCH).",
        "",
        "| engine | keys of the backfill | into the tube | first row after | out of it into the table | live touches meanwhile"
        " | p50 | p99 | worst | after it: p50 | p99 | memory | peak |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for engine, each in found.items():
        text.append(
            f"| {engine} | {each['keys']:,.0f} | {each['backfill']:,.0f} keys/s | {each['start']:.1f} s"
            f" | {each['rate']:,.0f} keys/s, {each['seconds']:.1f} s | {each['touches']:,.0f} | {each['p50']:.2f} s"
            f" | {each['p99']:.2f} s | {each['worst']:.2f} s | {each['idle_p50']:.2f} s | {each['idle_p99']:.2f} s"
            f" | {each['first'] / 1e6:,.0f} MB | {each['peak'] / 1e6:,.0f} MB |"
        )
    write_section("How fast a tube is worked off", text)


def write_section(title: str, lines: list[str]) -> None:
    """Put a section into the results, in the place of the one that is there."""
    path = Path(__file__).with_name("RESULTS-tube.md")
    _, *parts = re.split(r"^## ", path.read_text(encoding="utf-8") if path.exists() else "", flags=re.M)
    sections = {part.partition("\n")[0]: part.partition("\n")[2].strip() for part in parts}
    sections[title] = "\n".join(lines)
    sys.stdout.write("\n".join([title, "", *lines, ""]))
    text = "# Tubes\n\nWritten by `bench/tube.py`; see there what is counted.\n"
    text += "".join(f"\n## {name}\n\n{body}\n" for name, body in sections.items())
    path.write_text(text, encoding="utf-8")


def _machine(version: str) -> str:
    cores = f"{os.cpu_count()} cores shared with other work"
    return f"{datetime.now(timezone.utc):%Y-%m-%d}; {cores}, {platform.machine()}, PostgreSQL {version}"


def _shown(work: str) -> Callable[[float], str]:
    return (lambda x: f"{1 / x:,.0f}/s") if work.startswith("single") else (lambda x: f"{1000 * x:,.0f} ms")


if __name__ == "__main__":
    main()
