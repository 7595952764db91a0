"""The data of a sync: tables, sequences, the plan, and the result of a round. Frozen, picklable, free of secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from psycopg import sql

from trueup.db.foreign_keys import ForeignKey
from trueup.db.names import display_name
from trueup.db.sequences import Sequence
from trueup.errors import CheckFailed
from trueup.rows.encode import row_id
from trueup.rows.spec import TableSpec
from trueup.rows.types import type_of
from trueup.rows.write import disabled_triggers
from trueup.rows.write.target import Target

# The schemas of trueup's own tables, and of the change log (a tube).
STATE_SCHEMA = "trueup"
LOG_SCHEMA = "trueup_log"
# The functions that applications call during a switchover; every role may use this schema.
FUNCTIONS_SCHEMA = "trueup_app"

# What a problem of large objects names.
LARGE_OBJECTS = "large objects"

# The classes of SQLSTATE with which a server refuses values: data exceptions, and violated constraints.
REFUSED = ("22", "23")

# How rows are written: with triggers and foreign keys of the target silenced, or in the order of foreign keys.
REPLICA = disabled_triggers.REPLICA
ORDERED = disabled_triggers.ORDERED


def application(name: str) -> str:
    """Return the `application_name` of the sessions of a sync. It is for people only: any session can set it."""
    return f"trueup sync {name}"


@dataclass(frozen=True)
class SyncTable:
    """One table of a sync: how it is written on the target, and what it is on the source."""

    target: Target
    # All columns of the target's row type in its order, including generated ones: the format of a row as text.
    row: tuple[str, ...]
    # On the source.
    oid: int
    is_partitioned: bool = False
    rows: int = 0
    bytes: int = 0
    # Number in the change log; 0 before the table is attached.
    number: int = 0
    # On the target; 0 before the table exists there.
    target_oid: int = 0
    # Its fingerprint on the target when it was checked, for tasks: see `state.check_tables`.
    shape: str = ""

    @property
    def spec(self) -> TableSpec:
        """The columns and the key."""
        return self.target.spec

    @property
    def name(self) -> tuple[str, str]:
        """Schema and name."""
        return self.spec.schema, self.spec.table

    @property
    def quoted_name(self) -> str:
        """Schema and name as in a statement."""
        return sql.Identifier(*self.name).as_string(None)

    @property
    def is_binary(self) -> bool:
        """Whether rows can be copied in binary format, which takes half the time of text."""
        columns = [column for column in self.spec.columns if column.name in self.target.columns]
        return all(type_of(column).binary_copy and not column.is_domain for column in columns)

    @property
    def row_id(self) -> str | None:
        """The expression by which the change log knows a row `r` of a keyless table; None: by its key."""
        return row_id(self.spec.hashed, "r").as_string(None) if self.spec.is_keyless else None

    def __str__(self) -> str:
        return display_name(*self.name)


@dataclass(frozen=True)
class Problem:
    """One object that cannot be handled, why, and the cure."""

    where: str
    what: str
    cure: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


class Outdated(CheckFailed):
    """A synced table is not as it was when the link was opened: open the link again, which sets the table aside."""


class Refused(Outdated):
    """The target refused rows of a table: the next link sets the table aside."""


@dataclass(frozen=True)
class Plan:
    """What a sync will do, or why it cannot."""

    name: str
    source: str
    target: str
    # Parents before children.
    tables: tuple[SyncTable, ...]
    sequences: tuple[Sequence, ...]
    foreign_keys: tuple[ForeignKey, ...]
    # Groups of tables that refer to one another by foreign keys.
    cycles: tuple[tuple[str, ...], ...]
    # `replica` or `ordered`.
    mode: str
    create_schema: bool
    problems: tuple[Problem, ...] = ()
    remarks: tuple[str, ...] = ()
    # The roles that are created on the target.
    roles: tuple[str, ...] = ()
    # Whether large objects are copied: of a whole database only.
    large_objects: bool = False
    # How many parts of the copy each engine has copied.
    ran_on: Mapping[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The estimated number of rows of all tables."""
        return sum(table.rows for table in self.tables)

    @property
    def is_ordered(self) -> bool:
        """Whether rows are written in the order of foreign keys."""
        return self.mode == ORDERED

    def as_json(self) -> dict[str, Any]:
        """Return the plan as plain values."""
        return {
            "name": self.name,
            "from": self.source,
            "to": self.target,
            "mode": self.mode,
            "create_schema": self.create_schema,
            "tables": [
                {
                    "table": str(table),
                    "key": list(table.spec.key_names),
                    "rows": table.rows,
                    "bytes": table.bytes,
                    "partitioned": table.is_partitioned,
                }
                for table in self.tables
            ],
            "sequences": [{"sequence": str(sequence), "owner": sequence.owner} for sequence in self.sequences],
            "foreign_keys": [
                {"name": key.name, "child": display_name(*key.child), "parent": display_name(*key.parent)}
                for key in self.foreign_keys
            ],
            "cycles": [list(cycle) for cycle in self.cycles],
            "roles": list(self.roles),
            "problems": [asdict(problem) for problem in self.problems],
            "remarks": list(self.remarks),
        }


@dataclass(frozen=True)
class Round:
    """The result of one round."""

    # Keys of the round, and how many of them have a row (the others were deleted).
    keys: int = 0
    rows: int = 0
    tables: tuple[str, ...] = ()
    # Tables that were copied as a whole: truncated, or with unknown changes.
    reloaded: tuple[str, ...] = ()
    # Keys in the change log at the start of the round, beyond those it took.
    pending: int = 0
    # Age in seconds of the oldest change at the start of the round.
    lag: float = 0.0
    milliseconds: float = 0.0
    large: bool = False
    # Log position of the source before the round read the changes.
    position: str = ""
    stop_asked: bool = False
    # Relations were created, dropped or renamed, or keys and indexes: the link has to be opened again.
    is_outdated: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether the change log was empty."""
        return not (self.keys or self.reloaded or self.pending)
