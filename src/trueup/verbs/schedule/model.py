"""A job: a command of trueup, and when it is run."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

# The type of the tasks that stand for a run of a job.
SCHEDULED = "SCHEDULED"


@dataclass(frozen=True)
class Job:
    """One entry of `[schedule]`; either `every` or `cron` is given."""

    name: str
    verb: str
    arguments: tuple[str, ...] = ()
    # Seconds from one start to the next.
    every: float = 0.0
    cron: str = ""
    timezone: str = "UTC"
    # The file that it is from: other files may have a job of that name.
    config: str = ""

    @property
    def command(self) -> str:
        """As it would be typed."""
        return shlex.join(["trueup", self.verb, *self.arguments])

    @property
    def when(self) -> str:
        """In words."""
        if self.cron:
            return f"{self.cron} ({self.timezone})"
        seconds, parts = round(self.every), []
        for size, unit in ((86400, "d"), (3600, "h"), (60, "m"), (1, "s")):
            amount, seconds = divmod(seconds, size)
            parts += [f"{amount}{unit}"] if amount else []
        return f"every {''.join(parts)}"
