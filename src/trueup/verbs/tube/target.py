"""The sink of a tube that a command does not name: of `[tube.NAME]` of trueup.toml, else of the last `tube run`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from trueup.capture.triggers import tubes
from trueup.capture.triggers.session import Session
from trueup.config.address import describe
from trueup.config.secrets import MASK, mask
from trueup.config.settings import expected_found
from trueup.config.sources import read_file
from trueup.config.values import Setting
from trueup.config.wording import problem, suggest
from trueup.errors import CheckFailed, ConfigError
from trueup.store import TaskStore
from trueup.store.tasks import Task

SECTION = "tube"
# Sinks in a folder, which may be relative to the folder of the process.
_FOLDERS = ("chdb", "delta", "parquet")
_SETTINGS = {"to": str, "options": dict}


@dataclass(frozen=True)
class Target:
    """The sink of a tube: address or node, options, and where they are from."""

    address: str
    options: Mapping[str, str] = field(default_factory=dict)
    origin: str = ""

    @property
    def shown(self) -> str:
        """The address without passwords, and its origin."""
        return mask(self.address) + (f", from {self.origin}" if self.origin else "")

    def with_options(self, options: Mapping[str, str] | None) -> Target:
        """Return the target with these options, which replace its own of the same name."""
        return Target(self.address, {**self.options, **(options or {})}, self.origin)


def configured_target(tube: str, file: Path | None, env: Mapping[str, str] | None = None) -> Target | None:
    """Return the sink of the section `[tube.NAME]`; raise ConfigError for anything that is wrong in it."""
    sections = (read_file(file) if file else {}).get(SECTION, {})
    where = f"{file}: {SECTION}"
    if not isinstance(sections, dict):
        raise problem(where, expected_found(dict, sections), f"Write [{SECTION}.NAME] on a separate line.")
    if tube not in sections:
        return None
    where = f"{where}.{tube}"
    values = _settings(sections[tube], where)
    env = os.environ if env is None else env
    options = {
        name: str(_text(f"{where}.options.{name}", value, env)) for name, value in values.get("options", {}).items()
    }
    return Target(_text(f"{where}.to", values["to"], env), options, f"[{SECTION}.{tube}]")


def last_target(tube: str, session: Session, store: TaskStore) -> Target:
    """Return the sink of the last run of each partition; raise ConfigError if it is not known, or not the same."""
    targets: dict[int, Target] = {}
    info = tubes.find(session, tube)
    if info is None:
        raise CheckFailed([f"the tube {tube} does not exist"], cure="list the tubes with: trueup tube list")
    for task in store.list(limit=-1, task_type="TUBE_RUN", table=tube):
        target = _recorded_target(task, session)
        for number in task.task_context.get("partitions", ()) if target else ():
            if number < info.partitions and target:
                targets.setdefault(number, target)
    distinct = {(target.address, *sorted(target.options.items())): target for target in targets.values()}
    reason = f"no run of the tube is recorded in {store.path}"
    if len(distinct) > 1:
        reason = f"it was delivered to several sinks: {', '.join(it.address for it in distinct.values())}"
    elif any(MASK in text for parts in distinct for text in map(str, parts)):
        reason = "it has a password, which is not recorded"
    elif distinct:
        return next(iter(distinct.values()))
    raise not_known(tube, reason)


def not_known(tube: str, reason: str = "") -> ConfigError:
    """Return the error of a tube whose sink is not known."""
    why = f": {reason}" if reason else ""
    cure = f"name it with --to SINK, or in the section [{SECTION}.{tube}] of trueup.toml"
    return ConfigError(f"the sink of the tube {tube} is not known{why}", cure=cure)


def recorded(target: Target, session: Session) -> dict[str, Any]:
    """Return what a task keeps of the sink of a run: no passwords, and the full path of a folder."""
    address = target.address
    kind, sign, rest = address.partition(":")
    folder, mark, query = rest.partition("?")
    if sign and folder and kind in _FOLDERS:
        address = f"{kind}:{quote(str(Path(unquote(folder)).absolute()))}{mark}{query}"
    masked = {name: mask(f"{name}={value}").partition("=")[2] for name, value in target.options.items()}
    return {"sink": mask(address), "sink_options": masked, "database": _database(session), "schema": session.schema}


def _recorded_target(task: Task, session: Session) -> Target | None:
    """Return the sink of a run on the same database; None of another one, and of a sink without an address."""
    context = task.task_context
    if "sink_options" not in context or (context["database"], context["schema"]) != (
        _database(session),
        session.schema,
    ):
        return None
    return Target(context["sink"], context["sink_options"], f"the run of {task.started_at}")


def _database(session: Session) -> str:
    """Return server and database of a tube, without the user."""
    return describe(session.node.conninfo).rpartition("@")[2]


def _settings(values: Any, where: str) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise problem(where, expected_found(dict, values), f"Write [{where.rpartition(' ')[2]}] on a separate line.")
    for name, value in values.items():
        if name not in _SETTINGS:
            raise problem(f"{where}.{name}", "there is no such key", suggest(name, tuple(_SETTINGS)))
        if not isinstance(value, _SETTINGS[name]):
            raise problem(f"{where}.{name}", expected_found(_SETTINGS[name], value), "See docs/tubes.md.")
    if not values.get("to"):
        raise problem(where, "the key to is missing", 'Write the address of the sink: to = "redis://cache:6379/0".')
    return values


def _text(where: str, value: Any, env: Mapping[str, str]) -> str:
    text: str = Setting(where, value).convert(str, env)
    return text
