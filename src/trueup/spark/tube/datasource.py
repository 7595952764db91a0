"""The data source and its stream reader, which claims pods on the driver and reads rows on the executors.

Spark calls `commit` for a batch only when the next one is planned. But it calls `latestOffset` with the end of a batch
only when that batch is committed in the checkpoint. The pods are deleted at that point, so that those of the last batch
do not stay in the tube while the stream is idle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType, TimestampType

from trueup.config.model import Node
from trueup.engine.garbage import freeze_imports
from trueup.errors import CheckFailed
from trueup.spark.errors import errors_for_spark
from trueup.spark.tube.claims import Claims
from trueup.spark.tube.offsets import Offset
from trueup.spark.tube.options import StreamOptions, parse_options

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "trueup_tube"
SCHEMA = StructType(
    [
        StructField("shard", LongType()),
        StructField("table", StringType()),
        StructField("key", ArrayType(StringType())),
        StructField("op", StringType()),
        # The current row as JSON; NULL: the row does not exist.
        StructField("row", StringType()),
        # Mark of the batch, to store with each document for garbage collection.
        StructField("seq", LongType()),
        StructField("at", TimestampType()),
        # The payload of a control pod as JSON; NULL for keys.
        StructField("control", StringType()),
    ]
)


class TubeSource(DataSource):
    """The format trueup_tube. The options are described in docs/tubes.md."""

    # Set by `trueup.register`: pickled with the class, so that addresses are not visible as options.
    nodes: ClassVar[Mapping[str, Node]] = {}

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> StructType:
        """Return the schema, which is the same for all tubes."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> TubeStreamReader:
        """Return the reader. The locks are taken when Spark asks for the first batch."""
        with errors_for_spark():
            if [field.name for field in schema.fields] != SCHEMA.names:
                raise CheckFailed(
                    ["the format trueup_tube has a fixed schema"], cure="remove .schema() and use .select()"
                )
            return TubeStreamReader(parse_options(self.options, self.nodes))


class TubeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One stream. Only its options are pickled."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._opened: Claims | None = None
        self._stops_at_now = False

    def __reduce__(self) -> tuple[Any, ...]:
        return TubeStreamReader, (self._options,)

    @property
    def _claims(self) -> Claims:
        if self._opened is None:
            self._opened = Claims(self._options)
            if self._stops_at_now:
                self._opened.stop_at_now()
        return self._opened

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset without pods."""
        return Offset().as_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of keys per batch."""
        return ReadMaxRows(self._options.most_keys)

    def prepareForTriggerAvailableNow(self) -> None:
        """Process the pods that exist now, then stop."""
        self._stops_at_now = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the offset of the next batch; `start` is committed."""
        with errors_for_spark():
            max_keys = None if isinstance(limit, ReadAllAvailable) else self._options.most_keys
            return self._claims.next(Offset.from_json(start), max_keys).as_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Split the pods of a batch by shard; after a crash, the same pods again."""
        # Not at the top: Spark imports this module in processes that only look formats up, which do not need pyarrow.
        from trueup.spark.tube.tasks import StreamTask, split_pods

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
                for part in split_pods(claims.read(Offset.from_json(end)), options.tasks)
            ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the keys of one task with their rows."""
        from trueup.spark.tube.tasks import rows_of

        freeze_imports()
        with errors_for_spark():
            yield from rows_of(partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        """Delete the pods of a batch, unless `latestOffset` has already done that."""
        with errors_for_spark():
            self._claims.done(Offset.from_json(end))

    def stop(self) -> None:
        """Release the locks."""
        if self._opened is not None:
            self._opened.close()
