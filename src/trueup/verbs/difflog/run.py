"""One run: check the chunk sets, then write old states, steps, wide log, state table and ClickHouse, in this order.

Every output is complete on disk under its name before the next one starts. A run that was killed continues after its
last complete output.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from trueup.engine.progress import Progress, Silent
from trueup.verbs.difflog import chunks, input_checks, outputs
from trueup.verbs.difflog.manifest import Run, Runs, lock_work_folder, now
from trueup.verbs.difflog.mark import check_target
from trueup.verbs.difflog.migrate import finish_migration
from trueup.verbs.difflog.model import DiffLogConfig
from trueup.verbs.difflog.outputs import Outputs
from trueup.verbs.difflog.prepare import prepared
from trueup.verbs.difflog.record import checked_record, open_record
from trueup.verbs.difflog.result import RunResult, result_of
from trueup.verbs.difflog.state import StateTable
from trueup.verbs.difflog.stored import discard_frame
from trueup.verbs.difflog.vacuum import vacuum


def run(
    session: SparkSession,
    difflog: DiffLogConfig,
    *,
    names: Sequence[str] = (),
    rejoin_late: bool = False,
    progress: Progress | None = None,
) -> RunResult:
    """Process the named chunk sets (default: all that wait), or finish the run that was interrupted."""
    progress = progress or Silent()
    started = time.monotonic()
    work = Path(difflog.work)
    with lock_work_folder(work):
        discard_frame(work)
        runs, table = Runs(work), StateTable.of(difflog)
        finish_migration(session, difflog, table, runs)
        unfinished = runs.unfinished()
        record = checked_record(open_record(difflog, table, runs), difflog, table, unfinished)
        check_target(difflog, record, runs)
        facts = {} if unfinished else _initial_facts(difflog, table, runs, names, rejoin_late)
        current = unfinished or runs.new(table.last_run() + 1, {**facts, **record.facts()})
        if not current.facts["chunks"] and not current.facts["late_from"]:
            return RunResult(0)
        is_committed = outputs.is_committed(table, current)
        progress.stage("steps", 1 if is_committed else 4 + len(chunks.sources(difflog)))
        if not is_committed:
            with prepared(session, difflog, table, runs, current, record) as made:
                _write_outputs(table, current, made, progress)
        if difflog.target.table and not current.has("clickhouse"):
            outputs.insert_log(session, difflog, current, record.id)
        progress.advance()
        current.note(finished=now(), seconds=round(time.monotonic() - started, 3))
        vacuum(table)
        return result_of(current, resumed=unfinished is not None)


def is_small_run(difflog: DiffLogConfig, names: Sequence[str]) -> bool:
    """Return whether the run that `run` would make, or continue, reads few bytes of chunk sets."""
    runs = Runs(Path(difflog.work))
    unfinished = runs.unfinished()
    sets = unfinished.facts["chunks"] if unfinished else names or chunks.waiting_chunks(runs.work, runs.taken_chunks())
    sources = chunks.sources(difflog)
    return chunks.is_small(file for source in sources for file in chunks.source_files(runs.work, sets, source))


def _initial_facts(
    difflog: DiffLogConfig, table: StateTable, runs: Runs, names: Sequence[str], rejoin_late: bool
) -> dict[str, Any]:
    """Return what a new run starts from. A run that is continued must use the same state version and the same day."""
    taken = runs.taken_chunks()
    input_checks.check_names(runs.work, names, taken)
    sets = list(dict.fromkeys(names)) or chunks.waiting_chunks(runs.work, taken)
    if not sets:
        input_checks.check_no_strays(runs.work)
    return {
        "entity": difflog.entity.name,
        "chunks": sets,
        "joined": chunks.joined_sets(runs.work, sets),
        "state_version": table.version(),
        "today": now()[:10],
        "rejoin_late": rejoin_late,
        "started": now(),
        "late_from": runs.late_runs(more=bool(sets)) if rejoin_late else [],
    }


def _write_outputs(table: StateTable, current: Run, made: Outputs, progress: Progress) -> None:
    """Write the outputs that are not complete yet: old states, one step per source, wide log, new states."""
    made.compute()
    if not current.has("diff_log_0_state"):
        made.place_old_states(table)
    progress.advance()
    made.place_steps(progress)
    if not current.has(outputs.WIDE_LOG):
        made.place_wide_log()
    progress.advance()
    made.commit_states(table)
    progress.advance()
