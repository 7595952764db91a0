"""Python workers of Spark exclude what they imported from garbage collection."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from trueup.engine import envelope, garbage
from trueup.nodes import iceberg, postgres_rows, spark_rows
from trueup.nodes.rows import CompareRows
from trueup.spark import changes
from trueup.spark.table import datasource as table
from trueup.spark.tube import datasource as tube
from trueup.verbs.validate.on_spark import tasks


class _FirstCall(Exception):
    pass


class _Idle:
    def run(self, batches: Iterator[Any]) -> Iterator[Any]:
        return batches


def _compared() -> Any:
    return spark_rows.ComparingTask(CompareRows(("a", "b"), (), (), (), 1, 99))(iter(()))


# What Spark calls for a task, by the module that calls `freeze_imports`.
TASKS: list[tuple[ModuleType, Callable[[], Any]]] = [
    (envelope, lambda: next(envelope.Slice.of(_Idle, [], keep=True)(iter(())))),  # type: ignore[arg-type]
    (tasks, lambda: next(tasks.JudgeKeys(None)(iter(())))),  # type: ignore[arg-type]
    (postgres_rows, lambda: postgres_rows.Packed.of(_Idle())(iter(()))),
    (spark_rows, _compared),
    (iceberg, lambda: next(iceberg.ReadFiles(b"", b"")(iter(())))),
    (table, lambda: next(table.TrueupReader.__new__(table.TrueupReader).read(None))),  # type: ignore[arg-type]
    (changes, lambda: next(changes.ChangesReader.__new__(changes.ChangesReader).read(None))),  # type: ignore[arg-type]
    (tube, lambda: next(tube.TubeStreamReader.__new__(tube.TubeStreamReader).read(None))),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("module", "task"), TASKS, ids=lambda given: getattr(given, "__name__", ""))
def test_every_task_excludes_imports(
    module: ModuleType, task: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def freeze() -> None:
        raise _FirstCall

    monkeypatch.setattr(module, "freeze_imports", freeze)
    with pytest.raises(_FirstCall):
        task()


def test_objects_of_later_tasks_are_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker creates after its second task must not stay for ever: a stream runs for weeks."""
    calls: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(len(calls)))
    of_new_worker = importlib.reload(garbage).freeze_imports
    for _ in range(5):
        of_new_worker()
    assert len(calls) == 2
