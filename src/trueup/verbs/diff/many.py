"""Compare many tables in one run: choose them, compare several at a time on one engine, return one result.

One thread compares the largest tables first, the others the smallest first, so that no large table is started last.
Each table is a task of its own, with its own report, and can be resumed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from trueup.config.model import Config
from trueup.db.patterns import Patterns, parse_patterns
from trueup.engine.progress import Progress
from trueup.errors import Interrupted
from trueup.report.extent import Extent
from trueup.report.many import folder_of_run, summary_of, write_many
from trueup.report.model import AGREED, ManyResult, TableOutcome
from trueup.report.text import certified_lines, moment, rows_of
from trueup.rows.request import TableRequest, request_again
from trueup.store import COMPLETED, Task, TaskStore
from trueup.task.nodes import open_nodes
from trueup.task.open import OpenTask, open_task, reopen_task
from trueup.task.shared import Shared, open_engine
from trueup.verbs.diff import run as one
from trueup.verbs.diff.pool import Pool, connections_left, outcome_of, threads_for
from trueup.verbs.diff.resume import OtherRows, is_same
from trueup.verbs.diff.tables import Candidate, Choice, choose_tables


@dataclass(frozen=True)
class ManyRequest:
    """The tables, and how each of them is compared."""

    patterns: Patterns
    # The request for one table, without its name.
    table: TableRequest

    def context(self) -> dict[str, Any]:
        """Return the request as the task store keeps it."""
        return {
            **self.table.context(),
            "tables": [pattern.text for pattern in self.patterns.take],
            "skip": [pattern.text for pattern in self.patterns.skip],
        }


def many_again(task: Task, config: Config) -> ManyRequest:
    """Return the request of an earlier task."""
    context = task.task_context
    patterns = parse_patterns(tables=context["tables"], skip=context["skip"])
    return ManyRequest(patterns, request_again(context, task.cluster_name, config))


def run_many(request: ManyRequest, *, store: TaskStore, progress: Progress | None = None) -> ManyResult:
    """Compare all tables that match, each as a task of its own."""
    kind = "TABLES_CHECK" if request.table.digests_only else "TABLES_DIFF"
    with open_task(
        store,
        kind,
        cluster=request.table.cluster,
        table=str(request.patterns),
        context=request.context(),
        progress=progress,
        on_interrupt=one.how_to_resume(request.table),
    ) as opened:
        return _run(request, opened, {})


def resume_many(request: ManyRequest, task: Task, *, store: TaskStore, progress: Progress | None = None) -> ManyResult:
    """Continue a run that was interrupted or failed, without the tables that are finished."""
    kind = "TABLE_CHECK" if request.table.digests_only else "TABLE_DIFF"
    # The newest task comes first; of several tasks of a table the newest counts.
    parts = [part for part in store.list(limit=-1, task_type=kind) if part.task_context.get("part_of") == task.task_id]
    earlier = {str(part.task_context["qualified_table"]): part for part in reversed(parts)}
    with reopen_task(store, task, progress=progress, on_interrupt=one.how_to_resume(request.table)) as opened:
        return _run(request, opened, earlier)


def _run(request: ManyRequest, task: OpenTask, earlier: Mapping[str, Task]) -> ManyResult:
    result = _compare(request, task.task, earlier, task.store, task.progress)
    failed = result.verdict == "INCOMPLETE"
    task.finish(summary_of(result), failed=failed, error="; ".join(result.incomplete[:10]), report=result.report)
    return result


def _compare(
    request: ManyRequest, task: Task, earlier: Mapping[str, Task], store: TaskStore, progress: Progress
) -> ManyResult:
    started = time.monotonic()
    choice, threads, earlier = _plan(request, task, earlier, progress)
    folder = (
        None if request.table.digests_only else folder_of_run(request.table.settings.report_dir, "diffs", task.task_id)
    )
    report_dir = str(folder or request.table.settings.report_dir)
    table = replace(
        request.table, part_of=task.task_id, settings=replace(request.table.settings, report_dir=report_dir)
    )
    engine = replace(table.settings, max_connections=connections_left(table.settings, threads))
    with open_engine(engine, table.spark, task.task_id) as shared:
        compare = partial(_outcome, _Run(table, store, shared, earlier))
        outcomes = Pool(store, shared, progress, compare, partial(_stopped, table)).run(choice.tables, threads)
    mode: Literal["diff", "check"] = "check" if table.digests_only else "diff"
    seconds = round(time.monotonic() - started, 3)
    result = ManyResult(mode, table.node_names, outcomes, choice.skipped, seconds, task.task_id, choice.remarks)
    return write_many(folder, result, html="html" in table.settings.outputs) if folder else result


def _plan(
    request: ManyRequest, task: Task, earlier: Mapping[str, Task], progress: Progress
) -> tuple[Choice, int, Mapping[str, Task]]:
    """Return the tables, the number of threads that compare them, and what an earlier attempt has of these tables."""
    with open_nodes(request.table.nodes, f"trueup tables {task.task_id[:8]}") as controls:
        choice, threads = choose_tables(controls, request.patterns), threads_for(request.table, controls)
        kept = {
            name: part for name, part in earlier.items() if part.task_status != COMPLETED or is_same(part, controls)
        }
    for name in sorted(earlier.keys() - kept.keys()):
        progress.say(f"{name}: compared again: it is not the table any more that an earlier attempt has compared")
    return choice, threads, kept


@dataclass(frozen=True)
class _Run:
    """What all tables share."""

    request: TableRequest
    store: TaskStore
    shared: Shared
    earlier: Mapping[str, Task]


def _outcome(run: _Run, candidate: Candidate, progress: Progress) -> TableOutcome:
    """Compare one table."""
    if len(candidate.nodes) < 2:
        return TableOutcome(candidate.table, "DIFFER", candidate.missing_on)
    before = run.earlier.get(candidate.table)
    if before is not None and _nodes_of(before) != candidate.nodes:
        before = None
    if before is not None and before.task_status == COMPLETED:
        return _known(candidate.table, before, candidate.missing_on)
    nodes = tuple(node for node in run.request.nodes if node.name in candidate.nodes)
    request = replace(run.request, table=candidate.table, nodes=nodes)
    if before is not None:
        try:
            result = one.resume(request, before, store=run.store, progress=progress, shared=run.shared)
        except OtherRows as error:
            progress.say(f"compared from the start: {error.reasons[0]}")
        else:
            return outcome_of(result, candidate.missing_on)
    result = one.run(request, store=run.store, progress=progress, shared=run.shared)
    return outcome_of(result, candidate.missing_on)


def _stopped(request: TableRequest) -> Interrupted:
    return Interrupted("stopped with `trueup tasks stop`", cure=f"continue with --resume {request.part_of[:8]}")


def _known(table: str, task: Task, missing: tuple[str, ...]) -> TableOutcome:
    """Return the outcome of a table that an earlier attempt has finished."""
    summary = task.task_context["diff_summary"]
    page = Path(task.diff_file_path).with_suffix(".html") if task.diff_file_path else None
    blocks = summary["mismatched_ranges_count"] if task.task_type == "TABLE_CHECK" else 0
    return TableOutcome(
        table,
        "DIFFER" if missing and summary["verdict"] in AGREED else summary["verdict"],
        missing,
        rows_checked=summary["total_rows_checked"],
        differences=blocks or sum(summary["diff_rows_count"].values()),
        seconds=summary["time_taken"],
        task_id=task.task_id,
        accepted=sum(each["differences"] for each in summary.get("accepted", ())),
        certificate="; ".join(certified_lines(summary.get("certified", {}))),
        part="; ".join(Extent.from_json(summary.get("extent")).lines()),
        is_empty=summary["verdict"] == "MATCH"
        and not rows_of(summary["total_rows_checked"], summary.get("since_proof", {})),
        report=task.diff_file_path,
        page=str(page) if page and page.exists() else "",
        earlier=f"all rows at an earlier moment, since {moment(summary['start_time'])} UTC",
    )


def _nodes_of(task: Task) -> tuple[str, ...]:
    return tuple(str(task.task_context["nodes"]).split(","))
