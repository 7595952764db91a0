"""A job: a command of trueup and its times."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

# The task type of a run of a job.
SCHEDULED = "SCHEDULED"


@dataclass(frozen=True)
class Job:
    """One entry of the section [schedule]; exactly one of `every` and `cron` is set."""

    name: str
    verb: str
    arguments: tuple[str, ...] = ()
    # Seconds between two starts.
    every: float = 0.0
    cron: str = ""
    timezone: str = "UTC"
    # The file of the job: other files may have a job with the same name.
    config: str = ""

    @property
    def command(self) -> str:
        """The command line."""
        return shlex.join(["trueup", self.verb, *self.arguments])

    @property
    def when(self) -> str:
        """The times as text."""
        if self.cron:
            return f"{self.cron} ({self.timezone})"
        seconds, parts = round(self.every), []
        for size, unit in ((86400, "d"), (3600, "h"), (60, "m"), (1, "s")):
            amount, seconds = divmod(seconds, size)
            parts += [f"{amount}{unit}"] if amount else []
        return f"every {''.join(parts)}"
