"""The result of a diff or a check, as every report shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

# RESOLVED is for a rerun: all keys of the earlier report agree now, and nothing else was looked at.
Verdict = Literal["MATCH", "RESOLVED", "DIFFER", "INCOMPLETE"]
EXIT_CODES: dict[Verdict, int] = {"MATCH": 0, "RESOLVED": 0, "DIFFER": 1, "INCOMPLETE": 2}
Mode = Literal["diff", "check", "rerun"]


@dataclass(frozen=True)
class PairCounts:
    """Confirmed differences of one pair, and those in flight. Missing means: on the first, not on the second."""

    missing: int = 0
    extra: int = 0
    changed: int = 0
    in_flight: int = 0
    limit_reached: bool = False

    @property
    def total(self) -> int:
        """All confirmed differences."""
        return self.missing + self.extra + self.changed


@dataclass(frozen=True)
class DiffResult:
    """What a diff or a check found."""

    verdict: Verdict
    table: str
    mode: Mode
    nodes: tuple[str, ...]
    pairs: Mapping[str, PairCounts]
    rows_checked: int
    rows: Mapping[str, int]
    blocks: int
    mismatched_blocks: int
    seconds: float
    engine: str
    report: str
    task_id: str
    # For three nodes or more: how many keys each node stands alone with.
    alone: Mapping[str, int] = field(default_factory=dict)
    # Why the verdict is INCOMPLETE, one reason a line; empty otherwise.
    incomplete: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    # The HTML page, where one was asked for.
    page: str = ""
    # Of a rerun: the report whose keys were looked at, and for each pair how many are resolved, remain and are new.
    rerun_of: str = ""
    since: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """As diff(1): 0 equal, 1 different, 2 trouble or anything not looked at."""
        return EXIT_CODES[self.verdict]

    def as_json(self) -> dict[str, Any]:
        """The summary as one JSON object."""
        return asdict(self)


@dataclass(frozen=True)
class TableOutcome:
    """How one table of many came out."""

    table: str
    verdict: Verdict
    # Nodes that do not have it, which makes a difference.
    missing_on: tuple[str, ...] = ()
    rows_checked: int = 0
    # Confirmed differences of all pairs of nodes; of a check, blocks that differ.
    differences: int = 0
    seconds: float = 0.0
    # Why it was not compared, or not wholly.
    reason: str = ""
    task_id: str = ""
    report: str = ""
    page: str = ""


@dataclass(frozen=True)
class ManyResult:
    """What a diff or a check of many tables found; one verdict for all of them, and trouble outranks difference."""

    mode: Literal["diff", "check"]
    nodes: tuple[str, ...]
    tables: tuple[TableOutcome, ...]
    # Tables that fit and were left out by name.
    skipped: tuple[str, ...]
    seconds: float
    task_id: str
    remarks: tuple[str, ...] = ()
    # The summary of all tables as a file, and as a page that links those of the tables.
    report: str = ""
    page: str = ""

    @property
    def verdict(self) -> Verdict:
        """MATCH only if there were tables, and each of them matches."""
        found = {outcome.verdict for outcome in self.tables}
        return "INCOMPLETE" if not found or "INCOMPLETE" in found else "DIFFER" if "DIFFER" in found else "MATCH"

    @property
    def exit_code(self) -> int:
        """As diff(1): 0 equal, 1 different, 2 trouble or anything not looked at."""
        return EXIT_CODES[self.verdict]

    @property
    def incomplete(self) -> tuple[str, ...]:
        """What was not compared, one reason a line."""
        return tuple(f"{each.table}: {each.reason}" for each in self.tables if each.verdict == "INCOMPLETE")

    def as_json(self) -> dict[str, Any]:
        """The summary as one JSON object."""
        return {"verdict": self.verdict, **asdict(self)}
