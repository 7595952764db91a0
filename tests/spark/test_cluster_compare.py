"""A comparison with files on a standalone cluster, and through Spark Connect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.fixtures import Databases
from support.spark import SparkCluster


@pytest.mark.parametrize("way", ["master", "remote"])
def test_a_comparison_with_files(way: str, connect_cluster: SparkCluster, databases: Databases, tmp_path: Path) -> None:
    pg = databases(1)[0]
    pg.execute(
        """CREATE TABLE items (id bigint PRIMARY KEY, name text, at timestamptz, ratio float8);
           INSERT INTO items SELECT n, 'item ' || n, to_timestamp(n), n / 3.0 FROM generate_series(1, 500) n"""
    )
    keys = [number for number in range(1, 502) if number != 9]
    names = ["other" if number == 7 else f"item {number}" for number in keys]
    times = pa.array([number * 1_000_000 for number in keys], pa.timestamp("us", "UTC"))
    lake = pa.table({"id": keys, "name": names, "at": times, "ratio": [number / 3.0 for number in keys]})
    (tmp_path / "lake").mkdir()
    pq.write_table(lake, tmp_path / "lake" / "x.parquet")
    # One executor is enough.
    settings = {**connect_cluster.conf, "spark.cores.max": "1"}
    conf = "\n".join(f'"{name}" = "{value}"' for name, value in settings.items())
    (tmp_path / "trueup.toml").write_text("[spark.conf]\n" + (conf if way == "master" else ""))
    place = f"--master={connect_cluster.url}" if way == "master" else f"--remote={connect_cluster.remote}"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "trueup", "diff", "items", "--json", "--recheck=1", "--recheck-wait=0", place),
            *("--node", f"pg={pg.uri}", "--node", f"lake=parquet:{tmp_path}/lake"),
        ],
        cwd=tmp_path,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)["pairs"]["pg/lake"]
    assert (found["missing"], found["extra"], found["changed"], found["in_flight"]) == (1, 1, 1, 0)
