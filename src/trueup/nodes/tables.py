"""Tables of the catalogs of a Spark session: Iceberg tables at their current snapshot, others as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trueup.errors import CheckFailed
from trueup.nodes.base import Moment
from trueup.nodes.files import check_times_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass
class TableSource:
    """A table by its name in the catalogs of the session."""

    kind: str
    name: str
    _snapshot: int | None = None

    def open(self, session: SparkSession) -> DataFrame:
        """Return the frame of the table; of an Iceberg table, its current snapshot."""
        try:
            if self.kind == "iceberg":
                self._snapshot = _current_snapshot(session, self.name)
                if self._snapshot is not None:
                    return session.read.option("snapshot-id", str(self._snapshot)).table(self.name)
            frame = session.table(self.name)
            # Analysed now, also through Spark Connect.
            _ = frame.schema
        except Exception as error:
            reason = str(error).partition("\n")[0]
            cure = "name a table of the session's catalogs (spark.sql.catalog.… in [spark.conf])"
            raise CheckFailed([f"Spark has no table {self.name}: {reason}"], cure=cure) from None
        check_times_of(frame)
        return frame

    def moment(self, node: str) -> Moment:
        """Return the snapshot of an Iceberg table; other tables have none that Spark names."""
        facts: dict[str, object] = {"table": self.name}
        if self._snapshot is not None:
            facts["snapshot"] = self._snapshot
        return Moment(node, self.kind, held=self._snapshot is not None, facts=facts)

    def changed(self) -> str:
        """Return an empty text: a snapshot does not change, and the report says that other tables have none."""
        return ""


def _current_snapshot(session: SparkSession, name: str) -> int | None:
    """Return the newest snapshot of an Iceberg table; None if it has no rows yet."""
    rows = session.sql(f"SELECT snapshot_id FROM {name}.refs WHERE name = 'main'").collect()
    return int(rows[0][0]) if rows else None
