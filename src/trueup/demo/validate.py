"""The demo of a validation: native replication, load, rows spoiled on the target, errors as they appear, all mended."""

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
from trueup.api.validate import Validations
from trueup.db.statements import load
from trueup.errors import TrueupError
from trueup.testing.postgres import Database, Server
from trueup.verbs.validate.fence import Fence
from trueup.verbs.validate.status import Status, status_text

TABLE = "public.customers"
_PATIENCE = 120.0
_SHOWN = 10
Say = Callable[[str], None]


@dataclass(frozen=True)
class Shown:
    """How the demo ended."""

    status: Status
    fence: Fence
    found: int


def run(*, rows: int, seconds: float, say: Say) -> Shown:
    """Two servers, replication by PostgreSQL itself, and a validation beside it."""
    statements = load("trueup.demo", "validate.sql")
    with Server.start(name="n1") as one, Server.start(name="n2") as two:
        up, down = one.database("postgres"), two.database("postgres")
        say(f"two servers; {rows:,} rows of {TABLE}, replicated by a subscription of PostgreSQL")
        up.execute(load("trueup.demo", "demo.sql")["create"])
        down.execute(load("trueup.demo", "demo.sql")["create"])
        up.execute(load("trueup.demo", "demo.sql")["load"], {"rows": rows})
        up.execute(statements["publish"])
        down.execute(f"CREATE SUBSCRIPTION demo CONNECTION '{up.uri}' PUBLICATION demo")
        _until(lambda: not down.execute(statements["copying"]))
        validations = Validations(nodes={"n1": up.uri, "n2": down.uri})
        validations.create(
            "demo", source="n1", target="n2", tables=(TABLE,), check_interval=0.5, row_error_delay=2.0, sweep=0.3
        )
        with _running(validations, say), _load(up, rows):
            time.sleep(seconds / 3)
            say(status_text(validations.status("demo")))
            say("spoiling rows of n2: one changed, one removed, one added by hand; and one by a trigger, on its way")
            down.execute(statements["spoil"].replace("%(rows)s", str(int(rows))))
            up.execute(statements["touch"])
            found = _watch_errors(validations, 4, say)
            say("trueup repair --validation demo --execute: the rows as n1 has them")
            down.execute(statements["unspoil"])
            _mend(validations, say)
            _until(lambda: not validations.errors("demo"))
            for error in validations.errors("demo", state="resolved"):
                say(f"  resolved at {error.resolved_at:%H:%M:%S}: {error.source} ({', '.join(error.key)})")
            fence = validations.fence("demo", timeout=_PATIENCE)
            return Shown(validations.status("demo"), fence, found)


@contextmanager
def _running(validations: Validations, say: Say) -> Iterator[None]:
    failed: list[BaseException] = []

    def work() -> None:
        try:
            validations.start("demo", engine="local", say=lambda text: say(f"  {text}"))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    _until(lambda: bool(failed) or validations.status("demo").state == "running")
    try:
        yield
    finally:
        validations.stop("demo")
        thread.join(_PATIENCE)
        if failed:
            raise failed[0]


@contextmanager
def _load(up: Database, rows: int) -> Iterator[None]:
    """Updates, inserts and deletes of random rows, some hundred a second."""
    stop = threading.Event()
    work = load("trueup.demo", "validate.sql")["work"]

    def run_load() -> None:
        choose = random.Random(1)
        with psycopg.connect(up.uri, autocommit=True) as connection:
            while not stop.wait(0.02):
                # The first rows are left alone: what is spoiled there stays so until somebody mends it.
                connection.execute(
                    work, {"key": choose.randrange(100, rows) * 10, "new": choose.randrange(10**9) * 10 + 3}
                )

    thread = threading.Thread(target=run_load, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _watch_errors(validations: Validations, wanted: int, say: Say) -> int:
    seen: set[int] = set()

    def look() -> bool:
        for error in validations.errors("demo"):
            if error.id not in seen and len(seen) < _SHOWN:
                columns = f" in {', '.join(error.columns)}" if error.columns else ""
                row = f"{error.source} ({', '.join(error.key)})"
                say(f"  error at {error.last_at:%H:%M:%S}: {row} {error.kind}{columns}")
            seen.add(error.id)
        return len(seen) >= wanted

    _until(look)
    return len(seen)


def _mend(validations: Validations, say: Say) -> None:
    """The rows of the errors' keys, as the source has them now; the files of the repair are not kept."""
    with TemporaryDirectory(prefix="trueup-demo-") as folder:
        done = repair_validation(
            "demo",
            config=validations.config,
            task_db=f"{folder}/tasks.db",
            report_dir=folder,
            engine="local",
            execute=True,
        )
    for table in done.tables:
        counts = ", ".join(f"{count} {act}" for act, count in table.written.get("n2", {}).items())
        say(f"  {table.verdict}: {table.table}: {table.keys} keys; on n2 {counts}")
    # Rows that are on their way while the repair looks again may differ for a moment: the validation tells.
    if done.exit_code == 2:
        raise TrueupError("the repair of the demo failed", cure="; ".join(done.failed.values()) or "try again")


def _until(condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + _PATIENCE
    while not condition():
        if time.monotonic() > give_up:
            raise TrueupError("the demo waited too long", cure="try again on a quieter machine")
        time.sleep(0.1)
