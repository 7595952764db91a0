"""Sinks that the driver commits, written by tasks of Spark: the same content as on threads, also after kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from deltalake import DeltaTable

from trueup.api.tube import Tube
from trueup.config.settings import SparkSettings
from trueup.errors import CheckFailed
from trueup.sinks import open_sink
from trueup.sinks.base import CommittingSink, Document, Mark, TaskWriter
from trueup.sinks.parquet import current_state
from trueup.sinks.staging import Staging
from trueup.testing.postgres import Database
from trueup.verbs.tube.model import Job

if TYPE_CHECKING:
    # Workers import this module, but not the helpers of the tests.
    from support.fixtures import Databases, Spark

SPARK = SparkSettings(engine="spark")
LOCAL = SparkSettings(engine="local")
TABLES = """
    CREATE TABLE things (id bigint PRIMARY KEY, name text, seen timestamptz);
    CREATE TABLE parts (a text, b numeric, note text, tenant int, PRIMARY KEY (a, b));
"""
CHANGES = (
    """INSERT INTO things SELECT g, 'name ' || g, '2024-01-01' FROM generate_series(1, 1500) g;
       INSERT INTO things VALUES (0, 'refused', 'infinity');
       INSERT INTO parts SELECT 'it''s ' || g, g, repeat('n', 50), g % 7 FROM generate_series(1, 1500) g""",
    """UPDATE things SET name = 'new' WHERE id < 100; DELETE FROM things WHERE id > 1450;
       UPDATE things SET id = 5000 WHERE id = 200; UPDATE parts SET tenant = tenant + 1 WHERE b < 300;
       DELETE FROM parts WHERE b BETWEEN 400 AND 500; UPDATE parts SET b = b + 0.5 WHERE b > 1400""",
    """TRUNCATE parts; INSERT INTO parts VALUES ('only', 1.00, 'one', 3); DELETE FROM things WHERE id < 1400""",
)
# The marks of a batch; they depend on the tube.
MARKS = ("trueup_seq", "trueup_at", "trueup_version", "trueup_op", "trueup_bucket", "trueup_deleted")


def _sorted(rows: Sequence[dict[str, Any]]) -> list[str]:
    return sorted(str({name: value for name, value in row.items() if name not in MARKS}) for row in rows)


def _parquet(folder: Path, table: str) -> list[str]:
    return _sorted(current_state(folder / f"public.{table}").to_pylist())


def _delta(folder: Path, table: str) -> list[str]:
    return _sorted(DeltaTable(str(folder / f"public.{table}")).to_pyarrow_table().to_pylist())


def _left(folder: Path) -> list[str]:
    """Return files that no commit made visible."""
    left = [str(path) for path in folder.glob(".trueup/**/*") if path.is_file()]
    left += [str(path) for path in folder.rglob("*.part")]
    for table in folder.glob("*/_delta_log"):
        log = "".join(path.read_text() for path in table.glob("*.json"))
        left += [str(path) for path in table.parent.glob("*/*.parquet") if path.name not in log]
    return left


@pytest.fixture
def source(databases: Databases) -> Database:
    """Two tubes with the same tables: `threads` and `spark`."""
    [database] = databases(1)
    database.execute(TABLES)
    Tube.install(database.uri)
    for name in ("threads", "spark"):
        with Tube(name, database.uri) as tube:
            tube.ensure(partitions=2)
            tube.attach("things", shard=1)
            tube.attach("parts", routing="tenant")
    return database


@dataclass
class Dying:
    """A writer whose worker is killed once, after its files are written and before the driver knows them."""

    writer: TaskWriter
    killed: Path

    def write(self, batch: Sequence[Document], *, mark: Mark) -> None:
        self.writer.write(batch, mark=mark)

    def flush(self) -> None:
        self.writer.flush()

    def finish(self) -> Sequence[Any]:
        results = self.writer.finish()
        if not self.killed.exists():
            self.killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return results


def _with_killed_worker(address: str, killed: Path) -> Any:
    sink = open_sink(address, {"types": "native"})
    assert isinstance(sink, CommittingSink)
    begin = sink.begin
    sink.begin = lambda tables: Dying(begin(tables), killed)  # type: ignore[method-assign]
    return sink


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_both_engines_write_the_same(kind: str, source: Database, spark: Spark, tmp_path: Path) -> None:
    """With several chunks per task, a row that is refused, and a killed worker."""
    read: Callable[[Path, str], list[str]] = _parquet if kind == "parquet" else _delta
    threads, tasks = tmp_path / "threads", tmp_path / "tasks"
    with Tube("threads", source.uri) as on_threads, Tube("spark", source.uri) as on_spark:
        for number, changes in enumerate(CHANGES):
            source.execute(changes)
            options = {"types": "native"}
            expected = on_threads.run(
                f"{kind}:{threads}", sink_options=options, until_empty=True, attempts=1, spark=LOCAL
            )
            killed = tmp_path / "killed"
            sink = _with_killed_worker(f"{kind}:{tasks}", killed)
            found = on_spark.run(sink, until_empty=True, attempts=1, spark=SPARK, max_bytes=50_000)
            assert killed.exists()
            assert (found.written, found.removed, found.refused) == (
                expected.written,
                expected.removed,
                expected.refused,
            )
            assert found.dead_letters == int(number < 2)
            for table in ("things", "parts"):
                assert read(tasks, table) == read(threads, table)
            assert _left(tasks) == []
    rows = source.execute("SELECT count(*) FROM things WHERE isfinite(seen)")
    assert [(len(read(tasks, "things")),)] == rows


def _rows_of(address: str, name: str) -> list[list[str]]:
    sink: Any = open_sink(address)
    columns = "* EXCEPT (trueup_seq, trueup_at, trueup_version)"
    try:
        return [
            sorted(map(str, sink._rows(f"SELECT {columns} FROM {name}.{table} FINAL"))) for table in ("things", "parts")
        ]
    finally:
        sink.close()


def test_a_clickhouse_server(source: Database, spark: Spark, tmp_path: Path) -> None:
    program = Path(__file__).parents[1] / "integration" / "clickhouse_http_server.py"
    command = [sys.executable, str(program), str(tmp_path / "house")]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = f"clickhouse://me:ge%20heim%2F123@127.0.0.1:{int(server.stdout.readline())}"
        for changes in CHANGES[:2]:
            source.execute(changes)
            for name, settings in (("threads", LOCAL), ("spark", SPARK)):
                with Tube(name, source.uri) as tube:
                    options = {"types": "native", "database": name}
                    tube.run(address, sink_options=options, until_empty=True, attempts=1, spark=settings)
            assert _rows_of(address, "spark") == _rows_of(address, "threads")
        log = [json.loads(line)["sql"] for line in (tmp_path / "house.log").read_text().splitlines()]
        assert sum("INSERT INTO `spark`.`things`" in statement for statement in log) >= 4, "two tasks per batch"
        for process in psutil.Process().children(recursive=True):
            # Some end meanwhile.
            with suppress(psutil.NoSuchProcess):
                assert not any("heim" in text for text in (*process.cmdline(), *process.environ().values()))
    finally:
        server.kill()
        server.communicate()


# Tasks as on Spark, without a Java process.
KILLED = """
import os, signal
from contextlib import nullcontext
from types import SimpleNamespace
import trueup.verbs.tube.restart as restart
from trueup.api.tube import Tube
from trueup.engine.local import LocalEngine
from trueup.sinks.delta import DeltaSink
from trueup.sinks.parquet import ParquetSink

engine = LocalEngine(2)
engine.jobs = 0
restart._spark = lambda job, copies: nullcontext(SimpleNamespace(now=lambda: engine))
commit = ParquetSink.commit
def die(sink, results):
    # The other files were not moved.
    commit(sink, results[:1])
    os.kill(os.getpid(), signal.SIGKILL)
ParquetSink.commit = die
# The files are in the table, but not in its log.
DeltaSink._commit = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
Tube("spark", {uri!r}).run({address!r}, until_empty=True, max_bytes=5000)
"""


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_driver_killed_during_the_commit(
    kind: str, source: Database, spark: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run removes what was not committed, loses no row, and writes none twice."""
    # No executor outlives the driver.
    monkeypatch.setattr("trueup.capture.triggers.hold.GRACE", 0.5)
    source.execute(CHANGES[0].replace("1500", "200").replace("infinity", "2024-01-02"))
    folder, read = tmp_path / "lake", _parquet if kind == "parquet" else _delta
    program = KILLED.format(uri=source.uri, address=f"{kind}:{folder}")
    done = subprocess.run([sys.executable, "-c", program], timeout=120, check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    left = _left(folder)
    assert any(".trueup" in path for path in left)
    assert kind == "parquet" or any("trueup_bucket=" in path for path in left)
    # A run that is alive keeps its files.
    other = Staging(folder)
    kept = other.begin() / "kept"
    kept.touch()
    source.execute("UPDATE things SET name = 'later' WHERE id < 5; DELETE FROM parts WHERE b > 150")
    with Tube("spark", source.uri) as tube:
        tube.run(f"{kind}:{folder}", until_empty=True, wait=60, spark=SPARK)
    assert kept.exists()
    other.close()
    things, parts = read(folder, "things"), read(folder, "parts")
    assert [len(things), len(parts), sum("'later'" in row for row in things)] == [201, 150, 5]
    assert _left(folder) == []


def test_a_sink_for_a_single_process(source: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark is refused if it was asked for; if a cluster is only configured, the job says that it uses threads."""
    lines: list[str] = []
    monkeypatch.setattr(Job, "say", lambda job, text: lines.append(text))
    with Tube("spark", source.uri) as tube:
        with pytest.raises(CheckFailed, match="single process only"):
            tube.run(f"chdb:{tmp_path}", until_empty=True, spark=SPARK)
        configured = SparkSettings(engine="auto", master="spark://127.0.0.1:1")
        tube.run(f"chdb:{tmp_path}", until_empty=True, spark=configured)
    assert any("threads of this process are used" in line for line in lines)
