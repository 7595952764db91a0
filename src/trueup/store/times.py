"""Timestamps in the format of the store: UTC, ISO 8601, milliseconds, `Z`."""

from __future__ import annotations

from datetime import datetime, timezone


def now() -> str:
    """Return the current time, for example `2025-07-22T12:03:51.042Z`."""
    return iso(datetime.now(timezone.utc))


def iso(moment: datetime) -> str:
    """Return a time as text of fixed width, which sorts by time."""
    return moment.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse(text: str) -> datetime:
    """Parse text written by `iso`."""
    # Python 3.10 does not parse the Z.
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def seconds_between(start: str, end: str) -> float:
    """Return the duration in seconds; 0 if the clock was set back in between."""
    return round(max(0.0, (parse(end) - parse(start)).total_seconds()), 3)
