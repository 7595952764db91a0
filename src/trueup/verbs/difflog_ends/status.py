"""The status of a version log, from its files; Spark is not needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from trueup.verbs.difflog import chunks
from trueup.verbs.difflog.manifest import Runs
from trueup.verbs.difflog.model import OLDER, DiffLogConfig
from trueup.verbs.difflog.record import find_record
from trueup.verbs.difflog.state import StateTable


@dataclass(frozen=True)
class DiffLogStatus:
    """What a version log has done, and what the next run does."""

    # The number of the last finished run, and when it ended; 0 before the first.
    last_run: int = 0
    finished: str = ""
    # The run that was interrupted: the next run continues it, before it takes other chunk sets. 0: none.
    unfinished: int = 0
    # The chunk sets that no run has taken yet.
    waiting: tuple[str, ...] = ()
    # Late rows per source that a run with `rejoin_late` applies.
    late: dict[str, int] = field(default_factory=dict)
    # The state table: states, and how many of these may be changes of others, which count twice until they are merged.
    states: int = 0
    changed: int = 0
    files: int = 0


def status(difflog: DiffLogConfig) -> DiffLogStatus:
    """Return the status of a version log. Raises StoreError if a part of it is missing or cannot be read."""
    table, runs = StateTable.of(difflog), Runs(Path(difflog.work))
    find_record(table, runs)
    unfinished = runs.unfinished()
    last = max((run for run in runs.all() if run.is_finished), key=lambda run: run.number, default=None)
    files = table.files()
    return DiffLogStatus(
        last_run=last.number if last else 0,
        finished=last.facts["finished"] if last else "",
        unfinished=unfinished.number if unfinished else 0,
        waiting=tuple(chunks.waiting_chunks(runs.work, runs.taken_chunks())),
        late=_late_rows(runs, difflog),
        states=sum(file.rows for file in files),
        changed=sum(file.rows for file in files if file.has_changes),
        files=len(files),
    )


def _late_rows(runs: Runs, difflog: DiffLogConfig) -> dict[str, int]:
    """Return the late rows that were older than their state, per source."""
    numbers = set(runs.late_runs(more=True))
    rows: dict[str, int] = {}
    for run in (run for run in runs.all() if run.number in numbers):
        for name, facts in run.facts["outputs"].items():
            count = facts.get("late_reasons", {}).get(OLDER, 0)
            source = next((each for each in chunks.sources(difflog) if name.endswith(f"_{each}")), name)
            if count:
                rows[source] = rows.get(source, 0) + count
    return rows
