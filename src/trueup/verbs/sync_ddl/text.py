"""The statements for the target as text and as plain values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from trueup.config.visible import as_lines
from trueup.verbs.sync_ddl.apply_ddl import Applied
from trueup.verbs.sync_ddl.change import Change, Differences


def ddl_text(found: Differences) -> str:
    """Return the statements, with comments about what they cause."""
    lines = [line for change in found.changes for line in _lines(change)]
    if found.is_first_part:
        lines.append("-- other differences show after this: run trueup sync ddl again")
    lines += [f"-- by hand: {note}" for note in found.notes]
    return as_lines(lines) or "the tables of both databases are the same"


def applied_text(done: Iterable[Applied], notes: Iterable[str] = ()) -> str:
    """Return what was applied and what was not, and why; and what is left to do by hand."""
    lines: list[str] = []
    for each in done:
        if each.problem:
            lines.append(f"NOT APPLIED: {each.change.table}: {each.problem}")
        else:
            lines += [f"applied: {statement.text}" for statement in each.change.statements]
            if each.change.removes:
                lines.append(f"removed from the sync: {each.change.table}, which was dropped on the source")
            if each.change.creates:
                lines.append(f"added to the sync: {each.change.table}")
    lines += [f"by hand: {note}" for note in notes]
    return as_lines(lines) or "there is nothing to apply"


def as_json_values(found: Differences) -> dict[str, Any]:
    """Return the statements as plain values."""
    return {"changes": [asdict(change) for change in found.changes], "notes": list(found.notes)}


def _lines(change: Change) -> list[str]:
    lines = [f"-- {change.table}"]
    if change.empties:
        lines.append("-- all of its rows are deleted first, and copied again by the next rounds")
    if change.creates:
        lines.append("-- then it is added to the sync, and the next rounds copy its rows")
    if change.removes:
        lines.append("-- the table that the source has no more is removed from the sync")
    for each in change.statements:
        remarks = "; ".join(filter(None, ("only with --apply" if each.drops else "", each.cost)))
        lines.append(f"{each.text};" + (f"  -- {remarks}" if remarks else ""))
    return lines
