"""Acceptances as text."""

from __future__ import annotations

from collections.abc import Sequence

from trueup.config.visible import as_lines
from trueup.config.wording import counted
from trueup.report.text import aligned, moment, until_text
from trueup.store.accepted import Acceptance
from trueup.verbs.accept.run import AcceptResult


def accept_text(result: AcceptResult) -> str:
    """Return what was accepted, and how to end it."""
    acceptance = result.acceptance
    lines = [
        f"accepted: {counted(acceptance.differences, 'difference')} of {acceptance.table_name} on {acceptance.nodes}",
        f"  {acceptance.reason} (by {acceptance.accepted_by}, {until_text(acceptance.until)})",
        *(f"  note: {remark}" for remark in result.remarks),
        f"  end it with: trueup accept --revoke {acceptance.short_id}",
    ]
    return as_lines(lines)


def acceptances_text(acceptances: Sequence[Acceptance], now: str) -> str:
    """Return one line per acceptance."""
    rows = [["ID", "STATE", "TABLE", "NODES", "DIFFERENCES", "ACCEPTED (UTC)", "BY", "EXPIRES", "REASON"]]
    rows += [
        [
            acceptance.short_id,
            acceptance.state(now),
            acceptance.table_name,
            acceptance.nodes,
            f"{acceptance.differences:,}",
            moment(acceptance.accepted_at),
            acceptance.accepted_by,
            moment(acceptance.until) if acceptance.until else "never",
            acceptance.reason,
        ]
        for acceptance in acceptances
    ]
    return as_lines(aligned(rows, right={4}))
