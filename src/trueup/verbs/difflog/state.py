"""The state table: a Delta table, bucketed by a hash of the key and sorted by key within a bucket.

A run reads only the files that may hold one of its keys (by bucket, and by the smallest and largest key of a file), and
replaces exactly those in one atomic commit. The commit carries the run's number as an application transaction, so a
repeated commit is seen and does nothing, and of two runs that collide one fails.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueup.errors import StoreError
from trueup.verbs.difflog.merge import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

BUCKET = "bucket"
APPLICATION = "trueup-difflog"
ROWS_A_FILE = 100_000


@dataclass(frozen=True)
class DataFile:
    """One file of the table: where it is, its bucket, and the smallest and largest first key in it."""

    path: str
    bucket: int
    size: int
    rows: int
    least: Any
    most: Any


class StateTable:
    """The state table at one place; opened anew for every question, so it is never stale."""

    def __init__(self, path: Path, key: Sequence[str], buckets: int) -> None:
        self.path = path.absolute()
        self.key = tuple(key)
        self.buckets = buckets

    def exists(self) -> bool:
        """Whether there is a table yet."""
        from deltalake import DeltaTable

        return DeltaTable.is_deltatable(str(self.path))

    def last_run(self) -> int:
        """The number of the last run whose states are in the table; 0 before the first."""
        if not self.exists():
            return 0
        return self._open().transaction_version(APPLICATION) or 0

    def version(self) -> int | None:
        """The table's version, to read it again as it is now."""
        return self._open().version() if self.exists() else None

    def files(self, version: int | None = None) -> list[DataFile]:
        """The files of a version of the table."""
        import pyarrow as pa

        if not self.exists():
            return []
        rows = pa.table(self._open(version).get_add_actions(flatten=True)).to_pylist()
        first = self.key[0]
        return [
            DataFile(
                row["path"],
                int(row[f"partition.{BUCKET}"]),
                row["size_bytes"],
                row["num_records"],
                row.get(f"min.{first}"),
                row.get(f"max.{first}"),
            )
            for row in rows
        ]

    def bucket_of(self) -> Column:
        """The bucket of a row."""
        from pyspark.sql import functions as f

        return f.pmod(f.hash(*[f.col(quoted(name)) for name in self.key]), f.lit(self.buckets))

    def files_for(self, keys: DataFrame, files: Sequence[DataFile]) -> list[DataFile]:
        """The files that may hold one of these keys; all others are not opened."""
        from pyspark.sql import functions as f

        if not files:
            return []
        first = quoted(self.key[0])
        kind = keys.schema[self.key[0]].dataType.simpleString()
        known = keys.sparkSession.createDataFrame(
            [(at, each.bucket, _text(each.least), _text(each.most)) for at, each in enumerate(files)],
            "at int, file_bucket int, least string, most string",
        ).select("at", "file_bucket", f.col("least").cast(kind), f.col("most").cast(kind))
        mine = keys.select(self.bucket_of().alias("my_bucket"), f.col(first).alias("my_key"))
        # A file without statistics may hold anything.
        inside = "my_bucket = file_bucket AND (least IS NULL OR most IS NULL OR my_key BETWEEN least AND most)"
        hits = mine.join(f.broadcast(known), f.expr(inside)).select("at").distinct().collect()
        return [files[row["at"]] for row in hits]

    def read(self, session: Any, files: Sequence[DataFile], schema: StructType) -> DataFrame:
        """The rows of these files; columns that a file does not have are NULL."""
        paths = [str(self.path / each.path) for each in files]
        found: DataFrame = session.read.schema(schema).parquet(*paths) if paths else session.createDataFrame([], schema)
        return found

    def schema(self, session: Any) -> StructType | None:
        """The columns of the table, without the bucket."""
        from pyspark.sql.types import StructType

        if not self.exists():
            return None
        fields = json.loads(self._open().schema().to_json())["fields"]
        whole = StructType.fromJson({"type": "struct", "fields": [_spark_field(each) for each in fields]})
        return StructType([each for each in whole.fields if each.name != BUCKET])

    def write_files(self, states: DataFrame, run: int) -> list[Path]:
        """Write states as files of a coming commit, into a folder of the run's own; a second try starts over."""
        folder = self.path / f"run-{run:06d}"
        shutil.rmtree(folder, ignore_errors=True)
        order = [BUCKET, *[quoted(name) for name in self.key]]
        (
            states.withColumn(BUCKET, self.bucket_of())
            .repartition(min(self.buckets, _parallelism(states)), BUCKET)
            .sortWithinPartitions(*order)
            .write.option("maxRecordsPerFile", ROWS_A_FILE)
            .partitionBy(BUCKET)
            .parquet(str(folder))
        )
        return sorted(folder.rglob("*.parquet"))

    def commit(self, run: int, schema: StructType, added: Sequence[Path], removed: Sequence[DataFile]) -> None:
        """Put the new files into the table and take the old ones out, in one step; once for each run."""
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import RemoveAction

        if self.last_run() >= run:
            return
        table = self._open_or_create(schema)
        now = int(time.time() * 1000)
        actions: list[Any] = [self._add(path, now) for path in added]
        actions += [RemoveAction(each.path, True, now, each.size, {BUCKET: str(each.bucket)}) for each in removed]
        try:
            table.create_write_transaction(
                actions,
                mode="append",
                schema=_delta_schema(schema),
                partition_by=[BUCKET],
                commit_properties=CommitProperties(
                    custom_metadata={"run": str(run)},
                    max_commit_retries=0,
                    app_transactions=[Transaction(APPLICATION, run)],
                ),
            )
        except CommitFailedError as error:
            raise StoreError(
                f"the state table {self.path} was changed by another run meanwhile: {error}",
                cure="run again: nothing of this run is in the table",
            ) from None

    def _open(self, version: int | None = None) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(str(self.path), version=version)

    def _open_or_create(self, schema: StructType) -> Any:
        from deltalake import DeltaTable

        wanted = _delta_schema(schema)
        if not self.exists():
            return DeltaTable.create(str(self.path), schema=wanted, partition_by=[BUCKET])
        table = self._open()
        known = {each.name for each in table.schema().fields}
        more = [each for each in wanted.fields if each.name not in known]
        if more:
            table.alter.add_columns(more)
            table = self._open()
        return table

    def _add(self, path: Path, now: int) -> Any:
        """What the table says of a new file: its size, its rows, and the range of its keys."""
        import pyarrow.parquet as pq
        from deltalake.transaction import AddAction

        metadata = pq.read_metadata(path)
        least, most = _range(metadata, self.key[0])
        stats: dict[str, Any] = {"numRecords": metadata.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
        if least is not None:
            stats["minValues"][self.key[0]] = least
            stats["maxValues"][self.key[0]] = most
        bucket = path.parent.name.partition("=")[2]
        return AddAction(
            path.relative_to(self.path).as_posix(), path.stat().st_size, {BUCKET: bucket}, now, True, json.dumps(stats)
        )


def _range(metadata: Any, column: str) -> tuple[Any, Any]:
    """Smallest and largest value of a column; None where the file does not tell, or not as a plain number or text."""
    least = most = None
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for at in range(group.num_columns):
            chunk = group.column(at)
            if chunk.path_in_schema != column:
                continue
            stats = chunk.statistics
            if stats is None or not stats.has_min_max or not isinstance(stats.min, (int, str)):
                return None, None
            least = stats.min if least is None else min(least, stats.min)
            most = stats.max if most is None else max(most, stats.max)
    return least, most


def _delta_schema(schema: StructType) -> Any:
    from deltalake import Schema

    fields = [{**json.loads(each.json()), "nullable": True, "metadata": {}} for each in schema.fields]
    fields.append({"name": BUCKET, "type": "integer", "nullable": True, "metadata": {}})
    return Schema.from_json(json.dumps({"type": "struct", "fields": fields}))


def _spark_field(field: dict[str, Any]) -> dict[str, Any]:
    return {**field, "metadata": field.get("metadata") or {}}


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _parallelism(frame: DataFrame) -> int:
    return int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or 8)
