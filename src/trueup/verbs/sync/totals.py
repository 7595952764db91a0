"""When the rounds of a sync end, and what they did in total."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from trueup.config.wording import counted
from trueup.verbs.sync.model import Problem, Round


@dataclass(frozen=True)
class Until:
    """When rounds end: after one, when the target is close, or (`follow`) when `trueup sync stop` is called."""

    once: bool = False
    follow: bool = False
    # Close: the last round had at most this many keys, took at most this many seconds, and left nothing in the log.
    keys: int = 1_000
    seconds: float = 1.0
    # Seconds between two rounds while the change log is empty.
    interval: float = 0.2
    # Seconds between two copies of the sequences while rounds continue.
    sequences: float = 10.0

    def is_reached(self, last: Round) -> bool:
        """Return whether `last` was the last round."""
        if self.once:
            return True
        is_close = not last.pending and last.keys <= self.keys and last.milliseconds <= 1000 * self.seconds
        return is_close and not self.follow


@dataclass(frozen=True)
class Totals:
    """The sum of all rounds of a run, and the last round."""

    rounds: int = 0
    keys: int = 0
    rows: int = 0
    seconds: float = 0.0
    last: Round = field(default_factory=Round)
    # What is not up to date.
    aside: tuple[Problem, ...] = ()

    def plus(self, last: Round, seconds: float) -> Totals:
        """Return the totals with one more round; `seconds` is the duration of the run so far."""
        return replace(
            self,
            rounds=self.rounds + 1,
            keys=self.keys + last.keys,
            rows=self.rows + last.rows,
            seconds=seconds,
            last=last,
        )

    def as_json(self) -> dict[str, Any]:
        """Return what the task store keeps of a run."""
        return {
            "rounds": self.rounds,
            "keys": self.keys,
            "lag_seconds": round(self.last.lag, 3),
            "pending_keys": self.last.pending,
            "keys_per_second": round(self.keys / max(self.seconds, 1e-6), 1),
            "last_round_ms": round(self.last.milliseconds, 2),
            "aside": [asdict(problem) for problem in self.aside],
        }

    def text(self) -> str:
        """Return the same as one line of text."""
        rate = self.keys / max(self.seconds, 1e-6)
        names = {problem.where for problem in self.aside}
        aside = f"; {len(names)} set aside" if names else ""
        return (
            f"{counted(self.rounds, 'round')}, {counted(self.keys, 'key')} ({rate:,.0f}/s): lag {self.last.lag:.1f} s,"
            f" {counted(self.last.pending, 'key')} pending, last round {self.last.milliseconds:.0f} ms{aside}"
        )
