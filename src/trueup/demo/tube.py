"""The demo of tubes: a table that is written to all the time, a backfill, a copy that follows, and the proof."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trueup.api.diff import diff
from trueup.api.tube import Tubes
from trueup.api.tube import open as open_tubes
from trueup.db.statements import load as load_statements
from trueup.engine.progress import Progress
from trueup.errors import TrueupError
from trueup.report.model import DiffResult
from trueup.sinks.postgres_target import MARKS
from trueup.testing.postgres import Database, Server
from trueup.verbs.tube.run import Summary
from trueup.verbs.tube.watch import look

TUBE = "shop"
TABLE = "public.orders"
_LOOK_SECONDS = 3.0
_PATIENCE = 300.0


@dataclass(frozen=True)
class Shown:
    """What there is to show: what the job did, what was written meanwhile, how late the copy was, if it is equal."""

    summary: Summary
    statements: int
    latencies: tuple[float, ...]
    result: DiffResult


class Background(threading.Thread):
    """Something that goes on beside; what went wrong in it is raised where it is looked at."""

    def __init__(self, work: Callable[[threading.Event], Any]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self.stop = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Work until it is at its end, or told to stop."""
        try:
            self.result = self._work(self.stop)
        except BaseException as error:
            self.error = error

    def check(self) -> None:
        """Raise what went wrong."""
        if self.error is not None:
            raise self.error

    def end(self) -> Any:
        """Stop it, and give what it has to tell."""
        self.stop.set()
        self.join(_PATIENCE)
        self.check()
        return self.result


def run(*, rows: int, seconds: float, say: Callable[[str], object], progress: Progress) -> Shown:
    """Two nodes; the first is written to for so many seconds, while a job keeps a copy on the second in step."""
    statements = load_statements("trueup.demo", "tube.sql")
    with Server.start(name="n1") as first, Server.start(name="n2") as second, TemporaryDirectory() as folder:
        source, copy = first.create_database("shop"), second.create_database("shop")
        progress.stage("loading rows", 1)
        source.execute(statements["create"])
        source.execute(statements["load"], {"rows": rows})
        source.execute("ANALYZE public.orders")
        progress.advance(rows=rows)
        with open_tubes(source.uri) as tubes:
            say(f"{TABLE} is attached to the tube {TUBE}; a job keeps {TABLE} of the other node in step")
            tubes.install()
            tubes.ensure(TUBE)
            tubes.attach(TUBE, TABLE, shard=0)
            with _beside(lambda stop: _job(source, copy, Path(folder), stop)) as job:
                _wait_for(lambda: _is_there(copy), job)
                with _beside(lambda stop: _write(source, copy, rows, stop)) as writer:
                    _backfill(tubes, seconds, say, job, writer)
                    statements_done, latencies = writer.end()
                _wait_for(lambda: _is_empty(tubes), job)
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


def _backfill(tubes: Tubes, seconds: float, say: Callable[[str], object], job: Background, writer: Background) -> None:
    """Put all keys into the tube, behind the live ones, and look at it while they are worked off."""
    began = time.monotonic()
    say("a backfill begins, and the application goes on writing")
    tubes.backfill(TUBE, TABLE)
    while True:
        values, text = look(tubes.session)
        say(text)
        job.check()
        writer.check()
        delivered = not any(each["backfill_pods"] for each in values["stats"])
        if delivered and time.monotonic() - began >= seconds:
            return
        if time.monotonic() - began > _PATIENCE:
            raise TrueupError("the backfill takes too long", cure="try fewer --rows")
        time.sleep(min(_LOOK_SECONDS, max(seconds / 5, 0.1)))


def _job(source: Database, copy: Database, folder: Path, stop: threading.Event) -> Summary:
    """What `trueup tube run shop --to postgresql://…` does."""
    with open_tubes(source.uri) as tubes:
        return tubes.run(TUBE, copy.uri, stop=stop, task_db=str(folder / "tasks.db"))


def _write(source: Database, copy: Database, rows: int, stop: threading.Event) -> tuple[int, list[float]]:
    """The application: single rows, bulk updates, deletes, new keys; now and then a look how late the copy is."""
    import psycopg

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
            if done % 25 == 0:
                writing.execute(statements["probe"], {"number": done})
                latencies += _latency(reading, f"probe {done}", stop)
    return done, latencies


def _latency(reading: Any, note: str, stop: threading.Event) -> list[float]:
    """Seconds until the copy has what was just committed; nothing if there is no time to wait for it."""
    began = time.monotonic()
    while not stop.is_set():
        found = reading.execute("SELECT note FROM public.orders WHERE id = 0").fetchone()
        if found and found[0] == note:
            return [time.monotonic() - began]
        time.sleep(0.01)
    return []


@contextmanager
def _beside(work: Callable[[threading.Event], Any]) -> Iterator[Background]:
    """Goes on beside the block, and is stopped at its end whatever happens."""
    thread = Background(work)
    thread.start()
    try:
        yield thread
    finally:
        thread.stop.set()
        thread.join(_PATIENCE)


def _wait_for(condition: Callable[[], bool], job: Background) -> None:
    end = time.monotonic() + _PATIENCE
    while not condition():
        job.check()
        if time.monotonic() > end:
            raise TrueupError("the job takes too long", cure="try fewer --rows")
        time.sleep(0.05)


def _is_there(copy: Database) -> bool:
    return bool(copy.execute("SELECT to_regclass('public.orders') IS NOT NULL")[0][0])


def _is_empty(tubes: Tubes) -> bool:
    return not any(each.live_pods + each.backfill_pods + each.control_pods for each in tubes.stats())
