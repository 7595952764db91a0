"""The frame of a Delta table in a folder: the files of one version, read as Parquet by Spark.

The log is read with the library `deltalake`. What reading the files alone would not show is refused: deletion vectors,
mapped columns, and any other feature that readers have to know.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pyspark.sql.types import StructType

from trueup.config.files import odd_character
from trueup.engine.parquet_files import local_path
from trueup.errors import CheckFailed, ConfigError, NodeError
from trueup.nodes.base import Moment
from trueup.nodes.parquet_parts import NotColumnar, has_spark_type

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

# Features of a table that do not change what its files contain.
_HARMLESS = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
_WITH_DELTA = "use a Spark session that has Delta, and compare spark:NAME or a frame of it"
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
# Types whose values in the names of folders Spark reads back exactly.
_PARTITION_TYPES = ("string", "byte", "short", "integer", "long", "boolean", "date")


@dataclass
class DeltaSource:
    """The newest version of a Delta table."""

    path: str
    _version: int = -1
    _files: dict[str, int] = field(default_factory=dict)
    # Time of the last change and inode of each file, when it was listed.
    _times: dict[str, tuple[int, int]] = field(default_factory=dict)

    def open(self, session: SparkSession) -> DataFrame:
        """Return the frame of the newest version."""
        folder, schema, _ = self._look()
        if not self._files:
            return session.createDataFrame([], schema)
        # With the schema of the table: a column that a file lacks was added later, and is NULL in its rows.
        return session.read.schema(schema).option("basePath", str(folder)).parquet(*self._files)

    def local_files(self) -> tuple[list[str], Mapping[str, str]]:
        """Return the files of the newest version, and the columns of the table."""
        _, schema, partitions = self._look()
        if partitions or any(has_spark_type(one.metadata) for one in schema.fields):
            raise NotColumnar(f"columns of {self.path} are not all in its files as they are read")
        return sorted(self._files), {one.name: one.dataType.simpleString() for one in schema.fields}

    def _look(self) -> tuple[Path, StructType, list[str]]:
        """Open the newest version; return its folder, columns, and those in the names of folders."""
        folder = local_path(self.path)
        table = _opened(folder)
        schema = StructType.fromJson(json.loads(table.schema().to_json()))
        _check_features(table, folder)
        actions = _actions(table)
        partitions = list(table.metadata().partition_columns)
        _check_partitions(folder, schema, partitions, actions)
        self._version = table.version()
        self._files = {str(folder / unquote(action["path"])): action["size_bytes"] for action in actions}
        for path in self._files:
            if odd := odd_character(Path(path)):
                raise CheckFailed([f"Spark cannot read a path with the character {odd}: {path}"], cure="move the table")
        self._times = {path: _times(path) for path in self._files}
        return folder, schema, partitions

    def moment(self, node: str) -> Moment:
        """Return the version of the table."""
        facts = {"path": self.path, "version": self._version, "files": len(self._files)}
        return Moment(node, "delta", held=True, facts=facts)

    def changed(self) -> str:
        """Return which file of the version was removed or replaced."""
        for path, size in self._files.items():
            try:
                if os.stat(path).st_size != size or _times(path) != self._times[path]:
                    return f"the file {path} of version {self._version} was replaced while it was read"
            except (OSError, CheckFailed):
                return f"the file {path} of version {self._version} was removed while it was read"
        return ""


def _times(path: str) -> tuple[int, int]:
    try:
        facts = os.stat(path)
    except OSError as error:
        reason = f"{path}, which the log of the Delta table names, cannot be read: {error.strerror}"
        raise CheckFailed([reason], cure="check the files of the node") from None
    return facts.st_mtime_ns, facts.st_ino


def _opened(folder: Path) -> DeltaTable:
    if find_spec("deltalake") is None:
        raise ConfigError("a Delta table needs the library deltalake", cure="run pip install 'trueup[lake]'")
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    if not folder.is_dir():
        raise CheckFailed([f"there is no folder {folder}"], cure="check the path of the node")
    try:
        return DeltaTable(str(folder))
    except (DeltaError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise NodeError(
            f"the Delta table {folder} cannot be opened: {reason}", cure="check the path of the node"
        ) from None


def _check_features(table: DeltaTable, folder: Path) -> None:
    protocol = table.protocol()
    features = {*(protocol.reader_features or ())} - _HARMLESS
    mapping = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if "columnMapping" in features and mapping == "none":
        features.discard("columnMapping")
    if mapping != "none":
        features.add("columnMapping")
    if protocol.min_reader_version > 3:
        features.add(f"protocol version {protocol.min_reader_version}")
    if features:
        reason = f"the Delta table {folder} uses {', '.join(sorted(features))}, which its files alone do not show"
        raise CheckFailed([reason], cure=_WITH_DELTA)


def _actions(table: DeltaTable) -> list[dict[str, Any]]:
    import pyarrow as pa

    listed = pa.table(table.get_add_actions(flatten=True))
    names = [name for name in listed.column_names if name in ("path", "size_bytes") or name.startswith("partition.")]
    actions: list[dict[str, Any]] = listed.select(names).to_pylist()
    return actions


def _check_partitions(folder: Path, schema: StructType, names: list[str], actions: list[dict[str, Any]]) -> None:
    """Raise CheckFailed if the names of folders do not have the partition values that the log has."""
    if not names:
        return
    types = {one.name: one.dataType.typeName() for one in schema.fields}
    wrong = [f"{name} ({types[name]})" for name in names if types[name] not in _PARTITION_TYPES]
    wrong += [
        f"{name} in the path {action['path']}"
        for action in actions
        for name, text in _expected(names, action)
        if f"{name}={text}" not in (_as_spark_reads(part) for part in Path(unquote(action["path"])).parts)
    ]
    if wrong:
        reason = f"the Delta table {folder} is partitioned in a way that its files alone do not show: {wrong[0]}"
        raise CheckFailed([reason], cure=_WITH_DELTA)


def _as_spark_reads(folder: str) -> str:
    """Return the name of a folder as Spark reads it: %XX is one character, also where it is a byte of UTF-8."""
    return re.sub("%([0-9a-fA-F]{2})", lambda digits: chr(int(digits[1], 16)), folder)


def _expected(names: list[str], action: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in names:
        value = action[f"partition.{name}"]
        text = str(value).lower() if isinstance(value, bool) else str(value)
        yield name, _NO_VALUE if value is None else text
