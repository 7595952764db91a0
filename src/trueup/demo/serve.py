"""The demo of `trueup serve`: replication, a validation, a tube and repeated diffs, on one live page."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg

from trueup.api.diff import diff
from trueup.api.tube import Tube
from trueup.api.validate import Validation
from trueup.config.files import write_whole
from trueup.config.load import load
from trueup.config.model import Config
from trueup.config.settings import SparkSettings
from trueup.db.statements import load as load_statements
from trueup.demo.background import DURABLE, in_background, wait_until
from trueup.serve.app import Application
from trueup.serve.collector import Collector, Scope
from trueup.serve.options import ServeOptions
from trueup.serve.server import in_thread
from trueup.testing.postgres import Database, Server

TABLES = ("public.customers", "public.products")
TUBE = "copies"
# Seconds between two diffs of each table, and until rows of the replica are changed.
_DIFF_SECONDS = 10.0
_SPOIL_SECONDS = 20.0
Say = Callable[[str], object]


def run(*, rows: int, port: int, verbs: tuple[str, ...], stop: threading.Event, say: Say) -> None:
    """Show everything on one page until `stop` is set."""
    with (
        Server.start(name="n1", settings=DURABLE) as one,
        Server.start(name="n2", settings=DURABLE) as two,
        TemporaryDirectory(prefix="trueup-demo-") as temporary,
        ExitStack() as stack,
    ):
        folder = Path(temporary)
        up, down, copies = one.database("postgres"), two.database("postgres"), two.create_database("copies")
        say(f"two servers; {rows:,} rows of {TABLES[0]}, replicated by a subscription of PostgreSQL")
        _load(up, down, rows)
        config = load(str(_write_config(folder, up, down)))
        stack.enter_context(_validation(config, say))
        job = stack.enter_context(in_background(lambda end: _deliver(up, copies, folder, end)))
        writer = stack.enter_context(in_background(lambda end: _write(up, down, rows, end)))
        differ = stack.enter_context(in_background(lambda end: _diff(config, folder, end)))
        url = stack.enter_context(_page(config, folder / "tasks.db", port, verbs))
        say("a validation, a tube, and diffs run; after 20 seconds rows of n2 are changed behind their back")
        say(f"open {url} (Ctrl-C ends the demo)")
        while not stop.wait(0.2):
            for thread in (job, writer, differ):
                thread.check()


def _load(up: Database, down: Database, rows: int) -> None:
    statements = load_statements("trueup.demo", "demo.sql")
    replicated = load_statements("trueup.demo", "validate.sql")
    for database in (up, down):
        database.execute(statements["create"])
        database.execute("CREATE TABLE public.products (id int PRIMARY KEY, name text, price numeric)")
        database.execute("INSERT INTO public.products SELECT i, 'product ' || i, i / 4 FROM generate_series(1, 1000) i")
    up.execute(statements["load"], {"rows": rows})
    up.execute(replicated["publish"])
    down.execute(f"CREATE SUBSCRIPTION demo CONNECTION '{up.uri}' PUBLICATION demo")
    wait_until(lambda: not down.execute(replicated["copying"]))
    Tube.install(up.uri)
    with Tube(TUBE, up.uri) as tube:
        tube.ensure()
        tube.attach(TABLES[0], shard=0)
        tube.attach(TABLES[1], shard=0)


def _write_config(folder: Path, up: Database, down: Database) -> Path:
    path = folder / "trueup.toml"
    lines = ["[nodes]", f'n1 = "{up.uri}"', f'n2 = "{down.uri}"', "[clusters]", 'demo = ["n1", "n2"]']
    lines += [
        "[schedule.nightly]",
        'verb = "diff"',
        'arguments = "--schema public --cluster demo"',
        'cron = "30 3 * * *"',
    ]
    write_whole(path, ("\n".join(lines) + "\n").encode())
    return path


@contextmanager
def _validation(config: Config, say: Say) -> Iterator[None]:
    validation = Validation("demo", config=config)
    validation.create(
        source="n1",
        target="n2",
        tables=(TABLES[0],),
        check_interval=0.5,
        row_error_delay=2.0,
        scrub_period=0,
        scrub_share=0.2,
    )
    with in_background(lambda _: validation.start(engine="local", log=lambda text: None)) as thread:
        try:
            wait_until(lambda: validation.status().state == "running", thread)
            yield
        finally:
            validation.stop()
            thread.end()


def _deliver(up: Database, copies: Database, folder: Path, stop: threading.Event) -> None:
    with Tube(TUBE, up.uri) as tube:
        local = SparkSettings(engine="local")
        tube.run(copies.uri, stop=stop, spark=local, task_db=str(folder / "tasks.db"))


def _write(up: Database, down: Database, rows: int, stop: threading.Event) -> None:
    """Change rows of n1 all the time, and some of n2, once."""
    work, choose = load_statements("trueup.demo", "validate.sql")["work"], random.Random(1)
    began, is_spoiled = time.monotonic(), False
    with psycopg.connect(up.uri, autocommit=True) as connection:
        while not stop.wait(0.03):
            connection.execute(work, {"key": choose.randrange(100, rows) * 10, "new": choose.randrange(10**9) * 10 + 3})
            if not is_spoiled and time.monotonic() - began > _SPOIL_SECONDS:
                down.execute("UPDATE public.customers SET balance = -1 WHERE id IN (20, 500, 700)")
                down.execute(
                    "DELETE FROM public.customers WHERE id = 30; DELETE FROM public.products WHERE id % 97 = 5"
                )
                is_spoiled = True


def _diff(config: Config, folder: Path, stop: threading.Event) -> None:
    while True:
        for table in TABLES:
            diff(
                table,
                cluster="demo",
                config=config,
                engine="local",
                report_dir=str(folder),
                recheck_wait=0.5,
                task_db=str(folder / "tasks.db"),
            )
        if stop.wait(_DIFF_SECONDS):
            return


@contextmanager
def _page(config: Config, store: Path, port: int, verbs: tuple[str, ...]) -> Iterator[str]:
    collector = Collector(Scope(config, (store,), interval=1.0, verbs=verbs))
    options = ServeOptions(port=port, show_rows=True)
    application = Application(collector, options)
    collector.start()
    try:
        with in_thread(application.asgi, options) as url:
            yield url
    finally:
        application.stop()
        collector.stop()
