"""A Spark job that hangs: it is noticed by the tasks that are not finished, and ended or reported."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from trueup.engine.jvm import within
from trueup.engine.stalls import Stalls, beat, beating
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


def test_a_job_with_progress_is_not_ended() -> None:
    warnings: list[str] = []
    # What cannot be ended is reported.
    stalls = Stalls(0.3, warn=warnings.append, end=lambda: False)
    with stalls.watched() as job:
        for _ in range(4):
            time.sleep(0.15)
            beat(job.path)
    # Tasks that took long may take long again.
    with stalls.watched():
        time.sleep(0.6)
    stalls.close()
    # The first job of a session has more time.
    stalls = Stalls(0.02, warn=warnings.append, end=lambda: False)
    with stalls.watched(least=SOON):
        time.sleep(0.1)
    stalls.close()
    assert not warnings


def test_a_worker_that_waits_for_a_server_is_not_ended(tmp_path: Path) -> None:
    warnings: list[str] = []
    stalls = Stalls(1.5, warn=warnings.append, end=lambda: False)
    reading = tmp_path / "reading"
    reading.touch()
    # One of two files of the job.
    with stalls.watched(reading), beating(str(reading)):
        assert wait_until(lambda: reading.stat().st_size == 3, SOON)
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
