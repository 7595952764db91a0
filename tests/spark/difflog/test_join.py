"""Joins of visits and side logs: every row of a side log has exactly one result."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import reduce
from typing import Any

import pytest
from pyspark.sql import DataFrame

from support.fixtures import Spark
from trueup.errors import CheckFailed
from trueup.verbs.difflog.model import DiffLogConfig, Entity, Rule, SideLog, StatePlace, Target
from trueup.verbs.difflog_ends.join import Joined, join

MONEY = SideLog(
    name="money", key={"k": "visit"}, columns={"Revenue": Rule("sum"), "Both": Rule("sum")}, id=("id",), order_by="t"
)
GOALS = SideLog(
    name="goals",
    key={"k": "k"},
    columns={"Goals": Rule("append"), "Last": Rule("last", by="at"), "Both": Rule("sum")},
    id=("id",),
)
LOG = DiffLogConfig(
    entity=Entity("visit", ("k",), "F", dropped=("agent",), kept={"Duration": Rule("max")}, deleted="gone"),
    logs=(MONEY, GOALS),
    state=StatePlace("state"),
    target=Target(),
    work="work",
)
VISITS = "k long, F int, gone boolean, agent string, Duration int, more string"
KNOWN = "k long, F long, IsDeleted boolean"
ROWS = {
    "money": "visit int, id int, t int, Revenue long, Both long, more string",
    "goals": "k long, id int, Goals array<int>, Last string, at int, Both long",
}

Rows = Iterable[tuple[Any, ...]]


def joined(
    spark: Spark, visits: Rows = (), known: Rows = (), pending: Mapping[str, Rows] | None = None, **logs: Rows
) -> Joined:
    """Join rows given as tuples; a log that is not given has no rows."""

    def frames(rows: Mapping[str, Rows]) -> dict[str, DataFrame]:
        return {name: spark.createDataFrame(list(rows.get(name, ())), ROWS[name]) for name in ROWS}

    return join(
        spark,
        LOG,
        visits=spark.createDataFrame(list(visits), VISITS),
        logs=frames(logs),
        known=spark.createDataFrame(list(known), KNOWN),
        pending=frames(pending or {}),
    )


def rows_by_output(found: Joined) -> dict[str, list[dict[str, Any]]]:
    """Return all rows of the result, by output, in one Spark job."""
    from pyspark.sql import functions as f

    frames = {"visits": found.visits}
    for place in ("logs", "pending", "refused"):
        frames.update({f"{place} {name}": frame for name, frame in getattr(found, place).items()})
    texts = [
        frame.select(f.lit(place).alias("place"), f.to_json(f.struct("*")).alias("row"))
        for place, frame in frames.items()
    ]
    rows: dict[str, list[dict[str, Any]]] = {place: [] for place in frames}
    for row in reduce(lambda one, other: one.union(other), texts).collect():
        rows[row["place"]].append(json.loads(row["row"]))
    return {place: sorted(found, key=_order) for place, found in rows.items()}


def _order(row: dict[str, Any]) -> tuple[int, int, str]:
    return row.get("k", 0), row.get("F", 0), json.dumps(row, sort_keys=True)


@pytest.fixture(scope="module")
def shared(spark: Spark) -> Joined:
    """One join for several tests; each uses keys of its own, which start with its number."""
    sent_again = (38, 1, 20, 5, None, "kept")
    return joined(
        spark,
        known=[(21, 3, False), (22, 3, False), (23, 3, False), (41, 1, False), (42, 1, False)],
        visits=[
            *[(11, 1, False, "a1", 5, "x"), (11, 2, False, "a2", 7, "x"), (12, 1, None, None, None, "x")],
            *[(21, 4, False, "a", 1, "x"), (22, 1, False, "a", 1, "x"), (38, 1, False, "a", 1, "x")],
            # One version twice: the deletion counts.
            *[(43, 1, False, "a", 1, "x"), (43, 1, True, "b", 1, "x"), (43, 1, False, "c", 1, "x")],
            *[(51, 1, False, "a", 1, "x"), (51, 2, True, None, None, "x")],
            *[(None, 1, False, "a", 1, "x"), (61, None, False, "b", 1, "x")],
        ],
        pending={"money": [sent_again]},
        money=[
            *[(11, 1, 20, 5, 1, "x"), (11, 2, 10, 6, None, "x")],
            *[(key, 1, 20, 5, None, "x") for key in (21, 22, 23)],
            *[(37, 1, 20, 5, None, "kept"), sent_again, (38, 2, 1, 6, 1, "")],
            # Rows with the same id for another visit, and without an id, are separate rows.
            *[(key, number, 1, 5, 1, "x") for key, number in ((41, 1), (41, 1), (42, 1), (41, None), (41, None))],
            *[(51, 1, 20, 5, None, "x"), (None, 1, 20, 5, None, "x"), (61, 1, 20, 6, None, "x")],
        ],
        goals=[(11, 1, [1], "late", 9, 4), (11, 2, [2], "early", 3, None)],
    )


@pytest.fixture(scope="module")
def shared_rows(shared: Joined) -> dict[str, list[dict[str, Any]]]:
    """The rows of the shared join, by output."""
    return rows_by_output(shared)


def _of(rows: Mapping[str, list[dict[str, Any]]], first: int) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the keys that start with a digit."""
    return {
        place: [row for row in found if (row.get("k") or row.get("visit") or 0) // 10 == first]
        for place, found in rows.items()
    }


def test_rows_of_a_first_seen_visit_are_merged_into_its_newest_row_only(
    shared: Joined, shared_rows: dict[str, list[dict[str, Any]]]
) -> None:
    assert shared.visits.columns == ["k", "F", "gone", "agent", "Duration", "Revenue", "Both", "Goals", "Last", "at"]
    assert dict(shared.visits.dtypes)["F"] == "bigint"
    rows = _of(shared_rows, 1)
    first, newest, other = rows.pop("visits")
    assert first == {"k": 11, "F": 1, "gone": False, "agent": "a1", "Duration": 5}
    goals = newest["Goals"]
    assert sorted(goals) == [1, 2]
    assert newest == {
        **{"k": 11, "F": 2, "gone": False, "agent": "a2", "Duration": 7},
        **{"Revenue": 11, "Both": 5, "Last": "late", "at": 9, "Goals": goals},
    }
    assert other == {"k": 12, "F": 1}
    assert not any(rows.values())


def test_rows_of_a_known_visit_are_updates_at_its_newest_version(
    shared_rows: dict[str, list[dict[str, Any]]],
) -> None:
    rows = _of(shared_rows, 2)
    # The state has the earlier values of the logs; the visit has none.
    assert [(row["k"], row["F"], row.get("Revenue")) for row in rows["visits"]] == [(21, 4, None), (22, 1, None)]
    update = {"id": 1, "t": 20, "Revenue": 5}
    assert rows["logs money"] == [{"k": 21, "F": 4, **update}, {"k": 22, "F": 3, **update}, {"k": 23, "F": 3, **update}]
    assert rows["pending money"] == []


def test_rows_without_a_visit_are_kept_unchanged(shared_rows: dict[str, list[dict[str, Any]]]) -> None:
    rows = _of(shared_rows, 3)
    assert rows["pending money"] == [{"visit": 37, "id": 1, "t": 20, "Revenue": 5, "more": "kept"}]
    # One that was pending is sent again, with another row: still one and one.
    assert [(row["k"], row["Revenue"], row["Both"]) for row in rows["visits"]] == [(38, 11, 1)]
    assert rows["logs money"] == []


def test_duplicate_rows_are_used_once(shared_rows: dict[str, list[dict[str, Any]]]) -> None:
    rows = _of(shared_rows, 4)
    assert [(row["k"], row.get("id")) for row in rows["logs money"]] == [(41, 1), (41, None), (41, None), (42, 1)]
    assert [(row["agent"], row["gone"]) for row in rows["visits"]] == [("b", True)]


def test_rows_of_a_first_seen_visit_that_is_deleted_are_not_lost_in_its_tombstone(
    shared_rows: dict[str, list[dict[str, Any]]],
) -> None:
    """They become updates, which the step keeps aside with a reason."""
    rows = _of(shared_rows, 5)
    assert [(row["F"], row.get("Revenue")) for row in rows["visits"]] == [(1, None), (2, None)]
    assert [(row["k"], row["F"], row["Revenue"]) for row in rows["logs money"]] == [(51, 2, 5)]
    assert rows["pending money"] == []


def test_rows_without_a_key_are_rejected_with_a_reason(shared_rows: dict[str, list[dict[str, Any]]]) -> None:
    refused = shared_rows["refused money"]
    assert refused == [{"id": 1, "t": 20, "Revenue": 5, "reason": "visit is NULL"}]
    assert [(row["agent"], row["reason"]) for row in shared_rows["refused visit"]] == [
        ("a", "k is NULL"),
        ("b", "F is NULL"),
    ]
    rows = _of(shared_rows, 6)
    assert rows["visits"] == []
    # A visit without a version is ignored.
    assert len(rows["pending money"]) == 1


def test_a_key_of_several_columns_with_odd_names(spark: Spark) -> None:
    side = SideLog("side", {"a b": "c.d", "c.d": "a b"}, {"x`y": Rule("sum"), "Fast.er": Rule("sum")})
    odd = replace(
        LOG,
        entity=Entity("visit", ("a b", "c.d"), "y`F", kept={"Fast.er": Rule("sum")}),
        logs=(side, replace(GOALS, key={"a b": "k", "c.d": "s"})),
    )
    found = join(
        spark,
        odd,
        visits=spark.createDataFrame([(1, "x", 1, 3)], "`a b` int, `c.d` string, `y``F` long, `Fast.er` long"),
        # The columns of the log have the names of the other.
        logs={
            "side": spark.createDataFrame(
                [("x", 1, 5, 4), ("x", 1, 5, 4), ("y", 1, 7, 1)],
                "`a b` string, `c.d` int, `x``y` long, `Fast.er` long",
            )
        },
        known=spark.createDataFrame([], "`a b` long, `c.d` string, `y``F` long"),
        pending={},
    )
    # The key takes the type of the state; without an id every row counts; the visit's own value is merged too.
    assert dict(found.visits.dtypes)["a b"] == "bigint"
    assert [tuple(row) for row in found.visits.collect()] == [(1, "x", 1, 11, 10)]
    assert [tuple(row) for row in found.pending["side"].collect()] == [("y", 1, 7, 1)]
    assert list(found.logs) == ["side"]


def test_all_wrong_columns_are_reported_at_once(spark: Spark) -> None:
    visits = spark.createDataFrame([], VISITS.replace("Duration", "duration"))
    known = spark.createDataFrame([], KNOWN)
    money = spark.createDataFrame([], ROWS["money"].replace("Revenue", "Revenu"))
    with pytest.raises(CheckFailed) as caught:
        join(spark, LOG, visits=visits, logs={"money": money, "mony": money}, known=known, pending={})
    assert len(caught.value.reasons) == 3
    for text in (
        "unknown side log mony",
        'visit has no column Duration. Did you mean "duration"',
        "money has no column Rev",
    ):
        assert text in str(caught.value)


def test_incompatible_types(spark: Spark) -> None:
    visits = spark.createDataFrame([], VISITS.replace("F int", "F string"))
    logs = {
        "money": spark.createDataFrame([], ROWS["money"].replace("visit int", "visit string")),
        "goals": spark.createDataFrame([], ROWS["goals"].replace("Both long", "Both int")),
    }
    with pytest.raises(CheckFailed) as caught:
        join(spark, LOG, visits=visits, logs=logs, known=spark.createDataFrame([], KNOWN), pending={})
    assert caught.value.reasons == (
        "visit: F has the type string, but a version must be an integer",
        "money: visit has the type string, but key k of the state has bigint",
        "Both is bigint in money and int in goals",
    )


def test_the_plans_have_no_cartesian_product_no_python_and_shuffle_by_key_once(spark: Spark) -> None:
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    found = joined(spark, visits=[(1, 1, False, "a", 1, "x")], money=[(1, 1, 20, 5, None, "x")])
    shuffles = []
    for frame in (found.visits, found.logs["money"], found.pending["money"]):
        plan = frame._jdf.queryExecution().executedPlan().toString()
        assert "Cartesian" not in plan
        assert "NestedLoop" not in plan
        assert "Python" not in plan
        shuffles.append(plan.count("Exchange hashpartitioning"))
    spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")
    # One for each input: visits, the state, and the logs.
    assert shuffles == [4, 3, 3]


class History:
    """Random batches, and the results of their joins."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.state: dict[int, int] = {}
        self.sent: dict[str, dict[tuple[int, int], int]] = {"money": {}, "goals": {}}
        self.waiting: dict[str, list[Any]] = {"money": [], "goals": []}
        self.applied: dict[str, dict[int, int]] = {"money": defaultdict(int), "goals": defaultdict(int)}

    def visits(self) -> list[Any]:
        chance = self.chance
        return [
            (chance.randrange(12), chance.randrange(1, 5), chance.random() < 0.2, "a", 1, "x")
            for _ in range(chance.randrange(1, 8))
        ]

    def rows(self, batch: int) -> dict[str, list[Any]]:
        """Return new rows with duplicates, and some of the pending rows again."""
        rows = {name: [row for row in self.waiting[name] if self.chance.random() < 0.3] for name in self.waiting}
        for _ in range(20):
            name, key = self.chance.choice(list(rows)), self.chance.randrange(14)
            number, value = self.chance.randrange(10**6), self.chance.randrange(1, 100)
            self.sent[name][key, number] = value
            row = [value, None, ""] if name == "money" else [[value], "", batch, None]
            rows[name] += [(key, number, *([batch] if name == "money" else []), *row)] * self.chance.choice([1, 1, 2])
        return rows

    def take(self, visits: list[Any], found: dict[str, list[dict[str, Any]]]) -> None:
        for key, version, *_ in visits:
            self.state[key] = max(version, self.state.get(key, 0))
        for row in [*found["visits"], *found["logs money"], *found["logs goals"]]:
            self.applied["money"][row["k"]] += row.get("Revenue", 0)
            self.applied["goals"][row["k"]] += sum(row.get("Goals", []))
        money, goals = found["pending money"], found["pending goals"]
        self.waiting["money"] = [(row["visit"], row["id"], row["t"], row["Revenue"], None, "") for row in money]
        self.waiting["goals"] = [(row["k"], row["id"], row["Goals"], "", row["at"], None) for row in goals]


@pytest.mark.parametrize("seed", [1])
def test_random_batches_apply_every_row_of_every_visit(spark: Spark, seed: int) -> None:
    history = History(seed)
    for batch in range(3):
        visits, rows = history.visits(), history.rows(batch)
        known = [(key, version, False) for key, version in history.state.items()]
        found = rows_by_output(joined(spark, visits, known, history.waiting, **rows))
        history.take(visits, found)
        assert [(row["k"], row["F"]) for row in found["visits"]] == sorted({visit[:2] for visit in visits})
        for row in [*found["logs money"], *found["logs goals"]]:
            assert row["F"] == history.state[row["k"]]
    for name, values in history.sent.items():
        expected: dict[int, int] = defaultdict(int)
        for (key, _), value in values.items():
            if key in history.state:
                expected[key] += value
        assert {key: total for key, total in history.applied[name].items() if total} == expected
        assert sorted(row[:2] for row in history.waiting[name]) == sorted(
            each for each in values if each[0] not in history.state
        )
