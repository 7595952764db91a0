"""Loads and checks the section [schedule] of trueup.toml."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any
from zoneinfo import ZoneInfo

from trueup.config import sources
from trueup.config.settings import expected_found
from trueup.config.values import Setting
from trueup.config.wording import problem, suggest
from trueup.verbs.schedule.model import Job
from trueup.verbs.schedule.times import cron_trigger, seconds_of

SECTION = "schedule"
_KEYS = ("verb", "arguments", "every", "cron", "timezone")
_NAME = r"[\w.\-]+"
# Commands that cannot be scheduled: the scheduler itself, and interactive ones.
_EXCLUDED = ("schedule", "completion", "init")


def load_jobs(
    path: str | None = None, *, verbs: Collection[str], env: Mapping[str, str] | None = None
) -> tuple[Job, ...]:
    """Return the jobs of the configuration; `verbs` are the existing commands. Raises ConfigError if a job is wrong."""
    env = os.environ if env is None else env
    file = sources.find_file(path, env)
    if file is None:
        raise problem(sources.FILE_NAME, "the file does not exist", "Create it with `trueup init`, and add [schedule].")
    tables = sources.read_file(file).get(SECTION)
    if not tables:
        cure = 'Write a job as [schedule.NAME] with verb = "check", arguments and every = "15m" or cron = "0 3 * * *".'
        raise problem(str(file), "section [schedule] has no jobs", cure)
    if not isinstance(tables, dict):
        raise problem(f"{file}: {SECTION}", expected_found(dict, tables), "Write a job as [schedule.NAME].")
    known = sorted(set(verbs) - set(_EXCLUDED))
    path_text = str(file.absolute())
    jobs = [_job(name, values, f"{file}: {SECTION}.{name}", known, env) for name, values in tables.items()]
    return tuple(replace(job, config=path_text) for job in jobs)


def _job(name: str, values: Any, where: str, verbs: Collection[str], env: Mapping[str, str]) -> Job:
    if not isinstance(values, dict):
        raise problem(where, expected_found(dict, values), f"Write [schedule.{name}], and its settings below.")
    if not re.fullmatch(_NAME, name):
        raise problem(where, "not a valid name of a job", "Use letters, digits, '_', '-' and '.'.")
    for key in values:
        if key not in _KEYS:
            raise problem(f"{where}.{key}", "unknown key", suggest(key, _KEYS))
    settings = {key: Setting(f"{where}.{key}", value) for key, value in values.items()}

    def text(key: str, default: str = "") -> str:
        return str(settings[key].convert(str, env)) if key in settings else default

    verb = text("verb")
    if not verb:
        raise problem(where, "the verb is missing", f'Write verb = "check". {suggest("", verbs)}')
    if verb not in verbs:
        raise problem(f"{where}.verb", f'"{verb}" is not a command that can be scheduled', suggest(verb, verbs))
    if ("every" in values) == ("cron" in values):
        raise problem(where, "exactly one of every and cron is required", 'Write every = "15m", or cron = "0 3 * * *".')
    job = Job(
        name=name,
        verb=verb,
        arguments=_arguments(settings.get("arguments")),
        every=_every(text("every"), where) if "every" in values else 0.0,
        cron=" ".join(text("cron").split()),
        timezone=text("timezone", "UTC"),
    )
    _check_cron(job, where, has_cron="cron" in values)
    return job


def _arguments(setting: Setting | None) -> tuple[str, ...]:
    """Return the arguments: a list, or a string split as a shell does.

    ${VAR} is left for the command, so that its value is not visible in the process list.
    """
    if setting is None:
        return ()
    value = setting.value
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if not isinstance(value, str):
        cure = 'Write a string, or a list of strings: ["--cluster", "shop"].'
        raise problem(setting.where, expected_found(str, value), cure)
    try:
        return tuple(shlex.split(value))
    except ValueError:
        raise problem(setting.where, "a quote is not closed", "Close the quote, or write a list of strings.") from None


def _every(text: str, where: str) -> float:
    try:
        return seconds_of(text)
    except ValueError:
        cure = 'Write a number with s, m, h or d: "90s", "15m", "1h30m", "1d".'
        raise problem(f"{where}.every", f'"{text}" is not an interval', cure) from None


def _check_cron(job: Job, where: str, *, has_cron: bool) -> None:
    try:
        zone = _zone(job.timezone)
    except Exception:
        cure = 'Write a name such as "UTC" or "Europe/Berlin".'
        raise problem(f"{where}.timezone", f'unknown time zone "{job.timezone}"', cure) from None
    if not has_cron:
        return
    try:
        cron_trigger(job.cron, zone)
    except ValueError as error:
        cure = 'Write minute, hour, day, month, weekday, such as "30 3 * * 1-5" for 03:30 on working days.'
        raise problem(f"{where}.cron", f'"{job.cron}" is not a cron expression: {error}', cure) from None


def _zone(name: str) -> str:
    ZoneInfo(name)
    return name
