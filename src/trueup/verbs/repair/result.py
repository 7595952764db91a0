"""The result of a repair or an undo, and its report file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from trueup.db.names import display_name
from trueup.engine.failures import known_error
from trueup.errors import StoreError, TrueupError
from trueup.report.json_file import report_path
from trueup.report.repair import LeftRow, Outcome, RepairResult, write_repair_report
from trueup.report.repairs import RepairsResult
from trueup.rows.spec import TableSpec
from trueup.task.open import OpenTask
from trueup.verbs.repair.decisions import Decisions
from trueup.verbs.repair.modes import ACTS

# Keys that are left, in the result itself; the report file has all of them.
_LEFT_IN_RESULT = 1000
# Steps after the writes, as places of errors in the result.
_REPORT, _UNDO_FILE = "the report", "the undo file"


@dataclass(frozen=True)
class Facts:
    """What the results of all tables of a run have in common."""

    verb: Literal["repair", "undo"]
    mode: str
    executed: bool
    folder: Path
    started: datetime


@dataclass
class Ending:
    """What the result of a table is made of; `written`, `failed` and `remaining` are filled in while the run ends."""

    facts: Facts
    spec: TableSpec
    of: str
    decisions: Decisions
    engine: str
    task_id: str
    remarks: list[str] = field(default_factory=list)
    written: dict[str, dict[str, int]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    verified: str = ""
    remaining: int = 0
    # Why rows may differ that were not repaired, because the report does not list them.
    unlisted: str = ""

    @property
    def verdict(self) -> Outcome:
        """The verdict; only an executed run whose rows were all verified is REPAIRED or UNDONE."""
        if not self.facts.executed:
            return "DRY RUN"
        if self.failed:
            return "FAILED"
        if self.unlisted:
            return "INCOMPLETE"
        if self.remaining:
            return "REMAINS"
        return "REPAIRED" if self.facts.verb == "repair" else "UNDONE"


@contextmanager
def failing(endings: Sequence[Ending], step: str) -> Iterator[None]:
    """Run a step after the nodes were written; if a server or Spark fails, the results are FAILED with the reason."""
    try:
        yield
    except Exception as error:
        known = known_error(error)
        if known is None:
            raise
        for ending in endings:
            ending.failed[step] = text_of(known)


def new_path(folder: Path, schema: str, table: str, kind: str, ending: str) -> Path:
    """Return the path of a new file of this run, in the folder of the reports."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d%H%M%S")
    return report_path(folder.absolute(), schema, table, stamp, kind=kind, ending=ending)


def undo_path(folder: Path, tables: Sequence[tuple[str, str]]) -> Path:
    """Return the path of a new undo file, in the folder of the reports."""
    schema, table = tables[0] if len(tables) == 1 else ("all", "tables")
    return new_path(folder, schema, table, "undo", "gz")


def conclude(ending: Ending) -> RepairResult:
    """Return the result and write its report; if nodes were written, a report that cannot be written is in `failed`."""
    decisions, spec, facts = ending.decisions, ending.spec, ending.facts
    left = [
        LeftRow(dict(zip(spec.key_names, entry.key, strict=True)), entry.nodes, entry.reason)
        for entry in decisions.left
    ]
    if decisions.undo_path and not Path(decisions.undo_path).exists():
        ending.failed[_UNDO_FILE] = f"{decisions.undo_path} was removed: this {facts.verb} cannot be undone"
    kind = "repair" if facts.verb == "repair" else "undone"
    while True:
        path = new_path(facts.folder, spec.schema, spec.table, kind, "json")
        result = _result(ending, left, str(path))
        try:
            write_repair_report(path, result, left)
        except FileExistsError:
            continue
        except StoreError as error:
            if not ending.written:
                raise
            ending.failed[_REPORT] = text_of(error)
            return _result(ending, left, "")
        return result


def _result(ending: Ending, left: Sequence[LeftRow], report: str) -> RepairResult:
    decisions, facts = ending.decisions, ending.facts
    return RepairResult(
        verdict=ending.verdict,
        verb=facts.verb,
        table=display_name(ending.spec.schema, ending.spec.table),
        mode=facts.mode,
        nodes=decisions.nodes,
        of=ending.of,
        keys=decisions.keys,
        agree=decisions.agree,
        planned={node: {act: counts[act] for act in ACTS} for node, counts in decisions.planned.items()},
        written=ending.written,
        failed=ending.failed,
        left_counts=dict(Counter(row.reason for row in left)),
        left=tuple(left[:_LEFT_IN_RESULT]),
        examples=tuple(decisions.examples),
        seconds=round((datetime.now(timezone.utc) - facts.started).total_seconds(), 3),
        engine=ending.engine,
        task_id=ending.task_id,
        executed=facts.executed,
        remaining=ending.remaining,
        unlisted=ending.unlisted,
        verified=ending.verified,
        undo=decisions.undo_path,
        report=report,
        remarks=tuple(ending.remarks),
    )


def text_of(error: TrueupError, more: str = "") -> str:
    """Return an error, more text, and its cure, on one line."""
    return "; ".join(str(error).splitlines()) + more + (f" ({error.cure})" if error.cure else "")


def record(task: OpenTask, result: RepairResult) -> None:
    """Set the outcome of the task of one table."""
    errors = [f"{place}: {error}" for place, error in result.failed.items()]
    errors += [result.unlisted] if result.verdict == "INCOMPLETE" else []
    task.finish(
        _summary(result),
        failed=result.verdict in ("FAILED", "INCOMPLETE"),
        error="; ".join([*errors, *task.written]) if errors else "",
        report=result.report,
    )


def record_run(task: OpenTask, result: RepairsResult) -> RepairsResult:
    """Set the outcome of the task of all tables, and return the result."""
    errors = [f"{place}: {error}" for place, error in {**result.failed, **result.node_errors}.items()]
    task.finish(
        {**result.as_json(), "tables": [_summary(table) for table in result.tables]},
        failed=result.verdict == "FAILED",
        error="; ".join([*errors, *task.written]) if errors else "",
        report=result.report,
    )
    return result


def _summary(result: RepairResult) -> dict[str, Any]:
    return {name: value for name, value in result.as_json().items() if name not in ("left", "examples")}
