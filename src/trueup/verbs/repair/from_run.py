"""The tables of a past run that a repair writes, and those that it cannot repair completely."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from trueup.config.model import Config
from trueup.config.settings import DiffSettings, SparkSettings
from trueup.errors import CheckFailed, StoreError
from trueup.report.model import TableOutcome
from trueup.task.past import read_past, request_of
from trueup.task.past_run import PastRun
from trueup.verbs.repair.layout import refuse_keyless
from trueup.verbs.repair.request import RepairKeys, RepairRun, RepairTable
from trueup.verbs.repair.result import text_of


def run_to_repair(run: PastRun, config: Config, settings: DiffSettings, spark: SparkSettings) -> RepairRun:
    """Return the tables of a run whose reports list keys; what the run did not compare is in `failed`."""
    tables: list[RepairTable] = []
    failed: dict[str, str] = {}
    for table in run.differing:
        reasons = _not_compared(table)
        if table.report and table.differences:
            try:
                tables.append(_table(Path(table.report), config, settings, spark))
            except (CheckFailed, StoreError) as error:
                reasons.append(text_of(error))
        if reasons:
            failed[table.table] = "; ".join(reasons)
    return RepairRun(run.name, config.select(None, list(run.nodes)), tuple(tables), settings, failed)


def _not_compared(table: TableOutcome) -> list[str]:
    """Return why a repair of the keys of the report does not make the table equal on all nodes."""
    reasons = []
    if table.missing_on:
        nodes = ", ".join(table.missing_on)
        reasons.append(f"the table is missing on {nodes} and is not repaired there (create it, and run the diff again)")
    if table.verdict == "INCOMPLETE":
        known = "only the keys in its report are repaired" if table.report else "it is not repaired"
        reasons.append(f"the diff did not compare all rows, so {known}: {table.reason or 'not compared'}")
    return reasons


def _table(report: Path, config: Config, settings: DiffSettings, spark: SparkSettings) -> RepairTable:
    head = read_past(report, with_keys=False)
    if head.is_keyless:
        refuse_keyless(head.table)
    return RepairTable(request_of(head, config, settings, spark), partial(_keys, report), head)


def _keys(report: Path) -> RepairKeys:
    past = read_past(report)
    return RepairKeys(past.path, past.keys, past.hashes, past, tuple(past.rest()))
