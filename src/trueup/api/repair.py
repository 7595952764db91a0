"""`trueup.repair` and `trueup.undo`: the options, defaults and results of the commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from trueup.api.diff import check_kind, settings_of
from trueup.api.parameters import configuration, same_parameters
from trueup.config.model import Config
from trueup.db.node import LOCK_TIMEOUT
from trueup.engine.memory import many_objects
from trueup.engine.progress import Progress
from trueup.errors import ConfigError
from trueup.report.repair import RepairResult
from trueup.report.repairs import RepairsResult
from trueup.store import TaskStore
from trueup.task.past import Past, find_report, read_past, request_of
from trueup.task.past_run import find_run
from trueup.verbs.repair import plan_template
from trueup.verbs.repair import undo as undo_verb
from trueup.verbs.repair.from_run import reports_of_run, run_to_repair
from trueup.verbs.repair.layout import refuse_keyless
from trueup.verbs.repair.plan_file import read_document
from trueup.verbs.repair.request import RepairKeys, RepairRequest, RepairTable, Replicate, Stale, Writing
from trueup.verbs.repair.tasks import repair_run, repair_table


def repair(
    report: str,
    *,
    source_of_truth: str = "",
    insert_only: bool = False,
    upsert_only: bool = False,
    bidirectional: bool = False,
    fix_nulls: bool = False,
    majority: bool = False,
    plan: str = "",
    allow_functions: Sequence[str] = (),
    stale: Stale = "skip",
    fire_triggers: bool = False,
    replicate: Replicate = "safe",
    lock_timeout: float = LOCK_TIMEOUT,
    execute: bool = False,
    undo: str = "",
    tables: Sequence[str] = (),
    nodes: Mapping[str, str] | None = None,
    config: Config | str | None = None,
    task_db: str | None = None,
    progress: Progress | None = None,
    concurrency_factor: float | None = None,
    max_connections: int | None = None,
    recheck: int | None = None,
    recheck_wait: float | None = None,
    report_dir: str | None = None,
    engine: str | None = None,
    master: str | None = None,
    remote: str | None = None,
) -> RepairResult:
    """Repair the rows that a report lists; a dry run unless `execute=True`.

    `report` is the path of a JSON report, or the id of its task. Give one mode: `source_of_truth="n1"` (with
    `insert_only` or `upsert_only`), `bidirectional=True`, `fix_nulls=True`, `majority=True`, or `plan="plan.yaml"`.
    Options that are None have the value of the configuration. Raises ConfigError on options that do not fit, and
    CheckFailed if the table cannot be repaired; nothing is written then. A node that cannot be written is in
    `RepairResult.failed` and is as it was.
    """
    return cast("RepairResult", _repair(locals(), runs=False))


@same_parameters(repair)
def repair_many(options: dict[str, Any]) -> RepairsResult:
    """Repair the rows of all tables of a run over many tables; parameters as for `repair`.

    `report` is the path of the summary of the run, or the id of its task; `tables` are patterns that select some of
    its tables. Each node is written in one transaction over all tables. Tables that cannot be repaired, or that the run
    did not compare completely, are in `RepairsResult.failed`.
    """
    return cast("RepairsResult", _repair(options, tables=False))


@same_parameters(repair)
def repair_any(options: dict[str, Any]) -> RepairResult | RepairsResult:
    """Repair the rows of a report or of a run; parameters as for `repair`."""
    return _repair(options)


def _repair(options: Mapping[str, Any], *, tables: bool = True, runs: bool = True) -> RepairResult | RepairsResult:
    """Repair a report of one table unless not `tables`, a run unless not `runs`."""
    config = configuration(options["config"], options["nodes"], allow_functions=options["allow_functions"])
    request = repair_request(options)
    settings, spark = settings_of(config, options)
    document = read_document(Path(request.plan)) if request.plan else None
    report, progress = options["report"], options["progress"]
    with TaskStore(options["task_db"], configured=config.tasks.task_db) as store, many_objects():
        past_run = find_run(report, store)
        check_kind(report, past_run, tables=tables, runs=runs)
        names = options["tables"]
        if past_run is not None:
            whole = run_to_repair(past_run, names, config, settings, spark)
            return repair_run(request, whole, store=store, plan=document, progress=progress)
        _refuse_names(names)
        past = _read_report(report, store)
        keys = RepairKeys(past.path, past.keys, past.hashes, past, tuple(past.rest()))
        table = RepairTable(request_of(past, config, settings, spark), lambda: keys, past)
        return repair_table(request, table, store=store, plan=document, progress=progress)


def repair_request(options: Mapping[str, Any]) -> RepairRequest:
    """Return the request of a call, from its parameters; raise ConfigError on options that do not fit."""
    return RepairRequest(**{field.name: options[field.name] for field in fields(RepairRequest)}).validated()


def undo(
    file: str,
    *,
    nodes: Mapping[str, str] | None = None,
    config: Config | str | None = None,
    task_db: str | None = None,
    progress: Progress | None = None,
    execute: bool = False,
    fire_triggers: bool = False,
    replicate: Replicate = "safe",
    lock_timeout: float = LOCK_TIMEOUT,
    undo: str = "",
    other_database: bool = False,
    report_dir: str | None = None,
) -> RepairResult:
    """Put back the rows of an undo file, except rows that changed since; a dry run unless `execute=True`.

    Raises CheckFailed if a node has another database than that of the file, or the table was created again, unless
    `other_database=True`.
    """
    return cast("RepairResult", _undo(locals(), as_run=False))


@same_parameters(undo)
def undo_many(options: dict[str, Any]) -> RepairsResult:
    """Put back the rows of an undo file of several tables, each node in one transaction; parameters as for `undo`."""
    return cast("RepairsResult", _undo(options, as_run=True))


@same_parameters(undo)
def undo_any(options: dict[str, Any]) -> RepairResult | RepairsResult:
    """Put back the rows of an undo file of one table or of several; parameters as for `undo`."""
    return _undo(options)


def _undo(options: Mapping[str, Any], *, as_run: bool | None = None) -> RepairResult | RepairsResult:
    """Undo a repair; the result is that of a run if `as_run`, or if the file has several tables."""
    config = configuration(options["config"], options["nodes"])
    writing = Writing(options["fire_triggers"], options["replicate"], options["lock_timeout"]).validated()
    folder = Path(options["report_dir"] or config.diff.report_dir or ".")
    file = Path(options["file"])
    is_of_many = undo_verb.is_of_many(file)
    if is_of_many and as_run is False:
        raise ConfigError(f"{file} has the rows of several tables", cure="call undo_many")
    request = undo_verb.UndoRequest(
        file, options["execute"], writing, options["other_database"], options["undo"], folder
    )
    with TaskStore(options["task_db"], configured=config.tasks.task_db) as store:
        run = undo_verb.run_many if is_of_many or as_run else undo_verb.run
        return run(request, config, store=store, progress=options["progress"])


def write_plan(
    report: str,
    path: str,
    *,
    tables: Sequence[str] = (),
    config: Config | str | None = None,
    task_db: str | None = None,
) -> str:
    """Write a commented plan for a report or a run and return its path; no node is queried.

    `tables` are patterns that select some of the tables of a run.
    """
    config = configuration(config)
    with TaskStore(task_db, configured=config.tasks.task_db) as store, many_objects():
        past_run = find_run(report, store)
        if past_run is not None:
            pasts, unrepaired = reports_of_run(past_run, tables)
            plan_template.write_plan(Path(path), past_run.name, pasts, unrepaired)
        else:
            _refuse_names(tables)
            past = _read_report(report, store)
            plan_template.write_plan(Path(path), past.path, [past])
    return path


def _refuse_names(tables: Sequence[str]) -> None:
    if tables:
        raise ConfigError(
            "--tables selects tables of a run or a validation", cure="leave it out: this report has one table"
        )


def _read_report(report: str, store: TaskStore) -> Past:
    past = read_past(find_report(report, store))
    if past.is_keyless:
        refuse_keyless(past.table)
    return past
