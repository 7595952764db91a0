"""Late rows, deletions, returns and expiry: the same result however the rows are divided into runs.

The expected result is computed in Python from the rules in docs/difflog.md: it keeps the rows that count, not values.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from support.chunks import write_chunk
from support.fixtures import Spark
from trueup.store import times
from trueup.verbs.difflog.clickhouse import open_target
from trueup.verbs.difflog.model import DiffLogConfig, Entity, Rule, SideLog, StatePlace, Target
from trueup.verbs.difflog.run import run
from trueup.verbs.difflog.state import state_rows
from trueup.verbs.difflog_ends.prove import prove_clickhouse
from trueup.verbs.difflog_ends.prune import prune
from trueup.verbs.difflog_ends.recompute import COMPUTED, recomputed

SCHEMAS = {
    "visit": "cut long, id long, F long, gone boolean, ua string, day date, dur int",
    "conv": "cut long, id long, F long, goals array<int>, money long, tag string",
    "cost": "cut long, id long, F long, cost long, best string, t long",
}
SOURCES = tuple(SCHEMAS)
TODAY = date(2026, 3, 1)
# The day of each run, and whether it rejoins late rows.
RUNS = ((0, False), (10, True), (20, False), (30, True))
# The run that takes each of four chunk sets, per cut.
CUTS = ((3, 3, 3, 3), (0, 1, 2, 3), (1, 1, 3, 3), (0, 0, 2, 3))
NEVER = TODAY + timedelta(days=300)


@dataclass(frozen=True)
class Given:
    """One row of a history: `place` is its chunk set, `number` makes it unique."""

    place: int
    source: str
    fast: int
    number: int
    gone: bool = False
    day: date | None = None
    value: bool = True

    def as_row(self, cut: int, key: int) -> tuple[Any, ...]:
        """Return the row of the chunk."""
        start = (cut, key, self.fast)
        if self.source == "visit":
            dur = self.fast * 10 if self.value else None
            return (*start, self.gone, f"ua{self.fast}", self.day, None if self.gone else dur)
        if self.source == "conv":
            return (*start, [self.number], self.number, f"tag{self.fast}" if self.value else None)
        return (*start, self.number, f"best{self.number}", self.number)


@dataclass
class Expected:
    """The state of a key: the rows that count, in the order of their arrival."""

    fast: int | None = None
    deleted: bool = False
    # The version of the last deletion, and the day on which the state expires.
    cleared: int = -1
    expires: date | None = None
    expired: bool = False
    rows: list[Given] = field(default_factory=list)
    aside: list[tuple[Given, str]] = field(default_factory=list)

    def run(self, given: Sequence[Given], today: date, *, rejoin: bool) -> None:
        """Apply the rows of one run: first the visits, then the side logs."""
        if self.expires is not None and self.expires < today:
            # The rows of an expired visit stay in the table, and nothing can change them any more.
            self.expired = True
        given = [row for row in given if row.day is None or row.day + timedelta(days=30) >= today]
        if rejoin:
            given = [*(row for row, why in self.aside if why in ("older", "not back", "unknown")), *given]
            self.aside = [(row, why) for row, why in self.aside if why not in ("older", "not back", "unknown")]
        old = self.fast
        self._visits([row for row in given if row.source == "visit"], old, rejoin=rejoin)
        for row in [row for row in given if row.source != "visit"]:
            self._one(row, old, rejoin=rejoin)
        days = [row.day for row in self.rows if row.source == "visit" and row.fast == self._newest_visit()]
        self.expires = days[-1] + timedelta(days=30) if days and days[-1] and not self.deleted else None

    def _newest_visit(self) -> int:
        return max((row.fast for row in self.rows if row.source == "visit"), default=-1)

    def _visits(self, visits: Sequence[Given], old: int | None, *, rejoin: bool) -> None:
        if self.expired or (old is None and not any(row.day for row in visits)):
            self.aside += [(row, "unknown") for row in visits]
            return
        in_time = [row.fast for row in visits if row.gone and (old is None or row.fast >= old)]
        before = self.cleared
        if in_time and max(in_time) > self.cleared:
            self.cleared = max(in_time)
            self.fast = max(self.fast or 0, self.cleared)
            self.deleted, self.rows = True, []
        for row in visits:
            if not row.gone:
                self._one(row, old, rejoin=rejoin, before=before)
            elif row.fast > self.cleared:
                self.aside.append((row, "late deletion"))

    def _one(self, row: Given, old: int | None, *, rejoin: bool, before: int | None = None) -> None:
        if self.expired or (self.fast is None and row.source != "visit"):
            self.aside.append((row, "unknown"))
        elif row.fast <= self.cleared:
            # A visit that a deletion of the same run removes is not late.
            if row.source != "visit" or row.fast <= (before or -1) or (old is not None and row.fast < old):
                self.aside.append((row, "deleted"))
        elif row.source != "visit" and self.deleted:
            self.aside.append((row, "not back"))
        elif old is not None and row.fast < old and not rejoin:
            self.aside.append((row, "older"))
        else:
            self.rows.append(row)
            self.fast, self.deleted = max(self.fast or 0, row.fast), False

    def state(self) -> tuple[Any, ...] | None:
        """Return the values of the state, or None if there is none."""
        if self.fast is None or self.expired:
            return None
        by_source = {source: [row for row in self.rows if row.source == source] for source in SOURCES}
        conv, cost = by_source["conv"], by_source["cost"]
        return (
            *(self.fast, self.deleted),
            max((row.fast * 10 for row in by_source["visit"] if row.value), default=None),
            sorted(row.number for row in conv),
            sum(row.number for row in conv) if conv else None,
            max((f"tag{row.fast}" for row in conv if row.value), default=None),
            sum(row.number for row in cost) if cost else None,
            f"best{max(row.number for row in cost)}" if cost else None,
        )

    def left(self) -> Counter[tuple[Any, ...]]:
        """Return the rows that wait to be rejoined."""
        return Counter((row.source, row.fast, row.number) for row, why in self.aside if why in ("not back", "unknown"))


def _history(chance: random.Random, key: int) -> list[Given]:
    """Return random rows of a key. Every tenth key expires before the third run."""
    rows = []
    for number in range(chance.randint(1, 8)):
        source = chance.choice(SOURCES) if number else "visit"
        gone = source == "visit" and chance.random() < 0.25
        day = TODAY - timedelta(days=15) if key % 10 == 0 else NEVER
        rows.append(
            Given(
                *(chance.randrange(4), source, chance.randint(1, 4), key * 100 + number),
                gone=gone,
                day=day if source == "visit" and not gone else None,
                value=chance.random() < 0.7,
            )
        )
    return rows


def _write(log: DiffLogConfig, number: int, rows: dict[str, list[tuple[Any, ...]]]) -> None:
    for source, given in rows.items():
        place = Path(log.work) / "chunks" / f"{number:03d}" / source
        # Also files of a program that is not Spark.
        write_chunk(place, given, SCHEMAS[source], of_spark=source != "cost")


def _insert_fast(log: DiffLogConfig, expected: dict[tuple[int, int], Expected]) -> None:
    """Insert the rows of the fast supplier: every version up to that of the state, and the rows that cancel them."""
    rows = []
    for (cut, key), state in expected.items():
        newest = state.fast or 0
        rows += [(cut, key, 1, fast) for fast in range(1, newest + 1)]
        rows += [(cut, key, -1, fast) for fast in range(1, newest)]
    values = ", ".join(f"({cut}, {key}, {sign}, 0, {fast}, {fast})" for cut, key, sign, fast in rows)
    with open_target(log.target) as house:
        house.execute(f"INSERT INTO {house.name} (cut, id, Sign, SlowVersion, F, Version) VALUES {values}")


@pytest.fixture
def log(tmp_path: Path) -> DiffLogConfig:
    """A log with two side logs, whose states expire after 30 days."""
    return DiffLogConfig(
        entity=Entity("visit", ("cut", "id"), "F", dropped=("ua", "day"), kept={"dur": Rule()}, deleted="gone"),
        logs=(
            SideLog("conv", {"cut": "cut", "id": "id"}, {"goals": Rule("append"), "money": Rule("sum"), "tag": Rule()}),
            SideLog("cost", {"cut": "cut", "id": "id"}, {"cost": Rule("sum"), "best": Rule("last", by="t")}),
        ),
        state=StatePlace(str(tmp_path / "log" / "state"), buckets=2, ttl_days=30, ttl_column="day"),
        target=Target("default", "visits", path=str(tmp_path / "clickhouse")),
        work=str(tmp_path / "log"),
    )


def test_the_result_does_not_depend_on_how_rows_are_divided_into_runs(
    spark: Spark, log: DiffLogConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 random histories, each divided into runs in four ways: the cut is a part of the key."""
    chance = random.Random(7)
    histories = {key: _history(chance, key) for key in range(100)}
    expected = {(cut, key): Expected() for cut in range(len(CUTS)) for key in histories}
    for number, (days, rejoin) in enumerate(RUNS):
        today = TODAY + timedelta(days=days)
        monkeypatch.setattr(times, "now", lambda today=today: f"{today}T00:00:00.000Z")
        chunk: dict[str, list[tuple[Any, ...]]] = {source: [] for source in SOURCES}
        for (cut, key), state in expected.items():
            given = [row for row in histories[key] if CUTS[cut][row.place] == number]
            state.run(given, today, rejoin=rejoin)
            for row in given:
                chunk[row.source].append(row.as_row(cut, key))
        _write(log, number, chunk)
        run(spark, log, rejoin_late=rejoin)
    states = state_rows(spark, log)
    assert states is not None
    found = {
        (row["cut"], row["id"]): (
            *(row["F"], row["IsDeleted"], row["dur"], sorted(row["goals"] or []), row["money"]),
            *(row["tag"], row["cost"], row["best"]),
        )
        for row in states.collect()
    }
    wrong = {place: (found.get(place), state.state()) for place, state in expected.items()}
    wrong = {place: both for place, both in wrong.items() if both[0] != both[1]}
    assert wrong == {}, [histories[key] for _, key in wrong][:1]
    for key in histories:
        cuts = [expected[cut, key] for cut in range(len(CUTS))]
        if key % 10 and not any(why == "late deletion" for state in cuts for _, why in state.aside):
            assert all(state.state() == cuts[0].state() for state in cuts), (key, histories[key])
            assert all(state.left() == cuts[0].left() for state in cuts), (key, histories[key])
    _insert_fast(log, expected)
    proof = prove_clickhouse(spark, log, states)
    assert proof.verdict == "MATCH", proof
    again = run(spark, log, rejoin_late=True)
    assert again.number == 0, "what waits is not processed again without new rows"
    _check_recomputed(spark, log, states)


def _check_recomputed(spark: Spark, log: DiffLogConfig, states: DataFrame) -> None:
    """Compute the states again: with every column altered by hand, one per key, then as they are after a prune."""
    last = len(RUNS)
    keys = [row["id"] for row in states.where("cut = 0 AND NOT IsDeleted AND size(Since) > 0").take(20)]
    altered = {
        "F": "F + 1", "SlowVersion": "SlowVersion + 1", "IsDeleted": "true", "dur": "coalesce(dur, 0) + 1",
        "goals": "array(1, 2)", "money": "coalesce(money, 0) + 1", "tag": "'older'", "cost": "coalesce(cost, 0) + 1",
        "best": "'x'", "Since": "map_from_arrays(array('tag'), array(1L))", "Expires": "date_add(Expires, 1)",
        "Fast.ua": "named_struct('ua', 'x', 'day', Fast.day, 'dur', Fast.dur)",
        "Fast.day": "named_struct('ua', Fast.ua, 'day', DATE'2026-01-01', 'dur', Fast.dur)",
    }  # fmt: skip
    wrong = dict(zip(keys, altered, strict=False))
    assert len(wrong) == len(altered)
    columns = []
    for name in states.columns:
        cases = [
            f"WHEN cut = 0 AND id = {key} THEN {altered[what]}"
            for key, what in wrong.items()
            if what.split(".")[0] == name
        ]
        columns.append(f"CASE {' '.join(cases)} ELSE {name} END AS {name}" if cases else name)
    lost, made = states.where("cut = 1 AND id % 10 <> 0").take(1)[0]["id"], 999
    other = states.selectExpr(*columns).where(f"cut <> 1 OR id <> {lost}")
    other = other.unionByName(states.where("cut = 0").limit(1).withColumn("id", f.lit(made).cast("long")))
    with recomputed(spark, log, other, last) as found:
        assert found is not None
        # No run has a row of the key that was made.
        assert (found.untouched, found.first) == (1, 1)
        assert found.keys >= states.count()
        shown = {(row["cut"], row["id"]): row[COMPUTED] for row in found.wrong.collect()}
        assert found.differing == len(shown)
    expected = {(0, key): [what] for key, what in wrong.items()}
    # The day of expiry follows from the day of the visit.
    expected[0, keys[list(altered).index("Fast.day")]] = ["Expires", "Fast.day"]
    assert {place: sorted(names) for place, names in shown.items()} == {
        **expected,
        (1, lost): ["no state"],
        (0, made): ["has a state"],
    }
    prune(log, keep=2, execute=True)
    with recomputed(spark, log, states, last) as found:
        assert found is not None
        assert (found.differing, found.first) == (0, 3), found.wrong.take(3)
        assert found.untouched > 0
