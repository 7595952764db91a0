"""A master with two workers and Spark Connect return the same result as one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.spark import INTERPRETED, SparkCluster

SCRIPT = """
import json, sys
from dataclasses import replace
from pathlib import Path
from trueup.config.settings import SparkSettings
from trueup.engine.bulk_session import spark_session
from trueup.verbs.difflog.state import state_rows
from trueup.verbs.difflog.config import load_difflog
from trueup.verbs.difflog.model import Target

settings = SparkSettings(**json.loads(sys.argv[1]))
log = replace(load_difflog("difflog.toml"), target=Target())
with spark_session(settings) as session:
    visits = ("id AS VisitID", "{fast}L AS y_VisitVersion", "concat('b', id) AS UserAgent",
              "CAST(id % 9 AS INT) AS Duration", "false AS IsDeleted")
    def put(name, frame, *columns):
        # The JVM of a server has another idea of the current folder.
        frame.selectExpr(*columns).write.parquet(str(Path(name).absolute()))
    put("chunks/a/visit", session.range(2000), *[each.format(fast=1) for each in visits])
    put("chunks/b/visit", session.range(500, 900), *[each.format(fast=2) for each in visits])
    put("chunks/b/money", session.range(3000), "id % 1000 AS VisitID", "IF(id % 1000 BETWEEN 500 AND 899, 2L, 1L)"
        " AS y_VisitVersion", "id AS PaymentID", "0.5D AS Revenue")
    from trueup.verbs.difflog.run import run
    print(json.dumps([run(session, log, names=[name]).rows for name in ("a", "b")]))
    wide = session.read.parquet(str(Path.cwd() / "runs/*/visit_log_wide")).orderBy("VisitID", "Version", "Sign")
    Path("wide.json").write_text(json.dumps([row.asDict() for row in wide.collect()]))
    states = state_rows(session, log).orderBy("VisitID")
    Path("states.json").write_text(json.dumps([row.asDict(recursive=True) for row in states.collect()]))
"""

QUICK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m",
}

# The row counts of both runs, the signed log, the states.
Outcome = tuple[Any, Counter[str], list[dict[str, Any]]]


def _run(folder: Path, settings: dict[str, Any]) -> Outcome:
    folder.mkdir()
    (folder / "difflog.toml").write_bytes((Path(__file__).parents[3] / "src/trueup/demo/difflog.toml").read_bytes())
    command = [sys.executable, "-c", SCRIPT, json.dumps(settings)]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    wide = Counter(json.dumps(row, sort_keys=True) for row in json.loads((folder / "wide.json").read_text()))
    return json.loads(done.stdout), wide, json.loads((folder / "states.json").read_text())


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The outcome of a run in one process, which does not compile its queries; the clusters do."""
    found = _run(tmp_path_factory.mktemp("alone") / "run", {"conf": {**QUICK, **INTERPRETED}})
    assert len(found[2]) == 2000
    assert found[0][1] == {"diff_log_1_visit": 1600, "diff_log_2_money": 2000}
    return found


def test_two_workers_return_the_same_as_one_process(
    alone: Outcome, spark_cluster: SparkCluster, tmp_path: Path
) -> None:
    assert _run(tmp_path / "run", {"master": spark_cluster.url, "conf": spark_cluster.conf}) == alone


def test_spark_connect_returns_the_same_as_one_process(
    alone: Outcome, connect_cluster: SparkCluster, tmp_path: Path
) -> None:
    assert _run(tmp_path / "run", {"remote": connect_cluster.remote}) == alone
