"""Waits return at the same event as those of `concurrent.futures`, and a signal ends them."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION, Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trueup.engine.slots import Share
from trueup.engine.spark import SparkEngine
from trueup.engine.waits import wait_for
from trueup.engine.work import Room, Tasks


def _futures() -> tuple[Future[int], Future[int]]:
    return Future(), Future()


def test_a_wait_ends_at_its_event() -> None:
    one, other = _futures()
    one.set_result(1)
    assert wait_for([one, other], FIRST_COMPLETED) == ({one}, {other})
    threading.Timer(0.6, lambda: other.set_exception(ValueError())).start()
    assert wait_for([one, other], ALL_COMPLETED) == ({one, other}, set())
    failed, running = _futures()
    failed.set_exception(ValueError())
    assert wait_for([failed, running], FIRST_EXCEPTION) == ({failed}, {running})


def test_a_signal_that_no_wait_was_interrupted_by_is_handled() -> None:
    """The signal is handled in another thread, as if it had arrived just before the wait."""
    future: Future[int] = Future()

    def interrupt() -> None:
        # To this thread only: the main thread is not woken.
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Timer(0.2, interrupt).start()
        give_up = threading.Timer(30, lambda: future.set_result(0))
        give_up.start()
        with pytest.raises(KeyboardInterrupt):
            wait_for([future], ALL_COMPLETED)
        assert not future.done()
    finally:
        give_up.cancel()
        signal.signal(signal.SIGINT, before)


def _same(task: int, room: Room) -> list[int]:
    return [task]


def test_a_signal_ends_the_wait_for_a_spark_job(monkeypatch: pytest.MonkeyPatch) -> None:
    began, ended, waited = threading.Event(), threading.Event(), list[bool]()

    def collect(engine: SparkEngine, packed: object) -> Any:
        """After an error, PySpark asks Java for the end of the job: a signal does not end it."""
        try:
            began.set()
            ended.wait(5)
        finally:
            waited.append(ended.wait(5))

    def interrupt() -> None:
        began.wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    monkeypatch.setattr(SparkEngine, "collected", collect)
    monkeypatch.setattr(SparkEngine, "interrupt", lambda engine: ended.set())
    session = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
    engine = SparkEngine(cast(Any, session), Share(fixed=1), owned=True)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            list(engine.run(_same, Tasks([1])))
        assert ended.is_set()
        assert waited in ([], [True])
    finally:
        signal.signal(signal.SIGINT, before)
