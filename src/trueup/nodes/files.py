"""Frames of paths that Spark reads: Parquet, ORC, CSV and JSON, as a file or a folder of files."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from trueup.config.files import odd_character
from trueup.engine.parquet_files import cut_times, local_path
from trueup.errors import CheckFailed
from trueup.nodes.base import Moment
from trueup.nodes.parquet_parts import NotColumnar

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Options with which no value and no file is passed over in silence. Without mergeSchema, columns that only some of the
# files have are ignored.
_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "parquet": {"mergeSchema": "true"},
    "orc": {"mergeSchema": "true"},
    "csv": {"header": "true", "mode": "FAILFAST", "multiLine": "true", "escape": '"', "enforceSchema": "false"},
    "json": {"mode": "FAILFAST", "prefersDecimal": "true"},
}
# Files that are named in the report.
_MOST_NAMED = 1000
# A file: path, size, time of the last change, inode.
_Facts = dict[str, tuple[int, int, int]]


@dataclass
class PathSource:
    """The files of a path."""

    kind: str
    path: str
    _files: _Facts = field(default_factory=dict)

    @property
    def is_local(self) -> bool:
        """Whether this process can see the files."""
        return urlsplit(self.path).scheme in ("", "file") or "://" not in self.path

    def open(self, session: SparkSession) -> DataFrame:
        """Return the frame of the files that exist now."""
        # Loads Spark.
        from trueup.nodes import text_files

        place = self.path
        is_partitioned = True
        if self.is_local:
            folder = self._look()
            place = str(folder)
            is_partitioned = self._is_partitioned(folder)
        options = dict(_OPTIONS[self.kind])
        if self.kind == "csv":
            # Nothing between two commas is NULL, and "" is an empty text: with the default, both are NULL.
            options["nullValue"] = f"trueup-{uuid.uuid4()}"
        reader = session.read.format(self.kind).options(**options)
        frame = reader.load(place)
        if is_partitioned:
            # Of a column that files have too, Spark reads the value in the name of the folder.
            stored = reader.option("recursiveFileLookup", "true").load(place).columns
            if len(stored) + len(_partitions(session, place)) != len(frame.columns):
                reason = f"files of {place} have columns that are also in the names of their folders"
                raise CheckFailed([reason], cure="write the files without these columns")
        if self.kind == "csv":
            text_files.check_quotes(session, place)
            return text_files.checked_csv(frame)
        return text_files.json_lines(session, place, frame.schema, options) if self.kind == "json" else frame

    def local_files(self) -> tuple[list[str], Mapping[str, str]]:
        """Return the files that exist now."""
        if self.kind != "parquet" or not self.is_local:
            raise NotColumnar(f"{self.path} is not a path of Parquet files of this machine")
        if self._is_partitioned(self._look()):
            raise NotColumnar(f"folders of {self.path} have columns in their names")
        return sorted(self._files), {}

    def _look(self) -> Path:
        """List the files of a path of this machine; raise CheckFailed for what Spark would read in part."""
        folder = local_path(self.path)
        if odd := odd_character(folder):
            raise CheckFailed([f"Spark cannot read a path with the character {odd}: {folder}"], cure="rename it")
        self._files = self._listed(folder)
        if self.kind == "parquet":
            _check_times(self._files)
        return folder

    def _is_partitioned(self, folder: Path) -> bool:
        return any("=" in part for path in self._files for part in Path(path).relative_to(folder).parts)

    def moment(self, node: str) -> Moment:
        """Return the files; those of another machine may be replaced unnoticed."""
        facts: dict[str, object] = {"path": self.path}
        if self.is_local:
            listing = "\n".join(f"{path}\0{facts}" for path, facts in sorted(self._files.items()))
            facts |= {
                "files": len(self._files),
                "bytes": sum(size for size, _, _ in self._files.values()),
                "listing": hashlib.sha256(listing.encode("utf-8", "surrogateescape")).hexdigest(),
                "names": sorted(self._files)[:_MOST_NAMED],
            }
        return Moment(node, self.kind, held=self.is_local, facts=facts)

    def changed(self) -> str:
        """Return which files were added, replaced or removed since the frame was opened."""
        if not self.is_local:
            return ""
        try:
            now = self._listed(local_path(self.path))
        except CheckFailed as error:
            return str(error)
        changed = sorted(path for path in {*now, *self._files} if now.get(path) != self._files.get(path))
        if not changed:
            return ""
        more = f" and {len(changed) - 1:,} more" if len(changed) > 1 else ""
        return f"files changed while they were read: {changed[0]}{more}"

    def _listed(self, place: Path) -> _Facts:
        """Return the files that Spark reads; raise CheckFailed if there are none, or if it is a table of tables."""
        if place.is_file():
            return {str(place): _facts(place)}
        if not place.is_dir():
            raise CheckFailed([f"there is no file or folder {place}"], cure="check the path of the node")
        if (place / "_delta_log").is_dir():
            reason = f"{place} is a Delta table: files that it has replaced would be read too"
            raise CheckFailed([reason], cure=f"use delta:{place}")
        if (place / "metadata").is_dir() and any((place / "metadata").glob("*.metadata.json")):
            reason = f"{place} is an Iceberg table: files that it has replaced would be read too"
            raise CheckFailed([reason], cure="use iceberg:NAME, with a catalog that Spark has")
        files: _Facts = {}
        _walk(place, self.kind, files)
        if not files:
            raise CheckFailed([f"the folder {place} has no files"], cure="check the path of the node")
        return files


def _walk(folder: Path, kind: str, files: _Facts) -> None:
    """Add the files that Spark reads; raise CheckFailed for data that it would pass over."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path = folder / entry.name
        is_hidden = entry.name[0] in "._" and not (entry.is_dir() and "=" in entry.name)
        if entry.is_dir() and entry.name.startswith(("_temporary", ".spark-staging")):
            reason = f"{folder} is not complete: a Spark job is writing it, or failed (it has the folder {entry.name})"
            raise CheckFailed([reason], cure="wait for the job, or remove what it left")
        if is_hidden and not entry.is_dir() and f".{kind}" in path.suffixes and path.suffix != ".crc":
            raise CheckFailed([f"{path} is not read by Spark, because its name starts with . or _"], cure="rename it")
        if is_hidden:
            continue
        if not entry.is_dir():
            files[str(path)] = _facts(path)
        elif "=" in entry.name:
            _walk(path, kind, files)
        else:
            reason = f"Spark does not read the files in {path}: it reads folders with names such as day=2024-01-01 only"
            raise CheckFailed([reason], cure="name the folder that has the files")


def _partitions(session: SparkSession, place: str) -> list[str]:
    """Return the columns in the names of folders."""
    return [name for name in session.read.format("text").load(place).columns if name != "value"]


def _check_times(files: _Facts) -> None:
    """Raise CheckFailed if times of files are finer than Spark reads them."""
    for path, column in cut_times([Path(path) for path in files]).items():
        _raise_cut(path, column)


def check_times_of(frame: DataFrame) -> None:
    """Raise CheckFailed if a frame has a column of local Parquet files whose times are finer than Spark reads them."""
    try:
        names = frame.inputFiles()
    except Exception:
        # A frame that does not read files, or that Spark cannot plan: its job has the error.
        return
    files = [Path(unquote(urlsplit(name).path)) for name in names if urlsplit(name).scheme in ("", "file")]
    columns = {name.casefold() for name in frame.columns}
    for path, column in cut_times([path for path in files if path.is_file()]).items():
        if column.casefold() in columns:
            _raise_cut(path, column)


def _raise_cut(path: Path, column: str) -> None:
    reason = f"{path}: column {column} has times in nanoseconds, of which Spark reads microseconds at most"
    raise CheckFailed([reason], cure="write them as microseconds, or compare a frame of Spark without the column")


def _facts(path: Path) -> tuple[int, int, int]:
    try:
        facts = path.stat()
    except OSError as error:
        raise CheckFailed([f"{path} cannot be read: {error.strerror}"], cure="check the files of the node") from None
    return facts.st_size, facts.st_mtime_ns, facts.st_ino
