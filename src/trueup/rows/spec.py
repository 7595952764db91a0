"""What is compared: one table's columns, key, filter and way of hashing, valid on every node of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DigestKind = Literal["native", "portable"]
NumericRule = Literal["value", "representation"]

# How a column goes into the row hash, see `encode`.
Encoding = Literal["native", "text", "numeric", "bpchar"]
# How a key column is ordered: by its type (index-backed), or by the bytes of its text where nodes would disagree.
KeyOrder = Literal["type", "bytes"]


@dataclass(frozen=True)
class ColumnSpec:
    """One compared column. `type` is the base type, quoted and with its schema, fit for a cast."""

    name: str
    type: str
    encoding: Encoding
    is_domain: bool = False
    is_bytea: bool = False
    may_be_long: bool = False


@dataclass(frozen=True)
class KeySpec:
    """One key column and how it is ordered."""

    column: ColumnSpec
    order: KeyOrder = "type"


@dataclass(frozen=True)
class TableSpec:
    """Everything a task must know to read and compare one table; picklable, and free of secrets."""

    schema: str
    table: str
    key: tuple[KeySpec, ...]
    columns: tuple[ColumnSpec, ...]
    filter: str = ""
    digest: DigestKind = "native"
    numeric: NumericRule = "value"
    seed: int = 0
    long_value: int = 1_048_576

    @property
    def is_keyless(self) -> bool:
        """Whether rows have no name but themselves."""
        return not self.key

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return tuple(part.column.name for part in self.key)

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of the compared columns."""
        return tuple(column.name for column in self.columns)
