"""What a version log is made of: the entity, its side logs, how values merge, and how versions are numbered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

RuleName = Literal["replace", "sum", "min", "max", "append", "union", "last", "expr"]
RULES: tuple[RuleName, ...] = ("replace", "sum", "min", "max", "append", "union", "last", "expr")

# Columns of the log and of the state that are ours.
SIGN, SLOW, VERSION = "Sign", "SlowVersion", "Version"
DELETED = "IsDeleted"
# In the state table alone: what the fast supplier said at the state's fast version, and the day it is forgotten.
FAST, EXPIRES = "Fast", "Expires"


@dataclass(frozen=True)
class Rule:
    """How `new + old` works for one column: `by` names the time column of `last`, `sql` is the text of `expr`."""

    name: RuleName = "replace"
    by: str = ""
    sql: str = ""


@dataclass(frozen=True)
class StepOptions:
    """What a step must know of its tables."""

    key: tuple[str, ...]
    fast_version: str
    rules: Mapping[str, Rule] = field(default_factory=dict)
    # The column that marks a row as the news that the entity was deleted; empty: there is none.
    deleted: str = ""
    # Among updates of one key with one fast version, the later one by this column is the newer.
    order_by: str = ""
    multiplier: int = 1000
    # Late updates are joined to the newest version instead of being kept aside.
    rejoin_late: bool = False

    def rule(self, column: str) -> Rule:
        """The rule of a column; what nobody spoke of is replaced if present."""
        return self.rules.get(column, Rule())


@dataclass(frozen=True)
class Entity:
    """What is versioned: visits, say. The fast supplier writes its rows; the slow one patches them."""

    name: str
    key: tuple[str, ...]
    fast_version: str
    # Columns of the fast supplier that the slow one does not look at, and that are glued to the log at the end.
    dropped: tuple[str, ...] = ()
    # Columns of the fast supplier that are part of the slow state too, and how they merge.
    kept: Mapping[str, Rule] = field(default_factory=dict)
    deleted: str = ""


@dataclass(frozen=True)
class SideLog:
    """A log that comes late: conversions, money. `key` says which of its columns hold the entity's key."""

    name: str
    key: Mapping[str, str]
    columns: Mapping[str, Rule]
    # Columns that name a row of the log: rows that come twice are taken once. Empty: every row counts.
    id: tuple[str, ...] = ()
    order_by: str = ""


@dataclass(frozen=True)
class StatePlace:
    """Where the state table is, into how many buckets it is cut, and how long a state is kept."""

    path: str
    buckets: int = 16
    # A state is forgotten when this date or time column of the entity is so many days past; 0: never.
    ttl_days: int = 0
    ttl_column: str = ""


@dataclass(frozen=True)
class Target:
    """The ClickHouse table: on a server (`url`), or embedded in a folder (`path`)."""

    database: str = "default"
    table: str = ""
    url: str = field(default="", repr=False)
    path: str = ""


@dataclass(frozen=True)
class Difflog:
    """A whole version log as configured; the side logs are applied in this order."""

    entity: Entity
    logs: tuple[SideLog, ...]
    state: StatePlace
    target: Target
    work: str
    multiplier: int = 1000

    @property
    def rules(self) -> dict[str, Rule]:
        """The rule of every column of the state."""
        rules = dict(self.entity.kept)
        for log in self.logs:
            rules.update(log.columns)
        return rules

    def step_options(self, *, order_by: str = "", rejoin_late: bool = False) -> StepOptions:
        """The options of a step over this log's tables."""
        return StepOptions(
            key=self.entity.key,
            fast_version=self.entity.fast_version,
            rules=self.rules,
            deleted=self.entity.deleted,
            order_by=order_by,
            multiplier=self.multiplier,
            rejoin_late=rejoin_late,
        )
