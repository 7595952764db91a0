"""The scrub takes its share of the time, and does not make up for time in which nothing was due."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trueup.verbs.validate.proving import scrub
from trueup.verbs.validate.proving.certify import Marks
from trueup.verbs.validate.proving.scrub import Scrubber

SHARE = 0.05
BLOCK_SECONDS = 0.08
ROUND_SECONDS = 0.2


class _Simulated(Scrubber):
    """A scrub whose clock and blocks are simulated."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.used, self.is_due = 1000.0, 0.0, True
        monkeypatch.setattr(scrub, "time", SimpleNamespace(monotonic=lambda: self.now))
        sessions: Any = SimpleNamespace(settings=SimpleNamespace(scrub_share=SHARE))
        tables: Any = SimpleNamespace(pairs={"t"})
        checker: Any = None
        super().__init__(sessions, tables, checker)

    def _next(self, tables: list[str]) -> Any:
        return tables[0] if self.is_due else None

    def _scrub(self, due: Any, marks: Marks) -> None:
        self.now += BLOCK_SECONDS
        self.used += BLOCK_SECONDS

    def share_of(self, seconds: float) -> float:
        """Run rounds for a time; return the share of it that blocks took."""
        start, self.used = self.now, 0.0
        while self.now < start + seconds:
            self.scrub(Marks(0, None))
            self.now += ROUND_SECONDS
        return self.used / (self.now - start)


def test_the_share_is_kept_also_after_a_time_without_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    scrubber = _Simulated(monkeypatch)
    assert scrubber.share_of(600) == pytest.approx(SHARE, rel=0.05)
    scrubber.is_due = False
    assert scrubber.share_of(600) == 0
    scrubber.is_due = True
    assert scrubber.share_of(10) <= SHARE * 1.2
    # Rounds that did not come to it, because of a long batch: at most 2 s are made up for.
    scrubber.now += 600
    assert scrubber.share_of(60) == pytest.approx(SHARE + 2 / 60, rel=0.1)
