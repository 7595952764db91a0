"""Jobs that run until they are stopped, as a user starts them: their processes are killed or stopped on Spark.

Nothing is lost, no process is left, and no password is visible.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from trueup.api.tube import Tube
from trueup.api.validate import Validation
from trueup.config.settings import SparkSettings
from trueup.testing.postgres import free_port

if TYPE_CHECKING:
    from support.fixtures import Databases
    from trueup.testing.postgres import Database

PATIENCE = 120.0
SECRET = "q7-Zebra-0452"
CONFIG = """
[nodes]
n1 = "postgresql://lasting:${{PW}}@127.0.0.1:{port}/{first}"
n2 = "postgresql://lasting:${{PW}}@127.0.0.1:{port}/{second}"
[spark]
local_seconds = 0
[spark.conf]
"spark.eventLog.enabled" = "true"
"spark.eventLog.dir" = "file://{events}"
"spark.eventLog.compress" = "false"
"spark.ui.enabled" = "true"
"spark.ui.port" = "{ui}"
"""


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        # Most conditions open sessions of the servers, which need the processor as Spark does.
        time.sleep(0.3)


class Command:
    """A command of a user; its log, and the processes that it has started."""

    def __init__(self, folder: Path, number: int, arguments: tuple[str, ...]) -> None:
        self.log = folder / f"log-{number}"
        command = [sys.executable, "-m", "trueup", *arguments, "--config", str(folder / "lasting.toml")]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(command, stderr=out, stdout=out, env={**os.environ, "PW": SECRET})

    @property
    def text(self) -> str:
        """Return what it has printed."""
        return self.log.read_text()

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition, while the command runs."""
        until(lambda: self.process.poll() is not None or condition())
        assert self.process.poll() is None, self.text

    def children(self, name: str = "") -> list[psutil.Process]:
        """Return its processes with this name, or with an argument that begins with it."""
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if child.name() == name or any(part.startswith(name) for part in child.cmdline()):
                    found.append(child)
        return found

    def kill(self, name: str) -> None:
        """Kill its processes with this name."""
        for child in self.children(name):
            with suppress(psutil.NoSuchProcess):
                child.kill()

    def kill_driver(self) -> None:
        """Kill the driver, and wait until all its processes have ended."""
        children = self.children()
        assert self.children("java")
        self.process.kill()
        self.process.wait()
        until(lambda: not any(_runs(child) for child in children))

    def check_process_list(self) -> None:
        """Check that no argument of a process has the password, and that other machines can connect to none of them."""
        checked = 0
        for process in (psutil.Process(self.process.pid), *self.children()):
            # Java starts programs that end at once.
            with suppress(psutil.NoSuchProcess):
                assert SECRET not in " ".join(process.cmdline())
                ports = [each for each in process.net_connections() if each.status == psutil.CONN_LISTEN]
                assert all(each.laddr.ip.endswith("127.0.0.1") for each in ports), ports
                checked += 1
        assert checked > 2, "the driver, Java, and a worker"


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


class Commands:
    """Starts commands on two databases, with a role that has a password."""

    def __init__(self, folder: Path, nodes: list[Database]) -> None:
        self.folder = folder
        self.nodes = nodes
        self.started: list[Command] = []
        self._ui = free_port()
        self._events = folder / "events"
        self._events.mkdir()
        first, second = nodes
        text = CONFIG.format(
            port=first.server.port, first=first.name, second=second.name, events=self._events, ui=self._ui
        )
        (folder / "lasting.toml").write_text(text)

    @contextmanager
    def run(self, *arguments: str) -> Iterator[Command]:
        """Run a command during the block."""
        command = Command(self.folder, len(self.started), arguments)
        self.started.append(command)
        try:
            yield command
        finally:
            command.process.kill()
            command.process.wait()

    def check_pages(self, *names: str) -> None:
        """Look at pages of Spark: they show what runs, and no password."""
        for name in ("jobs", "stages", "environment", "executors", *names):
            with urllib.request.urlopen(f"http://127.0.0.1:{self._ui}/{name}/", timeout=60) as answer:
                page = answer.read().decode()
            assert "Spark" in page
            assert SECRET not in page

    def check(self) -> None:
        """Check the logs of the commands and the event log of Spark."""
        events = list(self._events.rglob("events_*"))
        assert events
        for path in (*events, *(command.log for command in self.started)):
            assert SECRET not in path.read_text(), path
        for command in self.started:
            assert "Traceback" not in command.text, command.text


@pytest.fixture
def commands(databases: Databases, tmp_path: Path) -> Iterator[Commands]:
    nodes = databases(2)
    nodes[0].execute(f"CREATE ROLE lasting SUPERUSER LOGIN PASSWORD '{SECRET}'")
    try:
        yield Commands(tmp_path, nodes)
    finally:
        for node in nodes:
            node.execute("REASSIGN OWNED BY lasting TO CURRENT_USER; DROP OWNED BY lasting")
        nodes[0].execute("DROP ROLE lasting")


def test_a_validation(commands: Commands) -> None:
    """Under load, on Spark: its driver is killed; of the next one, its Java process is killed."""
    up, down = commands.nodes
    for database in commands.nodes:
        database.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    validation = Validation(f"v_{up.name}"[-30:], nodes={"n1": up.uri, "n2": down.uri})
    validation.create(
        source="n1", target="n2", tables=("public.t",), syncer="lag:0.3", check_interval=0.2, row_error_delay=0.3
    )
    written, is_over = [0], threading.Event()

    def write() -> None:
        """Insert rows on both nodes; every hundredth one is missing on the target."""
        while not is_over.wait(0.3):
            first, last = written[0] + 1, written[0] + 50
            rows = f"INSERT INTO t SELECT i FROM generate_series({first}, {last}) i"
            down.execute(f"{rows} WHERE i % 100 > 0")
            up.execute(rows)
            written[0] = last

    def runs_on(engine: str) -> bool:
        return validation.status().engine.get("name") == engine

    def judges() -> None:
        """Wait until rows that are written from now on are errors."""
        last = written[0]
        command.until(lambda: max((int(error.key[0]) for error in validation.errors()), default=0) > last)

    start = ("validate", "start", "--name", validation.name)
    writer = threading.Thread(target=write, daemon=True)
    with commands.run(*start) as command:
        # Rows that were written before are not in the log.
        command.until(lambda: validation.status().state == "running")
        writer.start()
        command.until(lambda: runs_on("spark"))
        judges()
        command.check_process_list()
        commands.check_pages("SQL", "StreamingQuery")
        command.kill_driver()
    with commands.run(*start) as command:
        command.until(lambda: "Spark is ready" in command.text)
        command.kill("java")
        command.until(lambda: "because Spark failed: the Java process of Spark was" in command.text)
        judges()
        assert runs_on("local")
        is_over.set()
        writer.join()
        # Nothing is lost, and nothing counts twice.
        assert validation.fence(timeout=PATIENCE).validated
    commands.check()
    assert validation.status().total("inserts") == written[0]
    errors = [int(error.key[0]) for error in validation.errors(state="all")]
    assert sorted(errors) == list(range(100, written[0] + 1, 100)), [each.text for each in commands.started]
    validation.delete()


def test_a_tube(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Spark, its Python workers are killed, then its driver; the next worker delivers the rest."""
    [source, target] = commands.nodes
    source.execute("CREATE TABLE items (id int PRIMARY KEY, n int)")
    Tube.install(source.uri)
    with Tube("t", source.uri) as tube:
        tube.ensure()
        tube.attach("items", shard=0)
        source.execute("INSERT INTO items SELECT g, g FROM generate_series(1, 100) g")

        def is_copied() -> bool:
            sums = "SELECT sum(n), count(*) FROM items"
            has_table = target.execute("SELECT to_regclass('items') IS NOT NULL") == [(True,)]
            return has_table and target.execute(sums) == source.execute(sums)

        def is_on_spark() -> bool:
            """Change all rows, and wait until the copy has them."""
            source.execute("UPDATE items SET n = n + 1")
            command.until(is_copied)
            return tube.stats()[0].engine.get("name") == "spark"

        with commands.run("tube", "run", "t", "--to", "n2", "--on", "n1") as command:
            command.until(is_on_spark)
            command.kill("pyspark.daemon")
            assert is_on_spark()
            command.check_process_list()
            commands.check_pages("SQL")
            command.kill_driver()
        commands.check()
        source.execute("UPDATE items SET n = n + 1")
        # For this time it waits for the last writes of executors, which may run elsewhere.
        monkeypatch.setattr("trueup.capture.triggers.hold.GRACE", 0.3)
        tube.run(target.uri, spark=SparkSettings(engine="local"), until_empty=True)
        assert is_copied()
