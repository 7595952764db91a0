"""Fixtures of the Spark tests: a standalone cluster, and a Spark Connect server on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.spark import SparkCluster


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A master with two workers on the loopback interface."""
    cluster = SparkCluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start("worker1", "worker2")
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def connect_cluster(spark_cluster: SparkCluster) -> SparkCluster:
    """The same cluster, with a Spark Connect server whose executors run there."""
    spark_cluster.start_connect()
    return spark_cluster
