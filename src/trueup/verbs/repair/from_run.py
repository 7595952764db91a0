"""The tables of a past run that a repair writes, and those that it cannot repair completely."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from trueup.config.model import Config
from trueup.config.settings import DiffSettings, SparkSettings
from trueup.db.names import table_spellings
from trueup.db.patterns import parse_patterns
from trueup.errors import CheckFailed, ConfigError, StoreError
from trueup.report.model import TableOutcome
from trueup.task.past import Past, read_past, request_of
from trueup.task.past_run import PastRun
from trueup.verbs.repair.layout import refuse_keyless
from trueup.verbs.repair.request import RepairKeys, RepairRun, RepairTable
from trueup.verbs.repair.result import text_of


def run_to_repair(
    run: PastRun, names: Sequence[str], config: Config, settings: DiffSettings, spark: SparkSettings
) -> RepairRun:
    """Return the tables of a run whose reports list keys; what the run did not compare is in `failed`.

    `names` are patterns that select some of the tables.
    """
    selected, others = _select(run, names)
    heads, failed = _heads(selected)
    return RepairRun(
        run.name,
        config.select(None, list(run.nodes)),
        tuple(
            RepairTable(request_of(head, config, settings, spark), partial(_keys, Path(head.path)), head)
            for head in heads
        ),
        settings,
        tuple(table.table for table in run.tables),
        failed,
        (f"not selected by --tables, and not repaired: {', '.join(others)}",) if others else (),
    )


def reports_of_run(run: PastRun, names: Sequence[str]) -> tuple[Iterator[Past], dict[str, str]]:
    """Return the reports of the selected tables one after the other, and tables that cannot be repaired, and why."""
    heads, failed = _heads(_select(run, names)[0])
    return (read_past(Path(head.path)) for head in heads), failed


def _select(run: PastRun, names: Sequence[str]) -> tuple[list[TableOutcome], list[str]]:
    """Return the tables with differences that match one of the patterns, and the names of all others with differences.

    Raises ConfigError if a pattern matches no table of the run.
    """
    if not names:
        return list(run.differing), []
    patterns = parse_patterns(tables=names)
    places = {table.table: table_spellings(table.table)[0] for table in run.tables}
    for pattern in patterns.take:
        if not any(pattern.matches(*place) for place in places.values()):
            raise ConfigError(
                f"--tables {pattern.text} matches no table of the run", cure=f"use its tables: {', '.join(places)}"
            )
    selected = [table for table in run.differing if places[table.table] in patterns]
    return selected, [table.table for table in run.differing if table not in selected]


def _heads(tables: Sequence[TableOutcome]) -> tuple[list[Past], dict[str, str]]:
    """Return the reports that list keys, without the keys; and what cannot be repaired completely, with the reasons."""
    heads: list[Past] = []
    failed: dict[str, str] = {}
    for table in tables:
        reasons = _not_compared(table)
        if table.report and table.differences:
            try:
                heads.append(_head(Path(table.report)))
            except (CheckFailed, StoreError) as error:
                reasons.append(text_of(error).removeprefix(f"{table.table}: "))
        if reasons:
            failed[table.table] = "; ".join(reasons)
    return heads, failed


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


def _head(report: Path) -> Past:
    head = read_past(report, with_keys=False)
    if head.is_keyless:
        refuse_keyless(head.table)
    return head


def _keys(report: Path) -> RepairKeys:
    past = read_past(report)
    return RepairKeys(past.path, past.keys, past.hashes, past, tuple(past.rest()))
