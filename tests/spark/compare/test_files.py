"""Files that Spark would read in part, or with a loss: each is read exactly, or refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

import trueup
from support.fixtures import Databases, Spark
from trueup.errors import TrueupError
from trueup.report.model import DiffResult
from trueup.testing.postgres import Database

ROWS: dict[str, list[Any]] = {"id": [1, 2], "v": ["a", "b"]}
TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b')"


@pytest.fixture
def pg(databases: Databases, spark: Spark) -> Database:
    database = databases(1)[0]
    database.execute(TABLE)
    return database


def diff(pg: Database, lake: str, **options: Any) -> DiffResult:
    return trueup.diff("t", nodes={"pg": pg.uri, "lake": lake}, recheck=0, **options)


def write(path: Path, **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def nested(folder: Path) -> None:
    write(folder / "x.parquet", **ROWS)
    write(folder / "more" / "x.parquet", id=[3], v=["c"])


def hidden(folder: Path) -> None:
    write(folder / "x.parquet", **ROWS)
    write(folder / "_more.parquet", id=[3], v=["c"])


def unfinished(folder: Path) -> None:
    write(folder / "x.parquet", **ROWS)
    (folder / "_temporary").mkdir()


def twice(folder: Path) -> None:
    write(folder / "v=a" / "x.parquet", id=[1], v=["other"])
    write(folder / "v=b" / "x.parquet", id=[2], v=["b"])


def nanoseconds(folder: Path) -> None:
    write(folder / "x.parquet", id=[1, 2], v=pa.array([1, 2], pa.timestamp("ns")))


def old_nanoseconds(folder: Path) -> None:
    times = pa.table({"id": [1, 2], "v": pa.array([1, 2], pa.timestamp("ns"))})
    folder.mkdir()
    pq.write_table(times, folder / "x.parquet", use_deprecated_int96_timestamps=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (nested, "Spark does not read the files in .*/more"),
        (hidden, "_more.parquet is not read by Spark"),
        (unfinished, "is not complete"),
        (twice, "columns that are also in the names of their folders"),
        (nanoseconds, "column v has times in nanoseconds"),
        (old_nanoseconds, "column v has times in nanoseconds"),
    ],
)
def test_parquet_is_not_read_in_part(pg: Database, tmp_path: Path, make: Callable[[Path], None], message: str) -> None:
    make(tmp_path / "lake")
    with pytest.raises(TrueupError, match=message) as caught:
        diff(pg, f"parquet:{tmp_path}/lake")
    assert caught.value.cure


def test_frames_of_files_with_nanoseconds(pg: Database, spark: Spark, tmp_path: Path) -> None:
    old_nanoseconds(tmp_path / "lake")
    frame = spark.read.parquet(str(tmp_path / "lake"))
    with pytest.raises(TrueupError, match="column v has times in nanoseconds"):
        trueup.diff("t", nodes={"pg": pg.uri, "lake": frame}, recheck=0)
    frame.createOrReplaceTempView("old_times")
    with pytest.raises(TrueupError, match="column v has times in nanoseconds"):
        diff(pg, "spark:old_times")
    # Without the column, nothing is lost.
    result = trueup.diff("t", nodes={"pg": pg.uri, "lake": frame.select("id")}, columns=["id"], recheck=0)
    assert result.verdict == "MATCH"


def test_a_path_is_not_a_pattern(pg: Database, tmp_path: Path) -> None:
    write(tmp_path / "a[1]" / "x.parquet", id=[9], v=["other"])
    write(tmp_path / "a1" / "x.parquet", **ROWS)
    with pytest.raises(TrueupError, match=r"Spark cannot read a path with the character \["):
        diff(pg, f"parquet:{tmp_path}/a[1]")


def test_values_in_names_of_folders_are_texts(pg: Database, tmp_path: Path) -> None:
    pg.execute("UPDATE t SET v = CASE id WHEN 1 THEN '01' ELSE '1' END")
    write(tmp_path / "a" / "v=01" / "x.parquet", id=[1])
    write(tmp_path / "a" / "v=1" / "x.parquet", id=[2])
    assert diff(pg, f"parquet:{tmp_path}/a").verdict == "MATCH"
    write(tmp_path / "b" / "v=1" / "x.parquet", id=[1, 2])
    assert diff(pg, f"parquet:{tmp_path}/b").pairs["pg/lake"].changed == 1


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        # Spark reads these bytes as U+FFFD, and ignores what follows the first document of a line.
        ("csv", b"id,v\n1,a\n2,\xff\n", "bytes that are not UTF-8"),
        ("csv", b"id,v\n1,a\n2,b,c\n", "MALFORMED_CSV_RECORD"),
        ("csv", b"id\n1\n\n", "empty lines are not read"),
        # Spark reads the last two rows as one value.
        ("csv", b'id,v\n1,a\n2,"\xef\xbf\xbd\n3,c\n', "has an odd number of quotes"),
        ("json", b'{"id":1,"v":"a"}\n{"id":2,"v":"b"} {"id":3,"v":"c"}\n', "Unexpected character"),
        ("json", b'{"id":1,"v":"a"}\n{"id":2,"v":"b"},{"id":3,"v":"c"}\n', "not one JSON object"),
        ("json", b'{"id":1,"v":"a"}\n{"id":2,"v":"b"}x\n', "not one JSON object"),
        ("json", b'{"id":1,"v":"a"}\n{"id":2,"v":"\xff"}\n', "UTF-8"),
    ],
)
def test_text_files_are_not_read_with_a_loss(
    pg: Database, tmp_path: Path, kind: str, data: bytes, message: str
) -> None:
    pg.execute("UPDATE t SET v = '\ufffd' WHERE id = 2")
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(TrueupError, match=message):
        diff(pg, f"{kind}:{tmp_path}/x", columns=["v"] if b",v" in data or b'"v"' in data else ["id"])


def test_orc_and_quotes_of_csv(pg: Database, tmp_path: Path) -> None:
    orc.write_table(pa.table(ROWS), tmp_path / "x.orc")
    assert diff(pg, f"orc:{tmp_path}/x.orc").verdict == "MATCH"
    pg.execute("INSERT INTO t VALUES (3, E'a\\r\\n\"b\", c '), (4, '\\N'), (5, NULL), (6, ''), (7, 'NULL')")
    found = diff(pg, f"orc:{tmp_path}/x.orc").pairs["pg/lake"]
    assert (found.missing, found.total) == (5, 5)
    (tmp_path / "x.csv").write_bytes(b'\xef\xbb\xbfid,v\n1,a\n2,"b"\n3,"a\r\n""b"", c "\n4,\\N\n5,\n6,""\n7,NULL\n')
    assert diff(pg, f"csv:{tmp_path}/x.csv").verdict == "MATCH"
