"""The times of a job: intervals such as 15m and 1h30m, and cron expressions."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Any

from trueup.verbs.schedule.model import Job

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_INTERVAL = re.compile(r"(?:(\d+)\s*d)?\s*(?:(\d+)\s*h)?\s*(?:(\d+)\s*m)?\s*(?:(\d+)\s*s)?")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_PART = re.compile(r"(?:\*|(?P<first>\w+)(?:-(?P<last>\w+))?)(?:/(?P<step>\d+))?")


def seconds_of(text: str) -> float:
    """Return an interval such as `15m`, `1h30m` or `2d` in seconds. Raises ValueError for other text and for 0."""
    match = _INTERVAL.fullmatch(text.strip().lower())
    amounts = [int(part or 0) for part in match.groups()] if match else []
    seconds = sum(amount * size for amount, size in zip(amounts, _UNITS.values(), strict=False))
    if not seconds:
        raise ValueError(text)
    return float(seconds)


def trigger_of(job: Job, last: datetime | None, now: datetime) -> Any:
    """Return the trigger of a job: an interval counts from the last start, and an overdue job starts at once."""
    from apscheduler.triggers.interval import IntervalTrigger

    if job.cron:
        return cron_trigger(job.cron, job.timezone)
    first = max(now, last + timedelta(seconds=job.every)) if last else now
    return IntervalTrigger(seconds=int(job.every), start_date=first, timezone=timezone.utc)


def next_time(job: Job, last: datetime | None, now: datetime) -> datetime | None:
    """Return the next time of a job, or None."""
    time: datetime | None = trigger_of(job, last, now).get_next_fire_time(None, now)
    return time.astimezone(timezone.utc) if time else None


def cron_trigger(expression: str, zone: str) -> Any:
    """Return the trigger of a cron expression with five fields. Raises ValueError with the reason if it is wrong.

    The library counts weekdays from Monday and requires day and weekday to match. As in cron, 0 and 7 are Sunday, and
    if both are restricted, one match is enough.
    """
    from apscheduler.triggers.combining import OrTrigger
    from apscheduler.triggers.cron import CronTrigger

    fields = expression.lower().split()
    if len(fields) != 5:
        raise ValueError(f"it has {len(fields)} fields instead of five: minute, hour, day, month, weekday")
    names = ("minute", "hour", "day", "month", "day_of_week")
    values = dict(zip(names, fields, strict=True))
    values["day_of_week"] = weekdays(values["day_of_week"])

    def trigger(**changes: str) -> Any:
        return CronTrigger(**{**values, **changes}, timezone=zone)

    if "*" in (values["day"], values["day_of_week"]):
        return trigger()
    return OrTrigger([trigger(day="*"), trigger(day_of_week="*")])


def weekdays(field: str) -> str:
    """Return the weekday field with names instead of numbers; `*` is unchanged."""
    if field == "*":
        return field
    numbers: set[int] = set()
    for part in field.split(","):
        match = _PART.fullmatch(part)
        if not match:
            raise ValueError(f"{part} is not a weekday: write 0 to 7 (0 and 7 are Sunday) or sun to sat")
        first = _weekday(match["first"]) if match["first"] else 0
        last = _weekday(match["last"]) if match["last"] else (6 if match["step"] or not match["first"] else first)
        # fri-sun and 5-7 wrap around the end of the week.
        last += 7 * (last < first)
        numbers.update(day % 7 for day in range(first, last + 1, int(match["step"] or 1) or 1))
    return ",".join(_DAYS[number] for number in sorted(numbers))


def _weekday(text: str) -> int:
    if text in _DAYS:
        return _DAYS.index(text)
    if not text.isdigit() or int(text) > 7:
        raise ValueError(f"{text} is not a weekday: write 0 to 7 (0 and 7 are Sunday) or sun to sat")
    return int(text)
