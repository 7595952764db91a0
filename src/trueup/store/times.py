"""Points in time as the store writes them: UTC, ISO 8601, milliseconds, `Z`."""

from __future__ import annotations

from datetime import datetime, timezone


def now() -> str:
    """The present, as `2025-07-22T12:03:51.042Z`."""
    return iso(datetime.now(timezone.utc))


def iso(moment: datetime) -> str:
    """A moment, as text. All texts are of one width, so they sort by time."""
    return moment.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse(text: str) -> datetime:
    """The moment that `iso` wrote."""
    # Python 3.10 does not read the Z.
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def seconds_between(start: str, end: str) -> float:
    """How long it took; never below zero, also when the clock was set back meanwhile."""
    return round(max(0.0, (parse(end) - parse(start)).total_seconds()), 3)
