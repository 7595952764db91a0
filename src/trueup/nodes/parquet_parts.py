"""The rows of local Parquet files in parts, read with Arrow: their columns, digests of blocks, and encoded rows."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trueup.errors import CheckFailed, NodeError
from trueup.nodes import arrow_columns as columns
from trueup.nodes.base import Blocks, KeyBlocks, Plan
from trueup.nodes.block_digests import BlockDigests
from trueup.rows.canonical import decode_row, text_of
from trueup.rows.spec import ValueClass

if TYPE_CHECKING:
    from trueup.nodes.base import EncodedRows

_READERS = 16
_BATCH_BYTES = 32 * 1024 * 1024
_MOST_ROWS = 65_536
# Rows by which the size of a row is estimated.
_FIRST_ROWS = 64
_SPARK = b"org.apache.spark."
_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
# Types in the schema that Spark writes, whose values are those of the columns as they are stored.
_PLAIN = ("boolean", "byte", "short", "integer", "long", "float", "double", "string", "binary", "date", "timestamp")
_LOGICAL = ("NONE", "STRING", "INT", "DATE", "TIMESTAMP", "DECIMAL")


class NotColumnar(CheckFailed):
    """Only Spark reads these files as Spark does."""

    def __init__(self, reason: str) -> None:
        super().__init__([reason], cure="use --engine spark")

    def _positional(self) -> tuple[Any, ...]:
        return self.reasons


@dataclass(frozen=True)
class Part:
    """A row group of a file, and how many of its rows to read at once."""

    path: str
    group: int
    rows: int
    batch: int


@dataclass(frozen=True)
class Files:
    """The types of the columns, and the parts of all files."""

    types: Mapping[str, pa.DataType]
    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        """The rows of all files."""
        return sum(part.rows for part in self.parts)


def read_files(paths: Sequence[str]) -> Files:
    """Read the footers of files. Raises NotColumnar if Spark may read them in another way, or their columns differ."""
    with ThreadPoolExecutor(_READERS) as pool:
        read = list(pool.map(_read_footer, paths))
    types = read[0][0] if read else {}
    if any(own != types for own, _ in read):
        raise NotColumnar("the columns of the files differ")
    return Files(types, tuple(part for _, parts in read for part in parts))


def _read_footer(path: str) -> tuple[dict[str, pa.DataType], list[Part]]:
    try:
        with pq.ParquetFile(path) as file:
            metadata, schema, arrow = file.metadata, file.schema, file.schema_arrow
    except (pa.ArrowException, OSError, ValueError) as error:
        raise NotColumnar(f"{path} cannot be read: {error}") from None
    stored = metadata.metadata or {}
    _check_spark(path, stored)
    for number in range(len(schema)):
        column = schema.column(number)
        # Names with a point look like parts of nested columns.
        if column.path != column.name or column.max_repetition_level or "." in column.name:
            raise NotColumnar(f"{path}: column {column.path} is nested")
        if column.logical_type.type not in _LOGICAL or column.physical_type == "INT96":
            raise NotColumnar(f"{path}: column {column.path} has the type {column.logical_type.type}")
    types = {field.name: field.type for field in arrow}
    if len({name.casefold() for name in types}) != len(arrow):
        raise NotColumnar(f"{path} has columns whose names differ in case only")
    return types, [_part(path, metadata, group) for group in range(metadata.num_row_groups)]


def _check_spark(path: str, stored: Mapping[bytes, bytes]) -> None:
    """Raise NotColumnar if Spark has written a file with types or a calendar of its own."""
    version = stored.get(b"org.apache.spark.version", b"3")
    if version.startswith((b"1.", b"2.")) or any(name.startswith(_SPARK + b"legacy") for name in stored):
        raise NotColumnar(f"{path} may have times of another calendar")
    if text := stored.get(_SPARK_SCHEMA):
        for field in json.loads(text)["fields"]:
            kind = field["type"]
            is_plain = isinstance(kind, str) and (kind in (*_PLAIN, "timestamp_ntz") or kind.startswith("decimal("))
            if not is_plain or has_spark_type(field.get("metadata") or {}):
                raise NotColumnar(f"{path}: column {field['name']} has a type of Spark")


def has_spark_type(metadata: Mapping[str, object]) -> bool:
    """Return whether the metadata of a column in a schema of Spark changes its type, as that of a char(n) does."""
    return any(name.startswith("__") for name in metadata)


def _part(path: str, metadata: pq.FileMetaData, group: int) -> Part:
    facts = metadata.row_group(group)
    width = max(1, facts.total_byte_size // max(1, facts.num_rows))
    return Part(path, group, facts.num_rows, int(max(1, min(_MOST_ROWS, _BATCH_BYTES // width))))


@dataclass(frozen=True)
class Work:
    """What is computed of each part: the columns of a plan on one node."""

    node: str
    names: tuple[str, ...]
    kinds: tuple[ValueClass, ...]
    # Whether the first key column is an integer, so that rows of keys can be selected by it.
    has_number: bool
    key: int
    seed: bytes
    blocks: Blocks
    is_short: bool = False

    @classmethod
    def of(cls, plan: Plan, node: str) -> Work:
        """Return the work of a plan. Raises NotColumnar if only Spark can compute it."""
        for column in plan.columns:
            native = column.on[node].kind
            if native is None or not columns.is_possible(native, column.kind):
                raise NotColumnar(f"column {column.name} is compared as {column.kind}")
        names = tuple(column.on[node].name for column in plan.columns)
        first = plan.columns[0]
        has_number = bool(plan.key) and first.kind == "int" == first.on[node].kind
        return cls(node, names, plan.kinds, has_number, plan.key, plan.seed, plan.blocks, plan.is_short)

    def digests(self, part: Part) -> tuple[BlockDigests, int]:
        """Return the digests of a part, and how many of its rows have NULL in the key."""
        with _errors(part.path, self.node):
            return self._digests(part)

    def _digests(self, part: Part) -> tuple[BlockDigests, int]:
        found: list[BlockDigests] = []
        without_key = 0
        for batch in self._batches(part):
            values = self._values(batch)
            if self.key and any(column.null_count for column in values[: self.key]):
                lacks = [column.is_null().to_numpy(zero_copy_only=False) for column in values[: self.key]]
                without_key += int(np.logical_or.reduce(lacks).sum())
            high, low = self._hashes(values, batch.num_rows)
            numbers = columns.block_numbers(self.blocks, values[0], high)
            found.append(BlockDigests.added(numbers, np.ones(len(numbers), np.int64), high, low))
        return BlockDigests.merged(found), without_key

    def rows(self, part: Part, blocks: Sequence[int]) -> Iterator[EncodedRows]:
        """Yield the rows of a part in these blocks, which are sorted."""
        with _errors(part.path, self.node):
            yield from self._rows(part, blocks)

    def _rows(self, part: Part, blocks: Sequence[int]) -> Iterator[EncodedRows]:
        if not self._may_have(part, blocks):
            return
        # By number: a search per row takes longer.
        is_listed = np.zeros(self.blocks.count + 2, bool)
        is_listed[np.array(blocks, np.int64)] = True
        for batch in self._batches(part):
            if isinstance(self.blocks, KeyBlocks):
                numbers = columns.block_numbers(self.blocks, self._values(batch)[0], None)
                batch = batch.filter(pa.array(is_listed[numbers]))
                if batch.num_rows:
                    yield self._encoded(batch)
                continue
            values = self._values(batch)
            high, _ = self._hashes(values, batch.num_rows)
            batch = batch.filter(pa.array(is_listed[columns.block_numbers(self.blocks, None, high)]))
            if batch.num_rows:
                yield self._encoded(batch)

    def rows_of(self, part: Part, keys: Collection[bytes]) -> Iterator[EncodedRows]:
        """Yield the rows of a part with these encoded keys."""
        with _errors(part.path, self.node):
            yield from self._rows_of(part, keys)

    def _rows_of(self, part: Part, keys: Collection[bytes]) -> Iterator[EncodedRows]:
        numbers = None
        listed_keys = pa.array(list(keys), pa.binary())
        if self.has_number:
            listed = {int(text_of("int", first)) for key in keys if (first := decode_row(key)[0]) is not None}
            numbers = pa.array(sorted(listed), pa.int64())
        for batch in self._batches(part):
            if numbers is not None:
                batch = batch.filter(pc.is_in(self._values(batch)[0].cast(pa.int64()), numbers))
            if batch.num_rows:
                found, rows = self._encoded(batch)
                wanted = pc.is_in(found, listed_keys)
                yield found.filter(wanted), rows.filter(wanted)

    def _encoded(self, batch: pa.RecordBatch) -> EncodedRows:
        values = self._values(batch)
        rows = columns.rows(self.kinds, values, batch.num_rows, self.seed)
        return columns.rows(self.kinds[: self.key], values[: self.key], batch.num_rows) if self.key else rows, rows

    def _hashes(self, values: list[pa.Array], size: int) -> tuple[Any, Any]:
        if self.is_short:
            return columns.short_hashes(self.kinds, values, size, self.seed)
        return columns.md5_hashes(columns.rows(self.kinds, values, size, self.seed))

    def _values(self, batch: pa.RecordBatch) -> list[pa.Array]:
        return [batch.column(name) for name in self.names]

    def _may_have(self, part: Part, blocks: Sequence[int]) -> bool:
        """Return whether a part may have rows of the blocks, by the statistics of its first key column."""
        if not isinstance(self.blocks, KeyBlocks):
            return True
        with pq.ParquetFile(part.path) as file:
            group = file.metadata.row_group(part.group)
            facts: Any = next(
                (
                    column.statistics
                    for number in range(group.num_columns)
                    if (column := group.column(number)).path_in_schema == self.names[0]
                ),
                None,
            )
            kind = file.schema_arrow.field(self.names[0]).type
        if facts is None or not facts.has_min_max or facts.min is None or facts.max is None:
            return True
        try:
            ends = pa.array([facts.min, facts.max], kind)
        except (pa.ArrowException, TypeError, ValueError):
            # Statistics of dates that Python does not have.
            return True
        first, last = columns.block_numbers(self.blocks, ends, None).tolist()
        place = bisect_left(blocks, first)
        return place < len(blocks) and blocks[place] <= last

    def _batches(self, part: Part) -> Iterator[pa.RecordBatch]:
        names = list(dict.fromkeys(self.names))
        with pq.ParquetFile(part.path) as file:
            read = partial(file.iter_batches, row_groups=[part.group], columns=names)
            # The footer has the bytes as they are encoded: a long value that all rows have is there once.
            first = next(read(_FIRST_ROWS), None)
            width = first.nbytes // first.num_rows if first is not None and first.num_rows else 0
            yield from read(max(1, min(part.batch, _BATCH_BYTES // max(1, width))))


class _errors:
    """Errors of Arrow in the block as errors of the node."""

    def __init__(self, path: str, node: str) -> None:
        self._path, self._node = path, node

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, CheckFailed):
            error.node = error.node or self._node
        elif isinstance(error, pa.ArrowException | OSError | ValueError):
            reason = str(error).partition("\n")[0]
            cure = "check the files of the node, and run again"
            raise NodeError(f"{self._path} cannot be read: {reason}", cure=cure, node=self._node) from None
