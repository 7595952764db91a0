"""The mark of a log on its ClickHouse table: a table of another log, or one that lost rows, is refused.

The mark is the id of the log in the comment of the table. Also, the table must contain the versions that the last run
inserted: it may have been emptied, or restored from an older copy.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from trueup.db.clickhouse import literal
from trueup.errors import CheckFailed, StoreError
from trueup.verbs.difflog.clickhouse import ClickHouse, open_target
from trueup.verbs.difflog.manifest import Run, Runs
from trueup.verbs.difflog.model import SLOW, DiffLogConfig
from trueup.verbs.difflog.record import LogRecord
from trueup.verbs.difflog.resume import count_standing

_MARK = re.compile(r"trueup version log ([0-9a-f]{32})")


def mark_of(log: str) -> str:
    """Return the mark of a log, a part of the comment of its table."""
    return f"trueup version log {log}"


def check_target(difflog: DiffLogConfig, record: LogRecord, runs: Runs) -> None:
    """Raise CheckFailed or StoreError if the table of the log is that of another log, or lost rows of this one."""
    if not difflog.target.table:
        return
    inserted = [run for run in runs.all() if run.facts.get("inserting")]
    with open_target(difflog.target) as house:
        existing = bool(house.columns())
        if not existing and inserted:
            raise StoreError(
                f"table {house.database}.{house.table} on {house.place} does not exist, but the rows of run"
                f" {inserted[-1].number} were inserted into the table of this log",
                cure="name the table of the log in difflog.toml, or restore it",
            )
        if existing:
            check_mark(house, record.id, is_first=not inserted)
        finished = [run for run in inserted if run.has("clickhouse") and run.path("visit_log_wide").exists()]
        if finished:
            # A run that was killed while it was inserted may have cancelled rows of the one before.
            interrupted = [run for run in inserted if run.number > finished[-1].number]
            _check_rows(house, difflog, finished[-1], interrupted)


def check_owner(difflog: DiffLogConfig, record: LogRecord) -> None:
    """Raise CheckFailed if an existing table of the log is that of another log."""
    with open_target(difflog.target) as house:
        if house.columns():
            inserted = any(run.facts.get("inserting") for run in Runs(Path(difflog.work)).all())
            check_mark(house, record.id, is_first=not inserted)


def check_mark(house: ClickHouse, log: str, *, is_first: bool) -> None:
    """Raise CheckFailed if a table is not that of the log; `is_first`: nothing was inserted yet."""
    found = _MARK.search(house.comment())
    table = f"table {house.database}.{house.table} on {house.place}"
    if found and found[1] != log:
        raise CheckFailed(
            [f"{table} belongs to version log {found[1]}, not to this one ({log})"],
            cure="name another table; trueup creates it",
        )
    if not found and not is_first:
        raise CheckFailed(
            [f"{table} is not the table of this log: its comment has no mark"],
            cure="name the table of the log; if it is a copy of it, mark it with"
            f" ALTER TABLE {house.name} MODIFY COMMENT '{mark_of(log)}'",
        )
    if not found and SLOW in house.columns() and house.rows(f"SELECT 1 FROM {house.name} WHERE {SLOW} > 0 LIMIT 1"):
        raise CheckFailed(
            [f"{table} contains rows of another slow supplier: {SLOW} is greater than 0"],
            cure="name another table; trueup creates it",
        )


def set_mark(house: ClickHouse, log: str) -> None:
    """Add the mark of a log to the comment of its table; a comment of the user is kept."""
    comment = house.comment()
    if not _MARK.search(comment):
        text = f"{comment} [{mark_of(log)}]" if comment else mark_of(log)
        house.execute(f"ALTER TABLE {house.name} MODIFY COMMENT {literal(text)}")


def _check_rows(house: ClickHouse, difflog: DiffLogConfig, run: Run, later: Sequence[Run]) -> None:
    """Raise StoreError if most of the versions that a finished run inserted are not in the table."""
    files, later_files = _wide_files(run), [file for one in later for file in _wide_files(one)]
    standing, expected = count_standing(house, files, difflog.entity.key, later_files)
    # A few may be missing: rows that were deleted on purpose, which `prove` lists.
    if 2 * standing < expected:
        raise StoreError(
            f"table {house.database}.{house.table} on {house.place} does not contain the rows of run {run.number}:"
            " it was emptied, or restored from an older copy",
            cure="restore the table of the log, and list the keys that do not collapse with `trueup difflog prove`",
        )


def _wide_files(run: Run) -> list[Path]:
    return sorted(run.path("visit_log_wide").glob("*.parquet"))
