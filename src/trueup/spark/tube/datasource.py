"""What Spark calls: the data source, and the reader that claims in the driver's worker and reads in the executors'.

Spark calls `commit` for a batch only when the next one is planned. But it asks `latestOffset` for what comes after a
batch only when that one is committed in its checkpoint: so that is when its pods are deleted, also those of the last
one before the stream is idle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType, TimestampType

from trueup.errors import CheckFailed
from trueup.spark.errors import errors_for_spark
from trueup.spark.tube.claims import Claims
from trueup.spark.tube.offsets import Offset
from trueup.spark.tube.options import StreamOptions, parse_options
from trueup.spark.tube.tasks import StreamTask, deal, rows_of

if TYPE_CHECKING:
    import pyarrow as pa

    from trueup.config.model import Node

NAME = "trueup_tube"
SCHEMA = StructType(
    [
        StructField("shard", LongType()),
        StructField("table", StringType()),
        StructField("key", ArrayType(StringType())),
        StructField("op", StringType()),
        # The row as it is now, as JSON; NULL: it is gone.
        StructField("row", StringType()),
        # Of the oldest pod of the batch: what to keep beside a document, for the garbage collection.
        StructField("seq", LongType()),
        StructField("at", TimestampType()),
        # The message of a control pod, as JSON; all else is about keys.
        StructField("control", StringType()),
    ]
)


class TubeSource(DataSource):
    """A tube. See docs/tubes.md for the options."""

    # Of `trueup.register`: they travel inside of the pickled class, and so never among the options.
    nodes: ClassVar[Mapping[str, Node]] = {}

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return NAME

    def schema(self) -> StructType:
        """Always the same."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> TubeStreamReader:
        """The stream; nothing is locked before Spark asks for the first batch."""
        with errors_for_spark():
            if [field.name for field in schema.fields] != SCHEMA.names:
                raise CheckFailed(["the columns of a tube cannot be chosen"], cure="leave out .schema(), and select")
            return TubeStreamReader(parse_options(self.options, self.nodes))


class TubeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One stream; pickled it has the options only."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._opened: Claims | None = None
        self._only_what_is_here = False

    def __reduce__(self) -> tuple[Any, ...]:
        return TubeStreamReader, (self._options,)

    @property
    def _claims(self) -> Claims:
        if self._opened is None:
            self._opened = Claims(self._options)
            if self._only_what_is_here:
                self._opened.only_what_is_here()
        return self._opened

    def initialOffset(self) -> dict[str, Any]:
        """No pods."""
        return Offset().as_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """So many keys a batch."""
        return ReadMaxRows(self._options.most_keys)

    def prepareForTriggerAvailableNow(self) -> None:
        """Work off what is there now, then end."""
        self._only_what_is_here = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The pods of the next batch; those of the last one are done."""
        with errors_for_spark():
            most = None if isinstance(limit, ReadAllAvailable) else self._options.most_keys
            return self._claims.next(Offset.from_json(start), most).as_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The pods of a batch, dealt by shard; after a crash, the same ones again."""
        if start == end:
            return []
        with errors_for_spark():
            claims, options = self._claims, self._options
            node = claims.session.reading_node()
            generations = tuple(claims.hold.generations.items())
            return [
                InputPartition(
                    StreamTask(node, options.schema, options.tube, tuple(part), generations, options.most_bytes)
                )
                for part in deal(claims.read(Offset.from_json(end)), options.tasks)
            ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The keys of one task with their rows."""
        with errors_for_spark():
            yield from rows_of(partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        """Mostly done already, when the batch after it was asked for."""
        with errors_for_spark():
            self._claims.done(Offset.from_json(end))

    def stop(self) -> None:
        """Give the locks back."""
        if self._opened is not None:
            self._opened.close()
