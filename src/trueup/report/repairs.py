"""The result of a repair of several tables: one summary, one exit code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trueup.report.repair import ACTS, RepairResult, repair_text


@dataclass(frozen=True)
class RepairsResult:
    """What a repair of the open errors of a validation would do, or has done, table by table."""

    validation: str
    executed: bool
    tables: tuple[RepairResult, ...]
    # Tables that could not be looked at or written at all, and why.
    failed: Mapping[str, str] = field(default_factory=dict)
    # Open errors of tables that were not asked for.
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
        """0: all of these rows agree; 1: some differ, or would be written; 2: trouble."""
        return max([2 if self.failed else 0, *(result.exit_code for result in self.tables)])

    def as_json(self) -> dict[str, Any]:
        """The result as one JSON object."""
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
    """Each table in some lines, and all of them in the last ones."""
    blocks = [repair_text(each) for each in result.tables]
    blocks += [f"FAILED: {table}: {error}" for table, error in result.failed.items()]
    keys = sum(each.keys for each in result.tables)
    if not result.tables and not result.failed:
        line = f"{result.verdict}: the validation {result.validation} has no open errors"
        line += " in these tables" if result.others else ""
    else:
        done = [each.written if each.executed else each.planned for each in result.tables]
        counts = {act: sum(mine.get(act, 0) for nodes in done for mine in nodes.values()) for act in ACTS}
        said = ", ".join(f"{count:,} to {act}" if not result.executed else f"{count:,} {_DONE[act]}"
                         for act, count in counts.items())  # fmt: skip
        line = (
            f"{result.verdict}: the validation {result.validation}: {keys:,} open errors in"
            f" {len(result.tables) + len(result.failed):,} tables: {said}"
        )
    lines = [line, *(f"  note: {remark}" for remark in result.remarks)]
    if result.others:
        lines.append(f"  note: {result.others:,} open errors of other tables were not looked at")
    if result.executed and result.tables:
        lines.append(f"  next: {_next(result)}")
    return "\n".join([*blocks, *lines])


_DONE = {"insert": "inserted", "update": "updated", "delete": "deleted"}


def _next(result: RepairsResult) -> str:
    if result.is_running:
        return (
            f"the validation looks again and resolves what agrees by itself: trueup validate status {result.validation}"
        )
    return (
        f"the validation does not run, so its errors stay listed: trueup validate start --name {result.validation}"
        " looks again and resolves what agrees"
    )
