"""What the user asked of a repair, before anything is known of the tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from trueup.errors import ConfigError
from trueup.verbs.repair.modes import INSERTS, UPSERTS, Bidirectional, FixNulls, Majority, Mode, SourceOfTruth

Stale = Literal["skip", "apply"]


@dataclass(frozen=True)
class RepairRequest:
    """How to mend, and where the undo file goes."""

    source_of_truth: str = ""
    insert_only: bool = False
    upsert_only: bool = False
    bidirectional: bool = False
    fix_nulls: bool = False
    majority: bool = False
    plan: str = ""
    stale: Stale = "skip"
    fire_triggers: bool = False
    execute: bool = False
    undo: str = ""

    def validated(self) -> RepairRequest:
        """Exactly one way to decide, and options that go with it."""
        ways = [name for name in _WAYS if getattr(self, name)]
        if len(ways) != 1:
            said = " and ".join(_option(name) for name in ways)
            message = f"{said} contradict each other" if ways else "it is not said how to decide"
            raise ConfigError(message, cure=f"give one of {', '.join(_option(name) for name in _WAYS)}")
        if (self.insert_only or self.upsert_only) and not self.source_of_truth:
            raise ConfigError(
                "--insert-only and --upsert-only go with --source-of-truth", cure="name the node to take rows from"
            )
        if self.insert_only and self.upsert_only:
            raise ConfigError("--insert-only and --upsert-only contradict each other", cure="give one of them")
        if self.stale not in ("skip", "apply"):
            raise ConfigError(f"--stale is skip or apply, not {self.stale}", cure="give one of them")
        return self

    @property
    def way(self) -> str:
        """How it decides, in words."""
        name = next(name for name in _WAYS if getattr(self, name))
        more = " insert-only" if self.insert_only else " upsert-only" if self.upsert_only else ""
        value = getattr(self, name)
        return f"{name.replace('_', '-')}{f' {value}' if isinstance(value, str) else ''}{more}"

    def mode(self, nodes: tuple[str, ...]) -> Mode | None:
        """The mode for these nodes; None: a plan decides."""
        if self.majority and len(nodes) < 3:
            raise ConfigError("--majority needs three nodes or more", cure="name the right one with --source-of-truth")
        if self.source_of_truth:
            if self.source_of_truth not in nodes:
                message = f"--source-of-truth: {self.source_of_truth} is no node of the report"
                raise ConfigError(message, cure=f"there are {', '.join(nodes)}")
            source = nodes.index(self.source_of_truth)
            if self.insert_only:
                return SourceOfTruth(source, INSERTS, "--insert-only")
            if self.upsert_only:
                return SourceOfTruth(source, UPSERTS, "--upsert-only")
            return SourceOfTruth(source)
        if self.bidirectional:
            return Bidirectional()
        if self.fix_nulls:
            return FixNulls()
        return Majority() if self.majority else None

    def context(self) -> dict[str, Any]:
        """The request as the task store keeps it."""
        return {"way": self.way, "stale": self.stale, "fire_triggers": self.fire_triggers, "execute": self.execute}


_WAYS = ("source_of_truth", "bidirectional", "fix_nulls", "majority", "plan")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
