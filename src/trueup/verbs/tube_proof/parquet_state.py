"""The current rows of the folder of a Parquet sink, as a frame of Spark: the newest version of each row."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trueup.errors import CheckFailed
from trueup.nodes.base import Moment
from trueup.sinks.parquet import DELETED, VERSION, identity_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass
class ParquetState:
    """The files that a table has now; later ones are not read, and none is changed."""

    folder: Path
    _files: list[Path] = field(default_factory=list)

    def open(self, session: SparkSession) -> DataFrame:
        """Return the newest version of each document, without deleted ones."""
        from pyspark.sql import functions as f

        files = sorted(self.folder.glob("*.parquet"))
        if not files:
            raise CheckFailed([f"the folder {self.folder} has no files"], cure="start trueup tube run")
        identity = identity_of(files[-1])
        # Files of a former key are not current: see `trueup.sinks.parquet.current_state`.
        self._files = [path for path in files if identity_of(path) == identity]
        changes = session.read.option("mergeSchema", "true").parquet(*map(str, self._files))
        names = [f"`{name.replace('`', '``')}`" for name in identity]
        newest = changes.groupBy(*names).agg(f.max(VERSION).alias(VERSION))
        return changes.join(newest, [*identity, VERSION], "left_semi").where(f"NOT {DELETED}")

    def moment(self, node: str) -> Moment:
        """Return the number of files."""
        return Moment(node, "parquet", held=True, facts={"path": str(self.folder), "files": len(self._files)})

    def changed(self) -> str:
        """Return an empty text: files of the sink are never changed."""
        return ""
