"""The verbs as Python calls: the same options, defaults and results as on the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueup.api.diff import settings_of
from trueup.config.load import load
from trueup.config.model import Config
from trueup.engine.memory import many_objects
from trueup.errors import CheckFailed

if TYPE_CHECKING:
    from trueup.config.model import Node
    from trueup.engine.progress import Progress
    from trueup.report.repair import RepairResult
    from trueup.task.past import Past
    from trueup.verbs.repair.request import RepairRequest


def repair(
    report: str,
    *,
    nodes: Mapping[str, str] | None = None,
    config: Config | str | None = None,
    task_db: str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> RepairResult:
    """Mend the rows that a report names; a dry run unless `execute=True`.

    `report` is the path of a JSON report, or the id of its task. Say how: `source_of_truth="n1"` (with `insert_only` or
    `upsert_only`), `bidirectional=True`, `fix_nulls=True`, `majority=True`, or `plan="plan.yaml"`. All other options
    are those of `trueup repair`, with underscores: `stale`, `fire_triggers`, `undo`, `engine`, `report_dir`, …
    """
    from trueup.store import TaskStore
    from trueup.task.past import find_report, read_past, request_of
    from trueup.verbs.repair.plan_file import read_document
    from trueup.verbs.repair.run import Wanted, run

    if not isinstance(config, Config):
        config = load(config, nodes=nodes)
    request, rest = _request(options)
    settings, spark = settings_of(config, rest, verb="repair")
    document = read_document(Path(request.plan)) if request.plan else None
    with TaskStore(task_db, configured=config.tasks.task_db) as store, many_objects():
        past = read_past(find_report(report, store))
        refuse_keyless(past)
        asked = request_of(past, config, settings, spark)
        wanted = Wanted(past.path, past.keys, past.hashes, past, tuple(past.rest()))
        return run(request, asked, wanted, store=store, document=document, progress=progress)


def repair_keys(
    table: str,
    keys: Iterable[Sequence[str]],
    nodes: Sequence[Node],
    *,
    of: str,
    config: Config,
    key: Sequence[str] = (),
    exclude_columns: Sequence[str] = (),
    task_db: str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> RepairResult:
    """Mend these keys of a table on these nodes, for whoever knows that they differ; `of` says who.

    Keys are their texts, in the order of `key` (nothing: of the table's key). There is no report, so no row can be
    stale.
    """
    from trueup.rows.request import TableRequest
    from trueup.store import TaskStore
    from trueup.verbs.repair.plan_file import read_document
    from trueup.verbs.repair.run import Wanted, run

    request, rest = _request(options)
    settings, spark = settings_of(config, rest, verb="repair")
    document = read_document(Path(request.plan)) if request.plan else None
    asked = TableRequest(
        table, tuple(nodes), settings=settings, spark=spark, key=tuple(key), exclude_columns=tuple(exclude_columns)
    )
    wanted = Wanted(of, tuple(dict.fromkeys(tuple(each) for each in keys)))
    with TaskStore(task_db, configured=config.tasks.task_db) as store, many_objects():
        return run(request, asked, wanted, store=store, document=document, progress=progress)


def undo(
    file: str,
    *,
    nodes: Mapping[str, str] | None = None,
    config: Config | str | None = None,
    task_db: str | None = None,
    progress: Progress | None = None,
    execute: bool = False,
    fire_triggers: bool = False,
    undo: str = "",
    report_dir: str | None = None,
) -> RepairResult:
    """Put back the rows of an undo file, those that changed since excepted; a dry run unless `execute=True`."""
    from trueup.store import TaskStore
    from trueup.verbs.repair.undo import UndoRequest, run

    if not isinstance(config, Config):
        config = load(config, nodes=nodes)
    folder = Path(report_dir or config.diff.report_dir or ".")
    request = UndoRequest(Path(file), execute, fire_triggers, undo, folder)
    with TaskStore(task_db, configured=config.tasks.task_db) as store:
        return run(request, config, store=store, progress=progress)


def write_plan(report: str, path: str, *, config: Config | str | None = None, task_db: str | None = None) -> str:
    """Write a commented plan for a report to start from; no node is asked. Returns where it is."""
    from trueup.store import TaskStore
    from trueup.task.past import find_report, read_past
    from trueup.verbs.repair import plan_template

    if not isinstance(config, Config):
        config = load(config)
    with TaskStore(task_db, configured=config.tasks.task_db) as store, many_objects():
        past = read_past(find_report(report, store))
    refuse_keyless(past)
    plan_template.write_plan(Path(path), past)
    return path


def refuse_keyless(past: Past) -> None:
    """Rows of a table without a key cannot be told apart."""
    if past.is_keyless:
        raise CheckFailed(
            ["the table has no key: a repair could not tell one of two equal rows from the other"],
            cure="give it a primary key (or compare with --key), run the diff again, and repair by that report",
            table=past.table,
        )


def _request(options: Mapping[str, Any]) -> tuple[RepairRequest, dict[str, Any]]:
    """What concerns the repair, and the settings of reading that are left."""
    from trueup.verbs.repair.request import RepairRequest

    known = {each.name for each in fields(RepairRequest)}
    given = {name: value for name, value in options.items() if name in known and value is not None}
    return RepairRequest(**given).validated(), {name: value for name, value in options.items() if name not in known}
