"""One way to compare a PostgreSQL table with a copy in files; prints the number of differing rows.

python cross_contestants.py NAME URI PARQUET_FOLDER WORK_FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

COLUMNS = ("quantity", "label", "amount", "placed_at", "details")
QUERY = "SELECT id, quantity, label, amount::text AS amount, placed_at, details::text AS details FROM public.orders"


def session() -> Any:
    """A Spark session with the settings that trueup uses for its own."""
    from pyspark.sql import SparkSession

    # The Python of this environment, which has the data source of PostgreSQL.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    cores = os.cpu_count() or 1
    builder: Any = SparkSession.builder
    settings = {"spark.ui.enabled": "false", "spark.driver.memory": "4g", "spark.sql.shuffle.partitions": "16"}
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.master(f"local[{cores}]").getOrCreate()


def frames(spark: Any, uri: str, folder: str) -> tuple[Any, Any]:
    """Both tables as frames; PostgreSQL is read in parallel, by ranges of its key, as binary rows."""
    source = spark.read.format("trueup").option("address", uri).option("table", "public.orders").load()
    left = source.selectExpr("id", "quantity", "label", "cast(amount AS decimal(12,2)) amount", "placed_at", "details")
    right = spark.read.parquet(folder)
    return left, right.selectExpr("id", "quantity", "label", "amount", "placed_at", "details")


def spark_join(uri: str, folder: str, work: Path) -> int:
    """What spark-extension's diff does: a full outer join by key, and a comparison of all columns."""
    spark = session()
    left, right = frames(spark, uri, folder)
    joined = left.alias("l").join(right.alias("r"), "id", "full_outer")
    same = " AND ".join(f"l.{name} <=> r.{name}" for name in COLUMNS)
    return int(joined.where(f"NOT ({same}) OR l.label IS NULL OR r.label IS NULL").count())


def datacompy(uri: str, folder: str, work: Path) -> int:
    """datacompy's comparison of two frames of Spark."""
    from datacompy.spark import SparkSQLCompare

    spark = session()
    left, right = frames(spark, uri, folder)
    compared = SparkSQLCompare(spark, left, right, join_columns=["id"])
    different = compared.all_mismatch().count()
    return int(different + compared.df1_unq_rows.count() + compared.df2_unq_rows.count())


def duckdb(uri: str, folder: str, work: Path) -> int:
    """COPY to Parquet, then a full outer join of DuckDB."""
    import adbc_driver_postgresql.dbapi as adbc
    import duckdb
    import pyarrow.parquet as pq

    path = work / "copy.parquet"
    with adbc.connect(uri) as connection, connection.cursor() as cursor:
        cursor.execute(QUERY)
        reader = cursor.fetch_record_batch()
        with pq.ParquetWriter(path, reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)
    database = duckdb.connect()
    database.execute("SET memory_limit = '6GB'")
    exact = {"amount": "l.amount::DECIMAL(12,2)", "placed_at": "l.placed_at::TIMESTAMPTZ"}
    same = " AND ".join(
        f"{exact.get(name, f'l.{name}')} IS NOT DISTINCT FROM r.{name}{'::TIMESTAMPTZ' if name == 'placed_at' else ''}"
        for name in COLUMNS
    )
    found = database.execute(
        f"SELECT count(*) FROM read_parquet('{path}') l FULL JOIN read_parquet('{folder}/*.parquet') r USING (id)"
        f" WHERE NOT ({same}) OR l.label IS NULL OR r.label IS NULL"
    ).fetchone()
    return int(found[0]) if found else -1


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    ways = {"spark-join": spark_join, "datacompy": datacompy, "duckdb": duckdb}
    print(ways[name](arguments[0], arguments[1], Path(arguments[2])))  # noqa: T201
