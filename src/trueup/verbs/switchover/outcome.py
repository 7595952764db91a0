"""The report of a switchover: frozen, plain, free of secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trueup.config.visible import as_lines
from trueup.config.wording import counted
from trueup.verbs.switchover.gate import Condition
from trueup.verbs.switchover.phases import FENCE, FINAL_ROUND, GATE, PAUSE, RELEASE, SEQUENCES
from trueup.verbs.switchover.request import REHEARSE, ROLLBACK

_REHEARSED = (FENCE, FINAL_ROUND, SEQUENCES, GATE, RELEASE)


@dataclass(frozen=True)
class Outcome:
    """A completed switchover, rollback or rehearsal, or one that failed (`problem`)."""

    sync: str
    action: str
    source: str
    target: str
    proof: str
    budget: float
    address: str
    task_id: str
    pause_ms: float = 0.0
    milliseconds: Mapping[str, float] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    # Keys of the final round, inside of the pause.
    keys: int = 0
    rounds: int = 0
    remarks: tuple[str, ...] = ()
    # Why there was nothing to do; "" if the applications were moved.
    already: str = ""
    # Whether this is the way back, also of a rehearsal.
    rollback: bool = False
    started_at: str = ""
    tables: int = 0
    # An estimate.
    rows: int = 0
    # The sessions that waited at the end of a rehearsal.
    waited: tuple[str, ...] = ()
    not_copied: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    # Whether the decision was made, of an outcome with a problem; None: this is not known.
    is_decided: bool | None = False
    problem: str = ""
    cure: str = ""
    # The path of the HTML report.
    page: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {
            "sync": self.sync,
            "action": self.action,
            "rollback": self.rollback,
            "from": self.source,
            "to": self.target,
            "proof": self.proof,
            "budget_ms": round(self.budget * 1000),
            "pause_ms": round(self.pause_ms, 1),
            "phases_ms": {name: round(value, 1) for name, value in self.milliseconds.items()},
            "conditions": [
                {"name": condition.name, "holds": condition.holds, "detail": condition.detail}
                for condition in self.conditions
            ],
            "final_keys": self.keys,
            "rounds": self.rounds,
            "address": self.address,
            "task_id": self.task_id,
            "remarks": list(self.remarks),
            "already": self.already,
            "started_at": self.started_at,
            "tables": self.tables,
            "rows": self.rows,
            "waited": list(self.waited),
            "not_copied": list(self.not_copied),
            "unchecked": list(self.unchecked),
            "is_decided": self.is_decided,
            "problem": self.problem,
            "cure": self.cure,
            "page": self.page,
        }


def outcome_text(outcome: Outcome) -> str:
    """Return the report as text."""
    if outcome.already:
        return f"nothing to do: {outcome.already}"
    is_rehearsal = outcome.action == REHEARSE
    verb = "rehearsed" if is_rehearsal else "moved back" if outcome.action == ROLLBACK else "moved"
    lines = [
        f"{verb} from {outcome.source} to {outcome.target}: applications waited {outcome.pause_ms:,.0f} ms"
        f" (budget {outcome.budget * 1000:,.0f} ms)",
        "  "
        + ", ".join(
            f"{name} {outcome.milliseconds.get(name, 0.0):,.1f} ms" for name in (_REHEARSED if is_rehearsal else PAUSE)
        ),
        f"  {counted(outcome.keys, 'key')} in the final round, after {counted(outcome.rounds, 'round')};"
        f" proof: {outcome.proof}",
    ]
    lines += [f"  {'ok' if condition.holds else 'NOT'}  {condition}" for condition in outcome.conditions]
    lines += [f"  waited at the end: {text}" for text in outcome.waited]
    lines += [f"  note: {remark}" for remark in outcome.remarks]
    lines += [f"  report: {outcome.page}"] if outcome.page else []
    if is_rehearsal:
        action = "rollback" if outcome.rollback else "execute"
        lines.append(f"  {outcome.source} is still in use; to move: trueup switchover {action}")
    elif outcome.action == ROLLBACK:
        lines.append(f"  {outcome.target} is in use again; to continue the sync: trueup sync run")
    else:
        lines.append("  to move back: trueup switchover rollback; to end the switchover: trueup switchover finish")
    return as_lines(lines)
