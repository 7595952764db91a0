"""The classes that Spark calls: the data source, and the reader, which plans on the driver and reads on the executors.

Filter pushdown of Spark (`DataSourceReader.pushFilters`, since 4.1) is not used. Spark keeps the plan of a read with
the loaded table, not with the query (observed in 4.3.0; a test checks it): after `df.filter("a = 1")`, `df.count()`
uses the plan with that filter, and of two filters in a union the later one applies to both, so rows would be lost
silently. The option `filter` has the same effect for one `load()`. Spark has no pushdown of columns, hence the option
`columns`.
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

from trueup.config.model import Node
from trueup.db.arrow import stream
from trueup.engine.garbage import freeze_imports
from trueup.errors import CheckFailed
from trueup.spark.errors import errors_for_spark
from trueup.spark.table.options import parse_options
from trueup.spark.table.plan import Part, Scan, columns_of, plan

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "trueup"
_ATOMIC: tuple[type[DataType], ...] = (
    *(ShortType, IntegerType, LongType, FloatType, DoubleType, BooleanType, StringType, BinaryType),
    *(DateType, TimestampType, TimestampNTZType),
)
_TYPES = {kind().simpleString(): kind for kind in _ATOMIC}


class TrueupSource(DataSource):
    """A table of a node. See docs/datasource.md for the options."""

    # Set by `trueup.register`: part of the pickled class, not of the options.
    nodes: ClassVar[Mapping[str, Node]] = {}

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of the table. All are nullable, because a NOT NULL constraint may be dropped later."""
        with errors_for_spark():
            columns = columns_of(parse_options(self.options, self.nodes))
            return StructType([StructField(column.name, _spark_type(column.spark)) for column in columns])

    def reader(self, schema: StructType) -> TrueupReader:
        """Return the planned read of a schema: that of the table, or one that the user specified."""
        with errors_for_spark():
            _check_nullable(schema)
            types = {field.name: field.dataType.simpleString() for field in schema.fields}
            return TrueupReader(*plan(parse_options(self.options, self.nodes), types))


class TrueupReader(DataSourceReader):
    """One planned read; the pickled reader contains the address of the node."""

    def __init__(self, scan: Scan, parts: list[Part]) -> None:
        self._scan = scan
        self._parts = parts

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark sends each task its own partition: do not send all of them.
        return TrueupReader, (self._scan, [])

    def partitions(self) -> list[InputPartition]:
        """Return the parts of the table."""
        return [InputPartition(part) for part in self._parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part, in batches of limited size."""
        # Spark imports this module in the processes that only look formats up, which do not need pyarrow.
        from trueup.spark.table.decode import decode

        freeze_imports()
        scan, part = self._scan, partition.value
        with errors_for_spark(scan.table):
            for batch in stream(
                scan.node,
                part.query,
                view=scan.view,
                table=scan.table,
                block=part.name,
                batch_bytes=scan.batch_bytes,
                allow_views=scan.is_view,
            ):
                yield decode(batch, scan.columns, unfit=scan.unfit)


def _check_nullable(schema: StructType) -> None:
    for field in schema.fields:
        not_null_elements = isinstance(field.dataType, ArrayType) and not field.dataType.containsNull
        if not field.nullable or not_null_elements:
            raise CheckFailed([f"schema: column {field.name} must be nullable"], cure="remove NOT NULL from the schema")


def _spark_type(text: str) -> DataType:
    if text.startswith("decimal("):
        precision, scale = text[len("decimal(") : -1].split(",")
        return DecimalType(int(precision), int(scale))
    if text.startswith("array<"):
        return ArrayType(_spark_type(text[len("array<") : -1]))
    return _TYPES[text]()
