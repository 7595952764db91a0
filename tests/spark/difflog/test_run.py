"""Complete runs: from chunks to a signed log, a state table, and a ClickHouse table of the newest states."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from support import version_log
from support.fixtures import Put, Spark
from trueup.engine.bulk_session import changed_settings
from trueup.errors import CheckFailed, ConfigError, StoreError
from trueup.verbs.difflog import layout, outputs
from trueup.verbs.difflog import state as state_module
from trueup.verbs.difflog.chunks import read_source
from trueup.verbs.difflog.clickhouse import open_target
from trueup.verbs.difflog.frame import run_frame
from trueup.verbs.difflog.manifest import Runs
from trueup.verbs.difflog.model import DiffLogConfig, Entity, Rule, SideLog, StatePlace, Target
from trueup.verbs.difflog.prepare import SORTED
from trueup.verbs.difflog.run import run
from trueup.verbs.difflog.state import StateTable, state_rows
from trueup.verbs.difflog.steps import write
from trueup.verbs.difflog.steps.write import Written, write_files
from trueup.verbs.difflog_ends.prove import prove_clickhouse

VISIT = "id long, F long, gone boolean, ua string, dur int, goals array<int>, money double, cost double"
CONV = "id long, F long, goals array<int>, money double"
COST = "id long, F long, cost double"
SCHEMAS = {"visit": VISIT, "conv": CONV, "cost": COST}


@pytest.fixture
def log(tmp_path: Path) -> DiffLogConfig:
    """A log of visits with two side logs, with an embedded ClickHouse in the folder of the test."""
    return DiffLogConfig(
        entity=Entity("visit", ("id",), "F", dropped=("ua",), kept={"dur": Rule()}, deleted="gone"),
        logs=(
            SideLog("conv", {"id": "id"}, {"goals": Rule("append"), "money": Rule("sum")}),
            SideLog("cost", {"id": "id"}, {"cost": Rule("sum")}),
        ),
        state=StatePlace(str(tmp_path / "log" / "state"), buckets=2),
        target=Target("default", "visits", path=str(tmp_path / "clickhouse")),
        work=str(tmp_path / "log"),
    )


def _visit(key: int, fast: int, *, gone: bool = False) -> tuple[Any, ...]:
    values = (None, None) if gone else (f"ua{key}.{fast}", key * 10 + fast)
    return (key, fast, gone, *values, None, None, None)


def _states(spark: Spark, log: DiffLogConfig) -> dict[int, Any]:
    states = state_rows(spark, log)
    assert states is not None
    return {row["id"]: row for row in states.collect()}


def _plain(target: Target) -> Target:
    return replace(target, table="", path="")


@dataclass
class Model:
    """The expected result: the newest state of every key, computed in Python."""

    fast: dict[int, int] = field(default_factory=dict)
    slow_seen: set[int] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)
    goals: dict[int, list[int]] = field(default_factory=dict)
    money: dict[int, float] = field(default_factory=dict)
    cost: dict[int, float] = field(default_factory=dict)
    # Rows of the fast supplier: (key, sign, version).
    log: list[tuple[int, int, int]] = field(default_factory=list)

    def update(self, key: int) -> int:
        """Write the next version of a key by the fast supplier, and cancel the previous one."""
        before = self.fast.get(key)
        if before is not None:
            self.log.append((key, -1, before))
        self.fast[key] = (before or 0) + 1
        self.log.append((key, 1, self.fast[key]))
        return self.fast[key]


@pytest.mark.parametrize("seed", [1])
def test_any_history_collapses_to_the_newest_state(
    spark: Spark, log: DiffLogConfig, put: Put, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Outputs have several files and row groups, also with few rows.
    for name, limit in (("ROWS_AT_A_TIME", 5), ("ROWS_PER_GROUP", 6), ("ROWS_PER_FILE", 7)):
        monkeypatch.setattr(write, name, limit)
    """Random histories of both suppliers, several side logs per visit, deletions: compared with FINAL."""
    chance = random.Random(seed)
    model = Model()
    for number in range(3):
        visits: list[tuple[Any, ...]] = []
        sides: dict[str, list[tuple[Any, ...]]] = {"conv": [], "cost": []}
        for key in range(60):
            if key in model.deleted:
                continue
            for _ in range(chance.choice([0, 0, 1, 2])):
                # The slow supplier may miss versions between its runs.
                fast = model.update(key)
                if chance.random() < 0.7:
                    visits.append(_visit(key, fast))
                    model.slow_seen.add(key)
            if key not in model.fast:
                continue
            newest = model.fast[key]
            if chance.random() < 0.08 and key in model.slow_seen:
                visits.append(_visit(key, newest, gone=True))
                model.deleted.add(key)
                continue
            for _ in range(chance.choice([0, 0, 1, 2])):
                goal, money = chance.randrange(100), chance.randrange(10) / 2
                sides["conv"].append((key, newest, [goal], money))
                model.goals.setdefault(key, []).append(goal)
                model.money[key] = model.money.get(key, 0) + money
                model.slow_seen.add(key)
            if chance.random() < 0.3:
                sides["cost"].append((key, newest, 1.5))
                model.cost[key] = model.cost.get(key, 0) + 1.5
                model.slow_seen.add(key)
        # The slow supplier has the newest version of every key of the run; in the end, of every key it has seen.
        keys = {row[0] for row in (*visits, *sides["conv"], *sides["cost"])}
        keys |= model.slow_seen if number == 2 else set()
        visits += [_visit(key, model.fast[key]) for key in sorted(keys - model.deleted)]
        put(f"{number:03d}", "visit", visits)
        for source, rows in sides.items():
            put(f"{number:03d}", source, rows)
        result = run(spark, log)
        assert (result.number, result.late) == (number + 1, {})
    with open_target(log.target) as clickhouse:
        values = ", ".join(f"({key}, {sign}, 0, {fast}, {fast})" for key, sign, fast in model.log)
        clickhouse.execute(f"INSERT INTO {clickhouse.name} (id, Sign, SlowVersion, F, Version) VALUES {values}")
        found = clickhouse.rows(
            f"SELECT id, F, SlowVersion, dur, goals, money, cost FROM {clickhouse.name} FINAL ORDER BY id"
        )
    assert [row[0] for row in found] == sorted(set(model.fast) - model.deleted)
    for key, fast, slow, dur, goals, money, cost in found:
        assert fast == model.fast[key], key
        if slow:
            assert dur == key * 10 + fast
            assert sorted(goals) == sorted(model.goals.get(key, [])), key
            assert (money, cost) == (model.money.get(key), model.cost.get(key)), key
    proof = prove_clickhouse(spark, log, state_rows(spark, log))
    assert (proof.verdict, proof.standing_twice, proof.differing_state) == ("MATCH", 0, 0), proof


def test_rows_of_the_frame_that_are_lost_are_noticed(
    spark: Spark, log: DiffLogConfig, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("a", "visit", [_visit(1, 1), _visit(2, 1)])
    log = replace(log, target=Target())

    def without_files(paths: Sequence[str], *others: Any) -> list[Written]:
        return write_files([], *others)

    with monkeypatch.context() as patch:
        patch.setattr(outputs, "write_files", without_files)
        with pytest.raises(StoreError, match="had 2 rows, and 0 were read"):
            run(spark, log)
    assert not (Path(log.work) / ".frame").exists()
    result = run(spark, log)
    assert (result.number, result.resumed) == (1, True)
    assert sorted(_states(spark, log)) == [1, 2]


@pytest.mark.usefixtures("one_partition")
def test_outputs_have_their_names_and_a_manifest(spark: Spark, log: DiffLogConfig, put: Put) -> None:
    put("a", "visit", [_visit(1, 1), _visit(2, 1)])
    put("a", "conv", [(1, 1, [5], 2.0), (1, 1, [6], 3.0)])
    result = run(spark, replace(log, target=_plain(log.target)))
    folder = Path(result.folder)
    for name in (
        "diff_log_0_state",
        "processing/visit_visit/visit_log_slow",
        "processing/visit_visit/visits_patched_new_only",
        "diff_log_1_visit/visits_patched",
        "processing/visit_conv/visit_log_slow",
        "diff_log_2_conv/visits_patched",
        "visit_log_wide",
    ):
        assert any((folder / name).glob("*.parquet")), name
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["outputs"]["diff_log_1_visit"]["diff"] == 4
    assert manifest["outputs"]["diff_log_2_conv"] | {"bytes": 0} == {
        "diff": 2, "new": 1, "late": 0, "late_reasons": {}, "bytes": 0,
    }  # fmt: skip
    assert run(spark, replace(log, target=_plain(log.target))).number == 0, "no pod is taken twice"
    found = _states(spark, log)
    assert (found[1]["SlowVersion"], found[1]["goals"], found[1]["money"], found[1]["Fast"]["ua"]) == (
        2,
        [5, 6],
        5.0,
        "ua1.1",
    )
    # Any reader of Delta tables can open the state.
    table = DeltaTable(log.state.path).to_pyarrow_table()
    assert dict(zip(*(table.column(name).to_pylist() for name in ("id", "SlowVersion")), strict=True)) == {1: 2, 2: 1}


@pytest.mark.usefixtures("one_partition")
def test_late_rows_are_kept_reported_and_rejoined(spark: Spark, log: DiffLogConfig, put: Put) -> None:
    log = replace(log, target=_plain(log.target))
    put("a", "visit", [_visit(1, 3), _visit(2, 1)])
    run(spark, log)
    put("b", "conv", [(1, 2, [1], 1.0), (None, 1, [1], 1.0), (2, None, [1], 1.0)])
    result = run(spark, log)
    assert result.late == {"diff_log_1_conv": 3}
    manifest = json.loads((Path(result.folder) / "manifest.json").read_text())
    assert manifest["outputs"]["diff_log_1_conv"]["late_reasons"] == {"older": 1, "no key": 1, "no version": 1}
    aside = spark.read.parquet(str(Path(result.folder) / "late" / "conv")).collect()
    assert {(row["id"], row["reason"], row["newest_version"]) for row in aside} == {
        (1, "older", 3), (None, "no key", None), (2, "no version", None),
    }  # fmt: skip
    put("c", "conv", [(1, 2, [7], 1.0)])
    # The late row of this run, and the one that an earlier run kept aside, each once.
    assert run(spark, log, rejoin_late=True).late == {}
    found = _states(spark, log)[1]
    assert (sorted(found["goals"]), found["money"], found["F"]) == ([1, 7], 2.0, 3)
    assert run(spark, log, rejoin_late=True).number == 0


@pytest.mark.usefixtures("one_partition")
def test_a_fast_version_that_reaches_the_multiplier_is_refused(spark: Spark, log: DiffLogConfig, put: Put) -> None:
    put("a", "visit", [_visit(1, 1)])
    put("a", "conv", [(1, 1000, [1], 1.0)])
    # A row without a key is kept aside, whatever its version is.
    put("a", "cost", [(None, 5000, 1.5)])
    with pytest.raises(CheckFailed, match=r"a/conv/part-\S+parquet: id 1: F 1000 is not from 0") as caught:
        run(spark, log)
    assert "5000" not in str(caught.value)
    assert not (Path(log.work) / "runs").exists()
    assert not Path(log.state.path).exists()


@pytest.mark.usefixtures("one_partition")
def test_empty_chunks_and_columns_gained_later(spark: Spark, log: DiffLogConfig, put: Put) -> None:
    log = replace(log, target=_plain(log.target))
    put("a", "visit", [_visit(1, 1)])
    put("a", "conv", [])
    result = run(spark, log)
    assert result.rows == {"diff_log_1_visit": 2, "diff_log_2_conv": 0}
    put("b", "cost", [(1, 1, 2.0, "EUR")], "id long, F long, cost double, currency string")
    run(spark, log)
    found = _states(spark, log)[1]
    assert (found["cost"], found["currency"], found["SlowVersion"]) == (2.0, "EUR", 2)
    put("c", "visit", [_visit(2, 1)])
    run(spark, log)
    assert {key: row["currency"] for key, row in _states(spark, log).items()} == {1: "EUR", 2: None}


@pytest.mark.usefixtures("one_partition")
def test_expired_states_are_removed_and_their_updates_kept_aside(spark: Spark, log: DiffLogConfig, put: Put) -> None:
    entity = replace(log.entity, dropped=("ua", "day"))
    state = replace(log.state, ttl_days=30, ttl_column="day")
    log = replace(log, entity=entity, state=state, target=_plain(log.target))
    schema = VISIT + ", day date"
    from datetime import date, timedelta

    today = date.today()
    old, fresh = today - timedelta(days=40), today - timedelta(days=2)
    put("a", "visit", [(*_visit(1, 1), fresh), (*_visit(2, 1), old)], schema)
    result = run(spark, log)
    assert result.late == {"diff_log_1_visit": 1}
    assert sorted(_states(spark, log)) == [1]
    put("b", "conv", [(1, 1, [7], 1.0, old)], CONV + ", day date")
    result = run(spark, log)
    assert result.late_reasons == {"diff_log_1_conv": {"expired": 1}}
    old_states = spark.read.parquet(str(Path(result.folder) / "diff_log_0_state"))
    assert [row["id"] for row in old_states.collect()] == [1], "also of a visit whose only row has expired"


def test_only_files_with_matching_key_ranges_are_read(
    spark: Spark, log: DiffLogConfig, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a state much larger than the run, only the files with keys of the run are read and replaced."""
    monkeypatch.setattr(state_module, "ROWS_PER_FILE", 200)
    log = replace(log, target=_plain(log.target))
    place = Path(log.work) / "chunks" / "a" / "visit"
    rows = (
        "id",
        "1L AS F",
        "false AS gone",
        "'u' AS ua",
        "1 AS dur",
        "array(1) AS goals",
        "1.0D AS money",
        "1.0D AS cost",
    )
    spark.range(4_000).selectExpr(*rows).write.parquet(str(place))
    run(spark, log)
    table = StateTable(Path(log.state.path), log.entity.key, log.state.buckets)
    before = {each.path for each in table.files()}
    assert len(before) >= 20
    put("b", "cost", [(key, 1, 5.0) for key in range(1_400, 1_450)])
    result = run(spark, log)
    assert result.files_in_state == len(before)
    assert result.files_read <= 4
    after = {each.path for each in table.files()}
    assert len(before - after) == result.files_read
    assert sum(each.rows for each in table.files()) == 4_000
    costs = {key: row["cost"] for key, row in _states(spark, log).items() if 1390 <= key <= 1460}
    assert all(cost == (6.0 if 1_400 <= key < 1_450 else 1.0) for key, cost in costs.items())
    # Few states of a large table: only these are written, beside the others.
    monkeypatch.setattr(layout, "SMALL", 1)
    for name, cost in (("c", 1.0), ("d", 2.0)):
        put(name, "cost", [(key, 1, cost) for key in (*range(1_420, 1_424), 3_999, 4_001)])
        run(spark, log)
        assert {each.path for each in table.files() if not each.has_changes} == after
        assert sum(each.rows for each in table.files() if each.has_changes) == 6
    # As many as fit no more: the changes are merged into the files with their keys.
    put("e", "cost", [(key, 1, 8.0) for key in range(0, 4_000, 3)])
    run(spark, log)
    assert not any(each.has_changes for each in table.files())
    assert sum(each.rows for each in table.files()) == 4_001
    found = {key: row["cost"] for key, row in _states(spark, log).items()}
    extra = dict.fromkeys((*range(1420, 1424), 3999, 4001), 3.0)
    for key in (0, 1, 1_400, 1_419, 1_420, 1_421, 1_422, 1_424, 3_998, 3_999):
        base = 6.0 if 1_400 <= key < 1_450 else 1.0
        assert found[key] == base + extra.get(key, 0.0) + (8.0 if key % 3 == 0 else 0.0), key
    assert found[4_001] == 3.0


def test_a_run_shuffles_its_inputs_once_needs_few_queries_and_runs_no_python(
    spark: Spark, log: DiffLogConfig, put: Put
) -> None:
    put("a", "visit", [_visit(1, 1), _visit(2, 1)])
    log = replace(log, target=Target())
    run(spark, log)
    put("b", "visit", [_visit(1, 2), _visit(3, 1)])
    put("b", "conv", [(1, 2, [7], 1.5), (2, 1, [8], 2.5)])
    put("b", "cost", [(2, 1, 1.5)])
    runs, table = Runs(Path(log.work)), StateTable.of(log)
    facts: dict[str, Any] = {"state_version": table.version(), "today": "2026-01-01", "rejoin_late": False}
    facts |= {"chunks": ["b"], "late_from": [], "outputs": {}}
    found = {each: read_source(spark, log, Path(log.work), ["b"], each) for each in SCHEMAS}
    frames = {source: frame for source, frame in found.items() if frame is not None}
    with changed_settings(spark, SORTED):
        frame = run_frame(spark, log, table, runs.new(2, facts), frames)
        plan = frame.data._jdf.queryExecution().executedPlan().toString()
    assert plan.count("Exchange hashpartitioning") == 1, plan
    assert plan.count("Sort [") == 1
    assert "Join" not in plan
    assert "Python" not in plan
    before = max(_plans(spark), default=-1)
    folder = Path(run(spark, log).folder)
    plans = [plan for number, plan in _plans(spark).items() if number > before]
    # The files of the state, the frame and its counts, and the new states.
    assert len(plans) <= 3
    # The outputs of each run are written by the same queries, so that Java compiles them once: Spark numbers the
    # arguments of Python functions.
    written = [plan for plan in plans if "InsertIntoHadoopFs" in plan]
    assert len(written) == 2
    assert not [plan for plan in written if re.search(r"lambda x_\d", plan)]
    # Each state is written once, and is in the outputs of all steps after which it is valid.
    for step, source, changed, every in (
        (1, "visit", {1: 2, 3: 1}, {1: 2, 2: 1, 3: 1}),
        (2, "conv", {1: 3, 2: 2}, {1: 3, 2: 2, 3: 1}),
        (3, "cost", {2: 3}, {1: 3, 2: 3, 3: 1}),
    ):
        assert _slow_versions(folder / "processing" / f"visit_{source}" / "visits_patched_new_only") == changed
        assert _slow_versions(folder / f"diff_log_{step}_{source}" / "visits_patched") == every
    # An output without rows is written without a query.
    late = spark.read.parquet(str(folder / "late" / "cost"))
    assert (late.schema.simpleString(), late.count()) == (
        "struct<id:bigint,F:bigint,newest_version:bigint,reason:string,cost:double>", 0,
    )  # fmt: skip


def _plans(spark: Spark) -> dict[int, str]:
    """Return the plans of the last queries by their numbers; Spark forgets older ones."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    found = spark._jsparkSession.sharedState().statusStore().executionsList()
    queries = [found.apply(number) for number in range(found.size())]
    return {query.executionId(): query.physicalPlanDescription() for query in queries}


def _slow_versions(folder: Path) -> dict[int, int]:
    rows = [row for path in folder.glob("*.parquet") for row in pq.ParquetFile(path).read().to_pylist()]
    assert len({tuple(row) for row in rows}) == 1, "all files have the same columns"
    found = {row["id"]: row["SlowVersion"] for row in rows}
    assert len(found) == len(rows)
    return found


def test_concurrent_runs_and_missing_chunks_are_refused(spark: Spark, log: DiffLogConfig, put: Put) -> None:
    from trueup.errors import StoreError
    from trueup.verbs.difflog.manifest import lock_work_folder

    with pytest.raises(ConfigError, match="no complete chunk set with the name nowhere"):
        run(spark, log, names=["nowhere"])
    with lock_work_folder(Path(log.work)), pytest.raises(StoreError, match="another run"):
        run(spark, log)


def test_two_runs_in_one_process(spark: Spark) -> None:
    """The result that the tests with a cluster expect; the session is found as that of the process."""
    assert spark is not None
    assert version_log.two_runs({}) == version_log.EXPECTED
