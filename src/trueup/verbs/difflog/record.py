"""The record of a log: its id, and the basis it rests on. The id ties work folder, state and ClickHouse table together.

The id is in `log.json` of the work folder and in the records of the state. The records are beside the state, in
`_trueup/basis-NNNNNN.json`; a commit of the state table names the one that is valid from there on, so that state and
basis change together.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql.types import StructType

from trueup.config.files import make_folder, write_whole
from trueup.errors import StoreError
from trueup.verbs.difflog.basis import Basis, check_same, check_unchanged
from trueup.verbs.difflog.manifest import Run, Runs
from trueup.verbs.difflog.model import FAST, DiffLogConfig, History
from trueup.verbs.difflog.state import StateTable

_ID_FILE = "log.json"
_RECORDS = "_trueup"
_RESTORE = "restore it from a backup, or start a new log: another work folder, state and table"


@dataclass(frozen=True)
class LogRecord:
    """The id of a log, its basis, and the number of the record."""

    id: str
    number: int
    basis: Basis

    def write(self, table: StateTable, runs: Runs) -> None:
        """Write the record, unless it is valid already; it becomes valid when a commit of the state names it."""
        file = _record_file(table, self.number)
        if self.number == table.record_number() and table.exists():
            return
        # The work folder first: a kill in between must not leave a state that seems to be of another work folder.
        if not (runs.work / _ID_FILE).exists():
            _write(runs.work / _ID_FILE, {"log": self.id})
        make_folder(file.parent)
        _write(file, {"log": self.id, "basis": self.basis.as_json()})

    def facts(self) -> dict[str, Any]:
        """Return the facts of a run that starts with this record."""
        return {"log": self.id, "record": self.number, "basis": self.basis.as_json()}


def open_record(difflog: DiffLogConfig, table: StateTable, runs: Runs) -> LogRecord:
    """Return the record of a log; that of a new log is not written yet.

    Raises StoreError if work folder and state are not of one log, or if a part of the log is missing.
    """
    return find_record(table, runs) or LogRecord(_work_id(runs.work) or uuid.uuid4().hex, 1, Basis.of(difflog))


def find_record(table: StateTable, runs: Runs) -> LogRecord | None:
    """Return the record of a log, or None before its first run. Raises StoreError as `open_record`."""
    work_id = _work_id(runs.work)
    file = _record_file(table, table.record_number())
    if not file.exists():
        _check_nothing_is_lost(table, runs, file)
        return None
    facts = _read(file)
    if facts["log"] != work_id:
        owner = f"version log {work_id}" if work_id else "no version log yet"
        raise StoreError(
            f"the state {table.path} belongs to version log {facts['log']}, but the work folder {runs.work} to {owner}",
            cure="write the `work` and `state.path` of one log into difflog.toml; two logs need two states",
        )
    if not table.exists() and not runs.all():
        # A first run that was killed before it began.
        return None
    check_runs(table, runs)
    return LogRecord(facts["log"], table.record_number(), Basis.from_json(facts["basis"]))


def check_runs(table: StateTable, runs: Runs) -> None:
    """Raise StoreError if the folder of runs and the state table do not contain the same runs."""
    # In this order: another process may commit a run, after writing its manifest, while this one reads.
    committed = max((run.number for run in runs.all() if run.has("state")), default=0)
    last = table.last_run()
    numbers = {run.number for run in runs.all()}
    missing = next((number for number in range(1, last + 1) if number not in numbers), None)
    if missing is not None:
        raise StoreError(
            f"{runs.path(missing) / 'manifest.json'} does not exist, but the state {table.path} contains run {missing}",
            cure="restore the folder from a backup: it names the chunk sets that are processed. To free disk space,"
            " use `trueup difflog prune`",
        )
    if committed > last:
        raise StoreError(
            f"the state {table.path} ends with run {last}, but run {committed} was committed to it:"
            " it was replaced or restored from an older copy",
            cure=f"restore the state of run {committed}, or start a new log: another work folder, state and table",
        )


def check_log(difflog: DiffLogConfig) -> LogRecord | None:
    """Return the record of a log for a reader, or None before its first run. Raises as a run would."""
    table, runs = StateTable.of(difflog), Runs(Path(difflog.work))
    record = find_record(table, runs)
    return record and checked_record(record, difflog, table, runs.unfinished())


def with_history(difflog: DiffLogConfig, record: LogRecord | None) -> DiffLogConfig:
    """Return the configuration with what earlier settings left in the log."""
    basis = record and record.basis
    return replace(difflog, history=History(basis.multipliers, basis.has_expired)) if basis else difflog


def checked_record(record: LogRecord, difflog: DiffLogConfig, table: StateTable, unfinished: Run | None) -> LogRecord:
    """Return the record that the next commit makes valid: a new one if the configuration has new logs or columns.

    Raises CheckFailed if a setting differs that the log, or the unfinished run, rests on.
    """
    basis = Basis.of(difflog, record.basis)
    if unfinished is not None:
        check_same(Basis.from_json(unfinished.facts["basis"]), basis, unfinished.number)
    else:
        check_unchanged(record.basis, basis, written_columns(table.schema()))
    if basis == record.basis:
        return record
    return LogRecord(record.id, record.number + 1, basis)


def written_columns(state: StructType | None) -> list[str]:
    """Return the columns of the state, and those of the fast supplier that it stores."""
    return [] if state is None else list(dict.fromkeys([*state.names, *fast_fields(state)]))


def fast_fields(state: StructType) -> list[str]:
    """Return the columns of the fast supplier that the state stores."""
    kind = state[FAST].dataType if FAST in state.names else StructType([])
    assert isinstance(kind, StructType)
    # A struct must not be empty.
    return [name for name in kind.names if name != "nothing"]


def _check_nothing_is_lost(table: StateTable, runs: Runs, file: Path) -> None:
    """Raise StoreError if the state, or its record, should exist and does not."""
    if table.exists():
        raise StoreError(f"{file} does not exist: the settings of the state {table.path} are unknown", cure=_RESTORE)
    committed = next((run.number for run in runs.all() if run.has("state")), None)
    if committed is not None:
        raise StoreError(
            f"the state {table.path} does not exist, but run {committed} was committed to it", cure=_RESTORE
        )


def _record_file(table: StateTable, number: int) -> Path:
    return table.path / _RECORDS / f"basis-{number:06d}.json"


def _work_id(work: Path) -> str | None:
    file = work / _ID_FILE
    return str(_read(file)["log"]) if file.exists() else None


def _read(file: Path) -> dict[str, Any]:
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
        return {**facts, "log": str(facts["log"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"cannot read {file}: {error}", cure=_RESTORE) from None


def _write(file: Path, facts: Mapping[str, Any]) -> None:
    try:
        write_whole(file, json.dumps(facts, indent=1).encode())
    except OSError as error:
        raise StoreError(
            f"cannot write {file}: {error.strerror}", cure="free disk space, or fix the permissions of the folder"
        ) from None
