"""What was asked of a switchover, and what came of it: frozen, plain, free of secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trueup.errors import ConfigError
from trueup.verbs.switchover.phases import PAUSE

if TYPE_CHECKING:
    from trueup.config.model import Node
    from trueup.verbs.switchover.gate import Condition

DIGEST = "digest"
KEYS = "keys"
VALIDATED = "validated"
PROOFS = (DIGEST, KEYS, VALIDATED)

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "": 1.0}


@dataclass(frozen=True)
class Asked:
    """A switchover as it was asked for: `first` is the database that the sync began with."""

    sync: str
    first: Node
    second: Node
    budget: float = 5.0
    proof: str = DIGEST
    # Rounds go on before the pause until at most so many keys wait.
    close_keys: int = 1000
    # Seconds for locks on tables, for a sync that has to stop, and for rounds that have to come close.
    patience: float = 60.0
    jobs: int = 4
    accept_schema: bool = False
    # How applications reach the databases, where it is not as we do.
    first_address: str = ""
    second_address: str = ""
    # Of --proof validated: which validation, and the node that keeps it, where it is not one of the two.
    validation: str = ""
    meta: Node | None = None

    def __post_init__(self) -> None:
        if not self.budget > 0:
            raise ConfigError("--budget: must be more than 0 seconds", cure="give it as 5s, 500ms or 1m")
        if self.proof not in PROOFS:
            raise ConfigError(f"--proof: there is no '{self.proof}'", cure=f"use one of {', '.join(PROOFS)}")
        if self.proof != VALIDATED and (self.validation or self.meta):
            raise ConfigError(
                "--validation and --meta are for --proof validated", cure="leave them out, or give --proof validated"
            )


@dataclass(frozen=True)
class Outcome:
    """A switchover or a way back that came to its end."""

    sync: str
    action: str
    source: str
    target: str
    proof: str
    budget: float
    pause_ms: float
    milliseconds: Mapping[str, float]
    conditions: tuple[Condition, ...]
    # Keys of the last round, inside of the pause.
    keys: int
    rounds: int
    address: str
    task_id: str = ""
    remarks: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "sync": self.sync,
            "action": self.action,
            "from": self.source,
            "to": self.target,
            "proof": self.proof,
            "budget_ms": round(self.budget * 1000),
            "pause_ms": round(self.pause_ms, 1),
            "phases_ms": {name: round(value, 1) for name, value in self.milliseconds.items()},
            "conditions": [{"name": each.name, "holds": each.holds, "detail": each.detail} for each in self.conditions],
            "final_keys": self.keys,
            "rounds": self.rounds,
            "address": self.address,
            "task_id": self.task_id,
            "remarks": list(self.remarks),
        }


def seconds(text: str) -> float:
    """`5s`, `500ms`, `1.5`, `2m` as seconds."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|)\s*", text)
    if found is None:
        raise ConfigError(f"'{text}' is not a time", cure="give it as 5s, 500ms or 1m")
    return float(found[1]) * _UNITS[found[2]]


def outcome_text(outcome: Outcome) -> str:
    """The outcome for people: the pause first, then where it went."""
    verb = "moved back" if outcome.action == "rollback" else "moved"
    lines = [
        f"{verb} from {outcome.source} to {outcome.target}: applications waited {outcome.pause_ms:,.0f} ms"
        f" of {outcome.budget * 1000:,.0f} ms",
        "  " + ", ".join(f"{name} {outcome.milliseconds.get(name, 0.0):,.1f} ms" for name in PAUSE),
        f"  {outcome.keys:,} keys in the last round, after {outcome.rounds:,} rounds; proof: {outcome.proof}",
    ]
    lines += [f"  {'ok' if each.holds else 'NOT'}  {each}" for each in outcome.conditions]
    lines += [f"  note: {remark}" for remark in outcome.remarks]
    if outcome.action == "rollback":
        lines.append(f"  {outcome.target} is in use again; the sync can go on: trueup sync run")
    else:
        lines.append("  the way back: trueup switchover rollback; to end it: trueup switchover finish")
    return "\n".join(lines)
