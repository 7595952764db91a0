"""The result of a repair or an undo, as every report shows it: before and after, in numbers, examples and lists."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from trueup.report.json_file import private_file

Outcome = Literal["REPAIRED", "UNDONE", "DRY RUN", "REMAINS", "FAILED"]
_MEANING = {
    "REPAIRED": "all keys were looked at again and agree on all nodes",
    "UNDONE": "all rows are as they were before the repair",
    "REMAINS": "not all of these keys agree",
    "FAILED": "not every node could be written; what failed was rolled back whole",
}
ACTS = ("insert", "update", "delete")
_SHOWN = 5


@dataclass(frozen=True)
class Example:
    """One row that is written: before and after, by column; None where there is no row."""

    node: str
    act: str
    key: Mapping[str, str]
    before: Mapping[str, str | None] | None
    after: Mapping[str, str | None] | None


@dataclass(frozen=True)
class LeftRow:
    """A key that was left as it is on some nodes, and why."""

    key: Mapping[str, str]
    nodes: Sequence[str]
    reason: str

    def as_json(self) -> dict[str, Any]:
        """As it stands in the report file."""
        return {"key": dict(self.key), "nodes": list(self.nodes), "reason": self.reason}


@dataclass(frozen=True)
class RepairResult:
    """What a repair or an undo would do, or has done."""

    verdict: Outcome
    verb: Literal["repair", "undo"]
    table: str
    mode: str
    nodes: tuple[str, ...]
    of: str
    keys: int
    # Keys on which all nodes agree by now (an undo: rows that are as they were).
    agree: int
    planned: Mapping[str, Mapping[str, int]]
    written: Mapping[str, Mapping[str, int]]
    failed: Mapping[str, str]
    # How many keys were left as they are, by reason; `left` has the first of them, the report all.
    left_counts: Mapping[str, int]
    left: tuple[LeftRow, ...]
    examples: tuple[Example, ...]
    seconds: float
    engine: str
    task_id: str
    executed: bool = False
    # Keys that still differ by the rerun, and its report.
    remaining: int = 0
    verified: str = ""
    undo: str = ""
    report: str = ""
    remarks: tuple[str, ...] = field(default_factory=tuple)

    @property
    def exit_code(self) -> int:
        """0: all agree; 1: something differs, or would be written; 2: trouble."""
        if self.verdict == "FAILED":
            return 2
        if self.verdict == "DRY RUN":
            return 1 if any(any(counts.values()) for counts in self.planned.values()) or self.left_counts else 0
        return 1 if self.verdict == "REMAINS" else 0

    def as_json(self) -> dict[str, Any]:
        """The result as one JSON object."""
        return asdict(self)


def write_repair_report(path: Path, result: RepairResult, left: Iterable[LeftRow]) -> None:
    """The result as a file of its own, with every key that was left, a line each."""
    head = {name: value for name, value in result.as_json().items() if name != "left"}
    with private_file(path) as file:
        file.write(json.dumps(head, indent=1)[:-2] + ',\n "left": [')
        for at, each in enumerate(left):
            file.write(",\n  " if at else "\n  ")
            file.write(json.dumps(each.as_json()))
        file.write("]\n}\n")


def repair_text(result: RepairResult) -> str:
    """The result in some lines: verdict, numbers, examples, what was left, what to do next."""
    done = "nothing was changed" if result.verdict == "DRY RUN" else _MEANING[result.verdict]
    if (result.verdict, result.verb) == ("REMAINS", "undo"):
        done = "not all rows are as they were before the repair"
    lines = [f"{result.verdict}: {result.verb} of {result.table} on {', '.join(result.nodes)} ({result.mode}): {done}"]
    what, word = ("row", "as they were already") if result.verb == "undo" else ("key", "agree already")
    lines.append(
        f"  {result.keys:,} {what}{'s' * (result.keys != 1)} of {result.of}, {result.agree:,} {word};"
        f" {result.seconds:.1f} s, engine {result.engine}"
    )
    lines += _numbers(result)
    lines += [f"  {node}: FAILED, and left as it was: {error}" for node, error in result.failed.items()]
    lines += _examples(result)
    lines += _left(result)
    if result.executed and result.verb == "repair":
        lines.append(
            f"  verified: {result.remaining:,} of these keys differ now ({result.verified or 'not looked at'})"
        )
    lines += [f"  note: {remark}" for remark in result.remarks]
    lines += [f"  {name}: {path}" for name, path in (("report", result.report), ("undo file", result.undo)) if path]
    lines.append(f"  next: {_next(result)}")
    return "\n".join(lines)


def _numbers(result: RepairResult) -> list[str]:
    counts = result.written if result.executed else result.planned
    rows = [["", *ACTS]]
    rows += [[node, *(f"{mine.get(act, 0):,}" for act in ACTS)] for node, mine in counts.items()]
    widths = [max(len(row[at]) for row in rows) for at in range(4)]
    shown = [
        "  "
        + "  ".join(
            cell.rjust(w) if at else cell.ljust(w) for at, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return shown if len(rows) > 1 else []


def _examples(result: RepairResult) -> list[str]:
    lines = []
    for each in result.examples:
        key = ", ".join(f"{name}={value}" for name, value in each.key.items())
        if each.before is not None and each.after is not None:
            changed = [name for name in each.after if each.after[name] != each.before.get(name)]
            what = "; ".join(
                f"{name}: {_value(each.before.get(name))} -> {_value(each.after[name])}" for name in changed
            )
        else:
            row = each.after if each.after is not None else each.before or {}
            what = ", ".join(_value(value) for name, value in row.items() if name not in each.key)
        lines.append(f"    {each.node}  {each.act}  {key}  {what}".rstrip())
    return ["  for example:", *lines] if lines else []


def _left(result: RepairResult) -> list[str]:
    lines = []
    for reason, count in result.left_counts.items():
        some = [each for each in result.left if each.reason == reason][:_SHOWN]
        keys = "; ".join(
            ", ".join(f"{name}={value}" for name, value in each.key.items())
            + (f" on {', '.join(each.nodes)}" if each.nodes else "")
            for each in some
        )
        lines.append(f"  left {count:,}: {reason}: {keys}{' …' if count > len(some) else ''}")
    return lines


def _value(value: str | None) -> str:
    if value is None:
        return "NULL"
    return repr(value if len(value) <= 60 else value[:57] + "…")


def _next(result: RepairResult) -> str:
    if result.verdict == "FAILED":
        return "mend what is named and run it again: nodes that were written agree already"
    if result.verdict == "DRY RUN":
        return (
            "run it again with --execute"
            if any(map(any, map(dict.values, map(dict, result.planned.values()))))
            else "nothing to write"
        )
    if result.verdict == "REMAINS":
        return (
            "see what was left, and why" if result.left_counts else f"trueup report {result.verified or result.report}"
        )
    return f"trueup undo {result.undo} takes it back" if result.undo else "nothing to do"
