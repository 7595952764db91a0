"""Random settings of a log, migrated between random runs: the log collapses to what plain Python computes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from support.chunks import write_chunk
from support.fixtures import Spark
from trueup.api.difflog import slow_log
from trueup.errors import CheckFailed, ConfigError, StoreError
from trueup.verbs.difflog.clickhouse import open_target
from trueup.verbs.difflog.manifest import Runs
from trueup.verbs.difflog.migrate import migrate
from trueup.verbs.difflog.model import DiffLogConfig, Entity, Rule, SideLog, StatePlace, Target
from trueup.verbs.difflog.record import check_log, with_history
from trueup.verbs.difflog.run import run
from trueup.verbs.difflog.state import StateTable, state_rows
from trueup.verbs.difflog_ends.prove import prove_clickhouse
from trueup.verbs.difflog_ends.prune import prune

TODAY = date.today()
KEYS = 25
MERGE: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda old, new: old + new,
    "max": max,
    "min": min,
    "replace": lambda _, new: new,
}


@dataclass
class Oracle:
    """The newest state of every key; a column of the fast supplier has its value at the newest fast version."""

    fast: dict[int, int] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)
    # Values of the state, and of the fast supplier.
    state: dict[tuple[int, str], Any] = field(default_factory=dict)
    supplied: dict[tuple[int, str], Any] = field(default_factory=dict)
    fast_rows: list[tuple[int, int, int]] = field(default_factory=list)

    def visit(self, log: DiffLogConfig, key: int, values: dict[str, Any]) -> int:
        """Write the next version of a key by the fast supplier."""
        before = self.fast.get(key)
        if before is not None:
            self.fast_rows.append((key, -1, before))
        self.fast[key] = (before or 0) + 1
        self.fast_rows.append((key, 1, self.fast[key]))
        for name, value in values.items():
            self.supplied[key, name] = value
            if name not in log.entity.dropped:
                self.merge(log, key, name, value)
        return self.fast[key]

    def merge(self, log: DiffLogConfig, key: int, name: str, value: Any) -> None:
        old = self.state.get((key, name))
        rule = log.rules.get(name, Rule()).name
        self.state[key, name] = value if old is None else MERGE[rule](old, value)

    def migrate(self, old: DiffLogConfig, new: DiffLogConfig) -> None:
        """Move columns: into the state with the value of the fast supplier, and out of it."""
        for (key, name), value in self.supplied.items():
            if name in new.entity.dropped:
                self.state.pop((key, name), None)
            elif name in old.entity.dropped:
                self.state[key, name] = value

    def row(self, log: DiffLogConfig, key: int) -> dict[str, Any]:
        """Return the expected row of the log."""
        row = {"dur": None, "ua": None, "day": None, "money": self.state.get((key, "money"))}
        for name in ("dur", "ua", "day"):
            row[name] = (self.supplied if name in log.entity.dropped else self.state).get((key, name))
        return row


def _settings(chance: random.Random, log: DiffLogConfig) -> DiffLogConfig:
    """Return the log with random settings."""
    rules = {name: chance.choice(["dropped", "replace", "max", "min"]) for name in ("dur", "ua")}
    kept = {name: Rule(rule) for name, rule in rules.items() if rule != "dropped"}  # type: ignore[arg-type]
    dropped = tuple(name for name, rule in rules.items() if rule == "dropped")
    side = replace(log.logs[0], columns={"money": Rule(chance.choice(["sum", "max", "min"]))})
    days = chance.choice([0, 9])
    return replace(
        log,
        entity=replace(log.entity, kept={**kept, "day": Rule()}, dropped=dropped),
        logs=(side,),
        multiplier=chance.choice([40, 100, 130, 1000, 1001, 3000]),
        state=replace(log.state, buckets=chance.choice([1, 2, 3, 5]), ttl_days=days, ttl_column="day" if days else ""),
    )


def _chunk(log: DiffLogConfig, chance: random.Random, oracle: Oracle, name: str) -> None:
    """Write a chunk set of random updates, and tell the oracle."""
    visits, money = [], []
    for key in range(KEYS):
        if key in oracle.deleted:
            continue
        if chance.random() < 0.5:
            values = {"dur": chance.randrange(100), "ua": f"ua{chance.randrange(100)}", "day": TODAY}
            visits.append((key, oracle.visit(log, key, values), False, *values.values()))
            if chance.random() < 0.15:
                visits.append((key, oracle.visit(log, key, {}), True, None, None, None))
                oracle.deleted.add(key)
    for key in range(KEYS):
        if key in oracle.fast and key not in oracle.deleted and chance.random() < 0.4:
            amount = chance.randrange(20)
            money.append((key, oracle.fast[key], amount))
            oracle.merge(log, key, "money", amount)
    place = Path(log.work) / "chunks" / name
    write_chunk(place / "visit", visits, "id long, F long, gone boolean, dur int, ua string, day date")
    write_chunk(place / "conv", money, "id long, F long, money long")


@pytest.fixture
def log(tmp_path: Path) -> DiffLogConfig:
    return DiffLogConfig(
        entity=Entity("visit", ("id",), "F", dropped=("ua",), kept={"dur": Rule("max"), "day": Rule()}, deleted="gone"),
        logs=(SideLog("conv", {"id": "id"}, {"money": Rule("sum")}),),
        state=StatePlace(str(tmp_path / "log" / "state"), buckets=2),
        target=Target("default", "visits", path=str(tmp_path / "clickhouse")),
        work=str(tmp_path / "log"),
    )


@pytest.mark.parametrize("seed", [1])
def test_any_history_with_migrations_collapses(spark: Spark, log: DiffLogConfig, seed: int) -> None:
    chance, oracle = random.Random(seed), Oracle()
    for name in ("1", "2"):
        new = _settings(chance, log)
        _chunk(log, chance, oracle, name)
        if name == "2":
            with pytest.raises(CheckFailed, match="but the log was written with"):
                run(spark, new)
            planned = migrate(spark, new, execute=False)
            assert planned.changes
            assert planned.run == 0
            # The chunk set that waits is processed with the old settings: nothing was changed.
        run(spark, log)
        done = migrate(spark, new, execute=True)
        assert done.run == Runs(Path(log.work)).all()[-1].number
        oracle.migrate(log, new)
        log = new
        assert not migrate(spark, log, execute=True).changes
    _chunk(log, chance, oracle, "3")
    run(spark, log)
    _check_state(spark, log, oracle)
    _check_table(spark, log, oracle)
    _check_disk(log)
    assert StateTable.of(log).altered() == []
    _check_prune(spark, log)


def _check_state(spark: Spark, log: DiffLogConfig, oracle: Oracle) -> None:
    states = state_rows(spark, log)
    assert states is not None
    rows = {row["id"]: row.asDict() for row in states.collect()}
    assert {key: (row["F"], row["IsDeleted"]) for key, row in rows.items()} == {
        key: (fast, key in oracle.deleted) for key, fast in oracle.fast.items()
    }
    if log.state.ttl_days:
        due = TODAY + timedelta(days=log.state.ttl_days)
        assert {row["Expires"] for key, row in rows.items() if key not in oracle.deleted} == {due}
    else:
        assert "Expires" not in states.columns or {row["Expires"] for row in rows.values()} == {None}


def _check_table(spark: Spark, log: DiffLogConfig, oracle: Oracle) -> None:
    """Compare the rows that are left with the oracle; then let `prove` do it."""
    with open_target(log.target) as house:
        values = ", ".join(f"({key}, {sign}, 0, {fast}, {fast})" for key, sign, fast in oracle.fast_rows)
        house.execute(f"INSERT INTO {house.name} (id, Sign, SlowVersion, F, Version) VALUES {values}")
        found = house.rows(f"SELECT id, dur, ua, day, money FROM {house.name} FINAL")
        sums = house.rows(
            f"SELECT id, sum(Sign), sum(money * Sign) FROM {house.name} GROUP BY id HAVING sum(Sign) != 0"
        )
    expected = {key: oracle.row(log, key) for key in oracle.fast if key not in oracle.deleted}
    assert {row[0]: dict(zip(("dur", "ua", "day", "money"), row[1:], strict=True)) for row in found} == expected
    assert len(found) == len(expected)
    assert {key: (sign, money) for key, sign, money in sums} == {
        key: (1, row["money"]) for key, row in expected.items()
    }
    # A version is written once: ClickHouse would collapse two rows of one version, whatever their values.
    slow = slow_log(spark, log).where("Sign > 0 AND SlowVersion > 0").select("id", "Version").collect()
    assert max(Counter(map(tuple, slow)).values()) == 1
    proof = prove_clickhouse(spark, with_history(log, check_log(log)), state_rows(spark, log))
    assert (proof.verdict, proof.keys) == ("MATCH", len(oracle.fast)), proof


def _check_disk(log: DiffLogConfig) -> None:
    """The folder of the state contains the files of its last three versions only."""
    table = StateTable.of(log)
    last = table.version()
    assert last is not None
    kept = {table.path / file.path for version in range(last - 2, last + 1) for file in table.files(version)}
    assert set(table.path.glob("run-*/**/*.parquet")) == kept


def _check_prune(spark: Spark, log: DiffLogConfig) -> None:
    """Nothing that is needed depends on what is removed; a missing file is an error."""
    work = Path(log.work)
    before = set(work.rglob("*"))
    planned = prune(log, keep=1, execute=False)
    assert set(work.rglob("*")) == before
    assert replace(planned, executed=True) == prune(log, keep=1, execute=True)
    assert planned.bytes > 0
    assert planned.chunks == ("1", "2")
    assert sorted(path.name for path in (work / "runs" / "000001").iterdir()) == ["manifest.json"]
    assert prune(log, keep=1, execute=True).runs == ()
    with pytest.raises(ConfigError, match="000001/visit_log_wide was removed"):
        slow_log(spark, log)
    assert run(spark, log).number == 0, "no chunk set is taken twice"
    table = StateTable.of(log)
    (table.path / table.files()[0].path).unlink()
    with pytest.raises(StoreError, match=r"parquet does not exist, but the state table contains it"):
        state_rows(spark, log)
