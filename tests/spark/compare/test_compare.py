"""PostgreSQL compared with files and frames: forms of values, keys, moments, re-checks, and bad input."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import trueup
from support.fixtures import Databases, ReportOf, Spark
from trueup.cli.main import run as command
from trueup.errors import CheckFailed, ConfigError, TrueupError
from trueup.nodes.base import HashBlocks, KeyBlocks, Plan
from trueup.nodes.block_digests import BlockDigests
from trueup.report.model import DiffResult
from trueup.rows.encode import trim_scale
from trueup.testing.postgres import Database, Server
from trueup.verbs.compare.digests import all_digests

UUID = "6f9619ff-8b86-d011-b42d-00cf4fc964ff"
TABLE = f"""
    CREATE TABLE e (id int PRIMARY KEY, doc jsonb, n numeric, u uuid, t text, c char(4));
    INSERT INTO e VALUES (1, '{{"b": 1.0, "a": [1]}}', 1.50, '{UUID}', 'x', 'ab'), (2, NULL, NULL, NULL, '', NULL);
    CREATE VIEW v AS SELECT id, t FROM e;
    CREATE TABLE keyless (a int, b text);
    INSERT INTO keyless VALUES (1, 'x'), (1, 'x'), (2, 'y');
"""
LAKE: dict[str, list[Any]] = {
    "ID": [1, 2],
    "doc": ['{"a":[1],"b":1}', None],
    "n": ["1.5", None],
    "u": [UUID.upper(), None],
    "t": ["x", ""],
    "c": ["ab  ", None],
}

ENGINES = pytest.mark.parametrize("engine", ["spark", "local"])


@pytest.fixture
def pg(databases: Databases, spark: Spark) -> Database:
    database = databases(1)[0]
    database.execute(TABLE)
    return database


def written(path: Path, **columns: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return f"parquet:{path.parent}"


def diff(pg: Database, engine: str, lake: str, table: str = "e", **options: Any) -> DiffResult:
    result = trueup.diff(table, nodes={"pg": pg.uri, "lake": lake}, **{"recheck": 0, "engine": engine, **options})
    assert result.engine == engine
    return result


def found(result: DiffResult) -> set[tuple[str, str, tuple[str, ...]]]:
    return {(it["kind"], it["key"][0][1], tuple(it["columns"])) for it in result.to_arrow().to_pylist()}


@ENGINES
def test_values_are_equal_in_other_forms(pg: Database, engine: str, tmp_path: Path, report_of: ReportOf) -> None:
    lake = written(tmp_path / "a" / "x.parquet", **LAKE)
    result = diff(pg, engine, lake)
    assert (result.verdict, result.incomplete, result.rows) == ("MATCH", (), {"pg": 2, "lake": 2})
    proof = report_of(result)["proof"]
    assert proof["one_snapshot_a_node"] is True
    assert proof["nodes"]["pg"]["facts"]["log_position"]
    assert proof["nodes"]["lake"]["facts"]["files"] == 1
    # Digests cannot show that: a check does not guess.
    checked = trueup.check("e", engine=engine, nodes={"pg": pg.uri, "lake": lake})
    assert (checked.verdict, len(checked.incomplete)) == ("INCOMPLETE", 1)
    assert trueup.check("e", engine=engine, nodes={"pg": pg.uri, "lake": lake}, columns=["t", "c"]).verdict == "MATCH"
    # An empty text is not NULL.
    other = {**LAKE, "doc": ['{"a":[1],"b":2}', None], "n": ["1.6", None], "t": ["x", None]}
    result = diff(pg, engine, written(tmp_path / "b" / "x.parquet", **other))
    assert found(result) == {("changed", "1", ("doc", "n")), ("changed", "2", ("t",))}
    assert (
        trueup.check("e", engine=engine, nodes={"pg": pg.uri, "lake": f"parquet:{tmp_path}/b"}, columns=["t"]).verdict
        == "DIFFER"
    )


@ENGINES
def test_keys_that_are_not_unique_and_rows_without_a_key(pg: Database, engine: str, tmp_path: Path) -> None:
    twice = written(tmp_path / "a" / "x.parquet", id=[1, 2, 2], t=["x", "", "z"])
    result = diff(pg, engine, twice, columns=["t"])
    assert found(result) == {("extra", "2", ())}
    result = diff(pg, engine, written(tmp_path / "b" / "x.parquet", a=[1, 2, 3], b=["x", "y", "z"]), "keyless")
    counts = result.pairs["pg/lake"]
    assert (counts.missing, counts.extra, counts.changed) == (1, 1, 0)
    rows = {it["kind"]: (it["left"], it["right"]) for it in result.to_arrow().to_pylist()}
    assert rows["missing"] == ([("a", "1"), ("b", "x")],) * 2
    assert rows["extra"][0] is None
    with pytest.raises(CheckFailed, match="1 rows have NULL in the key"):
        diff(pg, engine, written(tmp_path / "c" / "x.parquet", id=[1, None], t=["x", "y"]), columns=["t"])


def test_views_and_text_files(pg: Database, tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text('id,t\n1,x\n2,""\n')
    (tmp_path / "e.json").write_text('{"id": 1, "t": "x"}\n{"id": 2, "t": ""}\n')
    assert diff(pg, "spark", f"csv:{tmp_path}/e.csv", columns=["t"]).verdict == "MATCH"
    assert diff(pg, "spark", f"json:{tmp_path}/e.json", "v", key=["id"]).verdict == "MATCH"
    pg.execute("UPDATE e SET t = NULL WHERE id = 2")
    assert found(diff(pg, "spark", f"json:{tmp_path}/e.json", "v", key=["id"])) == {("changed", "2", ("t",))}
    assert diff(pg, "spark", f"csv:{tmp_path}/e.csv", columns=["t"], filter="id = 1").verdict == "MATCH"


@ENGINES
def test_a_database_with_another_encoding(pg: Database, engine: str, server: Server, tmp_path: Path) -> None:
    name = f"{pg.name}_latin"
    pg.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    latin = server.database(name)
    try:
        latin.execute("CREATE TABLE e (id int PRIMARY KEY, t text); INSERT INTO e VALUES (1, 'é'), (2, 'x')")
        lake = written(tmp_path / "a" / "x.parquet", id=[1, 2], t=["é", "中"])
        assert found(diff(latin, engine, lake)) == {("changed", "2", ("t",))}
    finally:
        latin.drop()


@ENGINES
def test_differences_are_checked_again(
    pg: Database, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = written(tmp_path / "a" / "x.parquet", id=[1, 2, 3, 4], t=["y", "y", "y", "y"])

    def change(*_: object) -> None:
        pg.execute("UPDATE e SET t = 'y' WHERE id = 1; INSERT INTO e (id, t) VALUES (3, 'z') ON CONFLICT DO NOTHING")

    monkeypatch.setattr("trueup.verbs.compare.recheck.wait_since", change)
    result = diff(pg, engine, lake, columns=["t"], recheck=1)
    counts = result.pairs["pg/lake"]
    # 1 is equal now, 2 and 4 differ as before, 3 differs in another way.
    assert (counts.in_flight, counts.changed, counts.extra, counts.hot) == (1, 1, 1, 1)
    assert result.verdict == "INCOMPLETE"
    counts = diff(pg, engine, lake, columns=["t"], recheck=2).pairs["pg/lake"]
    assert (counts.in_flight, counts.changed, counts.extra, counts.hot) == (0, 2, 1, 0)


@ENGINES
def test_files_that_change_during_the_run(
    pg: Database, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = written(tmp_path / "a" / "x.parquet", id=[1, 2], t=["x", ""])

    def change(_: object, plan: Plan) -> tuple[Plan, tuple[str, ...], dict[str, Any]]:
        written(tmp_path / "a" / "x.parquet", id=[1, 2], t=["x", ""])
        return plan, (), {"pg": BlockDigests.of(()), "lake": BlockDigests.of(())}

    monkeypatch.setattr("trueup.verbs.compare.run.all_digests", change)
    result = diff(pg, engine, lake, columns=["t"])
    assert result.verdict == "INCOMPLETE"
    assert "files changed while they were read" in result.incomplete[0]


def test_bad_input(pg: Database, tmp_path: Path, spark: Spark) -> None:
    lake = written(tmp_path / "a" / "x.parquet", **LAKE)
    nested = written(tmp_path / "b" / "x.parquet", id=[1], t=[{"x": b"1"}])
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "x.parquet").write_bytes(b"PAR1 nonsense")
    (tmp_path / "d" / "_delta_log").mkdir(parents=True)
    cases: list[tuple[str, dict[str, Any], str]] = [
        (f"parquet:{tmp_path}/no", {}, "there is no file or folder"),
        (lake, {"table": "no"}, "there is no table public.no"),
        (lake, {"exclude_columns": ["no"]}, "--exclude-columns: there is no column no"),
        (lake, {"key": ["doc"]}, "rows cannot be matched by jsonb on pg, string on lake"),
        (lake, {"filter": "no = 1"}, 'column "no" does not exist'),
        (lake, {"gentle": True}, "--gentle cannot be used"),
        (
            lake,
            {"engine": "local", "filter": "id > 0"},
            "--engine local .*: node lake has a filter",
        ),
        (nested, {"columns": ["t"]}, "column t on lake: binary in struct<x:binary> has no exact form in JSON"),
        (f"parquet:{tmp_path}/c", {}, "node lake: the Spark job failed: .* is not a Parquet file"),
        (f"parquet:{tmp_path}/d", {}, "is a Delta table: files that it has replaced"),
        (f"delta:{tmp_path}/a", {}, "cannot be opened"),
        ("parquet:", {}, "invalid address: nothing follows"),
        ("frame:", {}, "needs a frame of a Python program"),
        ("spark:no_such_table", {}, "Spark has no table no_such_table"),
        ("mysql://u:secret@127.0.0.1:1/x", {}, "Can't connect"),
        ("mysql://h", {}, "the address is not valid"),
        ("clickhouse://u:secret@127.0.0.1:1/x", {}, "server 127.0.0.1:1 cannot be reached: Connection refused$"),
    ]
    for address, options, message in cases:
        with pytest.raises(TrueupError, match=message) as caught:
            trueup.diff(**{"table": "e", "nodes": {"pg": pg.uri, "lake": address}, **options})
        assert caught.value.cure
        assert "secret" not in f"{caught.value} {caught.value.cure}"
    with pytest.raises(ConfigError, match="expected an address or a frame of Spark, found int"):
        trueup.diff("e", nodes={"pg": pg.uri, "lake": 5})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="this command needs a PostgreSQL database"):
        trueup.diff_many(schemas=["public"], nodes={"pg": pg.uri, "lake": lake})


def test_two_frames_and_the_command(
    pg: Database,
    tmp_path: Path,
    spark: Spark,
    capsys: pytest.CaptureFixture[str],
    report_of: ReportOf,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As in a virtual environment that is not activated.
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "python3")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        left = spark.range(5).selectExpr("id", "id * 2 AS n", "timestamp_micros(id) AS at")
        right = left.where("id <> 3").selectExpr("id", "cast(n AS decimal(10,2)) AS N", "at")
        result = trueup.compare(left, right, key=["id"], recheck=1, recheck_wait=0)
        assert found(result) == {("missing", "3", ())}
        assert spark.sparkContext.pythonExec == sys.executable
        assert result.differences(spark).count() == 1
        assert report_of(result)["proof"]["one_snapshot_a_node"] is False
        assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    lake = written(tmp_path / "a" / "x.parquet", id=[1, 2], t=["x", None])
    arguments = ["diff", "e", "--node", f"pg={pg.uri}", "--node", f"lake={lake}", "--recheck", "0", "--columns", "t"]
    assert command(arguments) == 1
    out = capsys.readouterr().out
    assert "DIFFER: public.e on pg, lake: the nodes differ" in out
    assert command([*arguments, "--json"]) == 1
    result_json = json.loads(capsys.readouterr().out)
    assert result_json["pairs"]["pg/lake"]["changed"] == 1
    assert (
        command(["diff", "--resume", result_json["task_id"], "--node", f"pg={pg.uri}", "--node", f"lake={lake}"]) == 2
    )
    assert "cannot be continued" in capsys.readouterr().err


@ENGINES
@pytest.mark.parametrize(
    ("keys", "changed", "blocks"),
    [
        # By ranges of keys: some blocks, and most of them.
        ([*range(-500, 500)], {-500, 7, 8, 499}, KeyBlocks),
        ([*range(-500, 500)], {*range(-500, 500, 3)}, KeyBlocks),
        # Most keys are in one of the ranges: by hash.
        ([*range(900), *(10**12 + number for number in range(100))], {0, 899, 10**12}, HashBlocks),
    ],
)
def test_blocks(
    pg: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    keys: list[int],
    changed: set[int],
    blocks: type[KeyBlocks | HashBlocks],
    engine: str,
) -> None:
    pg.execute("CREATE TABLE b (id bigint PRIMARY KEY, v int)")
    pg.execute("INSERT INTO b SELECT key, 0 FROM unnest(%s::bigint[]) key WHERE key <> %s", [keys, keys[5]])
    pg.execute("ANALYZE b")
    pg.execute("INSERT INTO b VALUES (%s, 0), (%s, 0)", [keys[0] - 3, keys[-1] + 3])
    lake = written(tmp_path / "a" / "x.parquet", id=keys, v=[int(key in changed) for key in keys])
    plans: list[Plan] = []

    def noted(nodes: Any, plan: Plan) -> Any:
        plans.append(plan)
        return all_digests(nodes, plan)

    monkeypatch.setattr("trueup.verbs.compare.run.all_digests", noted)
    result = diff(pg, engine, lake, "b", compare_unit_size=20)
    expected = {("changed", str(key), ("v",)) for key in changed} | {("extra", str(keys[5]), ())}
    assert found(result) == expected | {("missing", str(key), ()) for key in (keys[0] - 3, keys[-1] + 3)}
    assert isinstance(plans[0].blocks, blocks)


@ENGINES
@pytest.mark.parametrize(
    ("kind", "key", "arrow", "odd"),
    [
        ("date", "date '1990-01-01' + g", pa.date32(), "infinity"),
        ("timestamp", "timestamp '1999-12-31 23:59:59.999999' + g * interval '1.5 s'", pa.timestamp("us"), "-infinity"),
        (
            "timestamptz",
            "timestamptz '2024-03-31Z' + g * interval '7 min'",
            pa.timestamp("us", "UTC"),
            "infinity",
        ),
        ("numeric", "g / 8.0 - 60", pa.decimal128(20, 3), "NaN"),
    ],
)
def test_ranges_of_other_keys(
    pg: Database,
    engine: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    key: str,
    arrow: pa.DataType,
    odd: str,
) -> None:
    pg.execute(f"CREATE TABLE r (k {kind} PRIMARY KEY, v int)")
    pg.execute(f"INSERT INTO r SELECT {key}, g FROM generate_series(0, 999) g; ANALYZE r")
    rows = pg.execute("SELECT k, v FROM r ORDER BY k")
    changed = {0: 1, 500: 1, 501: 1, 999: 1}
    columns = {"k": pa.array([row[0] for row in rows], arrow), "v": [row[1] + changed.get(row[1], 0) for row in rows]}
    lake = written(tmp_path / "a" / "x.parquet", **columns)
    plans: list[Plan] = []

    def noted(nodes: Any, plan: Plan) -> Any:
        plans.append(plan)
        return all_digests(nodes, plan)

    monkeypatch.setattr("trueup.verbs.compare.run.all_digests", noted)
    result = diff(pg, engine, lake, "r", compare_unit_size=20)
    texts = {row[0] for row in pg.execute("SELECT k::text FROM r WHERE v IN (0, 500, 501, 999)")}
    assert {key.removesuffix("+00") for _, key, _ in found(result)} == {
        trim_scale(text.removesuffix("+00")) if "numeric" in kind else text.removesuffix("+00") for text in texts
    }
    blocks = plans[0].blocks
    assert isinstance(blocks, KeyBlocks)
    assert blocks.kind == plans[0].columns[0].kind
    assert 2 <= result.mismatched_blocks <= 4
    # A value without a number is outside of the ranges, or there are none.
    pg.execute("INSERT INTO r VALUES (%s, 0)", [odd])
    assert diff(pg, engine, lake, "r", compare_unit_size=20).pairs["pg/lake"].missing == 1


def test_differences_as_a_parquet_file(pg: Database, tmp_path: Path) -> None:
    lake = written(tmp_path / "a" / "x.parquet", id=[1, 2], t=["x", None])
    result = diff(pg, "local", lake, columns=["t"], output=["json", "parquet"], report_dir=str(tmp_path))
    assert result.parquet == result.report.replace(".json", ".parquet")
    assert pq.read_table(result.parquet).to_pylist() == result.to_arrow().to_pylist() != []
