"""The result of a repair or an undo: as a JSON object, a report file and a text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from trueup.config.visible import as_lines
from trueup.config.wording import counted
from trueup.report.json_file import private_file

Outcome = Literal["REPAIRED", "UNDONE", "DRY RUN", "REMAINS", "INCOMPLETE", "FAILED"]
_MEANING = {
    "REPAIRED": "all of these keys were compared again and agree on all nodes; no other rows were compared",
    "UNDONE": "all rows are as they were before the repair",
    "REMAINS": "some of these keys still differ",
    "INCOMPLETE": "only the keys of the report were repaired; it may not list all differences",
    "FAILED": "some nodes could not be written, for the reasons below",
}
DONE = {"insert": "inserted", "update": "updated", "delete": "deleted"}
ACTS = tuple(DONE)
# Keys that the text shows per reason.
_SHOWN = 5


@dataclass(frozen=True)
class Example:
    """One row that is written: its values before and after, by column; None if there is no row."""

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
        """Return the entry of the report file."""
        return {"key": dict(self.key), "nodes": list(self.nodes), "reason": self.reason}


@dataclass(frozen=True)
class RepairResult:
    """What a repair or an undo did, or would do."""

    verdict: Outcome
    verb: Literal["repair", "undo"]
    table: str
    mode: str
    nodes: tuple[str, ...]
    of: str
    keys: int
    # Keys on which all nodes already agree; for an undo: rows that are as they were before the repair.
    agree: int
    planned: Mapping[str, Mapping[str, int]]
    written: Mapping[str, Mapping[str, int]]
    failed: Mapping[str, str]
    # Number of keys that were left as they are, per reason; `left` has the first of them, the report file all.
    left_counts: Mapping[str, int]
    left: tuple[LeftRow, ...]
    examples: tuple[Example, ...]
    seconds: float
    engine: str
    task_id: str
    executed: bool = False
    # Keys that still differ after the rerun, and its report.
    remaining: int = 0
    verified: str = ""
    # Why rows may differ that were not repaired, because the report does not list them.
    unlisted: str = ""
    undo: str = ""
    report: str = ""
    remarks: tuple[str, ...] = field(default_factory=tuple)

    @property
    def exit_code(self) -> int:
        """0: all keys agree; 1: some differ, or would be written; 2: failed, or not all rows are known."""
        if self.verdict == "FAILED" or self.unlisted:
            return 2
        if self.verdict == "DRY RUN":
            return 1 if any(any(counts.values()) for counts in self.planned.values()) or self.left_counts else 0
        return 1 if self.verdict == "REMAINS" else 0

    @property
    def written_text(self) -> str:
        """The nodes that were written, with the undo file; empty if there is none."""
        return "; ".join(
            f"{self.table} on {node} was written ({written_counts(counts)}; undo file: {self.undo})"
            for node, counts in self.written.items()
        )

    def as_json(self) -> dict[str, Any]:
        """Return the result as one JSON object."""
        return asdict(self)


def written_counts(counts: Mapping[str, int]) -> str:
    """Return the number of rows per act, as text."""
    return ", ".join(f"{counts.get(act, 0):,} {done}" for act, done in DONE.items())


def write_repair_report(path: Path, result: RepairResult, left: Iterable[LeftRow]) -> None:
    """Write the report file: the result, and every key that was left on a line of its own.

    Raises FileExistsError if another process took the name.
    """
    head = {name: value for name, value in result.as_json().items() if name != "left"}
    with private_file(path, new=True) as file:
        file.write(json.dumps(head, indent=1)[:-2] + ',\n "left": [')
        for number, row in enumerate(left):
            file.write(",\n  " if number else "\n  ")
            file.write(json.dumps(row.as_json()))
        file.write("]\n}\n")


def repair_text(result: RepairResult) -> str:
    """Return the result as text: verdict, counts, examples, keys that were left, the next step."""
    meaning = "nothing was changed" if result.verdict == "DRY RUN" else _MEANING[result.verdict]
    if (result.verdict, result.verb) == ("REMAINS", "undo"):
        meaning = "some rows are not as they were before the repair"
    if result.verdict == "FAILED" and not set(result.failed) & set(result.nodes):
        meaning = "the nodes were written, but a later step failed"
    nodes = ", ".join(result.nodes)
    lines = [f"{result.verdict}: {result.verb} of {result.table} on {nodes} ({result.mode}): {meaning}"]
    unit, agree = ("row", "already as before") if result.verb == "undo" else ("key", "already agree")
    lines.append(
        f"  {counted(result.keys, unit)} of {result.of}, {result.agree:,} {agree};"
        f" {result.seconds:.1f} s, engine {result.engine}"
    )
    lines += _numbers(result)
    lines += [f"  {node}: FAILED: {error}" for node, error in result.failed.items()]
    lines += _examples(result)
    lines += _left(result)
    if result.executed and result.verb == "repair":
        compared = f"{result.remaining:,} of these keys differ now ({result.verified})"
        lines.append(f"  verified: {compared if result.verified else 'the keys were not compared again'}")
    lines += [f"  not repaired: {result.unlisted}"] if result.unlisted else []
    lines += [f"  note: {remark}" for remark in result.remarks]
    lines += [f"  {name}: {path}" for name, path in (("report", result.report), ("undo file", result.undo)) if path]
    lines.append(f"  next: {_next(result)}")
    return as_lines(lines)


def _numbers(result: RepairResult) -> list[str]:
    counts = result.written if result.executed else result.planned
    rows = [["", *ACTS]]
    rows += [[node, *(f"{acts.get(act, 0):,}" for act in ACTS)] for node, acts in counts.items()]
    name_width, *widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(["", name.ljust(name_width), *(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))])
        for name, *cells in rows
    ]
    return lines if len(rows) > 1 else []


def _examples(result: RepairResult) -> list[str]:
    lines = []
    for example in result.examples:
        before, after = example.before, example.after
        if before is not None and after is not None:
            changed = [name for name in after if after[name] != before.get(name)]
            values = "; ".join(f"{name}: {_value(before.get(name))} -> {_value(after[name])}" for name in changed)
        else:
            row = after if after is not None else before or {}
            values = ", ".join(_value(value) for name, value in row.items() if name not in example.key)
        lines.append(f"    {example.node}  {example.act}  {_key(example.key)}  {values}".rstrip())
    return ["  for example:", *lines] if lines else []


def _key(key: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in key.items())


def _left(result: RepairResult) -> list[str]:
    lines = []
    for reason, count in result.left_counts.items():
        shown = [row for row in result.left if row.reason == reason][:_SHOWN]
        keys = "; ".join(_key(row.key) + (f" on {', '.join(row.nodes)}" if row.nodes else "") for row in shown)
        lines.append(f"  left {count:,}: {reason}: {keys}{' …' if count > len(shown) else ''}")
    return lines


def _value(value: str | None) -> str:
    if value is None:
        return "NULL"
    return repr(value if len(value) <= 60 else value[:57] + "…")


def _next(result: RepairResult) -> str:
    if result.verdict == "FAILED":
        return "fix the problems listed above and run it again: rows that were written already agree"
    if result.verdict == "DRY RUN":
        has_writes = any(any(counts.values()) for counts in result.planned.values())
        return "run it again with --execute" if has_writes else "nothing to write"
    if result.verdict == "INCOMPLETE":
        return "run a new diff of all rows, and repair its report"
    if result.verdict == "REMAINS":
        if result.left_counts:
            return "see above which keys were left, and why"
        return f"trueup report {result.verified or result.report}"
    return f"to take it back: trueup undo {result.undo}" if result.undo else "nothing to do"
