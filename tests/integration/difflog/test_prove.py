"""The proof of a log, in an embedded ClickHouse and over the log itself: after real steps and after every damage."""

from __future__ import annotations

import datetime
import json
import random
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from support.fixtures import Spark
from support.spark import ONE_PARTITION
from trueup.engine.bulk_session import changed_settings
from trueup.errors import CheckFailed
from trueup.verbs.difflog.clickhouse import insert_files, open_target
from trueup.verbs.difflog.model import DiffLogConfig, Entity, Rule, SideLog, StatePlace, Target
from trueup.verbs.difflog.steps.step import step
from trueup.verbs.difflog_ends.judge import PROBLEMS, Proof
from trueup.verbs.difflog_ends.prove import prove_clickhouse, prove_log

FAST = "k long, F long, Sign int"
VALUES = "money decimal(10,2), goals array<int>, note string"
STATE = f"k long, F long, SlowVersion long, IsDeleted boolean, {VALUES}"
SLOW = f"k long, Sign tinyint, SlowVersion long, F long, Version long, {VALUES}"
UPDATES = "k long, F long, money decimal(10,2), goals array<int>, note string, gone boolean"


def _difflog(folder: Path, **changes: Any) -> DiffLogConfig:
    rules = {"money": Rule("sum"), "goals": Rule("append"), "note": Rule()}
    made = DiffLogConfig(
        entity=Entity("visits", ("k",), "F", deleted="gone"),
        logs=(SideLog("money", {"k": "k"}, rules),),
        state=StatePlace(str(folder / "state")),
        target=Target(table="log", path=str(folder / "house")),
        work=str(folder / "work"),
    )
    return replace(made, **changes)


@dataclass
class World:
    """The logs of the fast and of the slow supplier, the state, and the same logs in ClickHouse."""

    spark: Spark
    difflog: DiffLogConfig
    fast: DataFrame
    slow: DataFrame
    state: DataFrame
    folder: Path
    made: int = 0

    def insert(self, frame: DataFrame) -> None:
        """Insert the rows of a frame into ClickHouse, as one file."""
        self.made += 1
        place = self.folder / f"insert-{self.made}"
        frame.coalesce(1).write.parquet(str(place))
        self.insert_files(place)

    def insert_files(self, place: Path) -> None:
        """Insert the files of a folder into ClickHouse."""
        entity = self.difflog.entity
        with open_target(self.difflog.target) as table:
            insert_files(table, list(place.glob("*.parquet")), key=entity.key, resumed=False)

    def ensure(self, schema: StructType) -> None:
        """Create the table."""
        with open_target(self.difflog.target) as table:
            table.ensure_table(schema, key=self.difflog.entity.key, fast_version=self.difflog.entity.fast_version)

    def sql(self, statement: str) -> None:
        """Run a statement in ClickHouse."""
        with open_target(self.difflog.target) as table:
            table.execute(statement)

    def prove(self, **options: Any) -> Proof:
        """Return the proof in ClickHouse."""
        return prove_clickhouse(self.spark, self.difflog, self.state, **options)

    def prove_log(self, **options: Any) -> Proof:
        """Return the proof over the log."""
        return prove_log(self.fast, self.slow, self.difflog, self.state, **options)


@pytest.fixture
def one_partition(spark: Spark) -> Iterator[None]:
    """For tests whose result does not depend on how Spark divides the rows: half as many tasks."""
    with changed_settings(spark, ONE_PARTITION):
        yield


@dataclass(frozen=True)
class History:
    """The logs of both suppliers and the state; and a folder with the logs as they are in ClickHouse."""

    fast: DataFrame
    slow: DataFrame
    state: DataFrame
    folder: Path


def _as_log(fast: DataFrame) -> DataFrame:
    return fast.selectExpr("k", "CAST(Sign AS TINYINT) AS Sign", "0L AS SlowVersion", "F", "F AS Version")


def _fast_history(k: int, newest: int) -> list[tuple[int, int, int]]:
    rows = [(k, 1, 1)]
    for version in range(2, newest + 1):
        rows += [(k, version - 1, -1), (k, version, 1)]
    return rows


@pytest.fixture(scope="module")
def history(spark: Spark, tmp_path_factory: pytest.TempPathFactory) -> History:
    """60 keys after three steps: new, updated, changed by the fast supplier, deleted; 10 unknown to the slow one."""
    rng = random.Random(11)
    options = _difflog(Path()).step_options()
    newest = dict.fromkeys(range(60), 1)
    state = spark.createDataFrame([], STATE)
    slow: list[Any] = []
    for number in range(3):
        updates = []
        for k in newest:
            newest[k] += rng.random() < 0.4
            if k < 50 and (number == 2 or rng.random() < 0.7):
                money, goals = Decimal(rng.randint(0, 9)), [number] if rng.random() < 0.5 else None
                gone = number == 2 and k % 10 == 0
                updates.append((k, newest[k], money, goals, rng.choice([None, f"n{number}"]), gone))
        diff, _, patched = step(state, spark.createDataFrame(updates, UPDATES), options)
        slow += diff.drop("Block").collect()
        state = spark.createDataFrame(patched.select(*state.columns).collect(), STATE)
    fast = [row for k in newest for row in _fast_history(k, newest[k])]
    # The dropped column is in the rows of the log, and in the state as a field of `Fast`.
    states = [(*row, ("u",)) for row in state.collect()]
    kinds = (FAST, f"{SLOW}, ua string", f"{STATE}, Fast struct<ua:string>")
    rows = (fast, [(*row, "u") for row in slow], states)
    logs = (spark.createDataFrame(part, kind) for part, kind in zip(rows, kinds, strict=True))
    made = History(next(logs), next(logs), next(logs), tmp_path_factory.mktemp("history"))
    for name, frame in (("fast", _as_log(made.fast)), ("slow", made.slow)):
        frame.coalesce(1).write.parquet(str(made.folder / name))
    return made


@pytest.fixture
def world(spark: Spark, history: History, tmp_path: Path) -> World:
    """The history as data frames and in ClickHouse."""
    made = World(spark, _difflog(tmp_path), history.fast, history.slow, history.state, tmp_path)
    made.ensure(history.slow.schema)
    for name in ("fast", "slow"):
        made.insert_files(history.folder / name)
    return made


def test_real_steps_are_proven_in_clickhouse_and_over_the_log(world: World) -> None:
    found = world.prove()
    assert (found.verdict, found.exit_code, found.keys, found.only_fast) == ("MATCH", 0, 60, 10)
    assert (found.examples, found.incomplete) == ((), ())
    assert set(found.compared_columns) == {"F", "SlowVersion", "money", "goals", "note", "ua"}
    world.sql("OPTIMIZE TABLE log FINAL")
    merged = world.prove()
    # Deleted keys have no rows in ClickHouse, and are still in the state.
    assert (merged.verdict, merged.keys, merged.only_fast) == ("MATCH", 60, 10)
    over_log = world.prove_log()
    assert (over_log.verdict, over_log.keys, over_log.only_fast) == ("MATCH", 60, 10)
    assert not list(Path(world.difflog.work).iterdir())


def _row(world: World, k: int, sign: int, slow: int, fast: int, note: str | None = None) -> DataFrame:
    return world.spark.createDataFrame(
        [(k, sign, slow, fast, 1000 * slow + fast, None, None, note, "u")], f"{SLOW}, ua string"
    )


def _add(world: World, extra: DataFrame) -> None:
    """Insert rows into ClickHouse and into the log."""
    world.insert(extra)
    world.slow = world.slow.unionByName(extra).localCheckpoint()


def _both(world: World) -> Iterator[Proof]:
    yield world.prove()
    yield world.prove_log()


def _versions_of(world: World, k: int) -> tuple[int, int]:
    row = world.state.where(f"k = {k}").collect()[0]
    return row["SlowVersion"], row["F"]


def _newest_fast(world: World, k: int) -> int:
    version = world.fast.where(f"k = {k} AND Sign = 1").agg({"F": "max"}).collect()[0][0]
    assert isinstance(version, int)
    return version


def test_every_damage_is_found(world: World) -> None:
    """One damage per key: rows that are added or lost, and another state."""
    slow, fast = _versions_of(world, 1)
    extra = [
        _row(world, 1, 1, slow, fast),
        # An extra -1 cancels nothing, even if one row is left.
        _row(world, 2, -1, 0, 77),
        # A lost row of a key of the state, and of a key that only the fast supplier has.
        _row(world, 3, -1, *_versions_of(world, 3)),
        _row(world, 55, -1, 0, _newest_fast(world, 55)),
        _row(world, 10, 1, 9, 5),
        _row(world, 4, -1, *_versions_of(world, 4)),
        _row(world, 4, 1, _versions_of(world, 4)[0] + 1, _versions_of(world, 4)[1]),
    ]
    _add(world, reduce(DataFrame.unionByName, extra))
    kept = ("k", "F", "SlowVersion", "IsDeleted", "goals", "Fast")
    changed = ("IF(k = 5, money + 1, money) AS money", "IF(k = 6, 'x', note) AS note")
    world.state = world.state.selectExpr(*kept, *changed).where("k <> 7")
    expected = {
        **{1: ("twice", ()), 2: ("twice", ()), 3: ("none", ()), 4: ("version", ()), 5: ("state", ("money",))},
        **{6: ("state", ("note",)), 7: ("unknown", ()), 10: ("deleted", ()), 55: ("none", ())},
    }
    for found in _both(world):
        assert (found.verdict, found.exit_code, found.keys, found.waiting) == ("DIFFER", 1, 60, 0)
        assert {one.key["k"]: (one.problem, one.columns) for one in found.examples} == expected
        standing = {one.key["k"]: one.standing for one in found.examples}
        assert standing[1] == ((1000 * slow + fast, 2),)
        assert standing[2][0] == (77, -1)
        assert (found.standing_twice, found.standing_none, found.standing_deleted) == (2, 2, 1)
        assert (found.differing_version, found.differing_state, found.unknown_to_state) == (1, 2, 1)
    # After ClickHouse has merged the pairs, the lost row is still found by the state; an expired state is not missing.
    world.sql("OPTIMIZE TABLE log FINAL")
    world.difflog = replace(world.difflog, state=replace(world.difflog.state, ttl_days=30, ttl_column="d"))
    found = world.prove()
    assert (found.standing_none, found.unknown_to_state, found.expired) == (1, 0, 1)
    over_log = world.prove_log()
    # In the log, key 55 has rows that cancel each other.
    assert (over_log.standing_none, over_log.unknown_to_state, over_log.expired) == (1, 0, 2)


@pytest.mark.usefixtures("one_partition")
def test_keys_that_wait_for_the_next_run_are_counted_separately(world: World) -> None:
    """The fast supplier changed a key and a deleted key: both have two rows until the next run."""
    news = []
    for k in (8, 20):
        _, fast = _versions_of(world, k)
        news += [(k, fast, -1), (k, fast + 1, 1)]
    more = world.spark.createDataFrame(news, FAST)
    world.insert(_as_log(more))
    world.fast = world.fast.unionByName(more)
    found = world.prove()
    # The deleted key has one row, with the new version and a sign that cancels nothing.
    assert (found.verdict, found.standing_twice, found.waiting) == ("DIFFER", 2, 2)
    assert world.prove_log().waiting == 2
    updates = [(k, _versions_of(world, k)[1] + 1, None, None, None, k == 20) for k in (8, 20)]
    diff, _, state = step(world.state, world.spark.createDataFrame(updates, UPDATES), world.difflog.step_options())
    world.insert(diff.drop("Block").selectExpr("*", "'u' AS ua"))
    world.state = state
    assert world.prove().verdict == "MATCH"


@pytest.mark.usefixtures("one_partition")
def test_every_altered_column_of_a_row_is_named(world: World) -> None:
    """One column of one row per key is altered: in the row that is left, in a cancelled row, and in the state."""
    standing = {row["k"]: 1000 * row["SlowVersion"] + row["F"] for row in world.state.where("NOT IsDeleted").collect()}
    twice = [k for k, version in standing.items() if version >= 2000]
    rows = [row.asDict() for row in world.slow.collect()]
    values = {"money": Decimal(77), "goals": [7, 7], "note": "x", "ua": "x"}
    numbers = {"SlowVersion": 77, "F": 77}
    expected = {}
    for column, value in {**values, **numbers}.items():
        for cancelled in (False, True):
            k = twice.pop()
            row = next(
                row
                for row in rows
                if row["k"] == k and row["SlowVersion"] and (row["Version"] == standing[k]) != cancelled
                if row["Sign"] == (-1 if cancelled else 1)
            )
            row[column] = value
            # A cancelled row with another number does not fit its Version, and differs from the row that it cancels.
            expected[k] = ("rows", column) if cancelled else ("state", column)
    for column in ("Version", "Sign", "k"):
        k = twice.pop()
        row = next(row for row in rows if (row["k"], row["Version"]) == (k, standing[k]))
        row[column] = {"Version": 88_088, "Sign": -1, "k": 999}[column]
        expected[k] = {"Version": "version", "Sign": "twice", "k": "none"}[column], ""
        expected |= {999: ("unknown", "")} if column == "k" else {}
    states = [row.asDict(recursive=True) for row in world.state.collect()]
    for column, value in {**values, **numbers, "IsDeleted": True}.items():
        k = twice.pop()
        row = next(row for row in states if row["k"] == k)
        if column == "ua":
            row["Fast"]["ua"] = value
        else:
            row[column] = value
        problem = "deleted" if column == "IsDeleted" else "version" if column in numbers else "state"
        expected[k] = (problem, column if problem == "state" else "")
    world.slow = world.spark.createDataFrame(rows, world.slow.schema)
    world.state = world.spark.createDataFrame(states, world.state.schema)
    world.sql("TRUNCATE TABLE log")
    # ClickHouse collapses the rows of one INSERT, and of parts that it merges.
    world.sql("ALTER TABLE log MODIFY SETTING max_bytes_to_merge_at_max_space_in_pool = 1")
    for frame in (_as_log(world.fast), world.slow.where("Sign = 1"), world.slow.where("Sign = -1")):
        world.insert(frame)
    file = world.folder / "problems.jsonl"
    for prove in (world.prove, world.prove_log):
        proof = prove(limit=100, to=file)
        found = {example.key["k"]: example for example in proof.examples}
        assert {k: example.problem for k, example in found.items()} == {
            k: problem for k, (problem, _) in expected.items()
        }
        for k, (_, column) in expected.items():
            assert column == "" or column in found[k].columns, (k, column, found[k])
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        assert [line["key"]["k"] for line in lines] == list(found)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.usefixtures("one_partition")
def test_examples_are_limited_and_all_keys_are_counted(world: World) -> None:
    """Keys that the next run resolves come last."""
    k, fast = 1, _versions_of(world, 1)[1]
    world.insert(_as_log(world.spark.createDataFrame([(k, fast, -1), (k, fast + 1, 1)], FAST)))
    _add(world, _row(world, 49, 1, *_versions_of(world, 49)))
    assert [(example.key["k"], example.waiting) for example in world.prove().examples] == [(49, False), (1, True)]
    assert [example.key["k"] for example in world.prove(limit=1).examples] == [49]
    world.sql("TRUNCATE TABLE log")
    found = world.prove(limit=3)
    alive = world.state.where("NOT IsDeleted").count()
    assert (found.verdict, found.standing_none, len(found.examples)) == ("DIFFER", alive, 3)
    assert {example.problem for example in found.examples} <= set(PROBLEMS)
    assert found.as_json()["examples"][0]["key"] == {"k": found.examples[0].key["k"]}


@pytest.mark.usefixtures("one_partition")
def test_a_column_that_was_not_compared_makes_it_incomplete(world: World) -> None:
    world.state = world.state.selectExpr("*", "1 AS gained")
    for found in _both(world):
        assert (found.verdict, found.exit_code) == ("INCOMPLETE", 2)
        assert "gained" in found.incomplete[0]
    # The day of expiry is only in the state table.
    world.state = world.state.drop("gained").selectExpr("*", "current_date() AS Expires")
    assert world.prove().verdict == "MATCH"


@pytest.mark.usefixtures("one_partition")
def test_without_a_state_the_fast_rows_are_proven(world: World) -> None:
    world.sql("TRUNCATE TABLE log")
    world.insert(_as_log(world.fast))
    proof = prove_clickhouse(world.spark, world.difflog, None)
    assert (proof.verdict, proof.only_fast) == ("MATCH", 60)
    assert prove_log(world.fast, world.slow.where("false"), world.difflog, None).verdict == "MATCH"


def test_no_table_is_an_error(spark: Spark, tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match=r"default\.log does not exist"):
        prove_clickhouse(spark, _difflog(tmp_path), None)


KINDS = (
    "b1 tinyint, b2 smallint, b4 int, f4 float, f8 double, d decimal(38,10), s string, b binary, o boolean, da date,"
    " ts timestamp, tn timestamp_ntz, a array<int>, ab array<binary>, m map<string,bigint>,"
    " mm map<int,array<timestamp_ntz>>, st struct<x:int,`y z`:string>, ast array<struct<x:int>>, `standing` int,"
    " `c.d` int, `tick``s` int, `back\\slash` int, `it's` int, known string"
)


@pytest.mark.usefixtures("one_partition")
def test_every_type_is_compared_also_null_and_in_any_zone(spark: Spark, tmp_path: Path) -> None:
    from pyspark.sql import functions as f

    when = datetime.datetime(
        2024, 10, 27, 1, 30, 0, 123456
    )  # An ambiguous hour in Berlin (end of daylight saving time).
    values = (
        *(
            -128,
            32767,
            -1,
            1.5,
            float("nan"),
            Decimal("-0.0000000001"),
            "ж",
            b"\xff\x00",
            False,
            datetime.date(1900, 1, 1),
        ),
        *(when, when, [1, None], [b"\xfe", None], {"q": None, "p": 1}, {2: [when, None], 1: None}, (1, None)),
        *([(1,), (None,)], 1, 2, 3, 4, 5, "x"),
    )
    key = ("a b", "standing key")
    keys = [(when, b"\xff"), (when, b"\xfe")]
    names = "`a b` timestamp_ntz, `standing key` binary"
    log = [(*keys[0], 1, 1, 2, 1002, *values), (*keys[1], 1, 1, 2, 1002, *[None] * len(values))]
    slow = spark.createDataFrame(log, f"{names}, Sign tinyint, SlowVersion long, `y``F` long, Version long, {KINDS}")
    state = slow.drop("Sign", "Version").selectExpr("*", "false AS IsDeleted")
    difflog = _difflog(tmp_path, entity=Entity("visits", key, "y`F"), logs=())
    world = World(spark, difflog, slow.limit(0), slow, state, tmp_path)
    world.ensure(slow.schema)
    world.insert(slow)
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        found = world.prove()
        assert (found.verdict, found.keys, len(found.compared_columns)) == ("MATCH", 2, len(values) + 2), found
        fast = slow.where("false").select("`a b`", "`standing key`", "`y``F`", "Sign")
        assert prove_log(fast, slow, difflog, state).verdict == "MATCH"
        # All values are NULL: every column is reported.
        compared = [name for name in found.compared_columns if name not in ("y`F", "SlowVersion")]
        nulls = [f.lit(None).cast(state.schema[name].dataType).alias(name) for name in compared]
        ours = [f.col("`" + name.replace("`", "``") + "`") for name in (*key, "y`F", "SlowVersion", "IsDeleted")]
        other = prove_clickhouse(spark, difflog, state.select(*ours, *nulls))
        assert (other.verdict, other.differing_state) == ("DIFFER", 1)
        assert other.examples[0].columns == tuple(compared)
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))


def test_many_keys_are_proven_in_limited_memory(spark: Spark, tmp_path: Path) -> None:
    """200,000 keys; the memory of the driver does not grow with them."""
    difflog = _difflog(tmp_path, logs=())
    ids = spark.range(200_000)
    slow = ids.selectExpr(
        "id AS k", "CAST(1 AS TINYINT) AS Sign", "1L AS SlowVersion", "1L AS F", "1001L AS Version", "id AS v"
    )
    state = ids.selectExpr(
        "id AS k", "1L AS F", "1L AS SlowVersion", "false AS IsDeleted", "IF(id = 123456, 0, id) AS v"
    )
    world = World(spark, difflog, slow.limit(0), slow, state, tmp_path)
    world.ensure(slow.schema)
    world.insert(slow)
    found = world.prove()
    assert (found.verdict, found.keys, found.differing_state) == ("DIFFER", 200_000, 1)
    assert found.examples[0].key == {"k": 123456}
