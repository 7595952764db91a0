"""No task is lost: every task is finished, or the run fails."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from trueup.engine.envelope import FINISHED, check_complete
from trueup.engine.failures import REFUSED
from trueup.engine.local import LocalEngine
from trueup.engine.slots import Share
from trueup.engine.spark import SparkEngine
from trueup.engine.work import Failure, Finished, Room, Tasks, perform, without_marks
from trueup.errors import EngineError, QueryError


def _double(task: int, room: Room) -> Iterator[int]:
    if task == 3:
        raise QueryError("unlucky", node="n1")
    yield task * 2


def test_every_task_reports_its_end() -> None:
    assert list(perform(_double, 1, Room())) == [2, Finished()]
    failed = list(perform(_double, 3, Room()))
    assert isinstance(failed[0], Failure)
    assert failed[1:] == [Finished()]


def test_a_task_without_an_end_is_an_error() -> None:
    answers: list[Any] = [2, Finished(), 4]
    found: list[Any] = []
    with pytest.raises(EngineError, match="1 of 2 tasks did not finish"):
        found.extend(without_marks(answers, 2))
    with pytest.raises(EngineError, match="1 tasks have 2 ends"):
        found.extend(without_marks([2, Finished(), 2, Finished()], 1))


def test_a_wave_without_the_end_of_a_task_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = pickle.dumps(2, pickle.HIGHEST_PROTOCOL)
    check_complete([answer, FINISHED, answer, answer, FINISHED], 2)
    with pytest.raises(EngineError, match="1 of 2 tasks did not finish"):
        check_complete([answer, FINISHED, answer, answer], 2)
    with pytest.raises(EngineError, match="2 tasks have 3 ends"):
        check_complete([answer, FINISHED, answer, FINISHED, answer, FINISHED], 2)
    with pytest.raises(EngineError, match="the executors have trueup"):
        check_complete([f"{REFUSED}have trueup 0.1".encode()], 2)
    session = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
    engine = SparkEngine(cast(Any, session), Share(fixed=1), owned=False)
    monkeypatch.setattr(engine, "collected", lambda packed: [pa.array([answer, FINISHED, answer])])
    with pytest.raises(EngineError, match="1 of 2 tasks did not finish"):
        engine.wave(cast(Any, str), [[1, 2]], "")


def test_threads_process_all_tasks_also_added_ones() -> None:
    engine = LocalEngine(2)
    tasks = Tasks(range(5))
    answers = []
    for answer in engine.run(_double, tasks):
        if isinstance(answer, int):
            answers.append(answer)
            if answer == 8:
                tasks.add([100])
    engine.close()
    assert sorted(answers) == [0, 2, 4, 8, 200]
