"""The result of a repair or an undo of many tables: one result per table, one summary."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from trueup.config.visible import as_lines
from trueup.config.wording import counted
from trueup.errors import StoreError
from trueup.report.html import write_html
from trueup.report.json_file import write_private
from trueup.report.page import Page, Table, Tone
from trueup.report.repair import ACTS, DONE, RepairResult
from trueup.report.text import aligned

_MEANING = {
    "REPAIRED": "all of these keys were compared again and agree on all nodes; no other rows were compared",
    "UNDONE": "all rows of all tables are as they were before the repair",
    "REMAINS": "some of these keys still differ",
    "FAILED": "some tables or nodes could not be written or verified; a node that could not be written was rolled back",
    "DRY RUN": "nothing was changed",
    "NOTHING TO DO": "there are no keys to write",
}
# True for some keys, no proof for the tables: not green.
_TONES: dict[str, Tone] = {"REPAIRED": "plain", "UNDONE": "plain", "REMAINS": "differ", "FAILED": "trouble"}
_HEADS = ("TABLE", "VERDICT", "KEYS", *(act.upper() for act in ACTS), "LEFT", "DIFFER")


@dataclass(frozen=True)
class RepairsResult:
    """What a repair or an undo of many tables did, or would do, per table."""

    executed: bool
    tables: tuple[RepairResult, ...]
    # Tables that could not be repaired at all, or not completely, and why.
    failed: Mapping[str, str] = field(default_factory=dict)
    verb: Literal["repair", "undo"] = "repair"
    mode: str = ""
    nodes: tuple[str, ...] = ()
    of: str = ""
    seconds: float = 0.0
    task_id: str = ""
    undo: str = ""
    # Paths of the summary of all tables, and of its page.
    report: str = ""
    page: str = ""
    # Of a validation: its name, the number of open errors of tables that were not selected, and whether it runs.
    validation: str = ""
    others: int = 0
    is_running: bool = False
    remarks: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """The worst of all tables."""
        verdicts = {result.verdict for result in self.tables}
        if self.failed or verdicts & {"FAILED", "INCOMPLETE"}:
            return "FAILED"
        if not self.tables:
            return "NOTHING TO DO"
        if not self.executed:
            return "DRY RUN"
        return "REMAINS" if "REMAINS" in verdicts else "REPAIRED" if self.verb == "repair" else "UNDONE"

    @property
    def exit_code(self) -> int:
        """0: all of these rows agree; 1: some differ, or would be written; 2: failed."""
        return max([2 if self.failed else 0, *(result.exit_code for result in self.tables)])

    @property
    def written_text(self) -> str:
        """The nodes that were written, per table, with the undo files."""
        return "; ".join(table.written_text for table in self.tables if table.written)

    @property
    def node_errors(self) -> dict[str, str]:
        """The errors of nodes, which all tables of the node have in common, and of later steps of a table."""
        return {
            place if place in self.nodes else f"{result.table}, {place}": error
            for result in self.tables
            for place, error in result.failed.items()
        }

    def as_json(self) -> dict[str, Any]:
        """Return the result as one JSON object."""
        return {
            "verdict": self.verdict,
            "verb": self.verb,
            "mode": self.mode,
            "nodes": list(self.nodes),
            "of": self.of,
            **({"validation": self.validation} if self.validation else {}),
            "executed": self.executed,
            "failed": dict(self.failed),
            **({"others": self.others, "is_running": self.is_running} if self.validation else {}),
            "remarks": list(self.remarks),
            "seconds": self.seconds,
            "task_id": self.task_id,
            "undo": self.undo,
            "report": self.report,
            "page": self.page,
            "tables": [result.as_json() for result in self.tables],
        }


def write_repairs(folder: Path, result: RepairsResult, *, html: bool) -> RepairsResult:
    """Write the summary next to the reports of the tables, and the page; return the result with their paths.

    If nodes were written, a summary that cannot be written is in `failed`.
    """
    path, page = folder / "summary.json", folder / "index.html"
    result = replace(result, report=str(path), page=str(page) if html else "")
    try:
        write_private(path, json.dumps(result.as_json(), indent=1) + "\n")
    except StoreError as error:
        if not result.written_text:
            raise
        return replace(result, report="", page="", failed={**result.failed, "the summary": str(error)})
    if not html:
        return result
    try:
        write_html(page, page_of_repairs(result))
    except StoreError as error:
        # The summary has been written, so the result is complete.
        return replace(result, page="", remarks=(*result.remarks, f"the page could not be written: {error}"))
    return result


def run_text(result: RepairsResult) -> str:
    """Return the result of a run as text: the verdict, one line per table, the next step."""
    if result.validation and not (result.tables or result.failed):
        where = " in these tables" if result.others else ""
        line = f"{result.verdict}: the validation {result.validation} has no open errors{where}"
        return as_lines([line, *(f"  note: {remark}" for remark in _remarks(result))])
    lines = [f"{_title(result)}: {_MEANING[result.verdict]}"]
    if result.tables:
        rows = [_cells(table) for table in result.tables]
        lines += ["", *(f"  {line}" for line in aligned([list(_HEADS), *rows], right=set(range(2, len(_HEADS))))), ""]
    lines.append(f"  of {result.of}; {_counts(result)}; {result.seconds:.1f} s")
    lines += [f"  {table}: FAILED: {error}" for table, error in result.failed.items()]
    lines += [f"  {node}: FAILED: {error}" for node, error in result.node_errors.items()]
    for table in result.tables:
        lines += [f"  {table.table}: left {count:,}: {reason}" for reason, count in table.left_counts.items()]
    lines += [f"  note: {remark}" for remark in _remarks(result)]
    lines += [f"  {name}: {path}" for name, path in _paths(result).items() if path]
    lines.append(f"  next: {_next_of_run(result)}")
    return as_lines(lines)


def page_of_repairs(result: RepairsResult) -> Page:
    """Return the page: one line per table."""
    rows = [_cells(table) for table in result.tables]
    return Page(
        title=f"{result.verb} of {counted(len(result.tables), 'table')}",
        verdict=result.verdict,
        tone=_TONES.get(result.verdict, "plain"),
        meaning=_MEANING[result.verdict],
        facts={
            "nodes": ", ".join(result.nodes),
            "mode": result.mode,
            "of": result.of,
            "rows": _counts(result),
            "undo file": result.undo,
            "time": f"{result.seconds:,.1f} s",
        },
        trouble=[f"{place}: {error}" for place, error in (*result.failed.items(), *result.node_errors.items())],
        remarks=_remarks(result),
        tables=[Table("Tables", [head.lower() for head in _HEADS], rows, frozenset(range(2, len(_HEADS))))],
        report=Path(result.report).name if result.report else "",
        task_id=result.task_id,
    )


def _title(result: RepairsResult) -> str:
    count = counted(len(result.tables), "table")
    return f"{result.verdict}: {result.verb} of {count} on {', '.join(result.nodes)} ({result.mode})"


def _paths(result: RepairsResult) -> dict[str, str]:
    return {"report": result.report, "page": result.page, "undo file": result.undo}


def _cells(table: RepairResult) -> list[str]:
    counts = table.written if table.executed else table.planned
    acts = [sum(node.get(act, 0) for node in counts.values()) for act in ACTS]
    left = sum(table.left_counts.values())
    differ = f"{table.remaining:,}" if table.executed else "-"
    return [table.table, table.verdict, f"{table.keys:,}", *(f"{count:,}" for count in acts), f"{left:,}", differ]


def _counts(result: RepairsResult) -> str:
    per_table = [table.written if table.executed else table.planned for table in result.tables]
    counts = {act: sum(acts.get(act, 0) for nodes in per_table for acts in nodes.values()) for act in ACTS}
    return ", ".join(
        f"{count:,} {DONE[act]}" if result.executed else f"{count:,} to {act}" for act, count in counts.items()
    )


def _remarks(result: RepairsResult) -> list[str]:
    """Return the remarks of the run and of its tables; a remark that several tables have is shown once."""
    tables: dict[str, list[str]] = {}
    for table in result.tables:
        for remark in table.remarks:
            tables.setdefault(remark, []).append(table.table)
    shown = [f"{names[0]}: {text}" if len(names) == 1 else text for text, names in tables.items()]
    others = [f"{counted(result.others, 'open error')} of other tables were not selected"] if result.others else []
    return [*result.remarks, *shown, *others]


def _next_of_run(result: RepairsResult) -> str:
    if result.verdict == "FAILED":
        return "fix the problems listed above and run it again: rows that were written already agree"
    if result.verdict == "DRY RUN":
        return "run it again with --execute" if result.exit_code else "nothing to write"
    if result.validation:
        return _next_of_validation(result)
    if result.verdict == "REMAINS":
        return "see the reports of the tables beside the summary: they list every key that was left, and why"
    return f"to take it back: trueup undo {result.undo}" if result.undo else "nothing to do"


def _next_of_validation(result: RepairsResult) -> str:
    if result.is_running:
        return f"the validation checks its errors again and resolves them: trueup validate status {result.validation}"
    return (
        "the validation is not running, so its errors stay listed; to check and resolve them:"
        f" trueup validate start --name {result.validation}"
    )
