"""Mappings and rules: names per node, filters, weaker equality; `--explain`; PostgreSQL nodes with different types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import trueup
from support.fixtures import Databases, ReportOf, Spark
from trueup.cli.main import run as command
from trueup.errors import TrueupError

FILE = """
table = "orders"
key = ["id"]
exclude_columns = ["note"]
[nodes.lake]
filter = "gone = false"
columns = { id = "order_id", total = "Amount" }
[rules.total]
absolute = 0.01
[rules.name]
trim = true
ignore_case = true
null_is_empty = true
[rules.at]
unit = "s"
[rules.local_at]
zone = "UTC"
"""


@pytest.fixture
def nodes(databases: Databases, tmp_path: Path, spark: Spark) -> dict[str, str]:
    pg = databases(1)[0]
    pg.execute(
        """CREATE TABLE orders (id int PRIMARY KEY, total numeric, name varchar(9), at timestamptz, local_at timestamp,
               note text);
           INSERT INTO orders VALUES (1, 10.004, 'Ann', '2024-01-01 10:00:00.4Z', '2024-01-01', 'a'),
               (2, 1, NULL, NULL, NULL, 'b'), (3, 3, 'Eve', '2024-01-01 10:00:00Z', NULL, 'c')"""
    )
    rows = {
        "order_id": pa.array([1, 2, 3, 4], pa.int64()),
        "Amount": pa.array([10.0, 1.0, 3.02, 4.0]),
        "name": ["ann ", "", "Eve", "x"],
        "at": pa.array([1704103200_100, None, 1704103200_000, None], pa.timestamp("ms", "UTC")),
        "local_at": pa.array([1704067200_000_000, None, None, None], pa.timestamp("us", "UTC")),
        "gone": [False, False, False, True],
    }
    pq.write_table(pa.table(rows), tmp_path / "lake.parquet")
    return {"pg": pg.uri, "lake": f"parquet:{tmp_path}/lake.parquet"}


def test_a_mapping_and_its_rules(
    nodes: dict[str, str], tmp_path: Path, report_of: ReportOf, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "orders.toml").write_text(FILE)
    arguments = ["--map", str(tmp_path / "orders.toml"), "--exclude-columns", "note,gone"]
    arguments += [part for name, address in nodes.items() for part in ("--node", f"{name}={address}")]
    assert command(["diff", *arguments, "--explain"]) == 0
    explained = capsys.readouterr().out.splitlines()
    assert explained[0] == "orders: key id"
    assert explained[1].startswith("  id: as int (pg integer, lake order_id bigint): equal digests are equal values")
    assert explained[2] == (
        "  total: as text (pg numeric, lake Amount double): digests of texts; those of differing blocks are parsed as"
        " decimal; rule: absolute 0.01"
    )
    assert "local_at: as timestamp" in explained[5]
    assert command(["diff", *arguments, "--recheck", "0"]) == 1
    assert "note: rule for name: trim, ignore_case, null_is_empty" in capsys.readouterr().out
    # The same in Python: only the total of order 3 differs by more than the rule allows.
    mapping: dict[str, Any] = {
        "nodes": {"lake": {"columns": {"id": "order_id", "total": "amount"}, "filter": "not gone"}},
        "rules": {"total": {"absolute": "0.01"}, "name": {"trim": True, "ignore_case": True, "null_is_empty": True}},
    }
    mapping["rules"] |= {"at": {"unit": "s"}, "local_at": {"zone": "UTC"}}
    options: dict[str, Any] = {"nodes": nodes, "exclude_columns": ["note", "gone"], "recheck": 0}
    result = trueup.diff("orders", map=mapping, **options)
    found = [(it["kind"], it["key"], it["columns"]) for it in result.to_arrow().to_pylist()]
    assert found == [("changed", [("id", "3")], ["total"])]
    assert "rule for total: absolute 0.01" in report_of(result)["remarks"]
    mapping["rules"]["total"] = {"relative": 0.01}
    assert trueup.diff("orders", map=mapping, **options).verdict == "MATCH"


def test_types_of_postgresql_nodes_may_differ(databases: Databases, spark: Spark) -> None:
    one, other = databases(2)
    one.execute("CREATE TABLE t (id int PRIMARY KEY, d json, v varchar(9)); INSERT INTO t VALUES (1, '{\"a\":1}', 'x')")
    other.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, d jsonb, v text); INSERT INTO t VALUES (1, '{\"a\": 1}', 'x')"
    )
    nodes: dict[str, Any] = {"a": one.uri, "b": other.uri}
    assert trueup.diff("t", nodes=nodes, map={}, recheck=0).verdict == "MATCH"
    other.execute("UPDATE t SET v = 'y'")
    assert trueup.diff("t", nodes=nodes, map={}, recheck=0).pairs["a/b"].changed == 1


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"no": 1}, "map: there is no key no"),
        ({"rules": {"name": {"no": 1}}}, "map.rules.name: there is no rule no"),
        ({"rules": {"name": {"unit": "year"}}}, "unit must be one of ms, s, min, h, day"),
        ({"rules": {"total": {"absolute": -1}}}, "absolute must not be negative"),
        ({"rules": {"no": {"trim": True}}}, "rules: there is no column no"),
        (
            {"rules": {"name": {"absolute": 1}}},
            "rules.name: absolute, relative and scale are for numbers",
        ),
        ({"rules": {"id": {"scale": 1}}}, "rules.id: a key column has no rules"),
        ({"nodes": {"x": {}}}, "the mapping names the node x, which is not compared"),
        (
            {"nodes": {"lake": {"columns": {"id": "no"}}}},
            "there is no column no, which the mapping has for id",
        ),
        ({"key": "id"}, "map.key: expected a list of names"),
        ("no.toml", "there is no section .compare.no.toml. in the configuration, and no file no.toml"),
    ],
)
def test_wrong_mappings(nodes: dict[str, str], mapping: Any, message: str) -> None:
    if isinstance(mapping, dict):
        mapping = {"nodes": {"lake": {"columns": {"id": "order_id"}}}, **mapping}
    with pytest.raises(TrueupError, match=message):
        trueup.diff("orders", nodes=nodes, map=mapping, columns=["name"])
