"""Chunk sets that are damaged in many ways: each is refused with its file or column, and nothing is passed over."""

from __future__ import annotations

import datetime
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StructType

from trueup.engine.parquet_files import parquet_files, read_footers, spark_type
from trueup.errors import CheckFailed, ConfigError
from trueup.verbs.difflog.chunks import stray_files
from trueup.verbs.difflog.input_checks import (
    check_all_read,
    check_chunk_sets,
    check_names,
    check_no_strays,
    check_unchanged,
)
from trueup.verbs.difflog.model import DiffLogConfig, Entity, Rule, SideLog, StatePlace, Target

VISIT = {"id": pa.int64(), "F": pa.int64(), "gone": pa.bool_(), "ua": pa.string(), "dur": pa.int32()}
CONV = {"id": pa.int64(), "F": pa.int32(), "goals": pa.list_(pa.int32()), "money": pa.float64(), "event": pa.int64()}
STATE = {
    "type": "struct",
    "fields": [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in (("id", "long"), ("F", "long"), ("SlowVersion", "long"), ("dur", "integer"))
    ],
}
Damage = Callable[[Path], object]


def _log(work: Path) -> DiffLogConfig:
    return DiffLogConfig(
        entity=Entity("visit", ("id",), "F", dropped=("ua",), kept={"dur": Rule()}, deleted="gone"),
        logs=(
            SideLog("conv", {"id": "id"}, {"goals": Rule("append"), "money": Rule("sum")}, id=("event",)),
            SideLog("cost", {"id": "id"}, {"cost": Rule("sum")}),
        ),
        state=StatePlace(str(work / "state"), ttl_days=3, ttl_column="day"),
        target=Target(),
        work=str(work),
    )


def _write(path: Path, kinds: dict[str, Any], **changes: Any) -> None:
    """Write a file with one row of NULLs; a change to None removes a column."""
    merged = {name: kind for name, kind in {**kinds, **changes}.items() if kind is not None}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({name: pa.array([None], kind) for name, kind in merged.items()}), path)


def _visit(**changes: Any) -> Damage:
    return lambda folder: _write(folder / "visit" / "1.parquet", VISIT, **changes)


def _conv(**changes: Any) -> Damage:
    return lambda folder: _write(folder / "conv" / "1.parquet", CONV, **changes)


def _bytes(path: str, content: bytes) -> Damage:
    def write(folder: Path) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)

    return write


def _cut(folder: Path) -> None:
    path = folder / "visit" / "1.parquet"
    path.write_bytes(path.read_bytes()[:-9])


def _nest(path: str) -> Damage:
    return lambda folder: _write(folder / path, VISIT)


def _spelled(name: str, other: str) -> Damage:
    def write(folder: Path) -> None:
        _write(folder / "conv" / "1.parquet", CONV, **{name: None, other: CONV[name]})

    return write


def _empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


MAP = pa.map_(pa.string(), pa.int32())
DAMAGES: dict[str, tuple[Damage, str]] = {
    "no source": (_empty, "chunk set .*/a has no Parquet file of a source. Write visit or conv or cost"),
    "empty folder": (lambda folder: (folder / "cost").mkdir(), "a/cost has no Parquet file"),
    "unknown folder": (_nest("convs/1.parquet"), 'a/convs: a folder of this name is not read. Did you mean "conv"'),
    "file in the set": (_nest("1.parquet"), "a/1.parquet: a file of this name is not read"),
    "pending without join": (_nest("pending/1.parquet"), "a/pending: a folder of this name is not read"),
    "sub-folder": (_nest("visit/more/1.parquet"), "visit/more: files in such sub-folders are not read"),
    "partitions": (_nest("visit/day=1/1.parquet"), "visit/day=1: columns in the names of folders are not read"),
    "Delta": (_bytes("visit/_delta_log/0.json", b""), "a/visit is a Delta table"),
    "unfinished": (_bytes("visit/_temporary/0/1.parquet", b""), "a/visit is not complete: a Spark job"),
    "other extension": (_bytes("visit/1.csv", b"1,1"), "visit/1.csv has no name ending in .parquet"),
    "being copied": (_bytes("visit/2.parquet._COPYING_", b""), "2.parquet._COPYING_ has no name ending in .parquet"),
    "hidden": (_bytes("visit/_2.parquet", b""), "visit/_2.parquet is not read by Spark"),
    "broken link": (lambda folder: (folder / "visit/2.parquet").symlink_to("nowhere"), "2.parquet is not a file"),
    "pipe": (lambda folder: os.mkfifo(folder / "visit/2.parquet"), "2.parquet is not a regular file"),
    "no bytes": (_bytes("visit/2.parquet", b""), "2.parquet: not a complete Parquet file .*0 bytes"),
    "text": (_bytes("visit/2.parquet", b"hello" * 9), "2.parquet: not a complete Parquet file .*magic bytes"),
    "cut": (_cut, "visit/1.parquet: not a complete Parquet file .*magic bytes"),
    "no key": (_conv(id=None), "conv/1.parquet has no column id$"),
    "key in another case": (_spelled("id", "ID"), "conv/1.parquet has no column id, only ID"),
    "no version": (_visit(F=None), "visit/1.parquet has no column F"),
    "no value": (_conv(money=None), r"no file of conv \(such as .*1.parquet\) has a column money"),
    "value in another case": (_spelled("money", "Money"), "has a column money, only Money"),
    "no id": (_conv(event=None), "has a column event"),
    "no mark": (_visit(gone=None), "has a column gone"),
    "reserved": (_visit(Sign=pa.int8()), "visit/1.parquet: column Sign has a reserved name"),
    "version is text": (_visit(F=pa.string()), "1.parquet: column F has the type string, but a version must be"),
    "version is a fraction": (_conv(F=pa.float64()), "column F has the type double, but a version must be an integer"),
    "version is a decimal": (_conv(F=pa.decimal128(9, 1)), r"column F has the type decimal\(9,1\), but a version"),
    "version is unsigned": (_conv(F=pa.uint64()), r"column F has the type decimal\(20,0\), but a version"),
    "key is a fraction": (_visit(id=pa.float64()), "column id has the type double, which cannot be a key"),
    "another key": (_conv(id=pa.string()), "column id has the type string, but bigint in the state"),
    "wider key": (_conv(id=pa.decimal128(30, 0)), r"column id has the type decimal\(30,0\), but bigint in the state"),
    "map": (_conv(tags=MAP), r"column tags has the type map<string,int>, which cannot be merged"),
    "nested map": (_conv(tags=pa.list_(MAP)), r"tags has the type array<map<string,int>>, which cannot be merged"),
    "mark is text": (_visit(gone=pa.string()), "column gone has the type string, but a mark of deleted rows"),
    "age is text": (_visit(day=pa.string()), "column day has the type string, but ttl_column must be a date"),
    "sum of texts": (_conv(money=pa.string()), 'column money has the type string, but the rule "sum" needs a number'),
    "append to a number": (
        _conv(goals=pa.int32()),
        'goals has the type int, but the rule "append" needs a list',
    ),
    "another type": (_visit(dur=pa.int64()), "column dur has the type bigint, but int in the state"),
    "types of two sources": (_visit(money=pa.float32()), "column money has the type double, but float in .*visit"),
    "nanoseconds": (_visit(t=pa.timestamp("ns")), "column t has times in nanoseconds, which Spark does not read"),
    "nanoseconds in a list": (_visit(t=pa.list_(pa.timestamp("ns"))), "column t has times in nanoseconds"),
    "no type": (_visit(t=pa.null()), "column t has the type null, which Spark does not read"),
    "time of day": (_visit(t=pa.time64("us")), r"column t has the type time64\[us\], which Spark does not read"),
}


@pytest.fixture
def chunk_set(tmp_path: Path) -> Path:
    """A chunk set that can be processed, as Spark writes it."""
    folder = tmp_path / "chunks" / "a"
    _write(folder / "visit" / "1.parquet", VISIT)
    _write(folder / "conv" / "1.parquet", CONV)
    for name in ("_SUCCESS", "._SUCCESS.crc", ".1.parquet.crc", "_committed_1", "_started_1", ".DS_Store"):
        (folder / "visit" / name).write_bytes(b"")
    return folder


def _check(folder: Path) -> dict[str, dict[str, int]]:
    work = folder.parent.parent
    return check_chunk_sets(_log(work), work, [folder.name], StructType.fromJson(STATE))


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_chunk_set_is_refused(chunk_set: Path, name: str) -> None:
    damage, message = DAMAGES[name]
    damage(chunk_set)
    with pytest.raises(CheckFailed, match=message) as caught:
        _check(chunk_set)
    assert caught.value.cure
    assert all("\n" not in reason for reason in caught.value.reasons)


def test_a_good_chunk_set_is_accepted(chunk_set: Path) -> None:
    found = _check(chunk_set)
    assert sorted(found["a"]) == ["conv/1.parquet", "visit/1.parquet"]
    # A narrower key is cast. Later files may have more columns; a job without rows may write its marker only.
    _write(chunk_set / "visit" / "2.parquet", VISIT, more=pa.int8(), day=pa.timestamp("ms", "UTC"))
    _write(chunk_set / "conv" / "1.parquet", CONV, id=pa.int8())
    (chunk_set / "cost").mkdir()
    (chunk_set / "cost" / "_SUCCESS").touch()
    assert len(_check(chunk_set)["a"]) == 3


def test_all_problems_are_reported_at_once(chunk_set: Path) -> None:
    _write(chunk_set / "visit" / "2.parquet", VISIT, dur=pa.string(), F=None)
    _write(chunk_set / "visit" / "3.parquet", VISIT, UA=pa.string(), ua=None)
    with pytest.raises(CheckFailed) as caught:
        _check(chunk_set)
    first, second = caught.value.reasons
    assert first.endswith(f"2.parquet: column dur has the type string, but int in {chunk_set}/visit/1.parquet")
    assert second.endswith(f"3.parquet: column UA differs only by case from ua in {chunk_set}/visit/1.parquet")
    for number in range(50):
        (chunk_set / "visit" / f"x{number}.parquet").write_bytes(b"")
    with pytest.raises(CheckFailed) as caught:
        _check(chunk_set)
    assert caught.value.reasons[-1] == "and 32 more problems"


def test_a_chunk_set_that_changes_after_the_run_has_started(chunk_set: Path) -> None:
    log, work = _log(chunk_set.parent.parent), chunk_set.parent.parent
    before = _check(chunk_set)
    check_unchanged(log, work, before, 3)
    check_all_read(log, work, {3: before})
    _write(chunk_set / "cost" / "9.parquet", CONV)
    with pytest.raises(CheckFailed, match=r"a/cost/9.parquet was changed after run 3 has started") as caught:
        check_unchanged(log, work, before, 3)
    assert "--abandon" in caught.value.cure
    # The run is finished: no run would read the file.
    with pytest.raises(CheckFailed, match=r"a/cost/9.parquet was written after run 3 has processed"):
        check_all_read(log, work, {3: before})
    (chunk_set / "cost" / "9.parquet").unlink()
    (chunk_set / "conv" / "1.parquet").unlink()
    check_all_read(log, work, {3: before})
    chunk_set.rename(work / "elsewhere")
    with pytest.raises(CheckFailed, match=r"chunk set .*/a does not exist, but run 3 has started"):
        check_unchanged(log, work, before, 3)
    check_all_read(log, work, {3: before})
    with pytest.raises(CheckFailed, match=r"chunk set .*/a cannot be read: No such file"):
        check_chunk_sets(log, work, ["a"], None)


def test_files_beside_the_chunk_sets_are_named(chunk_set: Path) -> None:
    work = chunk_set.parent.parent
    assert stray_files(work) == []
    (work / "chunks" / "b.parquet").touch()
    (work / "chunks" / ".hidden").touch()
    assert stray_files(work) == [work / "chunks" / "b.parquet"]
    with pytest.raises(CheckFailed, match=r"b\.parquet is in no chunk set"):
        check_no_strays(work)


@pytest.mark.parametrize("name", ["./a", "a/", "../chunks/a", "../a", ".", "", "a.part", "nowhere"])
def test_another_spelling_of_a_chunk_set_is_not_its_name(chunk_set: Path, name: str) -> None:
    """A set that was processed as `a` would be processed again as `./a`."""
    work = chunk_set.parent.parent
    (work / "chunks" / "a.part").mkdir()
    check_names(work, ["a"], set())
    with pytest.raises(ConfigError, match="has no complete chunk set with the name"):
        check_names(work, [name], {"a"})
    with pytest.raises(ConfigError, match="a was already processed"):
        check_names(work, ["a"], {"a"})


def test_paths_that_spark_takes_as_patterns_are_refused(chunk_set: Path) -> None:
    """Spark would read the set `b` instead."""
    work = chunk_set.parent.parent
    chunk_set.rename(work / "chunks" / "[b]")
    with pytest.raises(CheckFailed, match=r"chunks/\[b\]/visit/.*: Spark cannot read a path with the character \["):
        check_chunk_sets(_log(work), work, ["[b]"], None)


def test_the_types_are_those_of_spark() -> None:
    times = {"s": pa.struct([("a{b", pa.list_(pa.timestamp("us"))), ("c", MAP)])}
    assert spark_type(times["s"]) == "struct<a{b:array<timestamp_ntz>,c:map<string,int>>"
    assert spark_type(pa.dictionary(pa.int8(), pa.large_string())) == "string"
    assert spark_type(pa.decimal256(50, 2)) is None
    assert spark_type(pa.list_(pa.time32("s"))) is None


def test_old_timestamps_and_the_schema_of_spark(tmp_path: Path) -> None:
    rows = pa.table({"t": pa.array([datetime.datetime(2026, 1, 1)], pa.timestamp("us"))})
    pq.write_table(rows, tmp_path / "int96.parquet", use_deprecated_int96_timestamps=True)
    schema = StructType.fromJson(replace_type("timestamp_ntz")).json()
    noted = rows.replace_schema_metadata({"org.apache.spark.sql.parquet.row.metadata": schema})
    pq.write_table(noted, tmp_path / "spark.parquet")
    listed = parquet_files(tmp_path)
    footers = read_footers(listed.files)
    assert [kinds["t"] for kinds in footers.columns.values()] == ["timestamp", "timestamp_ntz"]
    assert footers.problems == [
        f"{tmp_path}/spark.parquet: column t has the type timestamp_ntz, but timestamp in {tmp_path}/int96.parquet"
    ]


def replace_type(kind: str) -> dict[str, Any]:
    """Return the schema of one column."""
    return {"type": "struct", "fields": [{"name": "t", "type": kind, "nullable": True, "metadata": {}}]}


def test_a_column_that_a_rule_does_not_name_may_be_of_any_mergeable_type(chunk_set: Path) -> None:
    log = replace(_log(chunk_set.parent.parent), state=StatePlace("state"))
    _write(chunk_set / "visit" / "1.parquet", VISIT, more=pa.list_(pa.struct([("a", pa.date32())])))
    assert check_chunk_sets(log, chunk_set.parent.parent, ["a"], None)
