"""One run: read the chunk sets, then write old states, steps, wide log, state table and ClickHouse, in this order.

Every output is complete on disk under its name before the next one starts. A run that was killed continues after its
last complete output.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from trueup.engine.progress import Progress, Silent
from trueup.store import times
from trueup.verbs.difflog import chunks, outputs
from trueup.verbs.difflog.frame import run_frame
from trueup.verbs.difflog.manifest import Run, Runs, lock_work_folder
from trueup.verbs.difflog.mark import check_target
from trueup.verbs.difflog.model import DiffLogConfig
from trueup.verbs.difflog.record import checked_record, open_record
from trueup.verbs.difflog.result import RunResult, result_of
from trueup.verbs.difflog.state import StateTable


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
        runs = Runs(work)
        table = StateTable.of(difflog)
        current = runs.unfinished()
        resumed = current is not None
        record = checked_record(open_record(difflog, table, runs), difflog, table, current)
        check_target(difflog, record, runs)
        if current is not None:
            facts = current.facts
        else:
            facts = _initial_facts(difflog, table, runs, names, rejoin_late)
        if not facts["chunks"] and not facts["late_from"]:
            return RunResult(0)
        updates = chunks.typed_keys(difflog, _read_updates(session, difflog, runs, facts), table.schema())
        if current is None:
            chunks.check_versions(updates, difflog)
            record.write(table, runs)
            current = runs.begin(table.last_run() + 1, {**facts, **record.facts()})
        progress.stage("steps", len(updates) + 4)
        _write_outputs(session, difflog, table, current, updates, progress)
        if difflog.target.table and not current.has("clickhouse"):
            outputs.insert_log(session, difflog, current, record)
        progress.advance()
        current.note(finished=_now(), seconds=round(time.monotonic() - started, 3))
        return result_of(current, resumed=resumed)


def _initial_facts(
    difflog: DiffLogConfig, table: StateTable, runs: Runs, names: Sequence[str], rejoin_late: bool
) -> dict[str, Any]:
    """Return what a new run starts from. A run that is continued must use the same state version and the same day."""
    taken = runs.taken_chunks()
    chunks.check_names(runs.work, names, taken)
    return {
        "entity": difflog.entity.name,
        "chunks": list(names) or chunks.waiting_chunks(runs.work, taken),
        "state_version": table.version(),
        "today": _now()[:10],
        "rejoin_late": rejoin_late,
        "started": _now(),
        "late_from": runs.late_runs() if rejoin_late else [],
    }


def _read_updates(
    session: SparkSession, difflog: DiffLogConfig, runs: Runs, facts: dict[str, Any]
) -> dict[str, DataFrame]:
    """Read the updates per source: those of the chunk sets, and late rows of earlier runs that are joined now."""
    late = [runs.folder / f"{number:06d}" / "late" for number in facts["late_from"]]
    updates = {}
    for source in chunks.sources(difflog):
        frames = [chunks.read_source(session, difflog, runs.work, facts["chunks"], source)]
        frames += [chunks.read_late(session, folder / source) for folder in late]
        present = [frame for frame in frames if frame is not None]
        if present:
            updates[source] = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), present)
    return updates


def _write_outputs(
    session: SparkSession,
    difflog: DiffLogConfig,
    table: StateTable,
    current: Run,
    updates: dict[str, DataFrame],
    progress: Progress,
) -> None:
    """Write the outputs that are not complete yet: old states, one step per source, wide log, new states."""
    steps = {source: f"diff_log_{number}_{source}" for number, source in enumerate(updates, 1)}
    if all(current.has(name) for name in ("diff_log_0_state", *steps.values(), "visit_log_wide", "state")):
        return
    frame = run_frame(session, difflog, table, current, updates)
    if not current.has("diff_log_0_state"):
        outputs.write_old_states(difflog, table, current, frame)
    progress.advance()
    for source, name in steps.items():
        if not current.has(name):
            outputs.write_step(session, difflog, current, source, frame, name)
        progress.advance()
    if not current.has("visit_log_wide"):
        outputs.write_wide_log(difflog, current, frame)
    progress.advance()
    if not current.has("state"):
        outputs.commit_states(session, difflog, table, current, frame)
    progress.advance()
    frame.unpersist()


def _now() -> str:
    return times.now()[:19] + "Z"
