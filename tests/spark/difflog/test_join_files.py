"""Joins of files: what waits is joined once, whatever comes in between, and no file or row counts twice."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.fixtures import Spark
from trueup.errors import CheckFailed, ConfigError, StoreError
from trueup.report.difflog import join_summary
from trueup.verbs.difflog.chunks import joined_sets
from trueup.verbs.difflog.manifest import Runs
from trueup.verbs.difflog.model import DiffLogConfig, Entity, Rule, SideLog, StatePlace, Target
from trueup.verbs.difflog_ends.join_files import JoinResult, join_files


@pytest.fixture
def log(tmp_path: Path) -> DiffLogConfig:
    """A log of visits with one side log whose rows have an id."""
    return DiffLogConfig(
        entity=Entity("visit", ("k",), "F", kept={"d": Rule()}),
        logs=(SideLog("money", {"k": "k"}, {"cash": Rule("sum")}, id=("n",)),),
        state=StatePlace(str(tmp_path / "log" / "state")),
        target=Target(),
        work=str(tmp_path / "log"),
    )


def _put(path: str, names: str, *rows: tuple[int | None, ...]) -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    columns = list(zip(*rows, strict=True))
    kinds = {name: pa.array(values, pa.int64()) for name, values in zip(names.split(), columns, strict=True)}
    pq.write_table(pa.table(kinds), path)
    return path


def _rows(log: DiffLogConfig, result: JoinResult, source: str) -> list[dict[str, Any]]:
    table = pq.read_table(Path(log.work) / "chunks" / result.chunks / source)
    return sorted(table.to_pylist(), key=lambda row: (row["k"], row["cash"]))


def test_every_row_counts_once_whatever_comes_in_between(spark: Spark, log: DiffLogConfig, tmp_path: Path) -> None:
    work = Path(log.work)
    visits = [_put("raw/visits/1.parquet", "k F d", (1, 1, 5), (None, 1, 5))]
    rows = _put("raw/money/day=1/1.parquet", "k n cash", (1, 1, 10), (2, 1, 20), (2, 2, 30), (None, 3, 1))
    first = join_files(spark, log, visits=["raw/visits"], logs={"money": ["raw/money"]})
    assert (first.chunks, first.rows) == ("000001", {"visit": 1})
    assert (first.pending, first.refused) == ({"money": 2}, {"visit": 1, "money": 1})
    assert "2 pending: their visit is unknown, 1 refused" in join_summary(first.__dict__)
    # Sets made by hand, before and after it by name; one knows the visit of the pending rows.
    _put(f"{work}/chunks/zzz/visit/1.parquet", "k F d", (2, 3, 5))
    _put(f"{work}/chunks/000009/visit/1.parquet", "k F d", (7, 1, 5))
    new = _put("raw/2.parquet", "k F d", (3, 1, 5))
    # The ids 1 of visit 1 and 2 are sent again, in another file; 4 is new.
    again = _put("raw/3.parquet", "k n cash", (1, 1, 10), (2, 1, 20), (1, 4, 40), (1, None, 1), (1, None, 1))
    second = join_files(spark, log, visits=[new], logs={"money": [again]})
    assert second.chunks == "000010"
    assert [(row["k"], row["F"], row["cash"], row["n"]) for row in _rows(log, second, "money")] == [
        (1, 1, 1, None), (1, 1, 1, None), (1, 1, 40, 4), (2, 3, 20, 1), (2, 3, 30, 2),
    ]  # fmt: skip
    assert (second.pending, second.refused) == ({}, {})
    # A file that was joined is refused under any of its names.
    os.symlink("raw", "link")
    os.link(rows, "raw/other.parquet")
    for name in (
        *("raw/money/day=1/1.parquet", "raw/../raw/money", "link/money/", "raw/other.parquet"),
        *(f"file://{tmp_path}/raw/money", f"{tmp_path}/raw/money/day=1"),
    ):
        with pytest.raises(CheckFailed, match="was already joined into chunk set 000001"):
            join_files(spark, log, visits=[_put("raw/9.parquet", "k F d", (9, 1, 1))], logs={"money": [name]})
    for given, message in {
        "nowhere": "nowhere does not exist",
        "raw/9.parquet": "9.parquet is named twice",
        "link/": r"raw/money: files in such sub-folders are not read",
    }.items():
        with pytest.raises(CheckFailed, match=message):
            join_files(spark, log, visits=["raw/9.parquet"], logs={"money": [given]})
    with pytest.raises(ConfigError, match="s3://bucket/x is not a path of this machine"):
        join_files(spark, log, visits=["s3://bucket/x"], logs={})
    Path(visits[0]).with_name("cut.parquet").write_bytes(b"PAR1")
    with pytest.raises(CheckFailed, match=r"cut.parquet: not a complete Parquet file"):
        join_files(spark, log, visits=["raw/visits"], logs={})
    assert len(list((work / "chunks").iterdir())) == 4
    # What later joins need is not forgotten when it is removed by hand.
    kept = next((work / "chunks" / "000001" / "applied").rglob("*.parquet"))
    kept.rename(tmp_path / "kept")
    with pytest.raises(StoreError, match=rf"{kept} does not exist, but a join has written it"):
        join_files(spark, log, visits=["raw/9.parquet"], logs={})
    Runs(work).new(1, {"chunks": ["000001"], "joined": joined_sets(work, ["000001", "zzz"])}).begin()
    shutil.rmtree(work / "chunks" / "000001")
    with pytest.raises(StoreError, match=r"cannot read .*000001/join.json"):
        join_files(spark, log, visits=["raw/9.parquet"], logs={})
