"""What a verdict is about: all rows and columns of a table, as they are, or a part.

Every summary is made from these facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

# What is said about a part of a table, by verdict and mode.
_PART = {
    ("MATCH", "diff"): "only a part was compared, and it is equal",
    ("MATCH", "check"): "only a part was compared, and its digests agree",
    ("ACCEPTED", "diff"): "only a part was compared, and it is equal except for accepted differences",
}


@dataclass(frozen=True)
class Extent:
    """Which rows and columns were compared; empty: all of them, as they are."""

    filter: str = ""
    # Nodes of which only some rows were read, or a query instead of the table; in words.
    selected: tuple[str, ...] = ()
    # Columns that a node has, and that were not compared.
    left_out: tuple[str, ...] = ()
    # What takes values for equal that are not, or replaces them: rules and expressions of a mapping, in words.
    weakened: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether all rows and all columns were compared, as they are."""
        return not (self.filter or self.selected or self.left_out or self.weakened)

    @property
    def has_all_rows(self) -> bool:
        """Whether all rows were compared."""
        return not (self.filter or self.selected)

    def lines(self) -> list[str]:
        """Return what limits it, one line each."""
        lines = [f"only rows with: {self.filter}"] if self.filter else []
        lines += self.selected
        lines += [f"columns that were not compared: {', '.join(self.left_out)}"] if self.left_out else []
        return lines + list(self.weakened)

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any] | None) -> Extent:
        """Return what `as_json` made; nothing: all rows and columns."""
        values = values or {}
        names = ("selected", "left_out", "weakened")
        return cls(str(values.get("filter") or ""), *(tuple(map(str, values.get(name) or ())) for name in names))


def shown_verdict(verdict: str, rows: int, extent: Extent) -> str:
    """Return a verdict as text shows it: a MATCH of no row, or of a part, says so."""
    if verdict not in ("MATCH", "ACCEPTED"):
        return verdict
    return f"{verdict}{' of 0 rows' * (not rows)}{' (of a part)' * (not extent.is_whole)}"


def shown_meaning(meaning: str, verdict: str, mode: str, rows: int, extent: Extent) -> str:
    """Return what a verdict means; `meaning` is that of a comparison of all rows and columns."""
    if verdict == "MATCH" and not rows:
        return "the table is empty on all nodes" if extent.has_all_rows else "no row was selected on any node"
    return meaning if extent.is_whole else _PART.get((verdict, mode), meaning)
