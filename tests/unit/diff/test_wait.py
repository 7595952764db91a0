"""The wait before a re-check is reduced by the time that has already passed."""

from __future__ import annotations

import time

import pytest

from trueup.task.compare import recheck


@pytest.mark.parametrize(("ago", "pause"), [(0.0, 2.0), (1.5, 0.5), (60.0, 0.0)])
def test_the_wait_is_the_remaining_time(ago: float, pause: float, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    recheck.wait_since(time.monotonic() - ago, 2.0)
    assert waited == [pytest.approx(pause, abs=0.2)]
