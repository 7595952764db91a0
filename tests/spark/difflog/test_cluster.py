"""A master with two workers and Spark Connect return the same result as one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support import version_log
from support.spark import COMPILED, SparkCluster


def _run(settings: dict[str, Any]) -> Any:
    """Run in a process of its own, which has no Spark session yet."""
    command = [sys.executable, version_log.__file__, json.dumps(settings)]
    tests = str(Path(version_log.__file__).parents[1])
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": tests}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_two_workers_return_the_same_as_one_process(spark_cluster: SparkCluster) -> None:
    """Queries are compiled here; the session of the other tests does not compile them."""
    assert _run({"master": spark_cluster.url, "conf": {**spark_cluster.conf, **COMPILED}}) == version_log.EXPECTED


def test_spark_connect_returns_the_same_as_one_process(connect_cluster: SparkCluster) -> None:
    assert _run({"remote": connect_cluster.remote}) == version_log.EXPECTED
