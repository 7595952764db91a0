"""The same result on a real master with two workers as in one process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trueup.demo.processes import wait_until
from trueup.engine.java import find_java

SCRIPT = """
import json, sys
from dataclasses import replace
from pathlib import Path
from trueup.config import SparkSettings
from trueup.difflog.call import run_log, spark_session, state_rows
from trueup.difflog.config import load_difflog
from trueup.difflog.model import Target

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
settings = SparkSettings(master=sys.argv[1], conf={"spark.executor.memory": "512m", "spark.cores.max": "2",
                         "spark.sql.shuffle.partitions": "2", "spark.default.parallelism": "2",
                         "spark.driver.extraJavaOptions": QUICK, "spark.executor.extraJavaOptions": QUICK})
log = replace(load_difflog("difflog.toml"), target=Target())
with spark_session(settings) as session:
    visits = ("id AS VisitID", "{fast}L AS y_VisitVersion", "concat('b', id) AS UserAgent",
              "CAST(id % 9 AS INT) AS Duration")
    def put(name, frame, *columns):
        frame.selectExpr(*columns).write.parquet(name)
    put("chunks/a/visit", session.range(2000), *[each.format(fast=1) for each in visits])
    put("chunks/b/visit", session.range(500, 900), *[each.format(fast=2) for each in visits])
    put("chunks/b/money", session.range(3000), "id % 1000 AS VisitID", "IF(id % 1000 BETWEEN 500 AND 899, 2L, 1L)"
        " AS y_VisitVersion", "id AS PaymentID", "0.5D AS Revenue")
    from trueup.difflog.run import run
    print(json.dumps([run(session, log, names=[name]).rows for name in ("a", "b")]))
    wide = session.read.parquet("runs/*/visit_log_wide").orderBy("VisitID", "Version", "Sign")
    Path("wide.json").write_text(json.dumps([row.asDict() for row in wide.collect()]))
    states = state_rows(session, log).orderBy("VisitID")
    Path("states.json").write_text(json.dumps([row.asDict(recursive=True) for row in states.collect()]))
"""


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """A standalone master with two workers, from the PySpark that is installed."""
    import pyspark

    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java()),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> Path:
        log = tmp_path / f"{name}.log"
        command = [str(home / "bin" / "spark-class"), *arguments]
        with log.open("wb") as out:
            started.append(subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=tmp_path))
        return log

    def told(log: Path, pattern: str) -> str:
        assert wait_until(lambda: re.search(pattern, log.read_text()) is not None, 60), log.read_text()
        found = re.search(pattern, log.read_text())
        assert found is not None
        return found.group(1)

    try:
        log = start("master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0",
                    "--webui-port", "0")  # fmt: skip
        url = told(log, r"(spark://127\.0\.0\.1:\d+)")
        for number in (1, 2):
            options = ["--host", "127.0.0.1", "--cores", "1", "--memory", "600m", "--webui-port", "0"]
            place = str(tmp_path / f"w{number}")
            worker = start(
                f"worker{number}", "org.apache.spark.deploy.worker.Worker", *options, "--work-dir", place, url
            )
            told(worker, r"(Successfully registered with master)")
        yield url
    finally:
        for process in started:
            process.kill()
            process.wait()


def _run(folder: Path, master: str) -> tuple[Any, Any, Any]:
    folder.mkdir()
    (folder / "difflog.toml").write_bytes((Path(__file__).parents[3] / "src/trueup/demo/difflog.toml").read_bytes())
    done = subprocess.run([sys.executable, "-c", SCRIPT, master], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    wide = Counter(json.dumps(row, sort_keys=True) for row in json.loads((folder / "wide.json").read_text()))
    return json.loads(done.stdout), wide, json.loads((folder / "states.json").read_text())


def test_two_workers_give_what_one_process_gives(master: str, tmp_path: Path) -> None:
    alone = _run(tmp_path / "alone", "")
    together = _run(tmp_path / "together", master)
    assert together == alone
    assert len(alone[2]) == 2000
    assert alone[0][1] == {"diff_log_1_visit": 1600, "diff_log_2_money": 2000}
