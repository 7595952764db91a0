"""Progress output: concurrent stages, speed, remaining time, reasons for waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trueup.config.logs import hide, show
from trueup.engine.progress import Bar, Lines, RecordedProgress, Stages


@pytest.fixture
def messages(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return a function that lists the messages that were logged."""
    caplog.set_level("INFO", "trueup")
    return lambda: caplog.messages


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that advances only when a test changes it."""
    now = [100.0]
    monkeypatch.setattr("trueup.engine.progress.time.monotonic", lambda: now[0])
    return now


def test_a_line_every_ten_seconds_with_speed_and_time_left(
    clock: list[float], messages: Callable[[], list[str]]
) -> None:
    lines = Lines()
    lines.stage("hashing", 100)
    for _ in range(20):
        clock[0] += 1.0
        lines.advance(rows=1000)
    assert messages() == [
        "hashing: 10/100 (10,000 rows, 1,000 rows/s, 90 s left)",
        "hashing: 20/100 (20,000 rows, 1,000 rows/s, 80 s left)",
    ]


def test_two_stages_at_once(clock: list[float], messages: Callable[[], list[str]]) -> None:
    lines = Lines()
    lines.stage("hashing", 4)
    lines.advance()
    lines.stage("mismatch analysis", 0)
    lines.advance(0, more=3, stage="mismatch analysis")
    lines.advance(stage="mismatch analysis")
    clock[0] += 10
    lines.advance(rows=10)
    assert messages() == ["hashing: 2/4 (10 rows, 1 rows/s, 10 s left); mismatch analysis: 1/3 (20 s left)"]


def test_long_times_are_shown_in_minutes_and_hours(clock: list[float]) -> None:
    stage = Stages().begin("hashing", 1000)
    clock[0] += 60
    stage.advance(10, 0, 0)
    assert stage.left == "99 min left"
    stage.total = 10_000
    assert stage.left == "16.6 h left"
    stage.done = stage.total
    assert stage.left == ""


def test_the_reason_to_wait_reaches_the_store_at_once(clock: list[float], messages: Callable[[], list[str]]) -> None:
    recorded: list[dict[str, object]] = []
    progress = RecordedProgress(Lines(), recorded.append)
    progress.stage("hashing", 2)
    progress.wait("n1: 30 sessions are active (limit 25)")
    assert recorded[-1] == {
        "stage": "hashing",
        "done": 0,
        "total": 2,
        "waiting": "n1: 30 sessions are active (limit 25)",
    }
    progress.wait("")
    assert "waiting" not in recorded[-1]
    assert messages() == ["waiting: n1: 30 sessions are active (limit 25)"]


def test_bars_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in (("FORCE_COLOR", "1"), ("COLUMNS", "120"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    show()
    bar: Any = Bar()
    bar.stage("hashing", 10)
    bar.advance(5, rows=500)
    bar.stage("mismatch analysis", 0)
    bar.advance(0, more=2, stage="mismatch analysis")
    bar.say("[n1] is slow")
    bar.wait("a lock")
    bar.close()
    hide()
    shown = capsys.readouterr()
    assert shown.out == ""
    for text in ("hashing", "5/10", "rows/s", "left", "mismatch analysis", "0/2", "[n1] is slow", "waiting: a lock"):
        assert text in shown.err
