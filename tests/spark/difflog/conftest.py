"""What the tests of complete runs share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.fixtures import Put, Spark
from trueup.verbs.difflog.model import DiffLogConfig


@pytest.fixture
def put(request: pytest.FixtureRequest, spark: Spark, log: DiffLogConfig) -> Put:
    """`put(set, source, rows)`: write rows as a chunk, with the schema in SCHEMAS of the module; return its folder."""

    def write(name: str, source: str, rows: list[tuple[Any, ...]], schema: str | None = None) -> Path:
        place = Path(log.work) / "chunks" / name
        frame = spark.createDataFrame(rows, schema or request.module.SCHEMAS[source])
        frame.coalesce(1).write.mode("append").parquet(str(place / source))
        return place

    return write
