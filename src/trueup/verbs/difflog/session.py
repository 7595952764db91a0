"""The Spark session of a version log."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from trueup.config.settings import SparkSettings
from trueup.engine.jvm import stop_session
from trueup.engine.session import existing_session, start_session

# Joins of millions of rows need more memory than hashing blocks.
_LOCAL_CONF = {
    "spark.driver.memory": "3g",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC -Xss4m",
    # Partitions that fit into memory are joined without being sorted first.
    "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold": "64m",
}


@contextmanager
def spark_session(settings: SparkSettings | None = None) -> Iterator[SparkSession]:
    """Yield the session of this process, or a new one that is stopped at the end of the block."""
    settings = settings or SparkSettings()
    is_local = not (settings.master or settings.remote)
    session: SparkSession | None = existing_session() if is_local else None
    if session is not None:
        yield session
        return
    conf = {**(_LOCAL_CONF if is_local else {}), **settings.conf}
    session = start_session(slots=os.cpu_count() or 2, master=settings.master, remote=settings.remote, conf=conf)
    try:
        yield session
    finally:
        stop_session(session)
