"""The same rows on nodes of all kinds: PostgreSQL, MariaDB, ClickHouse, Parquet, Delta, and a frame of Spark."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.mariadb import MariaDb
from trueup.testing.postgres import Database

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

# Name, and the types in PostgreSQL, MariaDB, ClickHouse and Arrow. The first column is the key.
COLUMNS = (
    ("id", "bigint", "bigint", "Int64", "int64"),
    ("flag", "boolean", "tinyint(1)", "Nullable(Bool)", "bool"),
    ("small", "integer", "int", "Nullable(Int32)", "int32"),
    ("price", "numeric(20,4)", "decimal(20,4)", "Nullable(Decimal(20,4))", "decimal"),
    ("ratio", "double precision", "double", "Nullable(Float64)", "float64"),
    ("part", "real", "float", "Nullable(Float32)", "float32"),
    ("name", "text", "varchar(100)", "Nullable(String)", "string"),
    ("raw", "bytea", "varbinary(100)", "Nullable(String)", "binary"),
    ("day", "date", "date", "Nullable(Date32)", "date32"),
    ("local_at", "timestamp", "datetime(6)", "Nullable(DateTime64(6, 'UTC'))", "timestamp"),
    ("at", "timestamptz", "timestamp(6) NULL", "Nullable(DateTime64(6, 'UTC'))", "instant"),
)
NAMES = tuple(column[0] for column in COLUMNS)
Row = Sequence[Any]


def arrow_table(rows: Sequence[Row]) -> pa.Table:
    """Return rows as an Arrow table."""
    import pyarrow as pa

    kinds = {"decimal": pa.decimal128(20, 4), "timestamp": pa.timestamp("us"), "instant": pa.timestamp("us", "UTC")}
    arrays = [
        pa.array([row[number] for row in rows], kinds.get(column[4]) or pa.type_for_alias(column[4]))
        for number, column in enumerate(COLUMNS)
    ]
    return pa.Table.from_arrays(arrays, list(NAMES))


@dataclass
class AllKinds:
    """One table `things` on all kinds of nodes."""

    postgres: Database
    maria: MariaDb
    folder: Path
    spark: SparkSession

    def nodes(self, rows: dict[str, Sequence[Row]]) -> dict[str, str | DataFrame]:
        """Write rows to the nodes of these kinds; return their addresses."""
        return {kind: getattr(self, f"_{kind}")(lines) for kind, lines in rows.items()}

    def _pg(self, rows: Sequence[Row]) -> str:
        defined = ", ".join(f"{name} {kind}" for name, kind, *_ in COLUMNS)
        self.postgres.execute(f"DROP TABLE IF EXISTS things; CREATE TABLE things ({defined}, PRIMARY KEY (id))")
        marks = ", ".join(["%s"] * len(COLUMNS))
        for row in rows:
            self.postgres.execute(f"INSERT INTO things VALUES ({marks})", row)
        return self.postgres.uri

    def _maria(self, rows: Sequence[Row]) -> str:
        defined = ", ".join(f"{name} {kind}" for name, _, kind, *_ in COLUMNS)
        self.maria.execute("DROP TABLE IF EXISTS things")
        self.maria.execute(f"CREATE TABLE things ({defined}, PRIMARY KEY (id)) CHARACTER SET utf8mb4")
        marks = ", ".join(["%s"] * len(COLUMNS))
        # As text with an exponent: MariaDB reads 0.1 as a decimal.
        lines = [[f"{value!r}e0" if _is_plain(value) else value for value in row] for row in rows]
        self.maria.execute(f"INSERT INTO things VALUES ({marks})", lines)
        return self.maria.uri

    def _ch(self, rows: Sequence[Row]) -> str:
        from trueup.db.clickhouse import Embedded

        folder = self.folder / "clickhouse"
        backend = Embedded(folder)
        try:
            defined = ", ".join(f"{name} {kind}" for name, _, _, kind, _ in COLUMNS)
            backend.execute("CREATE DATABASE IF NOT EXISTS shop")
            backend.execute("DROP TABLE IF EXISTS shop.things")
            backend.execute(f"CREATE TABLE shop.things ({defined}) ENGINE = MergeTree ORDER BY id")
            backend.insert("shop.things", NAMES, self._file("ch", rows), "")
        finally:
            backend.close()
        return f"chdb:{folder}?database=shop"

    def _parquet(self, rows: Sequence[Row]) -> str:
        return f"parquet:{self._file('parquet', rows)}"

    def _delta(self, rows: Sequence[Row]) -> str:
        from deltalake import write_deltalake

        folder = self.folder / "delta"
        shutil.rmtree(folder, ignore_errors=True)
        write_deltalake(str(folder), arrow_table(rows))
        return f"delta:{folder}"

    def _frame(self, rows: Sequence[Row]) -> DataFrame:
        return self.spark.read.parquet(str(self._file("frame", rows)))

    def _file(self, name: str, rows: Sequence[Row]) -> Path:
        import pyarrow.parquet as pq

        path = self.folder / f"{name}.parquet"
        pq.write_table(arrow_table(rows), path)
        return path


def _is_plain(value: Any) -> bool:
    return isinstance(value, float) and "e" not in repr(value)


def quantized(value: Decimal) -> Decimal:
    """Return a number with the scale of the column `price`."""
    return value.quantize(Decimal("0.0001"))
