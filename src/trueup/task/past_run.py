"""A past run over many tables: which of them differed, and their reports."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trueup.errors import ConfigError
from trueup.report.json_reader import showing
from trueup.report.model import AGREED, TableOutcome
from trueup.store import TaskStore
from trueup.task.past import is_path

RUNS = ("TABLES_DIFF", "TABLES_RERUN")
# A summary starts with its verdict; a report of one table, which may be large, does not.
_SUMMARY = re.compile(r'\s*\{\s*"verdict"\s*:')


@dataclass(frozen=True)
class PastRun:
    """A finished run: its nodes, and the outcome of each table."""

    # How results name it: the path of its summary, or its task.
    name: str
    nodes: tuple[str, ...]
    tables: tuple[TableOutcome, ...]

    @property
    def differing(self) -> tuple[TableOutcome, ...]:
        """The tables that did not match."""
        return tuple(table for table in self.tables if table.verdict not in AGREED)


def find_run(text: str, store: TaskStore) -> PastRun | None:
    """Return a run from the path of its summary, or the id of its task; None if the text names something else."""
    if is_path(text):
        return _read(Path(text))
    task = store.get(text)
    if task.task_type not in RUNS:
        return None
    summary = task.task_context.get("diff_summary")
    if not summary:
        raise ConfigError(
            f"task {task.task_id[:8]} has no result: its status is {task.task_status}",
            cure=f"finish it with: trueup diff --resume {task.task_id[:8]}",
        )
    return _run(task.diff_file_path or f"run {task.task_id[:8]}", summary)


def _read(path: Path) -> PastRun | None:
    try:
        with open(path, encoding="utf-8") as file:
            if not _SUMMARY.match(file.read(100)):
                return None
            file.seek(0)
            summary = json.load(file)
    except (OSError, ValueError):
        # The error is that of a report that cannot be read.
        return None
    if not isinstance(summary, dict) or not isinstance(summary.get("tables"), list) or summary.get("mode") == "check":
        return None
    with showing(path):
        run = _run(str(path.absolute()), summary)
        return replace(run, tables=tuple(_beside(path, table) for table in run.tables))


def _beside(path: Path, table: TableOutcome) -> TableOutcome:
    """Return a table with its report beside the summary, if the folder of the run was moved."""
    report = path.absolute().parent / Path(table.report).name
    moved = table.report and not Path(table.report).exists() and report.exists()
    return replace(table, report=str(report)) if moved else table


def _run(name: str, summary: Mapping[str, Any]) -> PastRun:
    tables = [TableOutcome(**{**table, "missing_on": tuple(table["missing_on"])}) for table in summary["tables"]]
    return PastRun(name, tuple(summary["nodes"]), tuple(tables))
