"""The section [alerts] of trueup.toml: what raises an alert, and where alerts are sent."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from trueup.config import sources
from trueup.config.settings import expected_found
from trueup.config.transport import is_local_host, sends_login_openly
from trueup.config.values import Setting
from trueup.config.wording import problem, suggest
from trueup.verbs.schedule.times import seconds_of

SECTION = "alerts"
_SIZES = {"": 1, "kB": 1024, "MB": 1024**2, "GB": 1024**3, "TB": 1024**4}
_FLAGS = ("verdict_change", "validation_error", "dead_letters", "task_failed", "resolved")
_NUMBERS = ("differences_above",)
_INTERVALS = ("proof_older_than", "lag_above", "repeat_after")
_BYTES = ("slot_retained_above",)
_KEYS = (*_FLAGS, *_NUMBERS, *_INTERVALS, *_BYTES, "to")
_TARGET_KEYS = ("webhook", "command", "smtp", "from", "to")


@dataclass(frozen=True, repr=False)
class Target:
    """Where alerts are sent: exactly one of webhook, command and smtp is set."""

    name: str
    webhook: str = ""
    command: tuple[str, ...] = ()
    smtp: str = ""
    sender: str = ""
    recipients: tuple[str, ...] = ()

    def __repr__(self) -> str:
        # The addresses contain secrets.
        return f"Target({self.name!r})"


@dataclass(frozen=True)
class AlertSettings:
    """What raises an alert; None or False: nothing of that kind."""

    verdict_change: bool = True
    differences_above: int | None = None
    proof_older_than: float | None = None
    validation_error: bool = True
    lag_above: float | None = None
    slot_retained_above: int | None = None
    dead_letters: bool = True
    task_failed: bool = True
    # Seconds after which an alert that lasts is sent again; 0: never.
    repeat_after: float = 4 * 3600.0
    resolved: bool = True
    targets: tuple[Target, ...] = field(default=())


def load_alerts(path: str | None = None, env: Mapping[str, str] | None = None) -> AlertSettings | None:
    """Return the settings of the file; None if it has no alerts. Raises ConfigError for anything that is wrong."""
    env = os.environ if env is None else env
    file = sources.find_file(path, env)
    table = sources.read_file(file).get(SECTION) if file else None
    if table is None:
        return None
    where = f"{file}: {SECTION}"
    if not isinstance(table, dict):
        raise problem(where, expected_found(dict, table), "Write [alerts] on a separate line.")
    for key in table:
        if key not in _KEYS:
            raise problem(f"{where}.{key}", "there is no such key", suggest(key, _KEYS))
    values: dict[str, Any] = {}
    for key, value in table.items():
        setting = Setting(f"{where}.{key}", value)
        if key in _FLAGS:
            values[key] = setting.convert(bool, env)
        elif key in _NUMBERS:
            values[key] = setting.convert(int, env)
        elif key in _INTERVALS:
            values[key] = _seconds(setting, env)
        elif key in _BYTES:
            values[key] = _size(setting, env)
    targets = table.get("to", {})
    if not isinstance(targets, dict) or not targets:
        cure = 'Write a table per target: [alerts.to.ops] with webhook = "https://…", command = ["…"] or smtp = "…".'
        raise problem(f"{where}.to", "there is no target", cure)
    named = tuple(_target(name, value, f"{where}.to.{name}", env) for name, value in targets.items())
    return AlertSettings(**values, targets=named)


def _seconds(setting: Setting, env: Mapping[str, str]) -> float:
    text = setting.convert(str, env)
    try:
        return 0.0 if text.strip() == "0" else seconds_of(text)
    except ValueError:
        cure = 'Write a number with s, m, h or d: "90s", "15m", "1d".'
        raise problem(setting.where, f'"{text}" is not an interval', cure) from None


def _size(setting: Setting, env: Mapping[str, str]) -> int:
    if isinstance(setting.value, int):
        return int(setting.convert(int, env))
    text = setting.convert(str, env)
    match = re.fullmatch(r"\s*(\d+)\s*(kB|MB|GB|TB|)\s*", text)
    if not match:
        raise problem(setting.where, f'"{text}" is not a size', 'Write a number with kB, MB, GB or TB: "10GB".')
    return int(match[1]) * _SIZES[match[2]]


def _target(name: str, value: Any, where: str, env: Mapping[str, str]) -> Target:
    if not isinstance(value, dict):
        raise problem(where, expected_found(dict, value), f"Write [alerts.to.{name}], and its settings below.")
    for key in value:
        if key not in _TARGET_KEYS:
            raise problem(f"{where}.{key}", "there is no such key", suggest(key, _TARGET_KEYS))
    kinds = [key for key in ("webhook", "command", "smtp") if key in value]
    if len(kinds) != 1:
        raise problem(where, "exactly one of webhook, command and smtp is required", "Write one of them.")

    def text(key: str) -> str:
        return str(Setting(f"{where}.{key}", value[key]).convert(str, env)) if key in value else ""

    def words(key: str) -> tuple[str, ...]:
        return Setting(f"{where}.{key}", value.get(key, [])).words(env)

    if kinds == ["webhook"]:
        split = urlsplit(text("webhook"))
        if split.scheme not in ("http", "https") or not split.hostname:
            raise problem(f"{where}.webhook", "not an address of HTTP", 'Write "https://host/path".')
        if sends_login_openly(text("webhook")):
            raise problem(f"{where}.webhook", "the log-in would not be encrypted", "Use https://.")
        return Target(name, webhook=text("webhook"))
    if kinds == ["command"]:
        command = words("command")
        if not command:
            raise problem(f"{where}.command", "the command is empty", 'Write a list: ["/usr/local/bin/page", "ops"].')
        return Target(name, command=command)
    split = urlsplit(text("smtp"))
    if split.scheme not in ("smtp", "smtps", "smtp+starttls") or not split.hostname:
        cure = 'Write "smtp+starttls://user:${PASSWORD}@host:587", "smtps://host:465" or "smtp://localhost:25".'
        raise problem(f"{where}.smtp", "not an address of SMTP", cure)
    if split.password and split.scheme == "smtp" and not is_local_host(split.hostname):
        raise problem(f"{where}.smtp", "the password would not be encrypted", "Use smtp+starttls:// or smtps://.")
    if not text("from") or not words("to"):
        raise problem(
            where, "from and to are required", 'Write from = "trueup@example.com" and to = ["ops@example.com"].'
        )
    return Target(name, smtp=text("smtp"), sender=text("from"), recipients=words("to"))
