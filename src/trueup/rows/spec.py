"""Specification of a comparison: columns, key, filter and digest of one table, valid on every node of a run."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, replace
from typing import Any, Literal

# "canonical": of rows in canonical form, see `canonical`.
DigestKind = Literal["native", "portable", "canonical"]
NumericRule = Literal["value", "representation"]

# Classes of values that have a canonical form, see `canonical`.
ValueClass = Literal[
    "bool",
    "int",
    "decimal",
    "float",
    "text",
    "char",
    "bytes",
    "date",
    "timestamp",
    "instant",
    "time",
    "uuid",
    "json",
]
# How a column enters the row hash, see `types`; "canonical": the type is a class of values, see `classes.type_text`.
Encoding = Literal["native", "text", "numeric", "bpchar", "canonical"]
# How a key column is ordered: by its type (an index can be used), or by the bytes of its text if nodes may disagree.
KeyOrder = Literal["type", "bytes"]


def new_seed() -> int:
    """Draw a seed: for one look at rows that cannot be changed any more, or that are looked at again if they are."""
    return 1 + secrets.randbits(62)


@dataclass(frozen=True)
class ColumnSpec:
    """One compared column. `type` is the base type below any domain, quoted and with its schema."""

    name: str
    type: str
    encoding: Encoding
    is_domain: bool = False
    is_bytea: bool = False
    # With the encoding "canonical": the `rules.Rule` of the column, if it has one.
    rule: Any = None
    may_be_long: bool = False


@dataclass(frozen=True)
class KeySpec:
    """One key column and how it is ordered."""

    column: ColumnSpec
    order: KeyOrder = "type"


@dataclass(frozen=True)
class TableSpec:
    """All that a task needs to read and compare one table. Picklable, without secrets."""

    schema: str
    table: str
    key: tuple[KeySpec, ...]
    columns: tuple[ColumnSpec, ...]
    filter: str = ""
    # Put before the filter: see `db.expressions.Examined`.
    filter_guard: str = ""
    digest: DigestKind = "native"
    numeric: NumericRule = "value"
    # Of the row hash; 0: none was drawn, and rows cannot be hashed. Never one that was used in an earlier look.
    seed: int = 0
    # Of a keyless table that is captured: the columns from which `encode.row_id` is computed.
    hashed: tuple[ColumnSpec, ...] = ()
    long_value: int = 1_048_576
    # Columns that a node has, and that are not compared.
    left_out: tuple[str, ...] = ()

    @property
    def sample_seed(self) -> int:
        """The seed of samples, from which that of the row hash does not follow: statements and reports have it."""
        return int.from_bytes(hashlib.sha256(f"sample {self.seed}".encode()).digest()[:8], "big") % 1_000_000

    @property
    def is_keyless(self) -> bool:
        """Whether the table has no usable key."""
        return not self.key

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return tuple(part.column.name for part in self.key)

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of the compared columns."""
        return tuple(column.name for column in self.columns)


def with_new_seed(*specs: TableSpec) -> tuple[TableSpec, ...]:
    """Return specifications whose rows are compared with each other, with one new seed."""
    seed = new_seed()
    return tuple(replace(spec, seed=seed) for spec in specs)
