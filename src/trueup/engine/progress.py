"""Show the progress of a run: bars on a terminal, a line every ten seconds elsewhere, nothing when quiet."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from trueup.config.visible import one_line
from trueup.config.wording import counted

_log = logging.getLogger(__name__)
LINE_SECONDS = 10.0
HEARTBEAT_SECONDS = 5.0


class Progress(Protocol):
    """Receives stages, steps and messages of a run."""

    def stage(self, name: str, total: int) -> None:
        """Begin a stage of `total` steps; an earlier one may still be open."""

    def advance(self, steps: int = 1, *, rows: int = 0, more: int = 0, stage: str = "") -> None:
        """Count steps of the stage (by default the first open one) as done, and add `more` steps to its total."""

    def say(self, text: str) -> None:
        """Log a note."""

    def wait(self, reason: str) -> None:
        """Show the reason why the run waits; '': it continues."""

    def close(self) -> None:
        """Reset the terminal."""


class Silent:
    """Shows no progress; notes are logged."""

    def stage(self, name: str, total: int) -> None:
        """Do nothing."""

    def advance(self, steps: int = 1, *, rows: int = 0, more: int = 0, stage: str = "") -> None:
        """Do nothing."""

    def say(self, text: str) -> None:
        """Log a note."""
        log_note(text)

    def wait(self, reason: str) -> None:
        """Log the reason."""
        log_note(f"waiting: {reason}" if reason else "")

    def close(self) -> None:
        """Do nothing."""


def log_note(text: str) -> None:
    """Log a text, unless it is empty."""
    if text:
        _log.info("%s", text)


class Stage:
    """One stage: steps done, rows per second, and the estimated time left."""

    def __init__(self, name: str, total: int) -> None:
        self.name = name
        self.total = total
        self.done = 0
        self.rows = 0
        self._started = time.monotonic()

    def advance(self, steps: int, rows: int, more: int) -> None:
        """Count steps and rows."""
        self.done += steps
        self.rows += rows
        self.total += more

    @property
    def rate(self) -> str:
        """Rows per second as text; '' if no rows are counted."""
        seconds = max(time.monotonic() - self._started, 0.001)
        return f"{self.rows / seconds:,.0f} rows/s" if self.rows else ""

    @property
    def left(self) -> str:
        """The estimated time left as text; '' while it is unknown."""
        if not self.done or self.done >= self.total:
            return ""
        seconds = (time.monotonic() - self._started) / self.done * (self.total - self.done)
        if seconds < 100:
            return f"{seconds:.0f} s left"
        return f"{seconds / 60:.0f} min left" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h left"


class Stages:
    """The stages of a run by name; the main one is the default."""

    def __init__(self) -> None:
        self.known: dict[str, Stage] = {}
        self._main = ""

    def begin(self, name: str, total: int) -> Stage:
        """Begin a stage; it becomes the main one unless the main one is still open."""
        main = self.known.get(self._main)
        if main is None or main.done >= main.total:
            self._main = name
        self.known[name] = Stage(name, total)
        return self.known[name]

    def get(self, name: str) -> Stage:
        """Return the stage of this name, or the main one."""
        return self.known[name or self._main]


class Lines(Silent):
    """Logs a record every ten seconds, where stderr is not a terminal."""

    def __init__(self) -> None:
        self._stages = Stages()
        self._last = time.monotonic()

    def stage(self, name: str, total: int) -> None:
        """Start counting."""
        self._stages.begin(name, total)

    def advance(self, steps: int = 1, *, rows: int = 0, more: int = 0, stage: str = "") -> None:
        """Count, and log every ten seconds."""
        self._stages.get(stage).advance(steps, rows, more)
        now = time.monotonic()
        if now - self._last < LINE_SECONDS:
            return
        self._last = now
        self.say("; ".join(_line(known) for known in self._stages.known.values() if known.done < known.total))


def _line(stage: Stage) -> str:
    facts = [text for text in (counted(stage.rows, "row") if stage.rows else "", stage.rate, stage.left) if text]
    return f"{stage.name}: {stage.done}/{stage.total}" + (f" ({', '.join(facts)})" if facts else "")


class Bar(Silent):
    """Shows a bar per stage on a terminal; log records appear above the bars."""

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
            TextColumn("{task.description:<18}", markup=False),
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
        self._ids[name] = self._bar.add_task(one_line(name), total=total, rate="", left="")

    def advance(self, steps: int = 1, *, rows: int = 0, more: int = 0, stage: str = "") -> None:
        """Move the bar."""
        current = self._stages.get(stage)
        current.advance(steps, rows, more)
        self._bar.update(
            self._ids[current.name],
            completed=current.done,
            total=current.total,
            rate=current.rate,
            left=current.left,
        )

    def close(self) -> None:
        """Stop updating the bars and restore the cursor."""
        self._bar.stop()


class RecordedProgress:
    """Passes progress on to another one, and regularly to `record`: the heartbeat of a task."""

    def __init__(self, shown: Progress, record: Callable[[dict[str, object]], object]) -> None:
        self._shown = shown
        self._record = record
        self._stages = Stages()
        self._waiting = ""
        self._last = time.monotonic()

    def stage(self, name: str, total: int) -> None:
        """Begin a stage, and record it."""
        self._stages.begin(name, total)
        self._last = 0.0
        self._shown.stage(name, total)
        self.advance(0)

    def advance(self, steps: int = 1, *, rows: int = 0, more: int = 0, stage: str = "") -> None:
        """Count, and record every few seconds."""
        self._stages.get(stage).advance(steps, rows, more)
        self._shown.advance(steps, rows=rows, more=more, stage=stage)
        if time.monotonic() - self._last >= HEARTBEAT_SECONDS:
            self._record_now()

    def say(self, text: str) -> None:
        """Pass the message on."""
        self._shown.say(text)

    def wait(self, reason: str) -> None:
        """Pass the reason on, and record it immediately."""
        self._waiting = reason
        self._shown.wait(reason)
        self._record_now()

    def close(self) -> None:
        """Do nothing: the other progress is closed by its owner."""

    def _record_now(self) -> None:
        self._last = time.monotonic()
        if not self._stages.known:
            return
        main = self._stages.get("")
        facts: dict[str, object] = {"stage": main.name, "done": main.done, "total": main.total}
        if self._waiting:
            facts["waiting"] = self._waiting
        self._record(facts)


class Shown:
    """Chooses how to show progress, and closes it at the end of a block."""

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
