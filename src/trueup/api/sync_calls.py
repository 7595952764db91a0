"""Syncs as Python calls, each a task of the task store: options, defaults and results as on the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

from trueup.config.load import load
from trueup.config.model import Config
from trueup.engine.progress import Progress, Silent
from trueup.errors import ConfigError
from trueup.store import TaskStore
from trueup.task.open import OpenTask, open_task
from trueup.verbs.sync import run as sync
from trueup.verbs.sync.model import Plan
from trueup.verbs.sync.plan import Wanted
from trueup.verbs.sync.start import SyncRequest

_SPARK = ("engine", "master", "remote")


def request_of(
    source: str,
    target: str,
    *,
    name: str = "main",
    nodes: Mapping[str, str] | None = None,
    config: Config | str | None = None,
    tables: Sequence[str] = (),
    leave_out: Sequence[str] = (),
    create_schema: bool = False,
    **options: Any,
) -> tuple[SyncRequest, Config]:
    """What is asked for, with the nodes by name from the configuration or `nodes`."""
    loaded = config if isinstance(config, Config) else load(config, nodes=nodes)
    if source == target:
        raise ConfigError("--from and --to name the same node", cure="name two")
    here, there = loaded.select(names=[source, target])
    known = {field.name for field in fields(SyncRequest)}
    given = {key: value for key, value in options.items() if key in known and value is not None}
    spark = {key: options[key] for key in _SPARK if options.get(key) is not None}
    request = SyncRequest(
        here,
        there,
        Wanted(name, tuple(tables), tuple(leave_out), create_schema),
        replace(loaded.spark, **spark).validated(lambda field: "--" + field.replace("_", "-")),
        **given,
    )
    return request, loaded


def start(
    request: SyncRequest, config: Config, *, task_db: str | None = None, progress: Progress | None = None
) -> Plan:
    """Begin a sync, or go on with one that was stopped before all rows were there."""
    with _task(request, config, task_db, "SYNC_START", "run the same command again", progress) as task:
        plan = sync.start(request, task.progress)
        task.finish({"tables": len(plan.tables), "rows": plan.rows})
        return plan


def run(
    request: SyncRequest,
    config: Config,
    until: sync.Until,
    *,
    task_db: str | None = None,
    progress: Progress | None = None,
) -> sync.Totals:
    """Carry changes over, round after round."""
    with _task(request, config, task_db, "SYNC_RUN", "no change is lost; run the same command again") as task:
        totals = sync.run(request, until, progress or Silent(), task.heartbeat)
        task.finish(sync.facts(totals))
        return totals


@contextmanager
def _task(
    request: SyncRequest,
    config: Config,
    task_db: str | None,
    task_type: str,
    on_interrupt: str,
    progress: Progress | None = None,
) -> Iterator[OpenTask]:
    context = {
        "sync": request.name,
        "from": request.source.name,
        "to": request.target.name,
        "tables": list(request.wanted.tables),
        "create_schema": request.wanted.create_schema,
    }
    with (
        TaskStore(task_db, configured=config.tasks.task_db) as store,
        open_task(store, task_type, context=context, on_interrupt=on_interrupt, progress=progress) as task,
    ):
        yield task
