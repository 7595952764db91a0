"""The frame of an Iceberg table without a catalog of Spark: its files are read by pyiceberg, in the tasks of Spark.

pyiceberg applies deletes and changes of columns; each task yields batches of Arrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from trueup.engine.envelope import packed, unpacked
from trueup.engine.garbage import freeze_imports
from trueup.engine.sealed import sealed, unsealed
from trueup.errors import CheckFailed, ConfigError, NodeError
from trueup.nodes.base import Moment
from trueup.nodes.tables import TableSource

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_METADATA = ".metadata.json"


@dataclass
class IcebergSource:
    """The current snapshot of a table: `CATALOG.NAMESPACE.TABLE` of pyiceberg's configuration, or a metadata file."""

    name: str
    _snapshot: int | None = None

    def open(self, session: SparkSession) -> DataFrame:
        """Return the frame of the current snapshot."""
        from pyspark.sql.pandas.types import from_arrow_schema

        table = _loaded(self.name)
        self._snapshot = table.metadata.current_snapshot_id
        scan = table.scan(snapshot_id=self._snapshot)
        projected = scan.projection()
        try:
            schema = from_arrow_schema(projected.as_arrow(), prefer_timestamp_ntz=True)
        except Exception as error:
            reason = str(error).partition("\n")[0]
            cure = "compare the table through a catalog of Spark, or a frame without the column"
            raise CheckFailed([f"Spark has no type for a column of {self.name}: {reason}"], cure=cure) from None
        tasks = list(scan.plan_files()) if self._snapshot is not None else []
        if not tasks:
            return session.createDataFrame([], schema)
        files = [packed((table.metadata, table.io, projected, [task])) for task in tasks]
        work = ReadFiles(sealed(packed(files)), _arrow(schema))
        return session.range(0, len(tasks), 1, len(tasks)).mapInArrow(work, schema)

    def moment(self, node: str) -> Moment:
        """Return the snapshot; a table without one has no rows."""
        return Moment(node, "iceberg", held=True, facts={"table": self.name, "snapshot": self._snapshot})

    def changed(self) -> str:
        """Return an empty text: files of a snapshot do not change."""
        return ""


def source_of(name: str, session: SparkSession) -> TableSource | IcebergSource:
    """Return where an Iceberg table comes from: a catalog of Spark, if it is configured there, else pyiceberg."""
    catalog = name.partition(".")[0]
    if not name.endswith(_METADATA) and session.conf.get(f"spark.sql.catalog.{catalog}", None):
        return TableSource("iceberg", name)
    return IcebergSource(name)


class ReadFiles:
    """What a Python worker runs: it reads the files of its numbers."""

    def __init__(self, files: bytes, schema: bytes) -> None:
        # Sealed: no secret of a store is readable where Spark shows, logs or serves a function.
        self._files = files
        self._schema = schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan

        freeze_imports()
        wanted: pa.Schema = unpacked(self._schema)
        files: Sequence[bytes] = unpacked(unsealed(self._files))
        for batch in batches:
            for number in batch.column(0).to_pylist():
                metadata, io, projected, tasks = unpacked(files[number])
                for read in ArrowScan(metadata, io, projected, AlwaysTrue()).to_record_batches(tasks):
                    yield from pa.Table.from_batches([read]).cast(wanted).to_batches()


def _arrow(schema: Any) -> bytes:
    from pyspark.sql.pandas.types import to_arrow_schema

    return packed(to_arrow_schema(schema, timezone="UTC"))


def _loaded(name: str) -> Any:
    if find_spec("pyiceberg") is None:
        message = f"Spark has no catalog {name.partition('.')[0]}, and an Iceberg table without it needs pyiceberg"
        raise ConfigError(
            message, cure="configure spark.sql.catalog.… in [spark.conf], or pip install 'trueup[iceberg]'"
        )
    from pyiceberg.catalog import load_catalog
    from pyiceberg.table import StaticTable

    try:
        if name.endswith(_METADATA):
            return StaticTable.from_metadata(name)
        catalog, _, table = name.partition(".")
        return load_catalog(catalog).load_table(table)
    except Exception as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        cure = "name CATALOG.NAMESPACE.TABLE of a catalog of pyiceberg (.pyiceberg.yaml), or a metadata file"
        raise NodeError(f"the Iceberg table {name} cannot be opened: {reason}", cure=cure) from None
