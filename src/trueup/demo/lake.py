"""The demo of a comparison across kinds: a PostgreSQL table, and a Delta copy from which it has drifted."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from trueup.api.diff import diff, explain
from trueup.db.statements import load
from trueup.engine.progress import Progress
from trueup.errors import ConfigError
from trueup.report.model import DiffResult
from trueup.testing.postgres import Database, Server

TABLE = "public.orders"
# Rows that the demo changes, deletes and inserts after the copy.
CHANGES = 5


def run(*, rows: int, say: Callable[[str], None], progress: Progress) -> DiffResult:
    """Start a server, copy its table to a Delta table, change some rows, and compare both."""
    if find_spec("deltalake") is None:
        raise ConfigError("the demo needs the library deltalake", cure="run pip install 'trueup[demo]'")
    statements = load("trueup.demo", "lake.sql")
    with Server.start(name="pg") as server, TemporaryDirectory(prefix="trueup-demo-") as folder:
        database = server.database("postgres")
        database.execute(statements["create"])
        database.execute(statements["load"], {"rows": rows})
        database.execute(statements["finish"])
        lake = Path(folder) / "orders"
        _copy(database, statements["copy"], lake)
        say(f"{rows:,} rows of {TABLE}, and a copy of them as a Delta table")
        database.execute(statements["drift"].replace("%(rows)s", str(int(rows))))
        nodes = {"pg": server.uri(), "lake": f"delta:{lake}"}
        say(explain(TABLE, nodes=nodes).as_text())
        return diff(TABLE, nodes=nodes, recheck=0, report_dir=str(Path.cwd()), progress=progress)


def _copy(database: Database, query: str, folder: Path) -> None:
    """Write the rows of a query to a new Delta table, in batches."""
    import adbc_driver_postgresql.dbapi as adbc
    import pyarrow as pa
    from deltalake import write_deltalake

    schema = pa.schema(
        {
            "id": pa.int64(),
            "customer": pa.string(),
            "total": pa.decimal128(12, 2),
            "paid": pa.bool_(),
            "placed_at": pa.timestamp("us", "UTC"),
            "details": pa.string(),
        }
    )
    with adbc.connect(database.uri) as connection, connection.cursor() as cursor:
        cursor.execute(query)
        batches = (batch.cast(schema) for batch in cursor.fetch_record_batch())
        write_deltalake(str(folder), pa.RecordBatchReader.from_batches(schema, batches))
