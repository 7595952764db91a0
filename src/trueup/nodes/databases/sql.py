"""What databases with an SQL dialect of their own share: encoded rows by concatenation, digests by sums, rows by pages.

A dialect has the expressions; this module has the statements. Rows are read by the driver, in its snapshot.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from trueup.engine.local_rows import local_rows
from trueup.errors import QueryError
from trueup.nodes.base import (
    Blocks,
    HashBlocks,
    KeyBlocks,
    Moment,
    NodeTable,
    Plan,
    check_null_keys,
    merged,
)
from trueup.nodes.block_digests import BlockDigests
from trueup.nodes.databases.spooled import spooled
from trueup.nodes.probe import SAMPLES, expected
from trueup.rows.canonical import FORMS, NULL, SEED
from trueup.rows.spec import ValueClass

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from trueup.nodes.base import EncodedRows

# Keys per statement of a re-check, and ranges of blocks per statement.
_KEYS = 1000
_RANGES = 50


class Dialect(ABC):
    """Expressions of one SQL dialect. All results of expressions for bytes are strings of bytes."""

    @abstractmethod
    def name(self, text: str) -> str:
        """Return a quoted name."""

    @abstractmethod
    def constant(self, data: bytes) -> str:
        """Return bytes as a literal."""

    @abstractmethod
    def concat(self, parts: Sequence[str]) -> str:
        """Return the concatenation of strings of bytes; NULL if one is NULL."""

    @abstractmethod
    def length(self, data: str) -> str:
        """Return the length of a string of bytes, as 4 bytes."""

    @abstractmethod
    def value(self, source: str, native: ValueClass, target: ValueClass, type_name: str) -> str:
        """Return an expression as canonical bytes of the target class; NULL stays NULL."""

    @abstractmethod
    def literal(self, kind: ValueClass, sample: Any) -> tuple[str, str]:
        """Return a sample of a class as an expression, and the name of its type; raise KeyError without such a type."""

    @abstractmethod
    def half(self, digest: str, number: int) -> str:
        """Return a half of the column with an md5 as an unsigned number."""

    @abstractmethod
    def md5(self, data: str) -> str:
        """Return the md5 of a string of bytes, as 32 digits in lower case."""

    @abstractmethod
    def number(self, source: str, kind: ValueClass, type_name: str) -> str:
        """Return the number of a value of a class, see `key_numbers`; NULL of a value that has none."""

    @abstractmethod
    def divided(self, number: str, by: int) -> str:
        """Return the whole number of a division."""

    def either(self, data: str, default: str) -> str:
        """Return the first expression, or the second if it is NULL."""
        return f"coalesce({data}, {default})"

    def row(self, kinds: Sequence[ValueClass], values: Sequence[str], seed: bytes | None = None) -> str:
        """Return canonical values as an encoded row."""
        head = (len(values) + (seed is not None)).to_bytes(4, "big")
        if seed is not None:
            head += SEED.number.to_bytes(4, "big") + len(seed).to_bytes(4, "big") + seed
        parts = [self.constant(head)]
        for kind, data in zip(kinds, values, strict=True):
            number = FORMS[kind].number.to_bytes(4, "big")
            known = self.concat([self.constant(number), self.length(data), data])
            parts.append(self.either(known, self.constant(number + NULL)))
        return self.concat(parts)

    def block(self, blocks: Blocks, number: str, digest: str) -> str:
        """Return the block of a row, from the number of its first key column or from its hash.

        Values without a number are in the first block.
        """
        if isinstance(blocks, HashBlocks):
            high = self.half(digest, 0)
            return self.divided(high, 2 ** (64 - blocks.bits)) if blocks.bits else "0"
        inside = self.divided(f"({number} - ({blocks.low}))", blocks.width)
        return (
            f"CASE WHEN {number} IS NULL OR {number} < {blocks.low} THEN 0"
            f" WHEN {number} >= {blocks.end} THEN {blocks.count + 1} ELSE {inside} + 1 END"
        )

    def within(self, key: str, kind: ValueClass, type_name: str, start: int | None, end: int | None) -> str:
        """Return whether the number of a key is in a range; without a start, also whether it has no number."""
        number = self.number(key, kind, type_name)
        tests = [f"{number} >= {start}"] * (start is not None) + [f"{number} < {end}"] * (end is not None)
        inside = " AND ".join(tests) or "1 = 1"
        return f"({inside})" if start is not None else f"({inside} OR {number} IS NULL)"


class SqlNode(ABC):
    """A table or query of a database with a dialect."""

    kind: str
    dialect: Dialect
    # Of a driver that keeps a whole result in memory: blocks by hash whose rows are read by one statement; 0: all.
    blocks_per_statement = 0

    def __init__(self, name: str, filter: str = "") -> None:
        self.name = name
        self._filter = filter
        self._types: dict[str, str] = {}

    @abstractmethod
    def query(self, sql: str, *, fresh: bool = False) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query, in the snapshot or, with `fresh`, as they are now."""

    @property
    @abstractmethod
    def source(self) -> str:
        """The FROM clause."""

    @abstractmethod
    def describe(self) -> NodeTable:
        """Return columns and keys; fill `_types`."""

    @abstractmethod
    def begin(self) -> Moment:
        """Take a snapshot, if there are any."""

    def probe(self, kinds: Sequence[ValueClass], seed: bytes) -> Mapping[ValueClass, Sequence[str]]:
        """Compute the samples with the expressions that the digests use; classes without a type are as expected."""
        computed: dict[ValueClass, Sequence[str]] = {}
        for kind in kinds:
            right = expected(kind, seed)
            results = []
            for sample, known in zip((*SAMPLES[kind], None), right, strict=True):
                try:
                    literal, type_name = self.dialect.literal(kind, sample)
                except KeyError:
                    results.append(known)
                    continue
                value = self.dialect.value(literal, kind, kind, type_name)
                rows = list(self.query(f"SELECT {self.dialect.md5(self.dialect.row([kind], [value], seed))} AS h"))
                results.append(text(rows[0][0]))
            computed[kind] = results
        return computed

    def digests(self, plan: Plan) -> BlockDigests:
        """Compute the digests of all blocks in one statement."""
        row = self._encoded(plan)[1]
        hashed = f"SELECT {self.dialect.md5(row)} AS trueup_h, {self._lacks_key(plan)} AS trueup_n"
        if isinstance(plan.blocks, KeyBlocks):
            hashed += f", {self.dialect.number(*self._first_key(plan))} AS trueup_b"
            block = self.dialect.block(plan.blocks, "trueup_b", "")
        else:
            block = self.dialect.block(plan.blocks, "", "trueup_h")
        high, low = self.dialect.half("trueup_h", 0), self.dialect.half("trueup_h", 1)
        lines = []
        for number, count, null_keys, lost, *halves in self.query(
            f"SELECT {block} AS trueup_block, count(*), sum(trueup_n), sum(trueup_h IS NULL), sum({high}), sum({low})"
            f" FROM ({hashed} FROM {self.source}{self._where()}) AS trueup_rows GROUP BY trueup_block"
        ):
            if int(lost):
                # A row that is too long for the server has no hash: it would be in no sum.
                raise QueryError(
                    f"{int(lost):,} rows are too long to be hashed", cure="leave out long columns", node=self.name
                )
            check_null_keys(self.name, plan, int(null_keys))
            lines.append((number, count, *halves))
        return BlockDigests.of(lines)

    def rows(self, session: SparkSession, plan: Plan, blocks: Collection[int]) -> DataFrame:
        """Read the rows of the blocks in the snapshot of the driver, and hand them to Spark."""
        return spooled(session, self._rows(plan, blocks))

    def local_rows(self, plan: Plan, blocks: Collection[int]) -> Iterator[EncodedRows]:
        """Read the rows of the blocks in the snapshot."""
        return _batches(self._rows(plan, blocks))

    def _rows(self, plan: Plan, blocks: Collection[int]) -> Iterator[tuple[Any, ...]]:
        key, row = self._encoded(plan)
        # No name that a column may have: ClickHouse would use the alias instead of the column.
        selected = f"SELECT {key} AS trueup_k, {row} AS trueup_v"
        if isinstance(plan.blocks, KeyBlocks):
            key_column = self._first_key(plan)
            ranges = [
                self.dialect.within(*key_column, plan.blocks.range_of(first)[0], plan.blocks.range_of(last)[1])
                for first, last in merged(blocks)
            ]
            batches = [" OR ".join(ranges[start : start + _RANGES]) for start in range(0, len(ranges), _RANGES)]
            queries = [f"{selected} FROM {self.source}{self._where(one)}" for one in batches]
        else:
            block = self.dialect.block(plan.blocks, "", "trueup_h")
            numbers, most = sorted(blocks), self.blocks_per_statement or len(blocks) or 1
            lists = [", ".join(map(str, numbers[start : start + most])) for start in range(0, len(numbers), most)]
            hashed = f"{selected}, {self.dialect.md5(row)} AS trueup_h FROM {self.source}{self._where()}"
            rows = f"SELECT trueup_k, trueup_v FROM ({hashed}) AS trueup_rows WHERE {block} IN"
            queries = [f"{rows} ({listed})" for listed in lists]
        for query in queries:
            yield from self.query(query)

    def rows_of(self, session: SparkSession, plan: Plan, keys: DataFrame) -> DataFrame:
        """Read the current rows with these keys."""
        return spooled(session, self._rows_of(plan, [bytes(line[0]) for line in local_rows(keys.select("k"))]))

    def local_rows_of(self, plan: Plan, keys: Sequence[bytes]) -> Iterator[EncodedRows]:
        """Read the current rows with these keys."""
        return _batches(self._rows_of(plan, keys))

    def _rows_of(self, plan: Plan, keys: Sequence[bytes]) -> Iterator[tuple[Any, ...]]:
        key, row = self._encoded(plan)
        for start in range(0, len(keys), _KEYS):
            chosen = keys[start : start + _KEYS]
            listed = ", ".join(self.dialect.constant(one) for one in chosen)
            where = self._where(f"{key} IN ({listed}){self.narrowed(plan, chosen)}")
            query = f"SELECT {key} AS trueup_k, {row} AS trueup_v FROM {self.source}{where}"
            yield from self.query(query, fresh=True)

    def narrowed(self, plan: Plan, keys: Sequence[bytes]) -> str:
        """Return a condition for an index, to add to one that selects the rows with these encoded keys."""
        return ""

    def changed(self) -> str:
        """Return an empty text: a snapshot does not change, and the report says if there is none."""
        return ""

    @abstractmethod
    def stop(self) -> None:
        """End the running statements, from another thread."""

    @abstractmethod
    def end(self) -> None:
        """End the snapshot."""

    @abstractmethod
    def close(self) -> None:
        """Close the session."""

    def _where(self, condition: str = "") -> str:
        conditions = [f"(\n{self._filter}\n)"] * bool(self._filter) + [f"({condition})"] * bool(condition)
        return f" WHERE {' AND '.join(conditions)}" if conditions else ""

    def _first_key(self, plan: Plan) -> tuple[str, ValueClass, str]:
        """Return the first key column, its class and its type."""
        first = plan.columns[0]
        own = first.on[self.name]
        return self.dialect.name(own.name), first.kind, own.type

    def _lacks_key(self, plan: Plan) -> str:
        names = [self.dialect.name(column.on[self.name].name) for column in plan.columns[: plan.key]]
        return "(" + " OR ".join(f"{name} IS NULL" for name in names) + ")" if names else "0"

    def _encoded(self, plan: Plan) -> tuple[str, str]:
        values = []
        for column in plan.columns:
            own = column.on[self.name]
            assert own.kind is not None
            values.append(self.dialect.value(self.dialect.name(own.name), own.kind, column.kind, own.type))
        row = self.dialect.row(plan.kinds, values, plan.seed)
        return (self.dialect.row(plan.kinds[: plan.key], values[: plan.key]) if plan.key else row), row


def _batches(lines: Iterator[tuple[Any, ...]]) -> Iterator[EncodedRows]:
    import pyarrow as pa

    while batch := list(islice(lines, _KEYS)):
        keys, rows = ([bytes(line[place]) for line in batch] for place in (0, 1))
        yield pa.array(keys, pa.binary()), pa.array(rows, pa.binary())


def text(value: Any) -> str:
    """Return a text that a driver may return as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)
