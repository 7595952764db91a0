"""The settings that a log rests on, and its parts: a change or a loss is refused by name, and nothing is written."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.fixtures import Put, Spark
from trueup.errors import CheckFailed, StoreError, TrueupError
from trueup.verbs.difflog.clickhouse import open_target
from trueup.verbs.difflog.manifest import Runs
from trueup.verbs.difflog.model import DiffLogConfig, Entity, Rule, SideLog, StatePlace, Target
from trueup.verbs.difflog.run import run

VISIT = "id long, F long, gone boolean, ua string, dur int, money double"
SCHEMAS = {"visit": VISIT, "conv": "id long, F long, money double", "cost": "id long, F long, cost double"}
pytestmark = pytest.mark.usefixtures("one_partition")


@pytest.fixture
def log(tmp_path: Path) -> DiffLogConfig:
    return DiffLogConfig(
        entity=Entity("visit", ("id",), "F", dropped=("ua",), kept={"dur": Rule("max")}, deleted="gone"),
        logs=(SideLog("conv", {"id": "id"}, {"money": Rule("sum")}),),
        state=StatePlace(str(tmp_path / "log" / "state"), buckets=2),
        target=Target("default", "visits", path=str(tmp_path / "clickhouse")),
        work=str(tmp_path / "log"),
    )


def _visit(key: int, fast: int) -> tuple[Any, ...]:
    return (key, fast, False, f"ua{key}.{fast}", key * 10 + fast, None)


def _files(log: DiffLogConfig) -> set[tuple[str, int]]:
    return {(str(path), path.stat().st_mtime_ns) for path in Path(log.work).rglob("*") if path.is_file()}


def test_a_changed_setting_is_refused_before_anything_is_written(spark: Spark, log: DiffLogConfig, put: Put) -> None:
    put("a", "visit", [_visit(1, 1), _visit(2, 1)])
    put("a", "conv", [(1, 1, 5.0)])
    run(spark, log)
    put("b", "visit", [_visit(1, 2), _visit(3, 1)])
    before = _files(log)
    entity, state = log.entity, log.state
    other_rule = replace(log.logs[0], columns={"money": Rule("max")})
    for expected, changed in {
        "multiplier is 2000, but the log was written with 1000": replace(log, multiplier=2000),
        "state.buckets is 3": replace(log, state=replace(state, buckets=3)),
        "state.ttl_days is 9": replace(log, state=replace(state, ttl_days=9, ttl_column="dur")),
        "entity.deleted is empty, but .* gone": replace(log, entity=replace(entity, deleted="")),
        "entity.name is view": replace(log, entity=replace(entity, name="view")),
        "entity.key is id, dur": replace(log, entity=replace(entity, key=("id", "dur"))),
        "entity.fast_version is dur": replace(log, entity=replace(entity, fast_version="dur", kept={})),
        "column ua is replace, but .* dropped": replace(log, entity=replace(entity, dropped=())),
        "column dur is dropped, but .* max": replace(log, entity=replace(entity, kept={}, dropped=("ua", "dur"))),
        "column money is max, but .* sum": replace(log, logs=(other_rule,)),
        "side logs is cost, but .* conv": replace(log, logs=(replace(log.logs[0], name="cost"),)),
    }.items():
        with pytest.raises(CheckFailed, match=expected) as refused:
            run(spark, changed)
        assert "write the old value" in refused.value.cure.lower(), refused.value.cure
    # The types of the keys belong to the state; narrower integers are cast to them.
    put("c", "conv", [("1", 1, 5.0)], "id string, F long, money double")
    with pytest.raises(CheckFailed, match="column id has the type string, but bigint in the state"):
        run(spark, log, names=["c"])
    shutil.rmtree(Path(log.work) / "chunks" / "c")
    assert _files(log) == before
    # A new side log with a new column is no change, and from then on belongs to the settings of the log.
    cost = SideLog("cost", {"id": "id"}, {"cost": Rule("sum")})
    put("d", "cost", [(1, 2, 1.5)], "id int, F long, cost double")
    wider = replace(log, logs=(*log.logs, cost))
    assert run(spark, wider).rows == {"diff_log_1_visit": 6, "diff_log_2_cost": 2}
    with pytest.raises(CheckFailed, match=r"column cost is max, but .* sum"):
        run(spark, replace(wider, logs=(*log.logs, replace(cost, columns={"cost": Rule("max")}))))


def test_an_unfinished_run_keeps_its_settings(
    spark: Spark, log: DiffLogConfig, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = replace(log, target=Target())
    put("a", "visit", [_visit(1, 1)])

    def fail(*_: object) -> None:
        raise StoreError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("trueup.verbs.difflog.outputs.Outputs.commit_states", fail)
        with pytest.raises(StoreError, match="disk full"):
            run(spark, log)
    with pytest.raises(CheckFailed, match=r"run 1 is unfinished, .*column dur is min, but .* max"):
        run(spark, replace(log, entity=replace(log.entity, kept={"dur": Rule("min")})))
    assert run(spark, log).resumed


def test_the_parts_of_a_log_belong_together(spark: Spark, log: DiffLogConfig, put: Put, tmp_path: Path) -> None:
    put("a", "visit", [_visit(1, 1)])
    run(spark, log)
    put("b", "visit", [_visit(1, 2)])
    other = replace(log, work=str(tmp_path / "other"), state=replace(log.state, path=str(tmp_path / "other" / "state")))
    (tmp_path / "other").mkdir()
    shutil.copytree(Path(log.work) / "chunks", Path(other.work) / "chunks")

    def refused(changed: DiffLogConfig, text: str) -> None:
        with pytest.raises(TrueupError, match=text):
            run(spark, changed)
        assert not (Path(changed.work) / "runs" / "000002").exists()

    refused(replace(log, work=other.work), "state .* belongs to version log .*, but the work folder .* to no version")
    refused(other, "table default.visits .* belongs to version log")
    refused(replace(log, state=other.state), "state .* belongs to version log|state .* does not exist, but run 1")
    refused(
        replace(log, target=replace(log.target, table="visits2")), "visits2 .* does not exist, but the rows of run 1"
    )
    with open_target(log.target) as house:
        house.execute("CREATE TABLE visits2 AS visits COMMENT 'mine'")
        house.execute("CREATE TABLE keep AS visits")
        house.execute("INSERT INTO keep SELECT * FROM visits")
    refused(replace(log, target=replace(log.target, table="visits2")), "visits2 .* is not the table of this log")
    with open_target(log.target) as house:
        house.execute("TRUNCATE TABLE visits")
    refused(log, "visits .* does not contain the rows of run 1")
    with open_target(log.target) as house:
        house.execute("INSERT INTO visits SELECT * FROM keep")
    # A missing part is an error; the number of a run comes from the state.
    runs, state = Path(log.work) / "runs", Path(log.state.path)
    runs.rename(tmp_path / "runs")
    refused(log, "000001/manifest.json does not exist, but the state .* contains run 1")
    (tmp_path / "runs").rename(runs)
    state.rename(tmp_path / "state")
    refused(log, "the state .* does not exist, but run 1 was committed")
    (tmp_path / "state").rename(state)
    assert run(spark, log).number == 2
    assert [each.number for each in Runs(Path(log.work)).all()] == [1, 2]
