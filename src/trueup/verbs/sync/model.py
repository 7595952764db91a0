"""What a sync is made of: tables, sequences, the plan, and what a round did. Frozen, picklable, free of secrets."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from trueup.db.foreign_keys import ForeignKey
from trueup.db.names import display_name
from trueup.rows.spec import TableSpec
from trueup.rows.types import type_of
from trueup.rows.write.target import Target

# Where trueup keeps its own tables; the change log is a tube in a schema of its own.
STATE_SCHEMA = "trueup"
LOG_SCHEMA = "trueup_log"

REPLICA = "replica"
ORDERED = "ordered"


@dataclass(frozen=True)
class SyncTable:
    """One table of a sync: how it is written, and what it is on the source."""

    target: Target
    # All columns of the target's row type in its order, also generated ones: what a row of text is read as.
    row: tuple[str, ...]
    # Of the source.
    oid: int
    is_partitioned: bool = False
    rows: int = 0
    bytes: int = 0
    # Its number in the change log; 0 before it is attached.
    number: int = 0

    @property
    def spec(self) -> TableSpec:
        """How its rows are named."""
        return self.target.spec

    @property
    def name(self) -> tuple[str, str]:
        """Schema and name."""
        return self.spec.schema, self.spec.table

    @property
    def is_binary(self) -> bool:
        """Whether its rows can be copied as bytes, which both servers write and read in half the time of text."""
        columns = [column for column in self.spec.columns if column.name in self.target.columns]
        return all(type_of(column).binary_copy and not column.is_domain for column in columns)

    def __str__(self) -> str:
        return display_name(*self.name)


@dataclass(frozen=True)
class Sequence:
    """One sequence, and the column that owns it, if one does."""

    schema: str
    name: str
    owner: str = ""
    # Type, start, increment, limits, cache and cycle: what must be the same on both sides.
    made: str = ""

    def __str__(self) -> str:
        return display_name(self.schema, self.name)


@dataclass(frozen=True)
class Problem:
    """One thing that cannot be handled, by name, and what to do about it."""

    where: str
    what: str
    cure: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


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
    # Groups of tables that refer to one another.
    cycles: tuple[tuple[str, ...], ...]
    # `replica`: no trigger and no foreign key of the target fires; `ordered`: written in the order of foreign keys.
    mode: str
    create_schema: bool
    problems: tuple[Problem, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """All rows, by the planner's estimate."""
        return sum(table.rows for table in self.tables)

    def as_json(self) -> dict[str, Any]:
        """The plan as plain values."""
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
            "sequences": [{"sequence": str(each), "owner": each.owner} for each in self.sequences],
            "foreign_keys": [
                {"name": key.name, "child": display_name(*key.child), "parent": display_name(*key.parent)}
                for key in self.foreign_keys
            ],
            "cycles": [list(cycle) for cycle in self.cycles],
            "problems": [asdict(problem) for problem in self.problems],
            "remarks": list(self.remarks),
        }


@dataclass(frozen=True)
class Round:
    """What one round did."""

    # Keys that were carried over, and the rows among them that are there (the others were deleted).
    keys: int = 0
    rows: int = 0
    tables: tuple[str, ...] = ()
    # Tables that were read anew as a whole: truncated, or of unknown changes.
    reloaded: tuple[str, ...] = ()
    # What still waited in the change log when the round began, beyond what it took.
    pending: int = 0
    # How old the oldest change was that the round found.
    lag: float = 0.0
    milliseconds: float = 0.0
    large: bool = False
    # Where the source's log stood before the round looked.
    position: str = ""
    troubles: tuple[str, ...] = ()
    stop_asked: bool = field(default=False)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waited."""
        return not (self.keys or self.reloaded or self.pending)
