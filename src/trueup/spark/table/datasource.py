"""What Spark calls: the data source, and the reader that plans in the driver's worker and reads in the executors'.

Spark's hook for filters (`DataSourceReader.pushFilters`, since 4.1) is not used. Spark keeps the plan of a read with
the loaded table, not with the query (seen in 4.3.0, and a test looks again): after `df.filter("a = 1")`, a `df.count()`
gets the plan with that filter in it, and of two filters in a union the later one is applied to both. Rows would vanish
without a word. The option `filter` does the same work and belongs to one `load()`. There is no hook for columns: hence
the option `columns`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from trueup.db.arrow import stream
from trueup.errors import CheckFailed
from trueup.spark.errors import errors_for_spark
from trueup.spark.table.decode import decode
from trueup.spark.table.options import parse_options
from trueup.spark.table.plan import Part, Scan, columns_of, plan

if TYPE_CHECKING:
    import pyarrow as pa

    from trueup.config.model import Node

NAME = "trueup"
_ATOMIC: tuple[type[DataType], ...] = (
    *(ShortType, IntegerType, LongType, FloatType, DoubleType, BooleanType, StringType, BinaryType),
    *(DateType, TimestampType, TimestampNTZType),
)
_TYPES = {kind().simpleString(): kind for kind in _ATOMIC}


class TrueupSource(DataSource):
    """A table of a node. See docs/datasource.md for the options."""

    # Of `trueup.register`: they travel inside of the pickled class, and so never among the options.
    nodes: ClassVar[Mapping[str, Node]] = {}

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return NAME

    def schema(self) -> StructType:
        """The table's columns. All may be NULL for Spark: who drops a NOT NULL tomorrow must not make it wrong."""
        with errors_for_spark():
            columns = columns_of(parse_options(self.options, self.nodes))
            return StructType([StructField(column.name, _spark_type(column.spark)) for column in columns])

    def reader(self, schema: StructType) -> TrueupReader:
        """The read of a schema, planned: of the table's own, or of the one that the user gave."""
        with errors_for_spark():
            _check_nullable(schema)
            wanted = {field.name: field.dataType.simpleString() for field in schema.fields}
            return TrueupReader(*plan(parse_options(self.options, self.nodes), wanted))


class TrueupReader(DataSourceReader):
    """One planned read; it is pickled with the address in it."""

    def __init__(self, scan: Scan, parts: list[Part]) -> None:
        self._scan = scan
        self._parts = parts

    def __reduce__(self) -> tuple[Any, ...]:
        # Every task gets its own part; all of them in each would add up.
        return TrueupReader, (self._scan, [])

    def partitions(self) -> list[InputPartition]:
        """The parts of the table."""
        return [InputPartition(part) for part in self._parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one part, in batches of bounded size."""
        scan, part = self._scan, partition.value
        with errors_for_spark(scan.table):
            for batch in stream(
                scan.node,
                part.query,
                view=scan.view,
                table=scan.table,
                block=part.name,
                batch_bytes=scan.batch_bytes,
            ):
                yield decode(batch, scan.columns, unfit=scan.unfit)


def _check_nullable(schema: StructType) -> None:
    for field in schema.fields:
        inside = isinstance(field.dataType, ArrayType) and not field.dataType.containsNull
        if not field.nullable or inside:
            raise CheckFailed([f"schema: column {field.name} must be nullable"], cure="leave out NOT NULL")


def _spark_type(text: str) -> DataType:
    if text.startswith("decimal("):
        precision, scale = text[len("decimal(") : -1].split(",")
        return DecimalType(int(precision), int(scale))
    if text.startswith("array<"):
        return ArrayType(_spark_type(text[len("array<") : -1]))
    return _TYPES[text]()
