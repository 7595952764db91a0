"""A frame of Spark as a node: digests with one aggregation, rows with a filter."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Protocol

from pyspark.sql import functions as f
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from trueup.engine.failures import failed_job
from trueup.errors import ConfigError, TrueupError
from trueup.nodes import frame_columns as columns
from trueup.nodes.base import (
    Blocks,
    KeyBlocks,
    Moment,
    NodeColumn,
    NodeTable,
    Plan,
    check_null_keys,
    merged,
)
from trueup.nodes.block_digests import BlockDigests
from trueup.nodes.files import check_times_of
from trueup.nodes.probe import SAMPLES, expected
from trueup.rows.spec import ValueClass

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_PROBING = threading.Lock()
_BLOCK, _HASH = "trueup_block", "trueup_hash"


class FrameSource(Protocol):
    """Where a frame comes from."""

    def open(self, session: SparkSession) -> DataFrame:
        """Return the frame as it is now. Raises CheckFailed or ConfigError if there is none."""

    def moment(self, node: str) -> Moment:
        """Return what the frame that was opened last contains."""

    def changed(self) -> str:
        """Return why reads of the frame since it was opened may differ, or an empty text."""


@dataclass
class GivenFrame:
    """A frame that the program has made."""

    frame: DataFrame

    def open(self, session: SparkSession) -> DataFrame:
        """Return the frame; raise CheckFailed if it reads times of files with a loss."""
        check_times_of(self.frame)
        return self.frame

    def moment(self, node: str) -> Moment:
        """Return that the frame has no version: every read evaluates it."""
        return Moment(node, "frame", held=False)

    def changed(self) -> str:
        """Return an empty text: the frame is evaluated by every read, which the report says."""
        return ""


class FrameNode:
    """A frame of Spark."""

    def __init__(
        self,
        name: str,
        kind: str,
        source: FrameSource,
        session: SparkSession,
        *,
        filter: str = "",
        expressions: Mapping[str, str] | None = None,
        probed: dict[bytes, Mapping[ValueClass, Sequence[str]]] | None = None,
    ) -> None:
        """Prepare the node; `probed` has the results of probes of the same session, by seed."""
        self.name = name
        self.kind = kind
        self._source = source
        self._session = session
        self._filter = filter
        self._expressions = dict(expressions or {})
        self._probed = {} if probed is None else probed
        self._frame: DataFrame | None = None
        self._tag = f"trueup-{uuid.uuid4()}"

    def describe(self) -> NodeTable:
        """Return the columns of the frame."""
        described = []
        for field in self._opened().schema.fields:
            kind, why = columns.class_of(field)
            described.append(NodeColumn(field.name, field.dataType.simpleString(), kind, why))
        return NodeTable(self.name, tuple(described))

    def begin(self) -> Moment:
        """Return the version of the frame."""
        self._opened()
        return self._source.moment(self.name)

    def probe(self, kinds: Sequence[ValueClass], seed: bytes) -> Mapping[ValueClass, Sequence[str]]:
        """Compute the samples with the functions that the digests use."""
        # Frames of one session are probed once.
        with _PROBING:
            if seed not in self._probed:
                with self._errors():
                    self._probed[seed] = probe_session(self._session, kinds, seed)
            return self._probed[seed]

    def digests(self, plan: Plan) -> BlockDigests:
        """Scan the frame once, and add up the hashes of its rows per block."""

        frame = self._opened()
        _, row = self._encoded(plan, frame)
        lacks_key = reduce(lambda one, other: one | other, self._null_keys(plan, frame), f.lit(False))
        hashed = frame.select(f.md5(row).alias(_HASH), lacks_key.alias("without_key"), *self._key_column(plan, frame))
        high, low = columns.half(f.col(_HASH), 0), columns.half(f.col(_HASH), 1)
        key = f.col("trueup_key") if isinstance(plan.blocks, KeyBlocks) else None
        # In parts of 32 bits: the sum of 64-bit numbers overflows.
        mask = f.lit(0xFFFFFFFF)
        parts = hashed.select(high.alias("h"), low.alias("l"), "without_key", *([key] if key is not None else []))
        block = columns.block_of(plan.blocks, plan, key, f.col("h")).alias(_BLOCK)
        sums = parts.groupBy(block).agg(
            f.count(f.lit(1)),
            f.sum(f.when(f.col("without_key"), 1).otherwise(0)),
            f.sum(f.shiftrightunsigned("h", 32)),
            f.sum(f.col("h").bitwiseAND(mask)),
            f.sum(f.shiftrightunsigned("l", 32)),
            f.sum(f.col("l").bitwiseAND(mask)),
        )
        with self._errors(), self._tagged():
            collected = sums.collect()
        check_null_keys(self.name, plan, sum(line[2] for line in collected))
        return BlockDigests.of(
            (line[0], line[1], (line[3] << 32) + line[4], (line[5] << 32) + line[6]) for line in collected
        )

    def rows(self, session: SparkSession, plan: Plan, blocks: Collection[int]) -> DataFrame:
        """Return the rows of these blocks; the ranges of blocks by key are a filter that Spark can push down."""

        frame = self._opened()
        key, row = self._encoded(plan, frame)
        if isinstance(plan.blocks, KeyBlocks):
            source = self._column(plan, frame, 0)
            return frame.where(_in_ranges(source, plan.blocks, blocks)).select(key.alias("k"), row.alias("v"))
        encoded = frame.select(key.alias("k"), row.alias("v"))
        block = columns.block_of(plan.blocks, plan, None, columns.half(f.md5("v"), 0))
        return encoded.where(block.isin(*blocks))

    def rows_of(self, session: SparkSession, plan: Plan, keys: DataFrame) -> DataFrame:
        """Open the frame again, and return the rows with these keys."""

        with self._errors():
            frame = self._filtered(self._source.open(self._session))
        key, row = self._encoded(plan, frame)
        encoded = frame.select(key.alias("k"), row.alias("v"))
        return encoded.join(f.broadcast(keys), "k", "left_semi")

    def changed(self) -> str:
        """Return why the files of the frame are not those of the first read."""
        return self._source.changed()

    def stop(self) -> None:
        """End the running jobs of this node, from another thread."""
        with suppress(Exception):
            self._session.interruptTag(self._tag)

    def end(self) -> None:
        """Do nothing: a frame holds nothing."""

    def close(self) -> None:
        """Do nothing."""

    def _opened(self) -> DataFrame:
        if self._frame is None:
            with self._errors():
                self._frame = self._filtered(self._source.open(self._session))
        return self._frame

    def _filtered(self, frame: DataFrame) -> DataFrame:
        if self._expressions:
            made = {name: f.expr(text) for name, text in self._expressions.items()}
            frame = self._analysed("expressions", lambda: frame.withColumns(made))
        return self._analysed("--filter", lambda: frame.where(self._filter)) if self._filter else frame

    def _analysed(self, option: str, change: Callable[[], DataFrame]) -> DataFrame:
        try:
            changed = change()
            # Analysed now, also through Spark Connect.
            _ = changed.schema
        except Exception as error:
            reason = str(error).splitlines()[0]
            cure = "write Spark SQL over columns of the frame"
            raise ConfigError(f"{option}: {reason}", cure=cure, node=self.name) from None
        return changed

    def _column(self, plan: Plan, frame: DataFrame, number: int) -> Column:
        name = plan.columns[number].on[self.name].name
        return frame[f"`{name.replace('`', '``')}`"]

    def _null_keys(self, plan: Plan, frame: DataFrame) -> list[Column]:
        return [self._column(plan, frame, number).isNull() for number in range(plan.key)]

    def _key_column(self, plan: Plan, frame: DataFrame) -> list[Column]:
        return [self._column(plan, frame, 0).alias("trueup_key")] if isinstance(plan.blocks, KeyBlocks) else []

    def _encoded(self, plan: Plan, frame: DataFrame) -> tuple[Column, Column]:
        """Return the encoded key and the encoded row of a frame."""
        types = {field.name: field.dataType for field in frame.schema.fields}
        values = [
            columns.column_value(column, self.name, self._column(plan, frame, number), types[column.on[self.name].name])
            for number, column in enumerate(plan.columns)
        ]
        row = columns.row(plan.kinds, values, plan.seed)
        if not plan.key:
            return row, row
        return columns.row(plan.kinds[: plan.key], values[: plan.key]), row

    @contextmanager
    def _tagged(self) -> Iterator[None]:
        """Mark the jobs of the block, so that `stop` ends them and no others."""
        self._session.addTag(self._tag)
        try:
            yield
        finally:
            with suppress(Exception):
                self._session.removeTag(self._tag)

    def _errors(self) -> _Errors:
        return _Errors(self.name)


class _Errors:
    """Errors of Spark in the block as errors of the node."""

    def __init__(self, node: str) -> None:
        self._node = node

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, TrueupError):
            error.node = error.node or self._node
        elif isinstance(error, Exception):
            failure = failed_job(error)
            failure.node = self._node
            failure.cure = "check that Spark can read the node, and the logs of its executors"
            raise failure from error


def probe_session(session: SparkSession, kinds: Sequence[ValueClass], seed: bytes) -> Mapping[ValueClass, list[str]]:
    """Return the md5 of the samples of these classes, as Spark computes it; classes that Spark lacks as expected."""

    known = [kind for kind in kinds if kind in _SPARK_TYPES]
    computed: dict[ValueClass, list[str]] = {kind: expected(kind, seed) for kind in kinds if kind not in _SPARK_TYPES}
    if not known:
        return computed
    schema = StructType()
    for kind in known:
        schema.add(kind, _SPARK_TYPES[kind])
    # One column per class, one row per sample; NULL is the last sample of each.
    most = max(len(SAMPLES[kind]) for kind in known) + 1
    lines = [
        tuple(SAMPLES[kind][number] if number < len(SAMPLES[kind]) else None for kind in known)
        for number in range(most)
    ]
    hashes = [
        f.md5(columns.row([kind], [columns.value(f.col(kind), _SPARK_TYPES[kind], kind, kind)], seed)).alias(kind)
        for kind in known
    ]
    # In one partition, which keeps their order.
    hashed = session.createDataFrame(lines, schema).coalesce(1).select(*hashes).collect()
    for kind in known:
        computed[kind] = [line[kind] for line in hashed[: len(SAMPLES[kind]) + 1]]
    return computed


_SPARK_TYPES: dict[ValueClass, DataType] = {
    "bool": BooleanType(),
    "int": LongType(),
    "decimal": DecimalType(38, 10),
    "float": DoubleType(),
    "text": StringType(),
    "char": StringType(),
    "bytes": BinaryType(),
    "date": DateType(),
    "timestamp": TimestampNTZType(),
    "instant": TimestampType(),
    "json": StringType(),
}


def _in_ranges(source: Column, blocks: Blocks, numbers: Collection[int]) -> Column:
    """Return the condition that the first key column is in one of these blocks, as few ranges."""

    assert isinstance(blocks, KeyBlocks)
    conditions = []
    for first, last in merged(numbers):
        start, end = blocks.range_of(first)[0], blocks.range_of(last)[1]
        condition = f.lit(True)
        if start is not None:
            condition = condition & (source >= columns.key_value(blocks.kind, start))
        if end is not None:
            condition = condition & (source < columns.key_value(blocks.kind, end))
        conditions.append(condition)
    return reduce(lambda one, other: one | other, conditions)
