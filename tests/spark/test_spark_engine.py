"""Spark returns the same results as threads, also when workers are killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from trueup.engine.slots import Share
from trueup.engine.spark import SparkEngine
from trueup.engine.work import Failure, Room, Tasks
from trueup.errors import EngineError, QueryError
from trueup.report.model import DiffResult
from trueup.testing.processes import wait_until

if TYPE_CHECKING:
    # Workers load this module, and do not have the package.
    from support.fixtures import Compare, Databases, OnAll, ReportOf, Spark

TABLE = """
    CREATE TABLE items (id bigint PRIMARY KEY, name text, price numeric, seen timestamptz);
    INSERT INTO items SELECT i, 'item ' || i, i / 100.0, '2024-01-01'::timestamptz + i * interval '1 s'
      FROM generate_series(1, 20000) i;
    ANALYZE items;
"""
DRIFT = """
    UPDATE items SET name = 'x' || id WHERE id % 997 = 0;
    DELETE FROM items WHERE id % 1999 = 0;
    INSERT INTO items (id) VALUES (-1), (30000);
"""


def _double(task: int, room: Room) -> Iterator[int]:
    if task == 13:
        raise QueryError("unlucky", sqlstate="XX000", node="n1")
    if task == 14:
        raise ValueError("a defect")
    yield task * 2


def test_results_and_errors_of_tasks_are_returned(spark: Spark) -> None:
    engine = SparkEngine(spark, Share(), owned=False)
    answers = list(engine.run(_double, Tasks(range(20))))
    failures = {answer.task: answer.error for answer in answers if isinstance(answer, Failure)}
    assert sorted(answer for answer in answers if isinstance(answer, int)) == [
        n * 2 for n in range(20) if n not in (13, 14)
    ]
    assert isinstance(failures[13], QueryError)
    assert (failures[13].sqlstate, failures[13].node) == ("XX000", "n1")
    assert "ValueError" in str(failures[14])


def test_no_trace_is_printed_when_java_is_killed_after_a_task(spark: Spark, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise EOFError
    except EOFError:
        # What the thread that reads counters calls when its connection ends.
        spark.sparkContext._accumulatorServer.handle_error(None, ("127.0.0.1", 1))  # type: ignore[arg-type]
    assert capsys.readouterr().err == ""


def test_tasks_added_during_the_run_are_run(spark: Spark) -> None:
    tasks: Tasks[int] = Tasks([1])
    answers = []
    for answer in SparkEngine(spark, Share(), owned=False).run(_double, tasks):
        answers.append(answer)
        if answer < 100:
            tasks.add([answer])
    assert answers == [2, 4, 8, 16, 32, 64, 128]


def _die_once(task: str, room: Room) -> Iterator[str]:
    mark = Path(task)
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    yield task


def test_a_killed_worker_is_replaced_and_its_tasks_run_again(spark: Spark, tmp_path: Path) -> None:
    marks = [str(tmp_path / str(number)) for number in range(2)]
    assert sorted(SparkEngine(spark, Share(), owned=False).run(_die_once, Tasks(marks))) == marks


def _stay(task: str, room: Room) -> Iterator[str]:
    Path(task).touch()
    time.sleep(120)
    yield task


def test_a_wave_that_is_ended_leaves_no_task_running(spark: Spark, tmp_path: Path) -> None:
    engine = SparkEngine(spark, Share(), owned=False)
    mark = tmp_path / "began"
    with ThreadPoolExecutor(1) as threads:
        wave = threads.submit(engine.wave, _stay, [(str(mark),)], "trueup-ended")
        assert wait_until(mark.exists, 60)
        engine.interrupt_wave("trueup-another")
        engine.interrupt_wave("trueup-ended")
        with pytest.raises(EngineError):
            wave.result(60)
    assert sorted(engine.run(_double, Tasks(range(3)))) == [0, 2, 4]


def test_spark_and_threads_report_the_same(
    spark: Spark, databases: Databases, on_all: OnAll, compare: Compare, report_of: ReportOf
) -> None:
    nodes = databases(3)
    on_all(nodes, TABLE)
    nodes[1].execute(DRIFT)
    nodes[2].execute("UPDATE items SET price = -price WHERE id IN (1, 7000, 20000)")
    options = {"block_size": 1000, "compare_unit_size": 50, "concurrency_factor": 1.0}
    local = compare(nodes, "items", **options)
    distributed = compare(nodes, "items", engine="spark", **options)
    assert (local.engine, distributed.engine) == ("local", "spark")
    assert distributed.pairs == local.pairs
    assert local.pairs["n1/n2"].changed == 20

    def differences(result: DiffResult) -> dict[str, Any]:
        diffs = report_of(result)["diffs"]
        for found in diffs.values():
            for difference in found["differences"]:
                # Each run hashes with a random seed.
                del difference["hashes"]
        return {pair: sorted(map(str, found["differences"])) for pair, found in diffs.items()}

    assert differences(distributed) == differences(local)


def _workers() -> list[psutil.Process]:
    """Return the Python workers of Spark in this process: children of its daemon without children."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if "pyspark.daemon" in " ".join(child.cmdline()) and not child.children():
                found.append(child)
        except psutil.Error:
            continue  # it has ended meanwhile
    return found


def test_a_worker_killed_during_a_diff(spark: Spark, databases: Databases, on_all: OnAll, compare: Compare) -> None:
    nodes = databases(2)
    on_all(nodes, TABLE)
    nodes[1].execute(DRIFT)

    class KillAWorker:
        killed = 0

        def stage(self, name: str, total: int) -> None: ...

        def say(self, text: str) -> None: ...

        def wait(self, reason: str) -> None:
            """Show nothing."""

        def close(self) -> None: ...

        def advance(self, steps: int = 1, *, rows: int = 0, more: int = 0, stage: str = "") -> None:
            if not self.killed:
                workers = _workers()
                for worker in workers:
                    worker.kill()
                self.killed = len(workers)

    killer = KillAWorker()
    result = compare(nodes, "items", engine="spark", block_size=1000, concurrency_factor=1.0, progress=killer)
    assert killer.killed
    counts = result.pairs["n1/n2"]
    assert (result.verdict, counts.missing, counts.extra, counts.changed) == ("DIFFER", 10, 2, 20)


def test_keyless_on_spark(spark: Spark, databases: Databases, on_all: OnAll, compare: Compare) -> None:
    nodes = databases(2)
    on_all(nodes, "CREATE TABLE logs AS SELECT i % 100 AS a, 'x' AS b FROM generate_series(1, 30000) i; ANALYZE logs")
    nodes[1].execute("INSERT INTO logs VALUES (1, 'x'), (1, 'y')")
    assert compare(nodes, "logs", engine="spark").pairs["n1/n2"].extra == 2


def test_dense_differences_are_sent_in_limited_batches(
    spark: Spark, databases: Databases, on_all: OnAll, compare: Compare
) -> None:
    nodes = databases(2)
    on_all(nodes, TABLE.replace("'item ' || i", "repeat('item', 200) || i"))
    nodes[1].execute("TRUNCATE items")
    result = compare(nodes, "items", engine="spark", recheck=0)
    assert (result.verdict, result.pairs["n1/n2"].missing) == ("DIFFER", 20000)


def test_functions_are_looked_up_in_java_once(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark would ask Java for the class and the function at every use."""
    from py4j.java_gateway import GatewayClient  # type: ignore[import-untyped]
    from pyspark.sql import functions as f

    f.lower(f.col("a"))
    asked: list[str] = []
    send = GatewayClient.send_command

    def counted(self: GatewayClient, command: str, *more: object, **options: object) -> object:
        asked.append(command)
        return send(self, command, *more, **options)

    monkeypatch.setattr(GatewayClient, "send_command", counted)
    f.lower(f.col("a"))
    assert spark is not None
    # Calls begin with `c`, questions about classes and their members with `r`.
    assert [command[0] for command in asked if command[0] != "m"] == ["c", "c"]
