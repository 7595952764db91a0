"""Local Parquet files, also those of a Delta table, as a node that needs no Spark: read and hashed with Arrow.

The digests are those of a frame of Spark over the same files. What only Spark can read as Spark does raises
NotColumnar: the comparison then runs on Spark.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from trueup.errors import CheckFailed, Interrupted, TrueupError
from trueup.nodes import arrow_columns as columns
from trueup.nodes.base import Moment, NodeColumn, NodeTable, Plan, check_null_keys
from trueup.nodes.block_digests import BlockDigests
from trueup.nodes.columnar_workers import digests_of
from trueup.nodes.parquet_parts import Files, NotColumnar, Work, read_files
from trueup.nodes.probe import SAMPLES, expected
from trueup.rows.spec import ValueClass

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from trueup.nodes.base import EncodedRows

_WITHOUT_SPARK = "these files are read without Spark"

__all__ = ["ColumnarNode", "ColumnarSource", "NotColumnar"]

_ARROW_TYPES: dict[ValueClass, pa.DataType] = {
    "bool": pa.bool_(),
    "int": pa.int64(),
    "decimal": pa.decimal128(38, 10),
    "float": pa.float64(),
    "text": pa.string(),
    "char": pa.string(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "instant": pa.timestamp("us", "UTC"),
    "json": pa.string(),
}


class ColumnarSource(Protocol):
    """Where the files come from."""

    def local_files(self) -> tuple[list[str], Mapping[str, str]]:
        """Return the files as they are now, and names of columns with the names of their Spark types.

        Without names, all columns of the files are read. Raises NotColumnar if the files alone do not have the rows,
        and CheckFailed if there are none.
        """

    def moment(self, node: str) -> Moment:
        """Return what the files that were listed last contain."""

    def changed(self) -> str:
        """Return why reads of the files since they were listed may differ, or an empty text."""


class ColumnarNode:
    """Local Parquet files."""

    def __init__(self, name: str, kind: str, source: ColumnarSource) -> None:
        self.name = name
        self.kind = kind
        self._source = source
        self._files: Files | None = None
        self._stop = threading.Event()

    def describe(self) -> NodeTable:
        """Return the columns of the files; raise NotColumnar if Spark has to read them."""
        files = self._files = self._listed()
        described = [NodeColumn(name, _shown(kind), columns.class_of(kind)) for name, kind in files.types.items()]
        return NodeTable(self.name, tuple(described), rows=files.rows)

    def begin(self) -> Moment:
        """Return the version of the files."""
        return self._source.moment(self.name)

    def check(self, plan: Plan) -> None:
        """Raise NotColumnar if a plan can be computed with Spark only."""
        Work.of(plan, self.name)

    def probe(self, kinds: Sequence[ValueClass], seed: bytes) -> Mapping[ValueClass, Sequence[str]]:
        """Compute the samples with the functions that the digests use; classes that Arrow lacks are as expected."""
        computed: dict[ValueClass, Sequence[str]] = {}
        for kind in kinds:
            if kind not in _ARROW_TYPES:
                computed[kind] = expected(kind, seed)
                continue
            samples = pa.array([*SAMPLES[kind], None], _ARROW_TYPES[kind])
            high, low = columns.md5_hashes(columns.rows([kind], [samples], len(samples), seed))
            computed[kind] = [f"{one:016x}{other:016x}" for one, other in zip(high.tolist(), low.tolist(), strict=True)]
        return computed

    def digests(self, plan: Plan) -> BlockDigests:
        """Read all parts once, and add up the hashes of their rows per block."""
        work, found, without_key = self._work(plan), [], 0
        for digests, lacking in digests_of(work, self._known.parts, self._stop):
            found.append(digests)
            without_key += lacking
        check_null_keys(self.name, plan, without_key)
        return BlockDigests.merged(found)

    def local_rows(self, plan: Plan, blocks: Collection[int]) -> Iterator[EncodedRows]:
        """Yield the rows of these blocks; parts without any are skipped by their statistics."""
        work, listed = self._work(plan), sorted(blocks)
        for part in self._known.parts:
            self._check_stop()
            yield from self._named(work.rows(part, listed))

    def local_rows_of(self, plan: Plan, keys: Sequence[bytes]) -> Iterator[EncodedRows]:
        """List the files again, and yield the rows with these keys."""
        work, wanted = self._work(plan), frozenset(keys)
        files = self._listed()
        if files.types != self._known.types:
            reason = f"node {self.name}: the columns of the files have changed since the first read"
            raise CheckFailed([reason], cure="run again")
        for part in files.parts:
            self._check_stop()
            yield from self._named(work.rows_of(part, wanted))

    def rows(self, session: SparkSession, plan: Plan, blocks: Collection[int]) -> DataFrame:
        """Raise NotColumnar: all nodes of such a comparison are read without Spark."""
        raise NotColumnar(_WITHOUT_SPARK)

    def rows_of(self, session: SparkSession, plan: Plan, keys: DataFrame) -> DataFrame:
        """Raise NotColumnar: all nodes of such a comparison are read without Spark."""
        raise NotColumnar(_WITHOUT_SPARK)

    def changed(self) -> str:
        """Return why the files are not those of the first read."""
        return self._source.changed()

    def stop(self) -> None:
        """End the running reads, from another thread."""
        self._stop.set()

    def end(self) -> None:
        """Do nothing: files hold nothing."""

    def close(self) -> None:
        """Do nothing."""

    @property
    def _known(self) -> Files:
        assert self._files is not None, "describe comes first"
        return self._files

    def _listed(self) -> Files:
        try:
            paths, named = self._source.local_files()
        except TrueupError as error:
            error.node = error.node or self.name
            raise
        files = read_files(paths)
        if not named:
            return _checked(files)
        types = {name: files.types.get(name) for name in named}
        wrong = [name for name, kind in types.items() if paths and (kind is None or _shown(kind) != named[name])]
        if wrong or not paths:
            # A column that was added later is NULL in older files; an empty table has a schema only.
            raise NotColumnar(f"column {wrong[0]} is not in all files" if wrong else "there are no files")
        return _checked(Files({name: kind for name, kind in types.items() if kind is not None}, files.parts))

    def _work(self, plan: Plan) -> Work:
        return Work.of(plan, self.name)

    def _named(self, batches: Iterator[EncodedRows]) -> Iterator[EncodedRows]:
        try:
            yield from batches
        except TrueupError as error:
            error.node = error.node or self.name
            raise

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise Interrupted("the run was stopped", node=self.name)


def _checked(files: Files) -> Files:
    for name, kind in files.types.items():
        if columns.class_of(kind) is None:
            raise NotColumnar(f"column {name} has the type {kind}")
    return files


def _shown(kind: pa.DataType) -> str:
    """Return the Spark type of an Arrow type."""
    from trueup.engine.parquet_files import spark_type

    return spark_type(kind) or str(kind)
