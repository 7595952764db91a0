"""Frames of paths that Spark reads: Parquet, ORC, CSV and JSON, as a file or a folder of files."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from trueup.engine.parquet_files import local_path
from trueup.errors import CheckFailed
from trueup.nodes.base import Moment

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
        place = self.path
        if self.is_local:
            folder = local_path(self.path)
            place = str(folder)
            self._files = self._listed(folder)
        options = dict(_OPTIONS[self.kind])
        if self.kind == "csv":
            # Nothing between two commas is NULL, and "" is an empty text: with the default, both are NULL.
            options["nullValue"] = f"trueup-{uuid.uuid4()}"
        return session.read.format(self.kind).options(**options).load(place)

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
        for folder, folders, names in os.walk(place):
            # As Spark: hidden ones are not read, except folders of partitions.
            folders[:] = [name for name in folders if name[0] not in "._" or "=" in name]
            for name in names:
                if name[0] not in "._":
                    files[os.path.join(folder, name)] = _facts(Path(folder, name))
        if not files:
            raise CheckFailed([f"the folder {place} has no files"], cure="check the path of the node")
        return files


def _facts(path: Path) -> tuple[int, int, int]:
    try:
        facts = path.stat()
    except OSError as error:
        raise CheckFailed([f"{path} cannot be read: {error.strerror}"], cure="check the files of the node") from None
    return facts.st_size, facts.st_mtime_ns, facts.st_ino
