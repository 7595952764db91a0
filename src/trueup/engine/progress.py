"""What people see while work goes on: a bar on a terminal, a line now and then elsewhere, nothing when quiet."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

_log = logging.getLogger(__name__)
LINE_SECONDS = 10.0
TELL_SECONDS = 5.0


class Progress(Protocol):
    """Told of stages, steps and remarks; shows them on stderr or not at all."""

    def stage(self, name: str, total: int) -> None:
        """A stage of `total` steps begins; an earlier one may still go on beside it."""

    def advance(self, steps: int = 1, *, rows: int = 0, more: int = 0, stage: str = "") -> None:
        """Steps of the stage (by default the first one still open) are done; `more` steps turned up."""

    def say(self, text: str) -> None:
        """Log a note."""

    def wait(self, reason: str) -> None:
        """The work waits for this reason; an empty one: it goes on."""

    def close(self) -> None:
        """Leave the terminal tidy."""


class Silent:
    """Shows no progress; notes are logged."""

    def stage(self, name: str, total: int) -> None:
        """Nothing to show."""

    def advance(self, steps: int = 1, *, rows: int = 0, more: int = 0, stage: str = "") -> None:
        """Nothing to show."""

    def say(self, text: str) -> None:
        """Log a note."""
        log_note(text)

    def wait(self, reason: str) -> None:
        """Log the reason."""
        log_note(f"waiting: {reason}" if reason else "")

    def close(self) -> None:
        """Nothing to tidy."""


def log_note(text: str) -> None:
    """Log a text, unless it is empty."""
    if text:
        _log.info("%s", text)


class Stage:
    """One stage: how far it is, how fast, and how long it may still take."""

    def __init__(self, name: str, total: int) -> None:
        self.name = name
        self.total = total
        self.done = 0
        self.rows = 0
        self._begun = time.monotonic()

    def advance(self, steps: int, rows: int, more: int) -> None:
        """Count."""
        self.done += steps
        self.rows += rows
        self.total += more

    @property
    def rate(self) -> str:
        """Rows a second, in words; nothing where no rows are counted."""
        seconds = max(time.monotonic() - self._begun, 0.001)
        return f"{self.rows / seconds:,.0f} rows/s" if self.rows else ""

    @property
    def left(self) -> str:
        """The time left at the speed so far, in words; nothing before anything is known."""
        if not self.done or self.done >= self.total:
            return ""
        seconds = (time.monotonic() - self._begun) / self.done * (self.total - self.done)
        if seconds < 100:
            return f"{seconds:.0f} s left"
        return f"{seconds / 60:.0f} min left" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h left"


class Stages:
    """The stages of a run by name, and which of them is meant when none is named."""

    def __init__(self) -> None:
        self.known: dict[str, Stage] = {}
        self._main = ""

    def begin(self, name: str, total: int) -> Stage:
        """A stage begins; it is the main one unless the main one is still open."""
        main = self.known.get(self._main)
        if main is None or main.done >= main.total:
            self._main = name
        self.known[name] = Stage(name, total)
        return self.known[name]

    def get(self, name: str) -> Stage:
        """The stage of this name; of no name, the main one."""
        return self.known[name or self._main]


class Lines(Silent):
    """A log record every ten seconds, where stderr is no terminal."""

    def __init__(self) -> None:
        self._stages = Stages()
        self._last = time.monotonic()

    def stage(self, name: str, total: int) -> None:
        """Start counting."""
        self._stages.begin(name, total)

    def advance(self, steps: int = 1, *, rows: int = 0, more: int = 0, stage: str = "") -> None:
        """Count, and log when it is time."""
        self._stages.get(stage).advance(steps, rows, more)
        now = time.monotonic()
        if now - self._last < LINE_SECONDS:
            return
        self._last = now
        self.say("; ".join(_line(each) for each in self._stages.known.values() if each.done < each.total))


def _line(stage: Stage) -> str:
    facts = [text for text in (f"{stage.rows:,} rows" if stage.rows else "", stage.rate, stage.left) if text]
    return f"{stage.name}: {stage.done}/{stage.total}" + (f" ({', '.join(facts)})" if facts else "")


class Bar(Silent):
    """A bar for each stage on a terminal; log records appear above the bars."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        self._bar = Progress(
            TextColumn("{task.description:<18}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=Console(stderr=True),
        )
        self._stages = Stages()
        self._ids: dict[str, Any] = {}
        self._bar.start()

    def stage(self, name: str, total: int) -> None:
        """Add a bar below the others."""
        self._stages.begin(name, total)
        self._ids[name] = self._bar.add_task(name, total=total, rate="", left="")

    def advance(self, steps: int = 1, *, rows: int = 0, more: int = 0, stage: str = "") -> None:
        """Move the bar."""
        found = self._stages.get(stage)
        found.advance(steps, rows, more)
        self._bar.update(
            self._ids[found.name], completed=found.done, total=found.total, rate=found.rate, left=found.left
        )

    def close(self) -> None:
        """Leave the bars as they are and give the cursor back."""
        self._bar.stop()


class Told:
    """Shows progress as another does, and tells it to somebody now and then: a sign of life for the task store."""

    def __init__(self, shown: Progress, tell: Callable[[dict[str, object]], object]) -> None:
        self._shown = shown
        self._tell = tell
        self._stages = Stages()
        self._waiting = ""
        self._last = time.monotonic()

    def stage(self, name: str, total: int) -> None:
        """Start counting anew, and tell."""
        self._stages.begin(name, total)
        self._last = 0.0
        self._shown.stage(name, total)
        self.advance(0)

    def advance(self, steps: int = 1, *, rows: int = 0, more: int = 0, stage: str = "") -> None:
        """Count, and tell when it is time."""
        self._stages.get(stage).advance(steps, rows, more)
        self._shown.advance(steps, rows=rows, more=more, stage=stage)
        if time.monotonic() - self._last >= TELL_SECONDS:
            self._tell_now()

    def say(self, text: str) -> None:
        """Only shown."""
        self._shown.say(text)

    def wait(self, reason: str) -> None:
        """Show it, and tell at once: whoever asks the store why nothing moves gets the reason."""
        self._waiting = reason
        self._shown.wait(reason)
        self._tell_now()

    def close(self) -> None:
        """Whoever opened it closes it."""

    def _tell_now(self) -> None:
        self._last = time.monotonic()
        if not self._stages.known:
            return
        main = self._stages.get("")
        facts: dict[str, object] = {"stage": main.name, "done": main.done, "total": main.total}
        if self._waiting:
            facts["waiting"] = self._waiting
        self._tell(facts)


class Shown:
    """Chooses how to show progress, and tidies up whatever happens."""

    def __init__(self, *, quiet: bool) -> None:
        self._progress: Progress
        if quiet:
            self._progress = Silent()
        else:
            self._progress = Bar() if sys.stderr.isatty() else Lines()

    def __enter__(self) -> Progress:
        return self._progress

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.close()
