"""What the tests of complete runs share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.chunks import write_chunk
from support.fixtures import Put, Spark
from support.spark import ONE_PARTITION
from trueup.engine.bulk_session import changed_settings
from trueup.verbs.difflog.model import DiffLogConfig


@pytest.fixture
def put(request: pytest.FixtureRequest, log: DiffLogConfig) -> Put:
    """`put(set, source, rows)`: write rows as a chunk, with the schema in SCHEMAS of the module; return its folder."""

    def write(name: str, source: str, rows: list[tuple[Any, ...]], schema: str | None = None, **options: bool) -> Path:
        place = Path(log.work) / "chunks" / name
        write_chunk(place / source, rows, schema or request.module.SCHEMAS[source], **options)
        return place

    return write


@pytest.fixture
def one_partition(spark: Spark) -> Iterator[None]:
    """For tests whose result does not depend on how Spark divides the rows: half as many tasks."""
    with changed_settings(spark, ONE_PARTITION):
        yield
