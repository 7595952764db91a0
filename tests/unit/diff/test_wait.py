"""The wait before a re-check is reduced by the time that has already passed."""

from __future__ import annotations

import time

import pytest

from trueup.task.compare import recheck


@pytest.mark.parametrize(("ago", "pause"), [(0.0, 2.0), (1.5, 0.5), (60.0, 0.0)])
def test_the_wait_is_the_remaining_time(ago: float, pause: float, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    now = time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", waited.append)
        patch.setattr(time, "monotonic", lambda: now)
        recheck.wait_since(now - ago, 2.0)
    assert waited == [pytest.approx(pause, abs=1e-6)]
