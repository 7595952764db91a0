"""The demo of a validation: native replication, load, corrupted rows on the target, errors, and a repair."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory

import psycopg

from trueup.api.repair_validation import repair_validation
from trueup.api.validate import Validation
from trueup.db.statements import load
from trueup.demo.background import DURABLE, TIMEOUT, in_background, wait_until
from trueup.errors import TrueupError
from trueup.testing.postgres import Database, Server
from trueup.verbs.validate.fence import Fence
from trueup.verbs.validate.status import Status, status_text

TABLE = "public.customers"
_MAX_SHOWN = 10
Log = Callable[[str], None]


@dataclass(frozen=True)
class Shown:
    """The result of the demo."""

    status: Status
    fence: Fence
    found: int


def run(*, rows: int, seconds: float, say: Log) -> Shown:
    """Start two servers with native replication between them, and validate it."""
    statements = load("trueup.demo", "validate.sql")
    with replicated(rows, say) as (up, down):
        validation = Validation("demo", nodes={"n1": up.uri, "n2": down.uri})
        validation.create(
            source="n1",
            target="n2",
            tables=(TABLE,),
            check_interval=0.5,
            row_error_delay=2.0,
            scrub_period=0,
            scrub_share=0.3,
        )
        with running(validation, say):
            with in_background(lambda stop: write(up, rows, stop)):
                time.sleep(seconds / 3)
                say(status_text(validation.status()))
                say("corrupting rows of n2: one changed, one deleted, one inserted by hand, one changed by a trigger")
                down.execute(statements["spoil"].replace("%(rows)s", str(int(rows))))
                up.execute(statements["touch"])
                errors = _watch_errors(validation, 4, say)
                say("trueup repair --validation demo --execute: copy the rows of n1")
                down.execute(statements["unspoil"])
                _repair(validation, say)
                wait_until(lambda: not validation.errors())
                for error in validation.errors(state="resolved"):
                    say(f"  resolved at {error.resolved_at:%H:%M:%S}: {error.source} ({', '.join(error.key)})")
            # The writes have ended: no row of theirs is pending at the end.
            fence = validation.fence(timeout=TIMEOUT)
            return Shown(validation.status(), fence, errors)


@contextmanager
def replicated(rows: int, say: Log) -> Iterator[tuple[Database, Database]]:
    """Start two servers and replicate a table between them; return their databases when it is copied."""
    statements = load("trueup.demo", "validate.sql")
    table = load("trueup.demo", "demo.sql")
    with Server.start(name="n1", settings=DURABLE) as one, Server.start(name="n2", settings=DURABLE) as two:
        up, down = one.database("postgres"), two.database("postgres")
        say(f"two servers; {rows:,} rows of {TABLE}, replicated by a subscription of PostgreSQL")
        up.execute(table["create"])
        down.execute(table["create"])
        up.execute(table["load"], {"rows": rows})
        up.execute(statements["publish"])
        down.execute(f"CREATE SUBSCRIPTION demo CONNECTION '{up.uri}' PUBLICATION demo")
        wait_until(lambda: not down.execute(statements["copying"]))
        yield up, down


@contextmanager
def running(validation: Validation, say: Log) -> Iterator[None]:
    """Run the validation on a thread."""
    with in_background(lambda _: validation.start(engine="local", log=lambda text: say(f"  {text}"))) as thread:
        try:
            wait_until(lambda: validation.status().state == "running", thread)
            yield
        finally:
            validation.stop()
            thread.end()


def write(up: Database, rows: int, stop: threading.Event) -> None:
    """Update, insert and delete random rows, some hundred per second."""
    work = load("trueup.demo", "validate.sql")["work"]
    choose = random.Random(1)
    with psycopg.connect(up.uri, autocommit=True) as connection:
        while not stop.wait(0.02):
            # The load does not touch the first rows: corrupted rows stay wrong until they are repaired.
            connection.execute(work, {"key": choose.randrange(100, rows) * 10, "new": choose.randrange(10**9) * 10 + 3})


def _watch_errors(validation: Validation, expected: int, say: Log) -> int:
    """Show errors as they appear, until the expected number is reached; return the number of errors."""
    seen: set[int] = set()

    def has_all() -> bool:
        for error in validation.errors():
            if error.id not in seen and len(seen) < _MAX_SHOWN:
                columns = f" in {', '.join(error.columns)}" if error.columns else ""
                row = f"{error.source} ({', '.join(error.key)})"
                say(f"  error at {error.last_at:%H:%M:%S}: {row} {error.kind}{columns}")
            seen.add(error.id)
        return len(seen) >= expected

    wait_until(has_all)
    return len(seen)


def _repair(validation: Validation, say: Log) -> None:
    """Repair the rows of the errors; the files of the repair are temporary."""
    with TemporaryDirectory(prefix="trueup-demo-") as folder:
        result = repair_validation(
            validation.name,
            config=validation.config,
            task_db=f"{folder}/tasks.db",
            report_dir=folder,
            engine="local",
            execute=True,
        )
    for table in result.tables:
        counts = ", ".join(f"{count} {act}" for act, count in table.written.get("n2", {}).items())
        say(f"  {table.verdict}: {table.table}: {table.keys} keys; on n2 {counts}")
    # Rows in flight may differ when the repair checks its result (exit code 1); the validation decides.
    if result.exit_code == 2:
        raise TrueupError(
            "the repair of the demo failed", cure="; ".join(result.failed.values()) or "run the demo again"
        )
