"""The ClickHouse table of a log: created, checked, filled exactly once even after a kill; embedded and over HTTP.

There is no ClickHouse server on the machines of these tests. A process replaces it that serves
ClickHouse's HTTP interface from an embedded ClickHouse. What it proves is our use of `clickhouse-connect`: requests,
settings, Parquet in and out, errors and secrets. It does not prove a real server's log-in, TLS or replication.
"""

from __future__ import annotations

import base64
import datetime
import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.fixtures import Spark
from trueup.errors import CheckFailed, ConfigError, NodeError, QueryError, StoreError
from trueup.verbs.difflog.clickhouse import ClickHouse, insert_files, open_target
from trueup.verbs.difflog.model import Target

Row = tuple[int, int, int, int, int]  # k, Sign, SlowVersion, F, Version
LOG = "k bigint, Sign tinyint, SlowVersion bigint, F bigint, Version bigint"
ARROW = pa.schema(
    [("k", pa.int64()), ("Sign", pa.int8()), ("SlowVersion", pa.int64()), ("F", pa.int64()), ("Version", pa.int64())]
)


@pytest.fixture(autouse=True)
def _spark(spark: Spark) -> None:
    """Start Spark, which parses the schemas of these tests."""


def _schema(text: str) -> Any:
    from pyspark.sql.types import StructType

    return StructType.fromDDL(text)


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(table="log", path=str(tmp_path / "house"))


@pytest.fixture
def clickhouse(target: Target) -> Iterator[ClickHouse]:
    with open_target(target) as opened:
        yield opened


def _ensure(clickhouse: ClickHouse, text: str = LOG) -> None:
    clickhouse.ensure_table(_schema(text), key=["k"], fast_version="F")


def _write(path: Path, rows: list[Row]) -> Path:
    columns = list(zip(*rows, strict=True)) if rows else [()] * 5
    pq.write_table(
        pa.table([pa.array(each, kind) for each, kind in zip(columns, ARROW.types, strict=True)], ARROW.names), path
    )
    return path


def _row(k: int, sign: int, slow: int, fast: int) -> Row:
    return (k, sign, slow, fast, 1000 * slow + fast)


def _parts(clickhouse: ClickHouse) -> list[int]:
    return [
        rows
        for (rows,) in clickhouse.rows("SELECT rows FROM system.parts WHERE table = 'log' AND active ORDER BY rows")
    ]


def _not_one(clickhouse: ClickHouse) -> list[tuple[Any, ...]]:
    """Return the keys that do not collapse to exactly one row."""
    sums = "SELECT k, Version, toInt64(sum(Sign)) AS n FROM log GROUP BY k, Version HAVING n != 0"
    return clickhouse.rows(
        f"SELECT k, groupArray((Version, n)) FROM ({sums}) GROUP BY k HAVING count() != 1 OR sum(n) != 1"
    )


# --- the table


def test_the_table_is_created_once_and_gains_columns(clickhouse: ClickHouse) -> None:
    _ensure(clickhouse, f"{LOG}, s string")
    _ensure(clickhouse, f"{LOG}, s string, money decimal(10,2), goals array<int>")
    assert clickhouse.columns() == {
        "k": "Int64",
        "Sign": "Int8",
        "SlowVersion": "UInt64",
        "F": "UInt64",
        "Version": "UInt64",
        "s": "Nullable(String)",
        "money": "Nullable(Decimal(10, 2))",
        "goals": "Array(Nullable(Int32))",
    }
    engine = clickhouse.rows("SELECT engine, primary_key FROM system.tables WHERE name = 'log'")
    assert engine == [("VersionedCollapsingMergeTree", "(k)")]
    # A table with additional columns is not changed.
    _ensure(clickhouse)
    assert len(clickhouse.columns()) == 8


COLUMNS = "k Int64, Sign Int8, SlowVersion UInt64, F UInt64, Version UInt64"
COLLAPSING = "VersionedCollapsingMergeTree(Sign, Version) ORDER BY k"


@pytest.mark.parametrize(
    ("columns", "engine", "reason"),
    [
        (COLUMNS, "MergeTree ORDER BY k", "its engine is MergeTree"),
        (COLUMNS, "CollapsingMergeTree(Sign) ORDER BY k", r"its engine is CollapsingMergeTree\(Sign\)"),
        (COLUMNS, "VersionedCollapsingMergeTree(Sign, F) ORDER BY k", r"its engine is Versioned\w+\(Sign, F\)"),
        (COLUMNS, "VersionedCollapsingMergeTree(Sign, Version) ORDER BY (k, F)", r"sorted by \(k, F, Version\)"),
        (COLUMNS, "VersionedCollapsingMergeTree(Sign, Version) PARTITION BY k % 2 ORDER BY k", "partitioned by k % 2"),
        (COLUMNS.replace("k Int64", "k Int32"), COLLAPSING, "column k has the type Int32, not Int64"),
        (COLUMNS.replace(" F UInt64,", ""), COLLAPSING, "no column F"),
    ],
)
def test_another_table_is_refused_by_name(clickhouse: ClickHouse, columns: str, engine: str, reason: str) -> None:
    clickhouse.execute(f"CREATE TABLE log ({columns}) ENGINE = {engine}")
    with pytest.raises(CheckFailed, match=rf"default\.log cannot store the log: .*{reason}") as caught:
        _ensure(clickhouse, f"{LOG}, s string")
    assert caught.value.cure
    assert "s" not in clickhouse.columns()


def test_an_existing_table_with_the_same_engine_is_used(clickhouse: ClickHouse) -> None:
    clickhouse.execute(f"CREATE TABLE log ({COLUMNS}, s LowCardinality(String)) ENGINE = {COLLAPSING}")
    _ensure(clickhouse, f"{LOG}, s string")


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (LOG.replace("k bigint", "k double"), "key column k has the type double"),
        (LOG.replace("SlowVersion bigint, ", ""), "no column SlowVersion"),
        (f"{LOG}, i interval day", "no type for interval day"),
        (f"{LOG}, `n.a` array<int>, `n.b` array<int>", "two array columns are named n"),
    ],
)
def test_a_log_with_an_unsupported_schema_is_refused(clickhouse: ClickHouse, schema: str, reason: str) -> None:
    with pytest.raises(CheckFailed, match=reason):
        _ensure(clickhouse, schema)
    assert clickhouse.columns() == {}


# --- rows


KINDS = (
    "b1 tinyint, b2 smallint, b4 int, b8 bigint, f4 float, f8 double, d decimal(38,10), s string, b binary, o boolean,"
    " da date, ts timestamp, tn timestamp_ntz, a array<int>, aa array<array<string>>, m map<string,bigint>,"
    " st struct<x:int,`y z`:string>, ast array<struct<x:int>>, `c.d` array<int>, `sp ace` int, `tick``s` int,"
    " `back\\slash` int, `it's` int, `Цена` string, `SELECT` int"
)


def test_values_and_nulls_of_every_type_are_read_back(spark: Spark, clickhouse: ClickHouse, tmp_path: Path) -> None:
    when = datetime.datetime(2024, 2, 29, 23, 59, 59, 999999)
    values = (
        *(-128, 32767, -1, 2**63 - 1, 1.5, -0.1, Decimal("12345678901234567890.0123456789"), "ж'\\", b"\xff\x00", True),
        *(datetime.date(1900, 1, 1), when, when, [1, None], [["x", None], []], {"p": 1, "q": None}, (1, None)),
        *([(1,), (None,)], [7], 1, 2, 3, 4, "₽", 5),
    )
    rows = [(1, 1, 1, 1, 1001, *values), (2, 1, 1, 1, 1001, *[None] * len(values))]
    frame = spark.createDataFrame(rows, f"{LOG}, {KINDS}")
    frame.coalesce(1).write.parquet(str(tmp_path / "rows"))
    clickhouse.ensure_table(frame.schema, key=["k"], fast_version="F")
    assert insert_files(clickhouse, list((tmp_path / "rows").glob("*.parquet")), key=["k"], resumed=False) == (1, 0)
    full, empty = clickhouse.rows("SELECT * EXCEPT (k, Sign, SlowVersion, F, Version) FROM log ORDER BY k")
    utc = when.replace(tzinfo=datetime.timezone.utc)
    expected = [*values]
    expected[11] = expected[12] = utc
    expected[15], expected[16], expected[17] = [("p", 1), ("q", None)], {"x": 1, "y z": None}, [{"x": 1}, {"x": None}]
    assert list(full) == expected
    nothing: list[Any] = [None] * len(values)
    nothing[13], nothing[14], nothing[15], nothing[17], nothing[18] = [], [], [], [], []
    nothing[16] = {"x": None, "y z": None}
    assert list(empty) == nothing


def test_columns_are_matched_by_name_and_others_get_their_default(clickhouse: ClickHouse, tmp_path: Path) -> None:
    _ensure(clickhouse)
    clickhouse.execute("ALTER TABLE log ADD COLUMN more Int32 DEFAULT 7")
    path = tmp_path / "odd {a,b} 'name' *.parquet"
    pq.write_table(_table([_row(1, 1, 2, 3)]).select(["Version", "F", "k", "SlowVersion", "Sign"]), path)
    clickhouse.insert_parquet(path)
    assert clickhouse.rows("SELECT k, Sign, SlowVersion, F, Version, more FROM log") == [(1, 1, 2, 3, 2003, 7)]


def _table(rows: list[Row]) -> Any:
    return pa.table(
        [pa.array(each, kind) for each, kind in zip(zip(*rows, strict=True), ARROW.types, strict=True)], ARROW.names
    )


def test_a_null_key_and_an_unknown_column_insert_nothing(clickhouse: ClickHouse, tmp_path: Path) -> None:
    _ensure(clickhouse)
    bad = _table([_row(1, 1, 1, 1), _row(2, 1, 1, 1)]).set_column(0, "k", pa.array([1, None]))
    pq.write_table(bad, tmp_path / "null.parquet")
    with pytest.raises(QueryError, match="NULL"):
        clickhouse.insert_parquet(tmp_path / "null.parquet")
    pq.write_table(_table([_row(1, 1, 1, 1)]).append_column("nope", pa.array([1])), tmp_path / "more.parquet")
    with pytest.raises(QueryError, match="nope"):
        clickhouse.insert_parquet(tmp_path / "more.parquet")
    assert clickhouse.rows("SELECT * FROM log") == []


def test_one_insert_is_one_part_also_above_the_usual_size_of_a_block(clickhouse: ClickHouse, tmp_path: Path) -> None:
    _ensure(clickhouse)
    clickhouse.execute("SYSTEM STOP MERGES log")
    count = 1_200_000  # The default would cut after 1,048,449 rows.
    numbers = pa.array(range(count))
    table = pa.table(
        [
            numbers,
            pa.array([1] * count, pa.int8()),
            pa.array([1] * count),
            pa.array([1] * count),
            pa.array([1001] * count),
        ],
        ARROW.names,
    )
    pq.write_table(table, tmp_path / "big.parquet", row_group_size=50_000)
    pq.write_table(table.slice(0, 200_000), tmp_path / "a.parquet", row_group_size=10_000)
    assert insert_files(clickhouse, [tmp_path / "big.parquet", tmp_path / "a.parquet"], key=["k"], resumed=False) == (
        2,
        0,
    )
    assert _parts(clickhouse) == [200_000, count]


def test_an_empty_file_inserts_nothing(clickhouse: ClickHouse, tmp_path: Path) -> None:
    _ensure(clickhouse)
    files = [_write(tmp_path / "1.parquet", []), _write(tmp_path / "2.parquet", [_row(1, 1, 1, 1)])]
    assert insert_files(clickhouse, files, key=["k"], resumed=False) == (1, 0)
    assert insert_files(clickhouse, files, key=["k"], resumed=True) == (0, 1)
    assert insert_files(clickhouse, [], key=["k"], resumed=True) == (0, 0)


# --- repeated inserts


def _history(keys: int, seed: int) -> tuple[list[Row], list[Row]]:
    """Return the rows before a run (of the fast supplier and of earlier runs) and of the run: up to 3 steps per key."""
    rng = random.Random(seed)
    before: list[Row] = []
    run: list[Row] = []
    for k in range(keys):
        old = rng.choice([None, 1, 2])
        newest = rng.choice([1, 2, 3] if old is None else [old, old + 1])
        before.append(_row(k, 1, 0, newest))
        slow, at = 0, old
        if old is not None:
            slow = rng.randint(1, 3)
            before += [_row(k, -1, 0, old), _row(k, 1, slow, old)]
        steps = rng.randint(1, 3)
        for number in range(steps):
            gone = number == steps - 1 and rng.random() < 0.2
            if at is None:
                run.append(_row(k, -1, 0, newest))
            else:
                run.append(_row(k, -1, slow, at))
                if at < newest:
                    run += [_row(k, -1, 0, newest), _row(k, 1, 0, at)]
            slow, at = slow + 1, newest
            if not gone:
                run.append(_row(k, 1, slow, newest))
    return before, run


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("scattered", [False, True])
def test_after_any_number_of_files_the_rest_is_inserted(
    clickhouse: ClickHouse, tmp_path: Path, merged: bool, scattered: bool
) -> None:
    """Rows of one key may be in several files, as after several steps of a run."""
    before, run = _history(300, seed=7)
    if scattered:
        random.Random(1).shuffle(run)
    size = -(-len(run) // 4)
    files = [_write(tmp_path / f"part-{at}.parquet", run[at * size : at * size + size]) for at in range(4)]
    base = _write(tmp_path / "base.parquet", before)
    for done in range(5):
        clickhouse.execute("DROP TABLE IF EXISTS log")
        _ensure(clickhouse)
        clickhouse.insert_parquet(base)
        for path in files[:done]:
            clickhouse.insert_parquet(path)
        if merged:
            clickhouse.execute("OPTIMIZE TABLE log FINAL")
        # The fast supplier writes more rows meanwhile.
        clickhouse.insert_parquet(_write(tmp_path / "fast.parquet", [_row(10_000 + done, 1, 0, 1)]))
        assert insert_files(clickhouse, files, key=["k"], resumed=True) == (4 - done, done)
        gone = {k for k in range(300) if sum(row[1] for row in before + run if row[0] == k) == 0}
        assert {row[0] for row in _not_one(clickhouse)} == set(), (done, merged, scattered)
        standing = clickhouse.rows("SELECT DISTINCT k FROM log FINAL WHERE k < 10000")
        assert {k for (k,) in standing} == set(range(300)) - gone
        assert insert_files(clickhouse, files, key=["k"], resumed=True) == (0, 4)


CHILD = """
import os, signal, sys
from pathlib import Path
from trueup.verbs.difflog.clickhouse import insert_files, open_target
from trueup.verbs.difflog.model import Target
folder, files, after = sys.argv[1], [Path(each) for each in sys.argv[3:]], int(sys.argv[2])
seen = []
def kill(path):
    seen.append(path)
    if len(seen) == after:
        os.kill(os.getpid(), signal.SIGKILL)
with open_target(Target(table="log", path=folder)) as house:
    insert_files(house, files, key=["k"], resumed=False, after=kill)
"""


@pytest.mark.parametrize("after", [1, 2])
def test_a_killed_process_is_continued(target: Target, tmp_path: Path, after: int) -> None:
    """Insert 200,000 rows in four files; kill the process after the first or second, and start it again."""
    keys = 66_000
    run = [
        row for k in range(keys) for row in (_row(k, -1, 0, 1), _row(k, 1, 1, 1), _row(k, -1, 1, 1), _row(k, 1, 2, 1))
    ]
    size = len(run) // 4
    files = [_write(tmp_path / f"part-{at}.parquet", run[at * size : at * size + size]) for at in range(4)]
    with open_target(target) as clickhouse:
        _ensure(clickhouse)
        clickhouse.insert_parquet(_write(tmp_path / "fast.parquet", [_row(k, 1, 0, 1) for k in range(keys)]))
    killed = subprocess.run([sys.executable, "-c", CHILD, target.path, str(after), *map(str, files)], timeout=120)
    assert killed.returncode == -signal.SIGKILL
    with open_target(target) as clickhouse:
        assert insert_files(clickhouse, files, key=["k"], resumed=True) == (4 - after, after)
        assert _not_one(clickhouse) == []
        assert clickhouse.rows("SELECT count(), min(Version), max(Version) FROM log FINAL") == [(keys, 2001, 2001)]


def test_progress_is_found_by_tombstones_alone(clickhouse: ClickHouse, tmp_path: Path) -> None:
    _ensure(clickhouse)
    stood = [row for k in range(5) for row in (_row(k, 1, 0, 1), _row(k, -1, 0, 1), _row(k, 1, 1, 1))]
    clickhouse.insert_parquet(_write(tmp_path / "before.parquet", stood))
    files = [
        _write(tmp_path / f"{at}.parquet", [_row(k, -1, 1, 1) for k in some]) for at, some in enumerate([(0, 1), (2,)])
    ]
    clickhouse.insert_parquet(files[0])
    assert insert_files(clickhouse, files, key=["k"], resumed=True) == (1, 1)
    clickhouse.execute("OPTIMIZE TABLE log FINAL")
    assert insert_files(clickhouse, files, key=["k"], resumed=True) == (0, 2)
    assert clickhouse.rows("SELECT k FROM log FINAL ORDER BY k") == [(3,), (4,)]


@pytest.mark.parametrize("done", [False, True])
def test_tombstones_of_new_keys_are_found_by_the_fast_rows(clickhouse: ClickHouse, tmp_path: Path, done: bool) -> None:
    _ensure(clickhouse)
    # The first key has version 2 now.
    fast = [_row(1, 1, 0, 1), _row(1, -1, 0, 1), _row(1, 1, 0, 2), _row(2, 1, 0, 1)]
    clickhouse.insert_parquet(_write(tmp_path / "fast.parquet", fast))
    files = [_write(tmp_path / "0.parquet", [_row(1, -1, 0, 1), _row(2, -1, 0, 1)])]
    if done:
        clickhouse.insert_parquet(files[0])
    assert insert_files(clickhouse, files, key=["k"], resumed=True) == (1 - done, int(done))


@pytest.mark.parametrize("sign", [-1, 1])
def test_unknown_progress_is_an_error(clickhouse: ClickHouse, tmp_path: Path, sign: int) -> None:
    _ensure(clickhouse)
    files = [_write(tmp_path / "0.parquet", [_row(1, sign, 0, 1)])]
    with pytest.raises(StoreError, match=r"cannot determine whether 0\.parquet was inserted into default\.log"):
        insert_files(clickhouse, files, key=["k"], resumed=True)
    assert clickhouse.rows("SELECT * FROM log") == []


def test_half_a_file_is_an_error(clickhouse: ClickHouse, tmp_path: Path) -> None:
    _ensure(clickhouse)
    rows = [_row(k, 1, 1, 1) for k in range(10)]
    clickhouse.insert_parquet(_write(tmp_path / "half.parquet", rows[:5]))
    with pytest.raises(StoreError, match="not those of complete files"):
        insert_files(clickhouse, [_write(tmp_path / "0.parquet", rows)], key=["k"], resumed=True)
    # A later file without the previous one.
    clickhouse.execute("TRUNCATE TABLE log")
    files = [_write(tmp_path / f"{at}.parquet", rows[at : at + 1]) for at in range(2)]
    clickhouse.insert_parquet(files[1])
    with pytest.raises(StoreError, match="not those of complete files"):
        insert_files(clickhouse, files, key=["k"], resumed=True)


def test_keys_of_several_columns_and_every_kind(spark: Spark, clickhouse: ClickHouse, tmp_path: Path) -> None:
    key = ["a b", "c.d", "t", "e", "d", "x", "o"]
    kinds = "`a b` bigint, `c.d` string, t timestamp, e decimal(12,3), d date, x binary, o boolean"
    when = datetime.datetime(2024, 1, 1, 0, 0, 0, 123456)
    rows = [
        (
            at,
            f"it's \\ {at}",
            when,
            Decimal(at) / 8,
            datetime.date(2024, 1, 1),
            bytes([255, at]),
            at % 2 == 0,
            1,
            1,
            1,
            1001,
        )
        for at in range(40)
    ]
    schema = f"{kinds}, Sign tinyint, SlowVersion bigint, `y``F` bigint, Version bigint"
    spark.createDataFrame(rows, schema).repartition(2).write.parquet(str(tmp_path / "rows"))
    clickhouse.ensure_table(_schema(schema), key=key, fast_version="y`F")
    clickhouse.ensure_table(_schema(schema), key=key, fast_version="y`F")
    files = sorted((tmp_path / "rows").glob("*.parquet"))
    assert len(files) == 2
    clickhouse.insert_parquet(files[0])
    assert insert_files(clickhouse, files, key=key, resumed=True) == (1, 1)
    assert insert_files(clickhouse, files, key=key, resumed=True) == (0, 2)
    assert clickhouse.rows("SELECT count() FROM log") == [(40,)]


# --- one process, one folder


def test_a_folder_can_be_closed_and_opened_again(tmp_path: Path) -> None:
    first, second = (Target(table="log", path=str(tmp_path / name)) for name in ("one", "two"))
    with open_target(first) as clickhouse:
        _ensure(clickhouse)
        with pytest.raises(NodeError, match="cannot be opened") as caught, open_target(second):
            pass
        assert "a process can open only one folder" in caught.value.cure
        with open_target(first) as again:
            assert again.columns()
        code = (
            "import sys; from trueup.verbs.difflog.clickhouse import *; "
            "open_target(Target(table='log', path=sys.argv[1]))"
        )
        other = subprocess.run([sys.executable, "-c", code, first.path], capture_output=True, text=True, timeout=60)
        assert "NodeError: the embedded ClickHouse in" in other.stderr
        assert clickhouse.columns()
    with open_target(second) as clickhouse:
        assert clickhouse.columns() == {}


@pytest.mark.parametrize(
    "target",
    [
        Target(table="log"),
        Target(path="x"),
        Target(table="log", path="x", url="http://localhost"),
        Target(table="log", url="postgres://me:geheim123@localhost/db"),
        Target(table="log", url="http://me:geheim123@localhost:no/db"),
        Target(table="log", url="http://me:geheim123@localhost/db?password=geheim123"),
    ],
)
def test_the_error_of_a_wrong_target_has_no_password(target: Target) -> None:
    with pytest.raises(ConfigError) as caught:
        open_target(target)
    assert caught.value.cure
    assert "geheim123" not in f"{caught.value!r} {caught.value.cure} {target!r}"


# --- a server, replaced by a process

HTTP_SERVER = Path(__file__).parents[1] / "clickhouse_http_server.py"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[[str], Target]]:
    """Return a function that returns a target on the replacement server, with a given password."""
    process = subprocess.Popen(
        [sys.executable, str(HTTP_SERVER), str(tmp_path / "server")], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert process.stdout is not None
    port = int(process.stdout.readline())
    yield lambda password: Target(table="log", url=f"clickhouse://me:{password}@127.0.0.1:{port}/db")
    process.kill()
    process.communicate()


GOOD = "ge%20heim%2F123"


def _logged(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "server.log").read_text().splitlines()]


def test_a_server_is_filled_and_read_the_same_way(server: Callable[[str], Target], tmp_path: Path) -> None:
    before, run = _history(50, seed=3)
    size = -(-len(run) // 2)
    files = [_write(tmp_path / f"part-{at}.parquet", run[at * size : at * size + size]) for at in range(2)]
    with open_target(server(GOOD)) as clickhouse:
        assert (clickhouse.database, clickhouse.columns()) == ("db", {})
        _ensure(clickhouse, f"{LOG}, `it's ``odd\\` string")
        _ensure(clickhouse, f"{LOG}, `it's ``odd\\` string")
        clickhouse.insert_parquet(_write(tmp_path / "base.parquet", before))
        clickhouse.insert_parquet(files[0])
        assert insert_files(clickhouse, files, key=["k"], resumed=True) == (1, 1)
        assert insert_files(clickhouse, files, key=["k"], resumed=True) == (0, 2)
        clickhouse.export("SELECT k, Sign FROM db.log FINAL", tmp_path / "out.parquet")
        counted = clickhouse.rows("SELECT count() FROM db.log FINAL")[0][0]
        assert 0 < counted == pq.read_metadata(tmp_path / "out.parquet").num_rows
        assert clickhouse.rows("SELECT 'ж', unhex('ff'), NULL, toDate32('2024-01-01')") == [
            ("ж", b"\xff", None, datetime.date(2024, 1, 1))
        ]
        sums = "SELECT k, Version, sum(Sign) AS n FROM db.log GROUP BY k, Version HAVING n != 0"
        assert clickhouse.rows(f"SELECT k FROM ({sums}) GROUP BY k HAVING count() != 1") == []
    inserts = [each for each in _logged(tmp_path) if each["sql"].startswith("INSERT")]
    assert len(inserts) == 3
    for insert in inserts:
        assert insert["settings"]["async_insert"] == "0"
        assert insert["settings"]["min_insert_block_size_rows"] == "1000000000"
        assert insert["query_id"].startswith("trueup-difflog:db.log:")
    assert len({each["query_id"] for each in inserts}) == 3


def test_a_password_is_never_shown(server: Callable[[str], Target], caplog: pytest.LogCaptureFixture) -> None:
    target = server("wrong%20one")
    with pytest.raises(NodeError, match=r"the ClickHouse server 127\.0\.0\.1:\d+ cannot be reached") as caught:
        open_target(target)
    secret = base64.b64encode(b"me:wrong one").decode()
    for shown in (str(caught.value), repr(caught.value), caught.value.cure, repr(target), caplog.text):
        assert "wrong one" not in shown
        assert "wrong%20one" not in shown
        assert secret not in shown
    with open_target(server(GOOD)) as clickhouse:
        assert "heim" not in repr(clickhouse)
        with pytest.raises(QueryError, match="nowhere") as refused:
            clickhouse.rows("SELECT 'ge heim/123' FROM nowhere")
        assert "ge heim/123" not in str(refused.value)
        with pytest.raises(QueryError):
            clickhouse.export("SELECT throwIf(number = 3) FROM numbers(9)", Path("out.parquet"))


def test_a_missing_server_is_reported(tmp_path: Path) -> None:
    import socket

    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://me:geheim123@127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(NodeError) as caught:
        open_target(Target(table="log", url=url))
    assert "geheim123" not in str(caught.value)
    assert caught.value.cure
