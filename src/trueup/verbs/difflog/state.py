"""The state table: a Delta table, bucketed by a hash of the key and sorted by key within a bucket.

A run reads only the files that may contain one of its keys (by bucket, and by the smallest and largest key of a file),
and replaces these files in one atomic commit. If it changes few of their states, it leaves these files, and writes the
changed states beside them, into files of changes (`layout`): of a key that is in both, only the change is valid. The
commit records the number of the run as an application transaction:
a repeated commit does nothing, and of two concurrent runs one fails.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from trueup.config.files import sync_delta_commit, sync_folder, sync_tree
from trueup.errors import StoreError
from trueup.verbs.difflog.checksums import altered_files, write_checksums
from trueup.verbs.difflog.model import DiffLogConfig
from trueup.verbs.difflog.steps.merge import cols, quoted

BUCKET = "bucket"
APPLICATION = "trueup-difflog"
# The application transaction with the number of the record that a commit makes valid.
_RECORD = "trueup-difflog-record"
ROWS_PER_FILE = 100_000
# The end of the name of a folder with files of changes.
_CHANGES = "-changes"
# Up to this number of rows, keys are sent to all executors instead of being shuffled with the states.
BROADCAST_ROWS = 200_000


@dataclass(frozen=True)
class DataFile:
    """One file of the table: its path, its bucket, and the smallest and largest value of the first key column."""

    path: str
    bucket: int
    size: int
    rows: int
    lowest: Any
    highest: Any

    @property
    def has_changes(self) -> bool:
        """Whether the states in this file take precedence over those in other files."""
        return self.path.partition("/")[0].endswith(_CHANGES)


class StateTable:
    """The state table in a folder. Every call opens the table again, so that results are never stale."""

    def __init__(self, path: Path, key: Sequence[str], buckets: int) -> None:
        self.path = path.absolute()
        self.key = tuple(key)
        self.buckets = buckets

    @classmethod
    def of(cls, difflog: DiffLogConfig) -> StateTable:
        """Return the state table of a version log."""
        return cls(Path(difflog.state.path), difflog.entity.key, difflog.state.buckets)

    def exists(self) -> bool:
        """Return whether the table exists."""
        from deltalake import DeltaTable

        return DeltaTable.is_deltatable(str(self.path))

    def last_run(self) -> int:
        """Return the number of the last committed run; 0 before the first."""
        return self._transaction(APPLICATION) or 0

    def record_number(self) -> int:
        """Return the number of the record of the log that the last commit names; 1 before the first commit."""
        return self._transaction(_RECORD) or 1

    def version(self) -> int | None:
        """Return the current version of the table, or None if it does not exist."""
        return self._open().version() if self.exists() else None

    def files(self, version: int | None = None) -> list[DataFile]:
        """Return the files of a version of the table (default: the current one)."""
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
        """Return the bucket of a row, as a column."""
        return f.pmod(f.hash(*cols(self.key)), f.lit(self.buckets))

    def files_for(self, keys: DataFrame, files: Sequence[DataFile]) -> tuple[list[DataFile], set[int]]:
        """Return the files that may contain one of these keys, and the buckets of the keys."""
        if not files:
            return [], set()
        first = quoted(self.key[0])
        kind = keys.schema[self.key[0]].dataType.simpleString()
        known = keys.sparkSession.createDataFrame(
            [(index, file.bucket, _text(file.lowest), _text(file.highest)) for index, file in enumerate(files)],
            "file int, file_bucket int, lowest string, highest string",
        ).select("file", "file_bucket", f.col("lowest").cast(kind), f.col("highest").cast(kind))
        searched = keys.select(self.bucket_of().alias("key_bucket"), f.col(first).alias("first_key"))
        # A file without statistics may contain any key.
        in_range = "lowest IS NULL OR highest IS NULL OR first_key BETWEEN lowest AND highest"
        may_contain = f.expr(f"key_bucket = file_bucket AND ({in_range})")
        hits = searched.join(f.broadcast(known), may_contain, "left").select("key_bucket", "file").distinct().collect()
        numbers = {row["file"] for row in hits if row["file"] is not None}
        return [files[number] for number in sorted(numbers)], {row["key_bucket"] for row in hits}

    def read(
        self, session: SparkSession, files: Sequence[DataFile], schema: StructType, keys: DataFrame | None = None
    ) -> DataFrame:
        """Read the states in these files, of each key once; columns that a file does not have are NULL.

        `keys` are the keys to read, if they are few. Raises StoreError if a file is missing.
        """
        changes = [file for file in files if file.has_changes]
        plain = [file for file in files if not file.has_changes]
        if not (changes and plain):
            return self._read(session, files, schema, keys)
        others, changed = (self._read(session, part, schema, keys) for part in (plain, changes))
        newer = changed.select(*cols(self.key))
        newer = f.broadcast(newer) if sum(file.rows for file in changes) <= BROADCAST_ROWS else newer
        return others.join(newer, list(self.key), "left_anti").unionByName(changed)

    def _read(
        self, session: SparkSession, files: Sequence[DataFile], schema: StructType, keys: DataFrame | None
    ) -> DataFrame:
        for file in files:
            if not (self.path / file.path).exists():
                raise StoreError(
                    f"{self.path / file.path} does not exist, but the state table contains it",
                    cure="restore the file from a backup; the states in it are lost otherwise",
                )
        paths = [str(self.path / file.path) for file in files]
        rows = session.read.schema(schema).parquet(*paths) if paths else session.createDataFrame([], schema)
        return rows if keys is None else rows.join(f.broadcast(keys), list(self.key), "left_semi")

    def schema(self) -> StructType | None:
        """Return the schema of the table without the bucket, or None if the table does not exist."""
        if not self.exists():
            return None
        fields = json.loads(self._open().schema().to_json())["fields"]
        full = StructType.fromJson({"type": "struct", "fields": [_spark_field(field) for field in fields]})
        return StructType([field for field in full.fields if field.name != BUCKET])

    def write_files(self, states: DataFrame, run: int, *, changes: bool = False) -> list[Path]:
        """Write the files of the next commit into a folder of the run; a repeated call starts over."""
        self.discard_files(run)
        folder = self._folder_of(run, changes=changes)
        order = [BUCKET, *[quoted(name) for name in self.key]]
        (
            states.withColumn(BUCKET, self.bucket_of())
            .repartition(min(self.buckets, _parallelism(states)), BUCKET)
            .sortWithinPartitions(*order)
            .write.option("maxRecordsPerFile", ROWS_PER_FILE)
            .partitionBy(BUCKET)
            .parquet(str(folder))
        )
        files = sorted(folder.rglob("*.parquet"))
        write_checksums(folder, files)
        return files

    def altered(self) -> list[str]:
        """Return the files of the table that are not as a run has written them."""
        return altered_files(self.path, [file.path for file in self.files()]) if self.exists() else []

    def commit(
        self,
        run: int,
        schema: StructType,
        added: Sequence[Path],
        removed: Sequence[DataFile],
        *,
        record: int,
        replace_all: bool = False,
    ) -> None:
        """Add and remove files of the table in one commit, and make a record of the log valid.

        `replace_all` removes all files and columns that are not added. Does nothing if the run is already committed.
        """
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import RemoveAction

        if self.last_run() >= run:
            self.sync()
            return
        version = self._open().version() if self.exists() else -1
        table = self._open() if replace_all else self._open_or_create(schema)
        # Spark does not put its files on the disk.
        for folder in {self.path / path.relative_to(self.path).parts[0] for path in added}:
            sync_tree(folder)
        sync_folder(self.path.parent)
        now = int(time.time() * 1000)
        actions: list[Any] = [self._add(path, now) for path in added]
        actions += [RemoveAction(file.path, True, now, file.size, {BUCKET: str(file.bucket)}) for file in removed]
        try:
            table.create_write_transaction(
                actions,
                mode="overwrite" if replace_all else "append",
                schema=_delta_schema(schema),
                partition_by=[BUCKET],
                commit_properties=CommitProperties(
                    custom_metadata={"run": str(run)},
                    max_commit_retries=0,
                    app_transactions=[Transaction(APPLICATION, run), Transaction(_RECORD, record)],
                ),
            )
        except CommitFailedError as error:
            raise StoreError(
                f"the state table {self.path} was changed by another run: {error}",
                cure="run again: the table contains nothing of this run",
            ) from None
        sync_delta_commit(self.path, version)

    def _transaction(self, application: str) -> int | None:
        version: int | None = self._open().transaction_version(application) if self.exists() else None
        return version

    def sync(self) -> None:
        """Put the last commit on the disk: the process may have been killed between the commit and its sync."""
        sync_delta_commit(self.path, -1)

    def discard_files(self, run: int) -> None:
        """Remove the files that a run has written but not committed."""
        for changes in (False, True):
            shutil.rmtree(self._folder_of(run, changes=changes), ignore_errors=True)

    def _folder_of(self, run: int, *, changes: bool) -> Path:
        return self.path / f"run-{run:06d}{_CHANGES if changes else ''}"

    def _open(self, version: int | None = None) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(str(self.path), version=version)

    def _open_or_create(self, schema: StructType) -> Any:
        from deltalake import DeltaTable

        target = _delta_schema(schema)
        if not self.exists():
            return DeltaTable.create(str(self.path), schema=target, partition_by=[BUCKET])
        table = self._open()
        known = {field.name for field in table.schema().fields}
        more = [field for field in target.fields if field.name not in known]
        if more:
            table.alter.add_columns(more)
            table = self._open()
        return table

    def _add(self, path: Path, now: int) -> Any:
        """Return the Delta action that adds a file: its size, its rows, and the range of its keys."""
        from deltalake.transaction import AddAction

        metadata = pq.read_metadata(path)
        lowest, highest = _range(metadata, self.key[0])
        stats: dict[str, Any] = {"numRecords": metadata.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
        if lowest is not None:
            stats["minValues"][self.key[0]] = lowest
            stats["maxValues"][self.key[0]] = highest
        bucket = path.parent.name.partition("=")[2]
        return AddAction(
            path.relative_to(self.path).as_posix(), path.stat().st_size, {BUCKET: bucket}, now, True, json.dumps(stats)
        )


def state_rows(session: SparkSession, difflog: DiffLogConfig) -> DataFrame | None:
    """Return the state table as a DataFrame, or None before the first run."""
    table = StateTable.of(difflog)
    schema = table.schema()
    return None if schema is None else table.read(session, table.files(), schema)


def _range(metadata: Any, column: str) -> tuple[Any, Any]:
    """Return the smallest and largest value of a column; None if the file has no statistics as number or text."""
    lowest = highest = None
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for index in range(group.num_columns):
            chunk = group.column(index)
            if chunk.path_in_schema != column:
                continue
            stats = chunk.statistics
            if stats is None or not stats.has_min_max or not isinstance(stats.min, (int, str)):
                return None, None
            lowest = stats.min if lowest is None else min(lowest, stats.min)
            highest = stats.max if highest is None else max(highest, stats.max)
    return lowest, highest


def _delta_schema(schema: StructType) -> Any:
    from deltalake import Schema

    fields = [{**json.loads(field.json()), "nullable": True, "metadata": {}} for field in schema.fields]
    fields.append({"name": BUCKET, "type": "integer", "nullable": True, "metadata": {}})
    return Schema.from_json(json.dumps({"type": "struct", "fields": fields}))


def _spark_field(field: dict[str, Any]) -> dict[str, Any]:
    return {**field, "metadata": field.get("metadata") or {}}


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _parallelism(frame: DataFrame) -> int:
    return int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or 8)
