"""The result of a repair of the open errors of a validation: one result per table, one summary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trueup.config.wording import counted
from trueup.report.repair import ACTS, DONE, RepairResult, repair_text


@dataclass(frozen=True)
class RepairsResult:
    """What a repair of the open errors of a validation did, or would do, per table."""

    validation: str
    executed: bool
    tables: tuple[RepairResult, ...]
    # Tables that could not be read or written at all, and why.
    failed: Mapping[str, str] = field(default_factory=dict)
    # Number of open errors of tables that were not selected.
    others: int = 0
    is_running: bool = False
    remarks: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """The worst of all tables."""
        verdicts = {result.verdict for result in self.tables}
        if self.failed or "FAILED" in verdicts:
            return "FAILED"
        if not self.tables:
            return "NOTHING TO DO"
        if not self.executed:
            return "DRY RUN"
        return "REMAINS" if "REMAINS" in verdicts else "REPAIRED"

    @property
    def exit_code(self) -> int:
        """0: all of these rows agree; 1: some differ, or would be written; 2: failed."""
        return max([2 if self.failed else 0, *(result.exit_code for result in self.tables)])

    @property
    def written_text(self) -> str:
        """The nodes that were written, per table, with the undo files."""
        return "; ".join(table.written_text for table in self.tables if table.written)

    def as_json(self) -> dict[str, Any]:
        """Return the result as one JSON object."""
        return {
            "verdict": self.verdict,
            "validation": self.validation,
            "executed": self.executed,
            "failed": dict(self.failed),
            "others": self.others,
            "is_running": self.is_running,
            "remarks": list(self.remarks),
            "tables": [result.as_json() for result in self.tables],
        }


def repairs_text(result: RepairsResult) -> str:
    """Return the result as text: each table, then the summary."""
    parts = [repair_text(table) for table in result.tables]
    parts += [f"FAILED: {table}: {error}" for table, error in result.failed.items()]
    keys = sum(table.keys for table in result.tables)
    if not result.tables and not result.failed:
        line = f"{result.verdict}: the validation {result.validation} has no open errors"
        line += " in these tables" if result.others else ""
    else:
        per_table = [table.written if table.executed else table.planned for table in result.tables]
        counts = {act: sum(acts.get(act, 0) for nodes in per_table for acts in nodes.values()) for act in ACTS}
        shown = [
            f"{count:,} {DONE[act]}" if result.executed else f"{count:,} to {act}" for act, count in counts.items()
        ]
        line = (
            f"{result.verdict}: the validation {result.validation}: {counted(keys, 'open error')} in"
            f" {counted(len(result.tables) + len(result.failed), 'table')}: {', '.join(shown)}"
        )
    lines = [line, *(f"  note: {remark}" for remark in result.remarks)]
    if result.others:
        lines.append(f"  note: {result.others:,} open errors of other tables were not selected")
    if result.executed and result.tables:
        lines.append(f"  next: {_next(result)}")
    return "\n".join([*parts, *lines])


def _next(result: RepairsResult) -> str:
    if result.is_running:
        return f"the validation checks its errors again and resolves them: trueup validate status {result.validation}"
    return (
        "the validation is not running, so its errors stay listed; to check and resolve them:"
        f" trueup validate start --name {result.validation}"
    )
