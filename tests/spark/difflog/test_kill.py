"""A run that is killed with SIGKILL at any point continues, and has the same result."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.fixtures import Spark
from support.spark import INTERPRETED
from trueup.errors import CheckFailed
from trueup.verbs.difflog import outputs
from trueup.verbs.difflog.clickhouse import open_target
from trueup.verbs.difflog.config import load_difflog
from trueup.verbs.difflog.manifest import Runs
from trueup.verbs.difflog.model import Target
from trueup.verbs.difflog.record import check_log, with_history
from trueup.verbs.difflog.run import run
from trueup.verbs.difflog.state import StateTable, state_rows
from trueup.verbs.difflog_ends.prove import prove_clickhouse

CONFIG = """
work = "."
[entity]
name = "visit"
key = ["id"]
fast_version = "F"
dropped = ["ua"]
[[log]]
name = "conv"
key = ["id"]
[log.columns]
money = "sum"
[state]
path = "state"
buckets = 2
[clickhouse]
path = "clickhouse"
table = "visits"
"""
# Runs in a separate process that kills itself at a point; `points` are the steps of the outputs, in order.
VICTIM = """
import os, signal, sys
from pyspark.sql import SparkSession
from trueup.verbs.difflog import layout, outputs, state
from trueup.api.difflog import DiffLog
from trueup.verbs.difflog.clickhouse import ClickHouse
from trueup.verbs.difflog.manifest import Run

point = sys.argv[1]
# Changed states are written beside the others, however few there are.
layout.SMALL, layout.SHARE = 0, 0

def dies_after(owner, name, when):
    whole = getattr(owner, name)
    def dying(self, *arguments, **options):
        result = whole(self, *arguments, **options)
        if when(*arguments):
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(owner, name, dying)

if point == "mid-step":
    inside = Run.output
    def output(self, name):
        if name == "diff_log_2_conv/visits_patched":
            print(SparkSession.active().conf.get("spark.sql.shuffle.partitions"), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return inside(self, name)
    Run.output = output
elif point == "files written":
    dies_after(state.StateTable, "write_files", lambda *_: True)
elif point == "committed":
    dies_after(state.StateTable, "commit", lambda *_: True)
elif point == "inserting":
    dies_after(ClickHouse, "insert_parquet", lambda *_: True)
else:
    dies_after(Run, "done", lambda name, **_: name == point)
if "PYSPARK_GATEWAY_PORT" in os.environ:
    # The JVM that is there already: its context is found as the one of this process.
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    gateway = launch_gateway()
    jvm = gateway.jvm
    context = jvm.JavaSparkContext(jvm.org.apache.spark.SparkContext.getOrCreate())
    SparkContext(gateway=gateway, jsc=context, conf=SparkConf(_jvm=jvm, _jconf=context.getConf()))
log = DiffLog("difflog.toml")
log.migrate(execute=True) if sys.argv[2:] else log.run()
"""
# Here the process has its own JVM, which ends with it; otherwise it uses the JVM of the tests.
ALONE = "mid-step"
# In trueup.toml, for this JVM.
CONF = {
    "spark.sql.shuffle.partitions": "3",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m",
    **INTERPRETED,
}
SPARK = "\n".join(["[spark.conf]", *[f'"{name}" = "{value}"' for name, value in CONF.items()]])
pytestmark = pytest.mark.usefixtures("one_partition")
POINTS = ["diff_log_1_visit", "mid-step", "files written", "committed", "inserting"]

# Later, the frame is not needed.
HAVE_FRAMES = ["diff_log_1_visit", "mid-step", "files written", "committed"]

Outcome = tuple[Counter[Any], Counter[str], Counter[Any]]


def _here(path: str) -> str:
    """Return an absolute path: the JVM has another current folder."""
    return str(Path(path).absolute())


def _prepare(spark: Spark, target: Target | None = None) -> None:
    """Write two chunk sets: the first is processed, the run of the second will be killed."""
    Path("difflog.toml").write_text(CONFIG)
    Path("trueup.toml").write_text(SPARK)
    visits = "id", "{fast}L AS F", "concat('ua', id, '.{fast}') AS ua", "CAST(NULL AS DOUBLE) AS money"
    spark.range(300).selectExpr(*[visit.format(fast=1) for visit in visits]).write.parquet(_here("chunks/a/visit"))
    log = load_difflog("difflog.toml")
    run(spark, replace(log, target=target or log.target))
    spark.range(100, 400).selectExpr(*[visit.format(fast=2) for visit in visits]).write.parquet(_here("chunks/b/visit"))
    money = "id % 350 AS id", "IF(id % 350 < 100, 1L, 2L) AS F", "1.5D AS money"
    spark.range(500).selectExpr(*money).write.parquet(_here("chunks/b/conv"))


def _outcome(spark: Spark) -> Outcome:
    """Return the signed log, the states, and the rows in ClickHouse."""
    log = load_difflog("difflog.toml")
    wide = Counter(tuple(row) for row in spark.read.parquet(_here("runs/000002/visit_log_wide")).collect())
    table = state_rows(spark, log)
    assert table is not None
    states = Counter(json.dumps(row.asDict(recursive=True), sort_keys=True) for row in table.collect())
    with open_target(log.target) as clickhouse:
        found = clickhouse.rows(
            f"SELECT id, Version, sum(Sign), count() FROM {clickhouse.name} GROUP BY ALL HAVING sum(Sign) != 0"
        )
    return wide, states, Counter((row[0], row[1], row[2]) for row in found)


@pytest.fixture(scope="module")
def prepared(spark: Spark, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to copy, with one finished run and waiting chunks."""
    folder = tmp_path_factory.mktemp("prepared")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        # The folder of an embedded ClickHouse cannot be copied.
        _prepare(spark, Target())
    return folder


def _copy(spark: Spark, prepared: Path, folder: Path) -> None:
    """Copy the prepared folder, and insert the log of its finished run into a new table."""
    shutil.copytree(prepared, folder, dirs_exist_ok=True)
    log = load_difflog("difflog.toml")
    record, (first,) = check_log(log), Runs(Path(log.work)).all()
    assert record is not None
    outputs.insert_log(spark, log, first, record.id)


@pytest.fixture(scope="module")
def expected(spark: Spark, prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The outcome of a run that is not killed."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        _copy(spark, prepared, folder)
        run(spark, load_difflog("difflog.toml"))
        return _outcome(spark)


def test_a_run_killed_at_every_point_continues(spark: Spark, prepared: Path, expected: Outcome, tmp_path: Path) -> None:
    """Each process continues where the previous one was killed, and is killed at the next point."""
    _copy(spark, prepared, tmp_path)
    for point in POINTS:
        _run_until_killed(spark, point)
    _continue(spark)
    assert _outcome(spark) == expected
    log = load_difflog("difflog.toml")
    table = StateTable.of(log)
    assert table.altered() == []
    assert len({file.has_changes for file in table.files()}) == 2
    assert run(spark, log).number == 0


def test_a_migration_that_is_killed_is_rolled_back_or_finished(spark: Spark) -> None:
    _prepare(spark)
    run(spark, load_difflog("difflog.toml"))
    states = StateTable.of(load_difflog("difflog.toml"))
    Path("difflog.toml").write_text(
        CONFIG.replace("buckets = 2", "buckets = 3").replace("work", "multiplier = 9\nwork")
    )
    log = load_difflog("difflog.toml")
    before = states.version()
    _run_until_killed(spark, "files written", "migrate")
    with pytest.raises(CheckFailed, match="multiplier is 8, but the log was written with 1000"):
        run(spark, replace(log, multiplier=8))
    assert states.version() == before
    # Before its commit it is rolled back, and starts again; after it, the next command inserts its rows.
    _run_until_killed(spark, "inserting", "migrate")
    assert run(spark, log).number == 0
    with open_target(log.target) as clickhouse:
        fast = "SELECT id, 1, 0, F, F FROM (SELECT number AS id, if(number < 100, 1, 2) AS F FROM numbers(400))"
        clickhouse.execute(f"INSERT INTO {clickhouse.name} (id, Sign, SlowVersion, F, Version) {fast}")
    proof = prove_clickhouse(spark, with_history(log, check_log(log)), state_rows(spark, log))
    assert (proof.verdict, proof.keys) == ("MATCH", 400), proof
    assert states.altered() == []


def _run_until_killed(spark: Spark, point: str, *verb: str) -> None:
    environment = dict(os.environ)
    if point != ALONE:
        bridge = spark.sparkContext._gateway
        assert bridge is not None
        gateway = bridge.gateway_parameters
        environment |= {"PYSPARK_GATEWAY_PORT": str(gateway.port), "PYSPARK_GATEWAY_SECRET": gateway.auth_token}
    command = [sys.executable, "-c", VICTIM, point, *verb]
    victim = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert victim.returncode == -signal.SIGKILL, victim.stderr
    assert point != ALONE or victim.stdout == "3\n", "[spark.conf] of trueup.toml"
    # The frame of a killed run stays until the next command.
    assert verb or Path(".frame").exists() == (point in HAVE_FRAMES)
    # Cached data of the killed process is gone.
    spark.catalog.clearCache()


def _continue(spark: Spark) -> None:
    result = run(spark, load_difflog("difflog.toml"))
    assert (result.number, result.resumed) == (2, True)
    assert not Path(".frame").exists()
