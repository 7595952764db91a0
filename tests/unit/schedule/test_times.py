"""Intervals and cron expressions have the meaning of cron, and invalid ones are refused with a cure."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from trueup.errors import ConfigError
from trueup.verbs.schedule.config import load_jobs
from trueup.verbs.schedule.model import Job
from trueup.verbs.schedule.times import next_time, seconds_of, weekdays

# A Wednesday.
NOW = datetime(2026, 7, 1, 12, 0, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("1h30m", 5400), ("1d", 86400), ("2d 1h", 176400)]
)
def test_intervals(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds
    assert seconds_of(Job("j", "check", every=seconds).when.removeprefix("every ")) == seconds


@pytest.mark.parametrize("text", ["", "15", "m", "0s", "1.5h", "15 minutes", "-5m"])
def test_invalid_intervals(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        seconds_of(text)


@pytest.mark.parametrize(
    ("field", "days"),
    [
        ("*", "*"),
        ("0", "sun"),
        ("7", "sun"),
        ("1-5", "mon,tue,wed,thu,fri"),
        ("5-7", "sun,fri,sat"),
        ("fri-mon", "sun,mon,fri,sat"),
        ("*/2", "sun,tue,thu,sat"),
        ("1,3,sat", "mon,wed,sat"),
    ],
)
def test_weekdays_are_those_of_cron(field: str, days: str) -> None:
    assert weekdays(field) == days


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("30 3 * * *", "2026-07-02 03:30"),
        ("0 3 * * 0", "2026-07-05 03:00"),
        ("0 3 * * 1-5", "2026-07-02 03:00"),
        # Both fields are restricted: one match is enough, and Friday is first.
        ("0 3 13 * fri", "2026-07-03 03:00"),
        ("0 3 2 * fri", "2026-07-02 03:00"),
        ("*/15 * * * *", "2026-07-01 12:15"),
    ],
)
def test_next_time_of_a_cron_expression(cron: str, expected: str) -> None:
    at = next_time(Job("j", "check", cron=cron), None, NOW + timedelta(seconds=1))
    assert at is not None
    assert f"{at:%Y-%m-%d %H:%M}" == expected


def test_time_zones_and_repeated_intervals() -> None:
    berlin = next_time(Job("j", "check", cron="0 3 * * *", timezone="Europe/Berlin"), None, NOW)
    assert berlin == datetime(2026, 7, 2, 1, 0, tzinfo=timezone.utc)
    hourly = Job("j", "check", every=3600)
    assert next_time(hourly, None, NOW) == NOW
    # After a restart: one hour after the last start, and at once if that time has passed.
    assert next_time(hourly, NOW - timedelta(minutes=20), NOW) == NOW + timedelta(minutes=40)
    assert next_time(hourly, NOW - timedelta(days=2), NOW) == NOW


@pytest.mark.parametrize(
    ("text", "message", "cure"),
    [
        ("[schedule]", "has no jobs", "[schedule.NAME]"),
        ("[schedule]\nx = 1", "expected", "[schedule.x]"),
        ('[schedule.x]\nverb = "chekc"\nevery = "1h"', '"chekc" is not a command', 'Did you mean "check"?'),
        ('[schedule.x]\nverb = "schedule"\nevery = "1h"', '"schedule" is not a command', "Use one of:"),
        ('[schedule.x]\nevery = "1h"', "the verb is missing", "Use one of: check, diff"),
        ('[schedule.x]\nverb = "check"\nevry = "1h"', "unknown key", 'Did you mean "every"?'),
        ('[schedule.x]\nverb = "check"', "exactly one of every and cron", "every ="),
        ('[schedule.x]\nverb = "check"\nevery = "1h"\ncron = "* * * * *"', "exactly one of every and cron", "every ="),
        ('[schedule.x]\nverb = "check"\nevery = "soon"', '"soon" is not an interval', "15m"),
        ('[schedule.x]\nverb = "check"\ncron = "0 3 * *"', "it has 4 fields", "weekday"),
        ('[schedule.x]\nverb = "check"\ncron = "0 99 * * *"', '"0 99 * * *" is not a cron expression', "weekday"),
        ('[schedule.x]\nverb = "check"\ncron = "0 3 * * 8"', "8 is not a weekday", "weekday"),
        ('[schedule.x]\nverb = "check"\ncron = ""', "it has 0 fields", "weekday"),
        ('[schedule.x]\nverb = "check"\nevery = "1h"\ntimezone = "Moon"', 'unknown time zone "Moon"', "Europe/Berlin"),
        ('[schedule.x]\nverb = "check"\nevery = "1h"\narguments = "\'a"', "a quote is not closed", "list"),
        ('[schedule.x]\nverb = "check"\nevery = "1h"\narguments = [1]', "expected", "list of strings"),
    ],
)
def test_an_invalid_section_is_refused_with_a_cure(text: str, message: str, cure: str, tmp_path: Path) -> None:
    file = tmp_path / "trueup.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_jobs(str(file), verbs=["check", "diff", "schedule"])
    assert message in str(refused.value)
    assert cure in refused.value.cure


def test_jobs_are_read_and_secrets_are_not_expanded(tmp_path: Path) -> None:
    file = tmp_path / "trueup.toml"
    file.write_text(
        '[schedule.a]\nverb = "check"\narguments = "t --node \'n=postgresql://u:${PW}@h/d\'"\nevery = "15m"\n'
        '[schedule.b]\nverb = "diff"\narguments = ["--schema", "a b"]\ncron = "0  3 * * *"\n'
    )
    a, b = load_jobs(str(file), verbs=["check", "diff"], env={"PW": "secret"})
    assert (a.arguments, a.every) == (("t", "--node", "n=postgresql://u:${PW}@h/d"), 900.0)
    assert (b.arguments, b.cron, b.command) == (("--schema", "a b"), "0 3 * * *", "trueup diff --schema 'a b'")
