"""Removes an unfinished run, so that its chunk sets wait again."""

from __future__ import annotations

from pathlib import Path

from trueup.errors import StoreError
from trueup.verbs.difflog import outputs
from trueup.verbs.difflog.manifest import Runs, lock_work_folder
from trueup.verbs.difflog.model import DiffLogConfig
from trueup.verbs.difflog.state import StateTable
from trueup.verbs.difflog.stored import discard_frame


def abandon(difflog: DiffLogConfig) -> int:
    """Remove the unfinished run and all its outputs; return its number, or 0 if no run is unfinished.

    Raises StoreError if its states are committed: the rest of the run must be done, or the log would miss its rows.
    """
    work = Path(difflog.work)
    with lock_work_folder(work):
        discard_frame(work)
        run, table = Runs(work).unfinished(), StateTable.of(difflog)
        if run is None:
            return 0
        if outputs.is_committed(table, run):
            left = "is being inserted" if run.facts.get("inserting") else "must be inserted"
            raise StoreError(
                f"run {run.number} cannot be given up: its states are committed, and its log {left} into ClickHouse",
                cure="fix the problem of ClickHouse, then finish the run: trueup difflog run",
            )
        table.discard_files(run.number)
        run.give_up()
        return run.number
