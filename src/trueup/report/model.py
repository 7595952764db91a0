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
class ReportedDifference:
    """One difference of one pair: the key, how it differs, in which columns, both rows, and which nodes agree."""

    key: Mapping[str, Any]
    # The row hash that each node had, by the seed of the run: whether a row is still the same can be asked later.
    hashes: Mapping[str, str | None]
    kind: str
    columns: list[str]
    rows: Mapping[str, Mapping[str, Any] | None]
    agree: list[list[str]]
    copies: Mapping[str, int] | None = None
    # Of a rerun: `remains`, or `new` since the earlier report.
    since: str | None = None

    def as_json(self) -> dict[str, Any]:
        """As it stands in the report file."""
        # Not asdict, which copies every value: there may be a million of these.
        shown = dict(vars(self))
        for name in ("copies", "since"):
            if shown[name] is None:
                del shown[name]
        return shown
