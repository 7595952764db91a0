"""The configuration of a version log: the entity, its side logs, merge rules, state table and target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from trueup.verbs.difflog.steps.columns import LogColumns

RuleName = Literal["replace", "sum", "min", "max", "append", "union", "last", "expr"]
RULES: tuple[RuleName, ...] = ("replace", "sum", "min", "max", "append", "union", "last", "expr")

# Columns that trueup adds to the log and the state.
SIGN, SLOW, VERSION = "Sign", "SlowVersion", "Version"
DELETED = "IsDeleted"
# Columns of the state table only: the newest known values of the fast supplier, and the day the state expires.
FAST, EXPIRES = "Fast", "Expires"
# Column of the state only: by column, the fast version of a value that is older than the state. Under `IsDeleted` it
# has the version of the last deletion, under `Fast` that of the values of the fast supplier.
SINCE = "Since"

# Why an update was not applied. Rows with the first three reasons are joined by `--late rejoin`, as soon as it can.
OLDER, NOT_BACK, UNKNOWN = "older", "not back", "unknown"
LATE_DELETION, WAS_DELETED = "late deletion", "deleted"
REJOINED = (OLDER, NOT_BACK, UNKNOWN)

# Folders that a join writes beside the sources of a chunk set.
FOLDERS_OF_JOIN = ("pending", "refused", "applied")


@dataclass(frozen=True)
class Rule:
    """How a new value joins an old one: `by` is the time column of `last`, `sql` the expression of `expr`."""

    name: RuleName = "replace"
    by: str = ""
    sql: str = ""


@dataclass(frozen=True)
class StepOptions:
    """The options of a step."""

    key: tuple[str, ...]
    fast_version: str
    rules: Mapping[str, Rule] = field(default_factory=dict)
    # The column that is true in a row which deletes the entity; empty if there is none.
    deleted: str = ""
    # The order of updates with the same key and fast version.
    order_by: str = ""
    multiplier: int = 1000
    # Apply late updates to the newest version, instead of returning them as late.
    rejoin_late: bool = False
    # Whether the updates are rows of the entity: only these delete it and bring it back.
    of_entity: bool = True
    # The column with the age of a state, if states expire: only a row of the entity with a value in it creates a state.
    age: str = ""

    @property
    def deletes(self) -> bool:
        """Whether an update can delete the entity."""
        return self.of_entity and bool(self.deleted)

    @property
    def log_columns(self) -> LogColumns:
        """What the rows of the log are made of."""
        return LogColumns(self.key, self.fast_version, self.multiplier)

    def rule(self, column: str) -> Rule:
        """Return the rule of a column; the default is `replace`."""
        return self.rules.get(column, Rule())


@dataclass(frozen=True)
class Entity:
    """The versioned entity, for example visits. The fast supplier writes its rows; the slow one corrects them."""

    name: str
    key: tuple[str, ...]
    fast_version: str
    # Columns of the fast supplier that are not part of the slow state; they are added to the log at the end.
    dropped: tuple[str, ...] = ()
    # Columns of the fast supplier that are also part of the slow state, and their rules.
    kept: Mapping[str, Rule] = field(default_factory=dict)
    deleted: str = ""


@dataclass(frozen=True)
class SideLog:
    """A log that arrives late, for example conversions. `key` maps the entity's key to columns of this log."""

    name: str
    key: Mapping[str, str]
    columns: Mapping[str, Rule]
    # Columns that identify a row of the log, so that duplicates are applied once; empty if every row counts.
    id: tuple[str, ...] = ()
    order_by: str = ""


@dataclass(frozen=True)
class StatePlace:
    """The folder of the state table, its number of buckets, and how long a state is kept."""

    path: str
    buckets: int = 16
    # A state expires this many days after the value of `ttl_column`; 0: never.
    ttl_days: int = 0
    ttl_column: str = ""


@dataclass(frozen=True)
class Target:
    """The ClickHouse table: on a server (`url`), or embedded in a folder (`path`)."""

    database: str = "default"
    table: str = ""
    url: str = field(default="", repr=False)
    path: str = ""
    # Send the password of the URL to another machine without TLS.
    insecure: bool = False


@dataclass(frozen=True)
class History:
    """What earlier settings left in the rows of a log: other multipliers, and keys whose states have expired."""

    multipliers: tuple[int, ...] = ()
    has_expired: bool = False


@dataclass(frozen=True)
class DiffLogConfig:
    """The configuration of a version log; the side logs are applied in this order."""

    entity: Entity
    logs: tuple[SideLog, ...]
    state: StatePlace
    target: Target
    work: str
    multiplier: int = 1000
    # For example, that other users can read the password in the file.
    warnings: tuple[str, ...] = ()
    # From the record of the log, not from the file.
    history: History = History()

    @property
    def multipliers(self) -> tuple[int, ...]:
        """The multiplier, and those of earlier settings."""
        return (self.multiplier, *self.history.multipliers)

    @property
    def states_expire(self) -> bool:
        """Whether states expire, or have expired with earlier settings."""
        return bool(self.state.ttl_days) or self.history.has_expired

    @property
    def rules(self) -> dict[str, Rule]:
        """The rules of all columns of the state."""
        rules = dict(self.entity.kept)
        for log in self.logs:
            rules.update(log.columns)
        return rules

    def step_options(self, log: SideLog | None = None, *, rejoin_late: bool = False) -> StepOptions:
        """Return the options of the step of a side log, or of the entity."""
        return StepOptions(
            key=self.entity.key,
            fast_version=self.entity.fast_version,
            rules=self.rules,
            deleted=self.entity.deleted,
            order_by=log.order_by if log else "",
            multiplier=self.multiplier,
            rejoin_late=rejoin_late,
            of_entity=log is None,
            age=self.state.ttl_column if self.state.ttl_days else "",
        )
