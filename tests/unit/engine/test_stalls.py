"""A Spark job that hangs: it is noticed by the tasks that are not finished, and ended or reported."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from trueup.engine.jvm import within
from trueup.engine.stalls import Job, Stalls, beat, beating
from trueup.errors import EngineError
from trueup.testing.processes import wait_until

SOON = 20.0


def test_a_job_without_progress_is_ended() -> None:
    ended, warnings = threading.Event(), list[str]()

    def end() -> bool:
        ended.set()
        return True

    def hang() -> None:
        with stalls.watched() as job:
            beat(job.path)
            assert ended.wait(SOON)
            # As the connection with Java does when its process was killed.
            raise ConnectionError

    stalls = Stalls(0.2, warn=warnings.append, end=end)
    with pytest.raises(EngineError, match=r"no task of the Spark job was finished for 0 s"):
        hang()
    with pytest.raises(ConnectionError), stalls.watched() as job:
        raise ConnectionError
    assert not Path(job.path).exists()
    # A worker that goes on after its job was given up leaves nothing behind.
    beat(job.path)
    assert not Path(job.path).exists()
    stalls.close()
    assert not Path(job.path).parent.exists()
    assert warnings == []


def test_a_job_with_progress_is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks are finished at some looks at the job, so that threads that are late make no difference."""
    warnings: list[str] = []
    finished = Job.finished

    def run(is_task: Callable[[int], bool], *, least: float = 0.0) -> None:
        looks = 0

        def look(job: Job) -> int:
            nonlocal looks
            looks += 1
            if is_task(looks):
                beat(job.path)
            return finished(job)

        monkeypatch.setattr(Job, "finished", look)
        with stalls.watched(least=least):
            assert wait_until(lambda: looks > 40, SOON)

    # What cannot be ended is reported: after ten looks.
    stalls = Stalls(0.02, warn=warnings.append, end=lambda: False)
    run(lambda number: number % 5 == 0)
    # Tasks that took long may take long again.
    run(lambda number: number > 30)
    stalls.close()
    # The first job of a session has more time.
    stalls = Stalls(0.02, warn=warnings.append, end=lambda: False)
    run(lambda number: False, least=600.0)
    stalls.close()
    assert not warnings


def test_a_worker_that_waits_for_a_server_is_not_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    reading = tmp_path / "reading"
    reading.touch()
    finished = Job.finished
    looks = size = 0

    def look(job: Job) -> int:
        nonlocal looks, size
        looks += 1
        # Not by the clock: both threads may be late. After the test, the file does not exist.
        with suppress(FileNotFoundError):
            while looks % 8 == 0 and reading.stat().st_size == size and not job.is_done.wait(0.01):
                pass
            size = reading.stat().st_size
        return finished(job)

    monkeypatch.setattr(Job, "finished", look)
    stalls = Stalls(0.02, warn=warnings.append, end=lambda: False)
    # One of two files of the job.
    with stalls.watched(reading), beating(str(reading)):
        assert wait_until(lambda: reading.stat().st_size >= 3, SOON)
    size = reading.stat().st_size
    with beating(""):
        pass
    stalls.close()
    assert (warnings, reading.stat().st_size) == ([], size)


@pytest.mark.parametrize(("end", "is_removed"), [(None, False), (lambda: False, False), (lambda: True, True)])
def test_a_job_elsewhere_is_reported_and_waited_for(end: Any, is_removed: bool) -> None:
    """Also if its Java process was started by another program, or if its file was removed."""
    warnings: list[str] = []
    stalls = Stalls(0.1, warn=warnings.append, end=end)
    with stalls.watched() as job:
        if is_removed:
            Path(job.path).unlink()
        # Again and again, because the run waits.
        assert wait_until(lambda: len(warnings) > 1, SOON)
    stalls.close()
    assert job.error is None
    assert "the run waits for it" in warnings[0]


def test_a_call_that_hangs_is_not_waited_for() -> None:
    hangs = threading.Event()
    assert not within(0.05, lambda: hangs.wait(SOON))
    hangs.set()
    assert within(SOON, lambda: 1 / 0)
