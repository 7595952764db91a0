"""When a job is run: intervals such as 15m and 1h30m, and expressions of cron as cron reads them."""

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
    """`15m`, `1h30m`, `2d` in seconds; ValueError if it is none of these, or nothing."""
    found = _INTERVAL.fullmatch(text.strip().lower())
    amounts = [int(part or 0) for part in found.groups()] if found else []
    seconds = sum(amount * size for amount, size in zip(amounts, _UNITS.values(), strict=False))
    if not seconds:
        raise ValueError(text)
    return float(seconds)


def trigger_of(job: Job, last: datetime | None, now: datetime) -> Any:
    """The trigger of the scheduler: an interval goes on from the last start, and what is overdue begins at once."""
    from apscheduler.triggers.interval import IntervalTrigger

    if job.cron:
        return cron_trigger(job.cron, job.timezone)
    first = max(now, last + timedelta(seconds=job.every)) if last else now
    return IntervalTrigger(seconds=int(job.every), start_date=first, timezone=timezone.utc)


def next_time(job: Job, last: datetime | None, now: datetime) -> datetime | None:
    """When the job is due next."""
    found: datetime | None = trigger_of(job, last, now).get_next_fire_time(None, now)
    return found.astimezone(timezone.utc) if found else None


def cron_trigger(expression: str, zone: str) -> Any:
    """The trigger of a cron expression of five fields; ValueError says what is wrong with it.

    The library counts weekdays from Monday, and wants day and weekday both to fit. As in cron, 0 and 7 are Sunday, and
    where both are restricted, either will do.
    """
    from apscheduler.triggers.combining import OrTrigger
    from apscheduler.triggers.cron import CronTrigger

    fields = expression.lower().split()
    if len(fields) != 5:
        raise ValueError(f"it has {len(fields)} fields, and needs five: minute, hour, day, month, weekday")
    names = ("minute", "hour", "day", "month", "day_of_week")
    given = dict(zip(names, fields, strict=True))
    given["day_of_week"] = weekdays(given["day_of_week"])

    def one(**changed: str) -> Any:
        return CronTrigger(**{**given, **changed}, timezone=zone)

    if "*" in (given["day"], given["day_of_week"]):
        return one()
    return OrTrigger([one(day="*"), one(day_of_week="*")])


def weekdays(field: str) -> str:
    """The field of weekdays with names instead of numbers; `*` stays."""
    if field == "*":
        return field
    numbers: set[int] = set()
    for part in field.split(","):
        found = _PART.fullmatch(part)
        if not found:
            raise ValueError(f"the weekday {part} is not understood: write 0 to 7 (0 and 7 are Sunday) or sun to sat")
        first = _weekday(found["first"]) if found["first"] else 0
        last = _weekday(found["last"]) if found["last"] else (6 if found["step"] or not found["first"] else first)
        # fri-sun and 5-7 go over the end of the week.
        last += 7 * (last < first)
        numbers.update(day % 7 for day in range(first, last + 1, int(found["step"] or 1) or 1))
    return ",".join(_DAYS[number] for number in sorted(numbers))


def _weekday(text: str) -> int:
    if text in _DAYS:
        return _DAYS.index(text)
    if not text.isdigit() or int(text) > 7:
        raise ValueError(f"the weekday {text} is not understood: write 0 to 7 (0 and 7 are Sunday) or sun to sat")
    return int(text)
