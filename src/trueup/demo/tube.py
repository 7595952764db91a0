"""The demo of tubes: a table with continuous writes, a backfill, and a copy that follows and is equal at the end."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg

from trueup.api.diff import diff
from trueup.api.tube import Tube
from trueup.config.settings import SparkSettings
from trueup.db.connection import Connection
from trueup.db.statements import load as load_statements
from trueup.demo.background import DURABLE, TIMEOUT, Background, in_background, wait_until
from trueup.engine.progress import Progress
from trueup.errors import TrueupError
from trueup.report.model import DiffResult
from trueup.sinks.postgres_target import MARKS
from trueup.testing.postgres import Database, Server
from trueup.verbs.tube.model import Summary
from trueup.verbs.tube.watch import look

TUBE = "shop"
TABLE = "public.orders"
_LOOK_SECONDS = 3.0


@dataclass(frozen=True)
class Shown:
    """The result: summary of the job, statements of the application, delays of the copy, and the final diff."""

    summary: Summary
    statements: int
    latencies: tuple[float, ...]
    result: DiffResult


def run(*, rows: int, seconds: float, say: Callable[[str], object], progress: Progress) -> Shown:
    """Start two nodes, write to the first one for some seconds, and keep a copy on the second one in step."""
    statements = load_statements("trueup.demo", "tube.sql")
    with (
        Server.start(name="n1", settings=DURABLE) as first,
        Server.start(name="n2", settings=DURABLE) as second,
        TemporaryDirectory() as folder,
    ):
        source, copy = first.create_database("shop"), second.create_database("shop")
        progress.stage("loading rows", 1)
        source.execute(statements["create"])
        source.execute(statements["load"], {"rows": rows})
        source.execute("ANALYZE public.orders")
        progress.advance(rows=rows)
        Tube.install(source.uri)
        with Tube(TUBE, source.uri) as tube:
            say(f"{TABLE} is attached to the tube {TUBE}; a job keeps {TABLE} of the other node in step")
            tube.ensure()
            tube.attach(TABLE, shard=0)
            with in_background(lambda stop: _job(source, copy, Path(folder), stop)) as job:
                wait_until(lambda: _exists(copy), job)
                with in_background(lambda stop: _write(source, copy, rows, stop)) as writer:
                    _backfill(tube, seconds, say, job, writer)
                    statements_done, latencies = writer.end()
                wait_until(lambda: _is_empty(tube), job)
                summary: Summary = job.end()
        result = diff(
            TABLE,
            nodes={"n1": source.uri, "n2": copy.uri},
            exclude_columns=MARKS,
            engine="local",
            report_dir=folder,
            progress=progress,
        )
    return Shown(summary, statements_done, tuple(latencies), result)


def _backfill(tube: Tube, seconds: float, say: Callable[[str], object], job: Background, writer: Background) -> None:
    """Put all keys into the tube, behind the live touches, and show its statistics until they are delivered."""
    began = time.monotonic()
    say("the backfill starts, and the application continues to write")
    tube.backfill(TABLE)
    while True:
        values, text = look(tube.session)
        say(text)
        job.check()
        writer.check()
        delivered = not any(row["backfill_pods"] for row in values["stats"])
        if delivered and time.monotonic() - began >= seconds:
            return
        if time.monotonic() - began > TIMEOUT:
            raise TrueupError(f"the backfill was not delivered within {TIMEOUT:.0f} s", cure="use fewer --rows")
        time.sleep(min(_LOOK_SECONDS, max(seconds / 5, 0.1)))


def _job(source: Database, copy: Database, folder: Path, stop: threading.Event) -> Summary:
    """Run the same job as `trueup tube run shop --to postgresql://…`."""
    with Tube(TUBE, source.uri) as tube:
        local = SparkSettings(engine="local")
        return tube.run(copy.uri, stop=stop, spark=local, task_db=str(folder / "tasks.db"))


def _write(source: Database, copy: Database, rows: int, stop: threading.Event) -> tuple[int, list[float]]:
    """Act as the application: single rows, bulk updates, deletes, new keys; measure the delay of the copy."""
    statements = load_statements("trueup.demo", "tube.sql")
    kinds = [*["change"] * 20, "discount", "delete", "renumber", "insert"]
    chance, done, latencies = random.Random(7), 0, list[float]()
    with (
        psycopg.connect(source.uri, autocommit=True) as writing,
        psycopg.connect(copy.uri, autocommit=True) as reading,
    ):
        while not stop.wait(0.005):
            kind = chance.choice(kinds)
            writing.execute(statements[kind], {"id": chance.randint(1, rows), "rows": rows})
            done += 1
            # From the first statement on: a slow machine runs few of them.
            if done % 25 == 1:
                writing.execute(statements["probe"], {"number": done})
                latencies += _latency(reading, f"probe {done}", stop)
    return done, latencies


def _latency(reading: Connection, note: str, stop: threading.Event) -> list[float]:
    """Return the seconds until the copy has the last commit; nothing if the thread is stopped before."""
    began = time.monotonic()
    while not stop.is_set():
        row = reading.execute("SELECT note FROM public.orders WHERE id = 0").fetchone()
        if row and row[0] == note:
            return [time.monotonic() - began]
        time.sleep(0.01)
    return []


def _exists(copy: Database) -> bool:
    return bool(copy.execute("SELECT to_regclass('public.orders') IS NOT NULL")[0][0])


def _is_empty(tube: Tube) -> bool:
    return not any(row.live_pods + row.backfill_pods + row.control_pods for row in tube.stats())
