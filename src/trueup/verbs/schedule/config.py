"""The section [schedule] of trueup.toml, checked: known verbs, times that can be read, arguments that fit."""

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
# A schedule that runs schedules, and what only talks to a person.
_NOT = ("schedule", "completion", "init")


def load_jobs(
    path: str | None = None, *, verbs: Collection[str], env: Mapping[str, str] | None = None
) -> tuple[Job, ...]:
    """The jobs of the configuration; `verbs` are the commands there are."""
    env = os.environ if env is None else env
    file = sources.find_file(path, env)
    if file is None:
        raise problem(
            sources.FILE_NAME, "there is no configuration", "Make one with `trueup init`, and add [schedule]."
        )
    tables = sources.read_file(file).get(SECTION)
    if not tables:
        cure = 'Write a job as [schedule.NAME] with verb = "check", arguments and every = "15m" or cron = "0 3 * * *".'
        raise problem(str(file), "there are no jobs in [schedule]", cure)
    if not isinstance(tables, dict):
        raise problem(f"{file}: {SECTION}", expected_found(dict, tables), "Write a job as [schedule.NAME].")
    known = sorted(set(verbs) - set(_NOT))
    home = str(file.absolute())
    found = [_job(name, values, f"{file}: {SECTION}.{name}", known, env) for name, values in tables.items()]
    return tuple(replace(job, config=home) for job in found)


def _job(name: str, values: Any, where: str, verbs: Collection[str], env: Mapping[str, str]) -> Job:
    if not isinstance(values, dict):
        raise problem(where, expected_found(dict, values), f"Write [schedule.{name}], and its settings below.")
    if not re.fullmatch(_NAME, name):
        raise problem(where, "this cannot be the name of a job", "Use letters, digits, '_', '-' and '.'.")
    for key in values:
        if key not in _KEYS:
            raise problem(f"{where}.{key}", "there is no such key", suggest(key, _KEYS))
    settings = {key: Setting(f"{where}.{key}", value) for key, value in values.items()}

    def text(key: str, default: str = "") -> str:
        return str(settings[key].convert(str, env)) if key in settings else default

    verb = text("verb")
    if not verb:
        raise problem(where, "the verb is missing", f'Write verb = "check". {suggest("", verbs)}')
    if verb not in verbs:
        raise problem(f"{where}.verb", f'there is no command "{verb}" that can be scheduled', suggest(verb, verbs))
    if ("every" in values) == ("cron" in values):
        raise problem(where, "give one of every and cron", 'Write every = "15m", or cron = "0 3 * * *".')
    job = Job(
        name=name,
        verb=verb,
        arguments=_arguments(settings.get("arguments")),
        every=_every(text("every"), where) if "every" in values else 0.0,
        cron=" ".join(text("cron").split()),
        timezone=text("timezone", "UTC"),
    )
    _check_cron(job, where, given="cron" in values)
    return job


def _arguments(setting: Setting | None) -> tuple[str, ...]:
    """A list, or a text as a shell would split it. ${VAR} stays: the command fills it in, out of sight of others."""
    if setting is None:
        return ()
    value = setting.value
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return tuple(value)
    if not isinstance(value, str):
        cure = 'Write a text, or a list of texts: ["--cluster", "shop"].'
        raise problem(setting.where, expected_found(str, value), cure)
    try:
        return tuple(shlex.split(value))
    except ValueError:
        raise problem(setting.where, "a quote is not closed", "Close it, or write a list of texts.") from None


def _every(text: str, where: str) -> float:
    try:
        return seconds_of(text)
    except ValueError:
        cure = 'Write a number with s, m, h or d: "90s", "15m", "1h30m", "1d".'
        raise problem(f"{where}.every", f'"{text}" is not a length of time', cure) from None


def _check_cron(job: Job, where: str, *, given: bool) -> None:
    try:
        zone = _zone(job.timezone)
    except Exception:
        cure = 'Write a name such as "UTC" or "Europe/Berlin".'
        raise problem(f"{where}.timezone", f'there is no time zone "{job.timezone}"', cure) from None
    if not given:
        return
    try:
        cron_trigger(job.cron, zone)
    except ValueError as error:
        cure = 'Write minute, hour, day, month, weekday, such as "30 3 * * 1-5" for half past three on working days.'
        raise problem(f"{where}.cron", f'"{job.cron}" is not understood: {error}', cure) from None


def _zone(name: str) -> str:
    ZoneInfo(name)
    return name
