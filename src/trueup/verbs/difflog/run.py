"""The run from end to end: old states, a step for the visits and for each side log, the wide log, the state table.

This is the whole path on one screen. Each output stands on disk under its name before the next begins, so a run that
was killed goes on where it stopped.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueup.engine.progress import Progress, Silent
from trueup.verbs.difflog import chunks, outputs
from trueup.verbs.difflog.frame import run_frame
from trueup.verbs.difflog.manifest import Run, Runs, only_one
from trueup.verbs.difflog.model import Difflog
from trueup.verbs.difflog.state import StateTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class RunResult:
    """What a run did; number 0 means that there was nothing to do."""

    number: int
    chunks: tuple[str, ...] = ()
    rows: dict[str, int] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    files_read: int = 0
    files_in_state: int = 0
    inserted: int = 0
    seconds: float = 0.0
    resumed: bool = False
    folder: str = ""


def run(
    session: Any,
    difflog: Difflog,
    *,
    names: Sequence[str] = (),
    rejoin_late: bool = False,
    progress: Progress | None = None,
) -> RunResult:
    """Work through the waiting chunk sets (or the named ones), or finish the run that was stopped."""
    progress = progress or Silent()
    started = time.monotonic()
    work = Path(difflog.work)
    with only_one(work):
        runs = Runs(work)
        table = StateTable(Path(difflog.state.path), difflog.entity.key, difflog.state.buckets)
        current = runs.unfinished()
        resumed = current is not None
        taken = list(current.facts["chunks"]) if current else _chosen(work, runs, names)
        if current is not None:
            late_from = list(current.facts["late_from"])
        else:
            late_from = runs.late_runs() if rejoin_late else []
        if not taken and not late_from:
            return RunResult(0)
        late = [runs.folder / f"{number:06d}" / "late" for number in late_from]
        frames = _frames(session, difflog, work, taken, late)
        if current is None:
            chunks.check_versions(frames, difflog)
            current = runs.begin({**_facts(difflog, table, taken, rejoin_late), "late_from": late_from})
        progress.stage("steps", len(frames) + 4)
        _work(session, difflog, table, current, frames, progress)
        current.note(finished=_now(), seconds=round(time.monotonic() - started, 3))
        return _result(current, resumed)


def _work(
    session: Any, difflog: Difflog, table: StateTable, current: Run, frames: dict[str, DataFrame], progress: Progress
) -> None:
    """Every output in turn; those that an earlier try finished are left as they are."""
    steps = {source: f"diff_log_{number}_{source}" for number, source in enumerate(frames, 1)}
    if not all(current.has(name) for name in ("diff_log_0_state", *steps.values(), "visit_log_wide", "state")):
        frame = run_frame(session, difflog, table, current, frames)
        if not current.has("diff_log_0_state"):
            outputs.write_old_state(difflog, table, current, frame)
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
        frame.forget()
    if difflog.target.table and not current.has("clickhouse"):
        outputs.insert_log(session, difflog, current)
    progress.advance()


def _chosen(work: Path, runs: Runs, names: Sequence[str]) -> list[str]:
    taken = runs.taken_chunks()
    if names:
        chunks.check_names(work, names, taken)
        return list(names)
    return chunks.waiting_chunks(work, taken)


def _frames(
    session: Any, difflog: Difflog, work: Path, taken: Sequence[str], late: Sequence[Path]
) -> dict[str, DataFrame]:
    """The updates of each source: those of the chunks, and the late ones of earlier runs that are joined now."""
    found = {}
    for source in chunks.sources(difflog):
        frames = [chunks.read_source(session, difflog, work, taken, source)]
        frames += [chunks.read_late(session, folder / source) for folder in late]
        there = [frame for frame in frames if frame is not None]
        if there:
            found[source] = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), there)
    return found


def _facts(difflog: Difflog, table: StateTable, taken: Sequence[str], rejoin_late: bool) -> dict[str, Any]:
    """What the run starts from: a repetition must see the same state and the same day."""
    return {
        "entity": difflog.entity.name,
        "chunks": list(taken),
        "state_version": table.version(),
        "today": datetime.now(timezone.utc).date().isoformat(),
        "rejoin_late": rejoin_late,
        "started": _now(),
    }


def _result(current: Run, resumed: bool) -> RunResult:
    found = current.facts["outputs"]
    steps = {name: facts for name, facts in found.items() if name.startswith("diff_log_") and "diff" in facts}
    old = found.get("diff_log_0_state", {})
    return RunResult(
        number=current.number,
        chunks=tuple(current.facts["chunks"]),
        rows={name: facts["diff"] for name, facts in steps.items()},
        late={name: facts["late"] for name, facts in steps.items() if facts["late"]},
        bytes=sum(facts.get("bytes", 0) for facts in found.values()),
        files_read=len(old.get("files", ())),
        files_in_state=old.get("of", 0),
        inserted=found.get("clickhouse", {}).get("inserted", 0),
        seconds=current.facts["seconds"],
        resumed=resumed,
        folder=str(current.folder),
    )


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
