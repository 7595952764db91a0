"""Input that cannot be processed leaves no run behind, and an unfinished run can be given up."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.fixtures import Put, Spark
from trueup.engine.bulk_session import changed_settings, spark_session
from trueup.errors import CheckFailed, StoreError
from trueup.verbs.difflog import outputs
from trueup.verbs.difflog.abandon import abandon
from trueup.verbs.difflog.clickhouse import open_target
from trueup.verbs.difflog.manifest import Runs
from trueup.verbs.difflog.model import DiffLogConfig, Entity, Rule, SideLog, StatePlace, Target
from trueup.verbs.difflog.run import run
from trueup.verbs.difflog.state import StateTable, state_rows

VISIT = "id long, F long, seen timestamp, dur int"
CONV = "id long, F long, money int, days array<date>, share double"
LIMITS = [datetime.datetime(1900, 1, 1), datetime.datetime(2299, 12, 31, 23, 59, 59)]
MOST = 2**31 - 1
SCHEMAS = {"visit": VISIT, "conv": CONV}
pytestmark = pytest.mark.usefixtures("one_partition")


@pytest.fixture
def log(tmp_path: Path) -> DiffLogConfig:
    """A log with times, sums and an expression, and an embedded ClickHouse."""
    columns = {
        "money": Rule("sum"),
        "days": Rule("append"),
        "share": Rule("expr", sql="new.share / coalesce(old.share, 0)"),
    }
    return DiffLogConfig(
        entity=Entity("visit", ("id",), "F", kept={"seen": Rule(), "dur": Rule("max")}),
        logs=(SideLog("conv", {"id": "id"}, columns),),
        state=StatePlace(str(tmp_path / "log" / "state"), buckets=1),
        target=Target("default", "visits", path=str(tmp_path / "clickhouse")),
        work=str(tmp_path / "log"),
    )


@pytest.fixture
def session(spark: Spark) -> Iterator[Spark]:
    """A copy of the session, with the settings that results depend on."""
    with spark_session(given=spark) as copy:
        yield copy


def _damage(folder: Path) -> None:
    """Overwrite the data of a file, but not its footer."""
    path = next(folder.rglob("*.parquet"))
    content = path.read_bytes()
    path.write_bytes(content[:4] + b"\xff" * 200 + content[204:])


def test_values_that_cannot_be_stored_leave_no_run_behind(session: Spark, log: DiffLogConfig, put: Put) -> None:
    # Times in a file of a program that is not Spark.
    put("a", "visit", [(1, 1, LIMITS[0], 1), (2, 1, LIMITS[1], MOST)], of_spark=False)
    put("a2", "conv", [(1, 1, MOST - 5, None, None)])
    assert run(session, log).number == 1
    far = datetime.datetime(9999, 12, 31)
    put("b", "visit", [(3, 1, None, 1), (4, 2, far, 1)])
    cases: list[tuple[str, list[tuple[Any, ...]], str]] = [
        (
            *("conv", [(5, 1, 1, [None, far.date()], None)]),
            r"b/visit/part-\S+parquet: id 4: seen 9999-12-31 00:00:00 is not.*\n"
            r".*b/conv/part-\S+parquet: id 5: days \[null, 9999-12-31\] is",
        ),
        ("conv", [(1, 1, 3, None, None), (1, 1, 3, None, None)], "id 1: the sum of money is 2147483648, too large for"),
        ("conv", [(1, 1, None, None, 1.0)], "cannot be processed: .*DIVIDE_BY_ZERO"),
        (
            "conv",
            [(9, 1, n, [far.date()] * n, None) for n in range(90)],
            r"b/conv/part-\S+parquet: the file is dam",
        ),
    ]
    for number, (source, rows, message) in enumerate(cases):
        folder = put("b", source, rows)
        if "dam" in message:
            _damage(folder)
        with pytest.raises(CheckFailed, match=message) as caught:
            run(session, log)
        assert len(str(caught.value).splitlines()) == (1 if number else 2), number
        assert "nothing was written" in caught.value.cure
        assert len(Runs(Path(log.work)).all()) == 1, message
        shutil.rmtree(folder)
    put("b", "conv", [(1, 1, 5, [LIMITS[0].date()], None)])
    assert run(session, log).number == 2
    with open_target(log.target) as clickhouse:
        rows = clickhouse.rows(f"SELECT id, seen, money FROM {clickhouse.name} FINAL WHERE SlowVersion > 0 ORDER BY id")
    utc = [time.replace(tzinfo=datetime.timezone.utc) for time in LIMITS]
    assert rows == [(1, utc[0], MOST), (2, utc[1], None)]


def test_an_unfinished_run_is_given_up_until_its_states_are_committed(
    spark: Spark, log: DiffLogConfig, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_fails(owner: object, name: str) -> None:
        def fail(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail)
            with pytest.raises(OSError, match="No space"):
                run(spark, log)

    put("a", "visit", [(1, 1, None, 1)])
    assert abandon(log) == 0
    run_fails(StateTable, "commit")
    table, folder = StateTable.of(log), Path(log.work) / "runs" / "000001"
    assert any((Path(log.state.path) / "run-000001").iterdir())
    # As a process that was killed would have left it.
    (Path(log.work) / ".frame" / "rows").mkdir(parents=True)
    assert abandon(log) == 1
    assert not folder.exists()
    assert not (Path(log.state.path) / "run-000001").exists()
    assert not [path for path in Path(log.work).glob(".*") if path.name != ".lock"]
    # Its chunk sets wait again, with the values of another attempt.
    put("b", "visit", [(2, 1, None, 1)])
    run_fails(outputs, "insert_log")
    assert table.last_run() == 1
    shutil.rmtree(Path(log.work) / "chunks")
    with pytest.raises(StoreError, match="run 1 cannot be given up: its states are committed") as caught:
        abandon(log)
    assert "trueup difflog run" in caught.value.cure
    # It needs its chunk sets no more.
    result = run(spark, log)
    assert (result.number, result.resumed, result.chunks) == (1, True, ("a", "b"))
    states = state_rows(spark, log)
    assert states is not None
    assert states.count() == 2
    assert abandon(log) == 0


def test_a_session_that_writes_julian_dates_does_not_shift_times(spark: Spark, log: DiffLogConfig, put: Put) -> None:
    early = datetime.datetime(1500, 1, 1, tzinfo=datetime.timezone.utc)
    put("a", "visit", [(1, 1, early, 1)])
    with changed_settings(spark, {"spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY"}):
        result = run(spark, replace(log, target=Target()))
    wide = spark.read.parquet(f"{result.folder}/visit_log_wide").where("SlowVersion > 0")
    states = state_rows(spark, log)
    assert states is not None
    start = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    micros = (early - start) // datetime.timedelta(microseconds=1)
    for rows in (wide, states):
        assert [row[0] for row in rows.selectExpr("unix_micros(seen)").collect()] == [micros]
