"""Where nodes are: tables of a catalog, a ClickHouse server, a cluster; what leaves PostgreSQL; and nodes that fail."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import trueup
from support.cut import CuttingProxy
from support.fixtures import Databases, Spark
from trueup.db.clickhouse import Embedded
from trueup.errors import TrueupError
from trueup.report.model import DiffResult
from trueup.testing.postgres import Database
from trueup.verbs.compare.digests import all_digests

TABLE = """
    CREATE TABLE items (id int PRIMARY KEY, name text, code char(6));
    INSERT INTO items SELECT n, 'item ' || n, 'c' || n FROM generate_series(1, 300) n
"""


@pytest.fixture
def pg(databases: Databases, spark: Spark) -> Database:
    database = databases(1)[0]
    database.execute(TABLE)
    return database


def diff(nodes: dict[str, Any], **options: Any) -> DiffResult:
    return trueup.diff("items", nodes=nodes, **{"recheck": 0, **options})


def written(path: Path, rows: int, **changed: str) -> str:
    names = [changed.get(f"n{number}", f"item {number}") for number in range(1, rows + 1)]
    codes = [f"c{number}" for number in range(1, rows + 1)]
    pq.write_table(pa.table({"id": range(1, rows + 1), "name": names, "code": codes}), path)
    return f"parquet:{path}"


def test_a_table_of_the_catalog(pg: Database, spark: Spark, tmp_path: Path) -> None:
    spark.sql(f"CREATE TABLE stored (id int, name string, code char(6)) USING parquet LOCATION '{tmp_path}/stored'")
    try:
        spark.sql("INSERT INTO stored SELECT id, concat('item ', id), concat('c', id) FROM range(1, 301)")
        # Spark pads the values of char(6).
        result = diff({"pg": pg.uri, "lake": "spark:stored"})
        assert (result.verdict, result.rows) == ("MATCH", {"pg": 300, "lake": 300})
        assert "lake was read without a snapshot" in result.remarks[0]
        pg.execute("UPDATE items SET name = 'other' WHERE id = 7; DELETE FROM items WHERE id = 8")
        found = diff({"pg": pg.uri, "lake": "spark:stored"}, recheck=1, recheck_wait=0).pairs["pg/lake"]
        assert (found.changed, found.extra, found.total) == (1, 1, 2)
    finally:
        spark.sql("DROP TABLE stored")


@pytest.fixture
def house(tmp_path: Path) -> Iterator[str]:
    """The address of a ClickHouse server with the table."""
    backend = Embedded(tmp_path / "house")
    backend.execute("CREATE TABLE default.items (id Int32, name String, code String) ENGINE = MergeTree ORDER BY id")
    backend.execute(
        "INSERT INTO default.items SELECT number, concat('item ', toString(number)), concat('c', toString(number))"
        " FROM numbers(1, 300)"
    )
    backend.close()
    program = Path(__file__).parents[2] / "integration" / "clickhouse_http_server.py"
    server = subprocess.Popen([sys.executable, str(program), f"{tmp_path}/house"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield f"clickhouse://me:ge%20heim%2F123@127.0.0.1:{int(server.stdout.readline())}/default"
    finally:
        server.kill()
        server.communicate()


def test_a_clickhouse_server(pg: Database, house: str) -> None:
    nodes = {"pg": pg.uri, "ch": house}
    assert diff(nodes).verdict == "MATCH"
    pg.execute("UPDATE items SET name = 'other' WHERE id = 7")
    result = diff(nodes, recheck=1, recheck_wait=0)
    assert [(it["kind"], it["key"], it["columns"]) for it in result.to_arrow().to_pylist()] == [
        ("changed", [("id", "7")], ["name"])
    ]
    with pytest.raises(TrueupError, match=r"cannot be reached|wrong password|returned an error") as caught:
        diff({"pg": pg.uri, "ch": house.replace("heim", "other")})
    assert "other" not in str(caught.value)


def test_rows_leave_postgresql_only_for_blocks_that_differ(pg: Database, tmp_path: Path) -> None:
    rows, long = 6000, "x" * 1000
    pg.execute(f"INSERT INTO items SELECT n, '', 'c' || n FROM generate_series(301, {rows}) n")
    pg.execute(f"UPDATE items SET name = 'item ' || id || '{long}'; ANALYZE items")
    size = rows * len(long)
    sent = {}
    for name, changed in (("equal", {}), ("one differs", {"n777": "other"})):
        proxy = CuttingProxy(int(pg.uri.rpartition(":")[2].partition("/")[0]))
        names = {f"n{number}": f"item {number}{long}" for number in range(1, rows + 1)}
        lake = written(tmp_path / f"{name}.parquet", rows, **{**names, **changed})
        nodes = {"pg": proxy.address(pg.uri), "lake": lake}
        found = diff(nodes, compare_unit_size=100).pairs["pg/lake"]
        assert (found.changed, found.total) == (len(changed), len(changed))
        sent[name] = proxy.answered
        proxy.close()
    # Digests of 60 blocks, and the catalog; then the rows of one block, and the types that its driver asks for.
    assert sent["equal"] < size / 100
    assert size / 60 < sent["one differs"] < size / 10


def test_frames_that_fail_in_the_middle(pg: Database, spark: Spark, tmp_path: Path) -> None:
    failing = spark.range(1, 301).selectExpr(
        "id", "if(id = 200, raise_error('broken row'), concat('item ', id)) AS name", "concat('c', id) AS code"
    )
    with pytest.raises(TrueupError, match=r"node lake: the Spark job failed: .*broken row"):
        diff({"pg": pg.uri, "lake": failing})


def test_a_node_that_fails_after_the_digests(pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = written(tmp_path / "x.parquet", 300, n7="other")

    def digests(*arguments: Any) -> Any:
        computed = all_digests(*arguments)
        (tmp_path / "x.parquet").write_bytes(b"PAR1 nonsense PAR1")
        return computed

    monkeypatch.setattr("trueup.verbs.compare.run.all_digests", digests)
    result = diff({"pg": pg.uri, "lake": lake})
    assert result.verdict == "INCOMPLETE"
    assert "the Spark job failed" in result.incomplete[0]
