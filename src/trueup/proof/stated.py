"""What the facts of a certificate state: the verdict is computed from them, when it is issued and when it is verified.

A table is PROVEN only if all of its rows and columns were compared, exactly, and in one snapshot of each node (or by
the certificate of a validation, and all captured changes). Anything less is PROVEN IN PART, and named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from trueup.report.extent import Extent

Verdict = Literal["PROVEN", "PROVEN IN PART", "VOID"]
EXIT_CODES: dict[Verdict, int] = {"PROVEN": 0, "PROVEN IN PART": 2, "VOID": 2}


def extent_of(table: Mapping[str, Any]) -> Extent:
    """Return which rows and columns of a table were compared."""
    compared = table["compared"]
    return Extent(str(compared["filter"]), tuple(compared["selected"]), tuple(compared["left_out"]))


def limits_of(table: Mapping[str, Any]) -> list[str]:
    """Return what was not compared of a table, or not exactly, one line each; none: it is proven as a whole."""
    compared = table["compared"]
    limits = extent_of(table).lines()
    if compared["float_tolerance"] not in ("0", "0.0"):
        limits.append(f"floats that differ by a relative {compared['float_tolerance']} are equal")
    if not compared["is_consistent"]:
        limits.append("rows were not all read in one snapshot of each node: a row that changed meanwhile may be missed")
    return limits


def verdict_of(table: Mapping[str, Any]) -> Verdict:
    """Return the verdict about a table; what is only on one node is equal to nothing."""
    if table["reason"] or len(table["nodes"]) < 2:
        return "VOID"
    return "PROVEN IN PART" if limits_of(table) else "PROVEN"


def verdict_of_all(tables: Sequence[Mapping[str, Any]]) -> Verdict:
    """Return the verdict about all tables: the worst one; without a table, nothing is proven."""
    verdicts = [verdict_of(table) for table in tables]
    return max(verdicts, key=list(EXIT_CODES).index, default="VOID")


def meaning_of(tables: Sequence[Mapping[str, Any]]) -> str:
    """Return the sentence of a certificate."""
    verdict = verdict_of_all(tables)
    if verdict == "VOID":
        return "not everything is proven"
    empty = sum(not table["rows"] for table in tables)
    rows = f"; {empty:,} of {len(tables):,} have no rows" if empty else ""
    if verdict == "PROVEN":
        return f"all rows and columns of these tables were compared and are equal at the positions below{rows}"
    return f"only a part of these tables was compared, and it is equal at the positions below{rows}"


def notes_of(table: Mapping[str, Any]) -> list[str]:
    """Return what was not read, because a validation proves it."""
    since = table.get("since_proof") or {}
    if not since or since["reason"]:
        return []
    return [
        f"{since['proven_blocks']:,} blocks with {since['proven_rows']:,} rows were not read: the validation"
        f" {since['validation']} proves them, by its certificate of {since['proven_at']} and the captured changes"
    ]
