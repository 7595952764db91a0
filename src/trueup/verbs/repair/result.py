"""From what was decided, written and verified to the answer, and the file that lists all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from trueup.db.names import display_name
from trueup.report.json_file import report_path
from trueup.report.repair import LeftRow, Outcome, RepairResult, write_repair_report
from trueup.rows.request import TableRequest
from trueup.rows.spec import TableSpec
from trueup.verbs.repair.modes import ACTS
from trueup.verbs.repair.request import RepairRequest

if TYPE_CHECKING:
    from trueup.verbs.repair.write import Gathered

# Keys that were left, in the result itself; the report has all of them.
_MOST_LEFT = 1000


@dataclass
class Ending:
    """All that the answer is made of."""

    request: RepairRequest
    asked: TableRequest
    spec: TableSpec
    of: str
    gathered: Gathered
    engine: str
    task_id: str
    started: datetime
    remarks: list[str] = field(default_factory=list)
    written: dict[str, dict[str, int]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    verified: str = ""
    remaining: int = 0


def new_path(asked: TableRequest, spec: TableSpec, kind: str, ending: str) -> Path:
    """A new file of a repair, in the folder of the reports."""
    folder = Path(asked.settings.report_dir or ".").absolute()
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d%H%M%S")
    return report_path(folder, spec.schema, spec.table, stamp, kind=kind, ending=ending)


def conclude(ending: Ending) -> RepairResult:
    """Count, judge, write the report, and return the result."""
    gathered, request = ending.gathered, ending.request
    left = list(_left(ending))
    result = RepairResult(
        verdict=_verdict(ending),
        verb="repair",
        table=display_name(ending.spec.schema, ending.spec.table),
        mode=request.way,
        nodes=gathered.nodes,
        of=ending.of,
        keys=gathered.keys,
        agree=gathered.agree,
        planned={node: {act: counts[act] for act in ACTS} for node, counts in gathered.planned.items()},
        written=ending.written,
        failed=ending.failed,
        left_counts=dict(Counter(each.reason for each in left)),
        left=tuple(left[:_MOST_LEFT]),
        examples=tuple(gathered.examples),
        seconds=round((datetime.now(timezone.utc) - ending.started).total_seconds(), 3),
        engine=ending.engine,
        task_id=ending.task_id,
        executed=request.execute,
        remaining=ending.remaining,
        verified=ending.verified,
        undo=gathered.undo_path,
        remarks=tuple(ending.remarks),
    )
    path = new_path(ending.asked, ending.spec, "repair", "json")
    result = replace(result, report=str(path))
    write_repair_report(path, result, left)
    return result


def _verdict(ending: Ending) -> Outcome:
    if not ending.request.execute:
        return "DRY RUN"
    if ending.failed:
        return "FAILED"
    return "REMAINS" if ending.remaining else "REPAIRED"


def _left(ending: Ending) -> Iterator[LeftRow]:
    names = ending.spec.key_names
    for each in ending.gathered.left:
        yield LeftRow(dict(zip(names, each.key, strict=True)), each.nodes, each.reason)
