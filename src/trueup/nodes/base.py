"""The protocol of a node that is compared by canonical rows, and what is compared."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from trueup.errors import CheckFailed
from trueup.nodes.key_numbers import text_of_number
from trueup.rows.classes import parsed_class
from trueup.rows.rules import NO_RULE, NUMBERS, Rule
from trueup.rows.spec import ValueClass

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from trueup.nodes.block_digests import BlockDigests

    # Encoded keys and encoded rows, arrays of bytes of the same length.
    EncodedRows = tuple[pa.Array, pa.Array]


@dataclass(frozen=True)
class NodeColumn:
    """A column of a node: its type as the node prints it, and the class of its values.

    `kind` is None if values of the type have no canonical form; `why` says so.
    """

    name: str
    type: str
    kind: ValueClass | None
    why: str = ""
    # Other classes as which the node can read the same values exactly: a string of ClickHouse is text or bytes.
    also: tuple[ValueClass, ...] = ()
    # The name of the compared column, if the mapping has another one.
    alias: str = ""


@dataclass(frozen=True)
class NodeTable:
    """What a node has: columns, keys (the primary key first), and the estimated number of rows (None: unknown)."""

    name: str
    columns: tuple[NodeColumn, ...]
    keys: tuple[tuple[str, ...], ...] = ()
    rows: int | None = None


@dataclass(frozen=True)
class ComparedColumn:
    """A column of a run: its name, the class it is compared as, and the column of each node."""

    name: str
    kind: ValueClass
    on: Mapping[str, NodeColumn]
    rule: Rule = NO_RULE

    @property
    def parsed(self) -> ValueClass | None:
        """The class as which texts are parsed when rows are compared."""
        kinds: set[ValueClass] = {column.kind for column in self.on.values() if column.kind}
        if self.kind != "text":
            return None
        return "decimal" if len(kinds) > 1 and kinds <= {*NUMBERS} else parsed_class(kinds)

    @property
    def is_exact(self) -> bool:
        """Whether equal values have equal bytes."""
        return self.kind != "json" and not self.parsed and not self.rule


@dataclass(frozen=True)
class KeyBlocks:
    """Blocks by the number of the first key column: `count` blocks of `width` numbers from `low`, and one on each side.

    The number of an integer is itself; for other classes see `key_numbers`.
    """

    column: str
    low: int
    width: int
    count: int
    kind: ValueClass = "int"

    @property
    def end(self) -> int:
        """The first value after the last block."""
        return self.low + self.width * self.count

    def range_of(self, block: int) -> tuple[int | None, int | None]:
        """Return the first number of a block and the first after it; None: open."""
        start = None if block == 0 else self.low + (block - 1) * self.width
        end = None if block > self.count else self.low + block * self.width
        return start, end

    def texts_of(self, first: int, last: int) -> tuple[str | None, str | None]:
        """Return the first value of a run of blocks, and the first after it, as PostgreSQL prints them; None: open."""
        start, end = self.range_of(first)[0], self.range_of(last)[1]
        return (
            None if start is None else text_of_number(self.kind, start),
            None if end is None else text_of_number(self.kind, end),
        )


@dataclass(frozen=True)
class HashBlocks:
    """Blocks by the first bits of the row hash: a row that differs is in two blocks, and both differ."""

    bits: int

    @property
    def count(self) -> int:
        """The number of blocks."""
        return 1 << self.bits


Blocks = KeyBlocks | HashBlocks


@dataclass(frozen=True)
class Plan:
    """What a run compares: the key first, then the other columns. `key`: how many columns are the key, 0 without."""

    columns: tuple[ComparedColumn, ...]
    key: int
    seed: bytes
    blocks: Blocks = field(default_factory=lambda: HashBlocks(0))
    # Whether rows are hashed by `trueup.rows.lookup3` instead of md5.
    is_short: bool = False
    # Columns that a node has, and that are not compared.
    left_out: tuple[str, ...] = ()

    @property
    def kinds(self) -> tuple[ValueClass, ...]:
        """The classes of the columns."""
        return tuple(column.kind for column in self.columns)

    @property
    def is_exact(self) -> bool:
        """Whether equal values have equal bytes in all columns: then different digests mean different rows."""
        return all(column.is_exact for column in self.columns)

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return tuple(column.name for column in self.columns[: self.key])


@dataclass(frozen=True)
class Moment:
    """What a node was read at: a snapshot, a version, a list of files; `held` is whether all reads saw the same."""

    node: str
    kind: str
    held: bool
    facts: Mapping[str, object] = field(default_factory=dict)


def merged(numbers: Collection[int]) -> list[tuple[int, int]]:
    """Return sorted numbers as runs: first and last of each."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return runs


def check_null_keys(node: str, plan: Plan, rows: int) -> None:
    """Raise CheckFailed if rows of a node have NULL in their key."""
    if rows:
        reason = f"node {node}: {rows:,} rows have NULL in the key ({', '.join(plan.key_names)}); a key may not be NULL"
        raise CheckFailed([reason], cure="choose columns without NULLs with --key")


class ComparedNode(Protocol):
    """A node that computes digests of canonical rows in place, and returns rows."""

    name: str
    # As in addresses: postgresql, delta, parquet …
    kind: str

    def describe(self) -> NodeTable:
        """Return columns and keys of the table. Raises CheckFailed or NodeError if it cannot be read."""

    def begin(self) -> Moment:
        """Take a snapshot, if the kind has one; all digests and rows that are not `fresh` are of this moment."""

    def probe(self, kinds: Sequence[ValueClass], seed: bytes) -> Mapping[ValueClass, Sequence[str]]:
        """Return, per class, the md5 of encoded rows with one of `probe.SAMPLES` each, as the node computes it."""

    def digests(self, plan: Plan) -> BlockDigests:
        """Return the digest of each block that has rows."""

    def rows(self, session: SparkSession, plan: Plan, blocks: Collection[int]) -> DataFrame:
        """Return a frame with the rows of these blocks: `k` (the encoded key) and `v` (the encoded row), as bytes."""

    def rows_of(self, session: SparkSession, plan: Plan, keys: DataFrame) -> DataFrame:
        """Return the current rows, outside of the snapshot, whose encoded key is in the column `k` of a frame."""

    def changed(self) -> str:
        """Return why the reads since `begin` may not be of one moment, or an empty text."""

    def stop(self) -> None:
        """End the running queries, from another thread. Never raises."""

    def end(self) -> None:
        """End the snapshot, so that it holds nothing on the server."""

    def close(self) -> None:
        """Close all sessions. Never raises."""


@runtime_checkable
class LocalNode(ComparedNode, Protocol):
    """A node whose rows can be read without Spark."""

    def local_rows(self, plan: Plan, blocks: Collection[int]) -> Iterator[EncodedRows]:
        """Yield the rows of these blocks."""

    def local_rows_of(self, plan: Plan, keys: Sequence[bytes]) -> Iterator[EncodedRows]:
        """Yield the current rows, outside of the snapshot, with these encoded keys."""
