"""What people see while work goes on: a bar on a terminal, a line now and then elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

LINE_SECONDS = 10.0
TELL_SECONDS = 5.0


class Progress(Protocol):
    """Told of stages, steps and remarks; shows them on stderr or not at all."""

    def stage(self, name: str, total: int) -> None:
        """A new stage of `total` steps begins."""

    def advance(self, steps: int = 1, *, rows: int = 0, more: int = 0) -> None:
        """Steps are done, covering some rows; `more` steps turned up."""

    def say(self, text: str) -> None:
        """Something worth a line of its own."""

    def close(self) -> None:
        """Leave the terminal tidy."""


class Silent:
    """Shows nothing."""

    def stage(self, name: str, total: int) -> None:
        """Nothing to show."""

    def advance(self, steps: int = 1, *, rows: int = 0, more: int = 0) -> None:
        """Nothing to show."""

    def say(self, text: str) -> None:
        """Nothing to show."""

    def close(self) -> None:
        """Nothing to tidy."""


class Lines:
    """A line on stderr every ten seconds, for logs."""

    def __init__(self) -> None:
        self._name, self._total, self._done, self._rows = "", 0, 0, 0
        self._begun = self._last = time.monotonic()

    def stage(self, name: str, total: int) -> None:
        """Start counting anew."""
        self._name, self._total, self._done, self._rows = name, total, 0, 0
        self._begun = self._last = time.monotonic()

    def advance(self, steps: int = 1, *, rows: int = 0, more: int = 0) -> None:
        """Count, and print when it is time."""
        self._done += steps
        self._rows += rows
        self._total += more
        now = time.monotonic()
        if now - self._last >= LINE_SECONDS:
            self._last = now
            rate = self._rows / max(now - self._begun, 0.001)
            self.say(f"{self._name}: {self._done}/{self._total} ({self._rows:,} rows, {rate:,.0f} rows/s)")

    def say(self, text: str) -> None:
        """Print at once."""
        sys.stderr.write(f"trueup: {text}\n")
        sys.stderr.flush()

    def close(self) -> None:
        """Nothing to tidy."""


class Bar:
    """A bar for each stage on a terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description:<18}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task: Any = None
        self._rows = 0
        self._begun = time.monotonic()
        self._bar.start()

    def stage(self, name: str, total: int) -> None:
        """Add a bar below the finished ones."""
        self._rows, self._begun = 0, time.monotonic()
        self._task = self._bar.add_task(name, total=total, rate="")

    def advance(self, steps: int = 1, *, rows: int = 0, more: int = 0) -> None:
        """Move the bar."""
        self._rows += rows
        rate = self._rows / max(time.monotonic() - self._begun, 0.001)
        task = self._bar.tasks[self._task]
        self._bar.update(
            self._task,
            advance=steps,
            total=(task.total or 0) + more,
            rate=f"{rate:,.0f} rows/s" if self._rows else "",
        )

    def say(self, text: str) -> None:
        """Print above the bars."""
        self._console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Leave the bars as they are and give the cursor back."""
        self._bar.stop()


class Told:
    """Shows progress as another does, and tells it to somebody now and then: a sign of life for the task store."""

    def __init__(self, shown: Progress, tell: Callable[[dict[str, object]], object]) -> None:
        self._shown = shown
        self._tell = tell
        self._name, self._total, self._done = "", 0, 0
        self._last = time.monotonic()

    def stage(self, name: str, total: int) -> None:
        """Start counting anew, and tell."""
        self._name, self._total, self._done = name, total, 0
        self._last = 0.0
        self._shown.stage(name, total)
        self.advance(0)

    def advance(self, steps: int = 1, *, rows: int = 0, more: int = 0) -> None:
        """Count, and tell when it is time."""
        self._done += steps
        self._total += more
        self._shown.advance(steps, rows=rows, more=more)
        now = time.monotonic()
        if now - self._last >= TELL_SECONDS:
            self._last = now
            self._tell({"stage": self._name, "done": self._done, "total": self._total})

    def say(self, text: str) -> None:
        """Only shown."""
        self._shown.say(text)

    def close(self) -> None:
        """Whoever opened it closes it."""


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
