"""One step: the six blocks, the merge rules, tombstones and late rows, on plain DataFrames."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Any

import pytest
from pyspark.errors import PySparkException

from support.fixtures import Spark
from trueup.errors import CheckFailed
from trueup.verbs.difflog.model import Rule, StepOptions
from trueup.verbs.difflog.steps.step import step, whole_step

OPTIONS = StepOptions(key=("k",), fast_version="F", deleted="gone")
STATE = "k long, F long, SlowVersion long, IsDeleted boolean, s string"
UPDATE = "k long, F long, s string, gone boolean"


def _blocks(spark: Spark, old: tuple[Any, ...] | None, new: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    previous = spark.createDataFrame([(1, *old)] if old else [], STATE)
    diff, _, _ = step(previous, spark.createDataFrame([(1, *new)], UPDATE), OPTIONS)
    rows = diff.select("Block", "Sign", "SlowVersion", "F", "Version", "s").collect()
    return sorted(tuple(row) for row in rows)


def test_the_slow_supplier_updates_an_unchanged_row(spark: Spark) -> None:
    assert _blocks(spark, (2, 1, False, "X"), (2, "Y", False)) == [
        (1, -1, 1, 2, 1002, "X"),
        (2, 1, 2, 2, 2002, "Y"),
    ]


def test_the_fast_supplier_changed_the_row_meanwhile(spark: Spark) -> None:
    assert _blocks(spark, (2, 1, False, "X"), (3, "Y", False)) == [
        (1, -1, 1, 2, 1002, "X"),
        (2, 1, 2, 3, 2003, "Y"),
        (3, -1, 0, 3, 3, None),
        (4, 1, 0, 2, 2, None),
    ]


def test_a_key_that_is_new_to_the_slow_supplier(spark: Spark) -> None:
    assert _blocks(spark, None, (2, "Y", False)) == [(5, 1, 1, 2, 1002, "Y"), (6, -1, 0, 2, 2, None)]


def test_an_older_version_is_reported_and_changes_nothing(spark: Spark) -> None:
    assert _blocks(spark, (2, 1, False, "X"), (1, "Y", False)) == []
    previous = spark.createDataFrame([(1, 2, 1, False, "X")], STATE)
    whole = whole_step(previous, spark.createDataFrame([(1, 1, "Y", False)], UPDATE), OPTIONS)
    assert [tuple(row) for row in whole.late.collect()] == [(1, 1, 2, "older", "Y", False)]
    assert [tuple(row) for row in whole.patched.collect()] == [(1, 2, 1, False, {}, "X")]
    assert whole.patched_new_only.count() == 0


def test_an_older_version_can_be_rejoined(spark: Spark) -> None:
    from dataclasses import replace

    previous = spark.createDataFrame([(1, 2, 1, False, "X")], STATE)
    updates = spark.createDataFrame([(1, 1, "Y", False)], UPDATE)
    whole = whole_step(previous, updates, replace(OPTIONS, rejoin_late=True))
    assert sorted(row["Version"] * row["Sign"] for row in whole.diff.collect()) == [-1002, 2002]
    assert whole.late.count() == 0


@pytest.mark.parametrize(
    ("old", "new", "versions"),
    [
        (None, (2, None, True), [-2]),
        ((2, 1, False, "X"), (2, None, True), [-1002]),
        ((2, 1, False, "X"), (3, None, True), [-1002, -3, 2]),
        # Deleted: deleted again, deleted with a newer version, and then restored.
        ((2, 2, True, None), (2, None, True), []),
        ((2, 2, True, None), (3, None, True), [-3, 2]),
        ((2, 2, True, None), (3, "back", False), [-3, 2, 3003]),
    ],
)
def test_tombstones(spark: Spark, old: tuple[Any, ...] | None, new: tuple[Any, ...], versions: list[int]) -> None:
    assert sorted(sign * version for _, sign, _, _, version, _ in _blocks(spark, old, new)) == versions


def test_side_rows_of_a_deleted_entity_are_kept_aside(spark: Spark) -> None:
    previous = spark.createDataFrame([(1, 2, 2, True, None)], STATE)
    whole = whole_step(previous, spark.createDataFrame([(1, 2, "Y", False)], UPDATE), OPTIONS)
    assert whole.diff.count() == 0
    assert [(row["k"], row["reason"]) for row in whole.late.collect()] == [(1, "deleted")]


def test_blocks_for_every_relation_of_versions(spark: Spark) -> None:
    """For every (old_F, new_F, old_S): the old rows plus the diff collapse to one row with the newest versions."""
    cases = [(old, new, slow) for old in (None, 0, 1, 2, 3) for new in (0, 1, 2, 3) for slow in (1, 2, 5)]
    states = [(at, old, slow, False, "X") for at, (old, _, slow) in enumerate(cases) if old is not None]
    updates = [(at, new, "Y", False) for at, (_, new, _) in enumerate(cases)]
    diff, _, patched = step(spark.createDataFrame(states, STATE), spark.createDataFrame(updates, UPDATE), OPTIONS)
    logs: dict[int, Counter[int]] = {}
    for at, (old, new, slow) in enumerate(cases):
        # The fast supplier has its newest version, and has cancelled all others.
        newest = max(new, old) if old is not None else new
        logs[at] = Counter({newest: 1})
        if old is not None:
            logs[at].update({old: -1})
            logs[at].update({1000 * slow + old: 1})
    for row in diff.collect():
        logs[row["k"]].update({row["Version"]: row["Sign"]})
    state = {row["k"]: 1000 * row["SlowVersion"] + row["F"] for row in patched.collect()}
    for at, (old, new, _) in enumerate(cases):
        standing = {version: count for version, count in logs[at].items() if count}
        if old is not None and old > new:
            continue  # The state knows a newer fast version than this update: nothing may change.
        assert standing == {state[at]: 1}, cases[at]


def test_many_updates_of_one_key_are_merged_first(spark: Spark) -> None:
    options = StepOptions(
        key=("k",),
        fast_version="F",
        order_by="t",
        rules={"money": Rule("sum"), "goals": Rule("append"), "tags": Rule("union"), "low": Rule("min")},
    )
    schema = "k long, F long, t long, money decimal(10,2), goals array<int>, tags array<string>, low int, s string"
    rows = [
        (1, 2, 20, Decimal(5), [2], ["b", "a"], 7, "newer"),
        (1, 2, 10, Decimal(1), [1], ["a"], None, "older"),
        (1, 1, 99, None, None, None, 9, "oldest version"),
    ]
    previous = spark.createDataFrame([], schema.replace("F long", "F long, SlowVersion long"))
    diff, new_only, _ = step(previous, spark.createDataFrame(rows, schema), options)
    found = new_only.collect()[0]
    assert (found["F"], found["SlowVersion"], str(found["money"])) == (2, 1, "6.00")
    assert (found["goals"], found["tags"], found["low"], found["s"]) == ([1, 2], ["a", "b"], 7, "newer")
    assert diff.count() == 2


NULL_CASES = [
    ("replace", "int", None, 1, 1), ("replace", "int", 1, None, 1), ("replace", "int", None, None, None),
    ("replace", "int", 1, 2, 2),
    ("sum", "int", None, 1, 1), ("sum", "int", 1, None, 1), ("sum", "int", None, None, None), ("sum", "int", 1, 2, 3),
    ("min", "int", None, 1, 1), ("min", "int", 2, None, 2), ("min", "int", None, None, None), ("min", "int", 2, 1, 1),
    ("max", "int", None, 1, 1), ("max", "int", 2, None, 2), ("max", "int", None, None, None), ("max", "int", 2, 1, 2),
    ("append", "array<int>", None, [1], [1]), ("append", "array<int>", [1], None, [1]),
    ("append", "array<int>", None, None, None), ("append", "array<int>", [1], [1, None], [1, 1, None]),
    ("union", "array<int>", None, [1, 1], [1]), ("union", "array<int>", [1], None, [1]),
    ("union", "array<int>", None, None, None), ("union", "array<int>", [1, 2], [2, None], [1, 2, None]),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["int", "array<int>"])
def test_null_never_replaces_a_value(spark: Spark, kind: str) -> None:
    cases = [case for case in NULL_CASES if case[1] == kind]
    names = sorted({case[0] for case in cases})
    previous = [
        (at, 1, 1, *[old if name == rule else None for name in names]) for at, (rule, _, old, _, _) in enumerate(cases)
    ]
    updates = [
        (at, 1, *[new if name == rule else None for name in names]) for at, (rule, _, _, new, _) in enumerate(cases)
    ]
    columns = ", ".join(f"`{name}` {kind}" for name in names)
    options = StepOptions(key=("k",), fast_version="F", rules={name: Rule(name) for name in names})  # type: ignore[arg-type]
    _, new_only, _ = step(
        spark.createDataFrame(previous, f"k long, F long, SlowVersion long, {columns}"),
        spark.createDataFrame(updates, f"k long, F long, {columns}"),
        options,
    )
    found = {row["k"]: row for row in new_only.collect()}
    for at, (rule, _, _, _, expected) in enumerate(cases):
        assert found[at][rule] == expected, cases[at]


def test_last_by_a_time_column_in_any_order(spark: Spark) -> None:
    from itertools import permutations

    options = StepOptions(key=("k",), fast_version="F", rules={"v": Rule("last", by="t")})
    rows = [("a", 1), (None, 5), ("b", 3), (None, None)]
    schema = "k long, F long, v string, t long"
    orders = list(permutations(rows))
    state = spark.createDataFrame([], f"{schema}, SlowVersion long")
    for taken in (slice(0, 1), slice(1, 2), slice(2, 4)):
        updates = [(at, 1, *row) for at, order in enumerate(orders) for row in order[taken]]
        state = step(state, spark.createDataFrame(updates, schema), options)[2]
    for row in state.collect():
        assert (row["v"], row["t"]) == ("b", 3), orders[row["k"]]


def test_an_expression_sees_both_sides(spark: Spark) -> None:
    rule = Rule("expr", sql="concat_ws('>', old.`s s`, new.`s s`)")
    options = StepOptions(key=("k",), fast_version="F", rules={"s s": rule})
    schema = "k long, F long, `s s` string"
    previous = spark.createDataFrame([(1, 1, "a", 1)], f"{schema}, SlowVersion long")
    updates = spark.createDataFrame([(1, 1, "b"), (1, 2, "c")], schema)
    assert step(previous, updates, options)[1].collect()[0]["s s"] == "a>b>c"


def test_updates_may_add_a_column(spark: Spark) -> None:
    options = StepOptions(key=("k",), fast_version="F")
    previous = spark.createDataFrame([(1, 1, 1, "a"), (2, 1, 1, "b")], "k long, F long, SlowVersion long, s string")
    _, _, patched = step(previous, spark.createDataFrame([(1, 1, 7)], "k long, F long, extra int"), options)
    assert sorted((row["k"], row["s"], row["extra"]) for row in patched.collect()) == [(1, "a", 7), (2, "b", None)]


def test_a_key_of_several_columns_with_odd_names(spark: Spark) -> None:
    options = StepOptions(key=("a b", "c.d"), fast_version="y`F")
    schema = "`a b` long, `c.d` string, `y``F` long, s string"
    previous = spark.createDataFrame([(1, "x", 1, "old", 1)], f"{schema}, SlowVersion long")
    updates = spark.createDataFrame([(1, "x", 1, "new"), (1, "y", 1, "other")], schema)
    diff, _, patched = step(previous, updates, options)
    assert diff.count() == 4
    assert patched.count() == 2


def test_versions_that_are_too_large_and_names_of_the_log_are_refused(spark: Spark) -> None:
    options = StepOptions(key=("k",), fast_version="F", multiplier=10**16)
    previous = spark.createDataFrame([(1, 2, 1000, False, "X")], STATE)
    updates = spark.createDataFrame([(1, 2, "Y", False)], UPDATE)
    with pytest.raises(PySparkException, match="1001 times the multiplier 10000000000000000 is too large"):
        step(previous, updates, options)[0].collect()
    named = updates.withColumnRenamed("s", "Sign")
    with pytest.raises(CheckFailed, match="the state has a column Sign, which is a column of the log"):
        step(previous, named, OPTIONS)


def test_the_plan_shuffles_each_side_once(spark: Spark) -> None:
    options = StepOptions(key=("k",), fast_version="F", rules={"s": Rule("expr", sql="coalesce(new.s, old.s)")})
    previous = spark.range(1000).selectExpr("id AS k", "1L AS F", "1L AS SlowVersion", "'x' AS s")
    updates = spark.range(500).selectExpr("id AS k", "2L AS F", "'y' AS s")
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    frames = step(previous, updates, options)
    for frame in frames:
        plan = frame._jdf.queryExecution().executedPlan().toString()
        assert plan.count("Exchange hashpartitioning") == 2
        assert "Cartesian" not in plan
        assert plan.count("MapInArrow") == 1
    spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")


def test_columns_that_only_order_updates_are_not_in_the_state(spark: Spark) -> None:
    rules = {"goal": Rule("last", by="t"), "cost": Rule("replace")}
    options = StepOptions(key=("k",), fast_version="F", order_by="t", rules=rules)
    previous = spark.createDataFrame([(1, 1, 1, "a", 7)], "k long, F long, SlowVersion long, goal string, t long")
    # A log without the goal is ordered by the same column: its times do not change the goal.
    updates = spark.createDataFrame([(1, 1, 99, 5), (1, 1, 98, 4)], "k long, F long, t long, cost int")
    row = step(previous, updates, options)[2].collect()[0]
    assert (row["goal"], row["t"], row["cost"]) == ("a", 7, 5)
    plain = StepOptions(key=("k",), fast_version="F", order_by="t", rules={"cost": Rule("replace")})
    fresh = spark.createDataFrame([], "k long, F long, SlowVersion long")
    assert "t" not in step(fresh, updates, plain)[2].columns
