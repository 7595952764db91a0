"""The switchover as Python calls: options, defaults and results as on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trueup.config.load import load
from trueup.config.model import Config
from trueup.errors import ConfigError
from trueup.verbs.switchover.outcome import Asked, Outcome, seconds

if TYPE_CHECKING:
    from trueup.engine.progress import Progress
    from trueup.verbs.switchover.ending import Ended
    from trueup.verbs.switchover.status import SwitchStatus


def asked_of(
    source: str,
    target: str,
    *,
    name: str = "main",
    nodes: Mapping[str, str] | None = None,
    config: Config | str | None = None,
    budget: float | str = 5.0,
    meta: str | None = None,
    **options: Any,
) -> tuple[Asked, Config]:
    """What is asked for; `source` and `target` are those of the sync, whichever of them is in use now."""
    loaded = config if isinstance(config, Config) else load(config, nodes=nodes)
    if source == target:
        raise ConfigError("--from and --to name the same node", cure="name two")
    first, second = loaded.select(names=[source, target])
    given = {key: value for key, value in options.items() if value is not None}
    limit = seconds(budget) if isinstance(budget, str) else float(budget)
    kept = loaded.select(names=[meta], at_least=1)[0] if meta else None
    return Asked(name, first, second, budget=limit, meta=kept, **given), loaded


def execute(
    source: str, target: str, *, task_db: str | None = None, progress: Progress | None = None, **options: Any
) -> Outcome:
    """Move the applications from `source` to `target`. Options: `budget`, `proof`, `close_keys`, `patience`, …"""
    from trueup.verbs.switchover import run as path

    return _move(source, target, path.EXECUTE, task_db, progress, options)


def rollback(
    source: str, target: str, *, task_db: str | None = None, progress: Progress | None = None, **options: Any
) -> Outcome:
    """Move the applications back from `target` to `source`, with all that was written meanwhile."""
    from trueup.verbs.switchover import run as path

    return _move(source, target, path.ROLLBACK, task_db, progress, options)


def _move(
    source: str, target: str, action: str, task_db: str | None, progress: Progress | None, options: Mapping[str, Any]
) -> Outcome:
    from trueup.engine.progress import Silent
    from trueup.store import TaskStore
    from trueup.verbs.switchover import run as path

    asked, config = asked_of(source, target, **options)
    with TaskStore(task_db, configured=config.tasks.task_db) as store:
        return path.move(asked, action, store=store, progress=progress or Silent())


def prepare(source: str, target: str, **options: Any) -> tuple[str, int]:
    """Put pointers and guards into both databases; gives which one is in use, and how many guards were put on."""
    from trueup.verbs.switchover.prepare import prepare_only

    return prepare_only(asked_of(source, target, **options)[0])


def status(source: str, target: str, **options: Any) -> SwitchStatus:
    """Where it is; nothing is written."""
    from trueup.verbs.switchover.status import status as look

    return look(asked_of(source, target, **options)[0])


def abort(source: str, target: str, **options: Any) -> Ended:
    """End whoever executes a switchover."""
    from trueup.verbs.switchover import ending

    return ending.abort(asked_of(source, target, **options)[0])


def reset(source: str, target: str, **options: Any) -> Ended:
    """Take pointer, guards and the way back away, as if no switchover had been prepared."""
    from trueup.verbs.switchover import ending

    return ending.reset(asked_of(source, target, **options)[0])


def finish(source: str, target: str, *, keep_refusal: bool = False, **options: Any) -> Ended:
    """Take all of trueup out of both databases."""
    from trueup.verbs.switchover import ending

    return ending.finish(asked_of(source, target, **options)[0], keep_refusal=keep_refusal)
