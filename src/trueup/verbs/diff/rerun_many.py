"""Run `trueup rerun` over a past run: compare the keys of all its tables again, several tables at a time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from trueup.config.model import Config
from trueup.config.settings import DiffSettings, SparkSettings
from trueup.config.wording import counted
from trueup.db.catalog import list_tables
from trueup.db.names import display_name
from trueup.db.node import error_from_server
from trueup.db.snapshot import Control
from trueup.engine.progress import Progress
from trueup.errors import Interrupted
from trueup.report.many import folder_of_run, summary_of, write_many
from trueup.report.model import ManyResult, TableOutcome
from trueup.rows.request import TableRequest
from trueup.store import TaskStore
from trueup.task.nodes import open_nodes
from trueup.task.open import OpenTask, open_task
from trueup.task.past import read_past, request_of
from trueup.task.past_run import PastRun
from trueup.task.shared import Shared, open_engine
from trueup.task.together import together
from trueup.verbs.diff import rerun as one
from trueup.verbs.diff.pool import Pool, connections_left, outcome_of, threads_for

_AGAIN = "nothing was changed on any node; run the command again"


@dataclass(frozen=True)
class RerunRequest:
    """The run whose keys are compared again, and how."""

    run: PastRun
    config: Config
    settings: DiffSettings
    spark: SparkSettings

    def on_all_nodes(self) -> TableRequest:
        """Return a request without a table, on all nodes of the run."""
        nodes = self.config.select(None, list(self.run.nodes))
        return TableRequest("", nodes, settings=self.settings, spark=self.spark, rerun_of=self.run.name)


def rerun_run(request: RerunRequest, *, store: TaskStore, progress: Progress | None = None) -> ManyResult:
    """Compare the keys of all tables of a past run, each as a task of its own, and write new reports."""
    with open_task(
        store,
        "TABLES_RERUN",
        table=counted(len(request.run.differing), "table"),
        context=request.on_all_nodes().context(),
        progress=progress,
        on_interrupt=_AGAIN,
    ) as task:
        result = _compare(request, task)
        failed = result.verdict == "INCOMPLETE"
        task.finish(summary_of(result), failed=failed, error="; ".join(result.incomplete[:10]), report=result.report)
        return result


def _compare(request: RerunRequest, task: OpenTask) -> ManyResult:
    started, tables = time.monotonic(), request.run.differing
    whole = request.on_all_nodes()
    with open_nodes(whole.nodes, f"trueup tables {task.short_id}") as controls:
        existing, threads = _existing(controls), threads_for(whole, controls)
    folder = folder_of_run(request.settings.report_dir, "rerun", task.task_id)
    engine = replace(request.settings, max_connections=connections_left(request.settings, threads))
    with open_engine(engine, request.spark, task.task_id) as shared:
        compare = partial(_outcome, request, _Run(task, shared, folder, existing))
        outcomes = Pool(task.store, shared, task.progress, compare, _stopped).run(tables, threads)
    others = len(request.run.tables) - len(tables)
    remarks = (f"{counted(others, 'table')} without differences: no keys to compare again",) if others else ()
    seconds = round(time.monotonic() - started, 3)
    result = ManyResult("rerun", request.run.nodes, outcomes, (), seconds, task.task_id, remarks)
    return write_many(folder, replace(result, rerun_of=request.run.name), html="html" in request.settings.outputs)


def _existing(controls: Sequence[Control]) -> Mapping[str, frozenset[str]]:
    """Return the names of the tables of each node."""

    def ask(control: Control) -> frozenset[str]:
        try:
            return frozenset(display_name(table.schema, table.name) for table in list_tables(control.connection))
        except Exception as error:
            raise error_from_server(error, control.node) from None

    return {control.node.name: names for control, names in zip(controls, together(controls, ask), strict=True)}


@dataclass(frozen=True)
class _Run:
    """What all tables share."""

    task: OpenTask
    shared: Shared
    folder: Path
    existing: Mapping[str, frozenset[str]]


def _outcome(request: RerunRequest, run: _Run, table: TableOutcome, progress: Progress) -> TableOutcome:
    """Compare the keys of one table; what the earlier run did not compare is not compared, and named."""
    missing_on = tuple(node for node in table.missing_on if table.table not in run.existing[node])
    appeared = [node for node in table.missing_on if node not in missing_on]
    unseen = [f"the table exists on {', '.join(appeared)} now, and was not compared there"] if appeared else []
    if table.verdict == "INCOMPLETE":
        unseen.append(f"the earlier run did not compare all rows: {table.reason}" if table.reason else "not compared")
    if not table.report:
        return replace(
            table,
            verdict="INCOMPLETE" if unseen else "DIFFER",
            missing_on=missing_on,
            reason="; ".join(unseen),
            task_id="",
        )
    past = read_past(Path(table.report))
    settings = replace(request.settings, report_dir=str(run.folder))
    again = replace(request_of(past, request.config, settings, request.spark), part_of=run.task.task_id)
    result = one.run(again, past, store=run.task.store, progress=progress, shared=run.shared)
    outcome = outcome_of(result, missing_on)
    return replace(
        outcome,
        verdict="INCOMPLETE" if unseen else outcome.verdict,
        reason="; ".join(text for text in (*unseen, *past.rest(), outcome.reason) if text),
    )


def _stopped() -> Interrupted:
    return Interrupted("stopped with `trueup tasks stop`", cure=_AGAIN)
