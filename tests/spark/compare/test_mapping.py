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
    assert "\n  rule for name: trim, ignore_case, null_is_empty\n" in capsys.readouterr().out
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
    assert "rule for total: absolute 0.01" in report_of(result)["summary"]["extent"]["weakened"]
    mapping["rules"]["total"] = {"relative": 0.01}
    assert trueup.diff("orders", map=mapping, **options).verdict == "MATCH"


def test_types_of_postgresql_nodes_may_differ(databases: Databases, spark: Spark) -> None:
    one, other = databases(2)
    one.execute(
        """CREATE TABLE t (id int PRIMARY KEY, d json, v varchar(9), at timestamp);
           INSERT INTO t VALUES (1, '{"a":1}', 'x', '2024-01-01')"""
    )
    other.execute(
        """CREATE TABLE t (id bigint PRIMARY KEY, d jsonb, v text, at timestamptz);
           INSERT INTO t VALUES (1, '{"a": 1}', 'x', '2024-01-01 02:00+02')"""
    )
    nodes: dict[str, Any] = {"a": one.uri, "b": other.uri}
    with pytest.raises(TrueupError, match=r'without time zone on a.* cannot be compared exactly.*set zone = "UTC"'):
        trueup.diff("t", nodes=nodes)
    result = trueup.diff("t", nodes=nodes, exclude_columns=["at"], recheck=0)
    assert (result.verdict, result.incomplete) == ("MATCH", ())
    assert "id is compared by value: integer on a, bigint on b" in result.remarks
    mapping = {"rules": {"at": {"zone": "UTC"}}}
    assert trueup.diff("t", nodes=nodes, map=mapping, recheck=0).verdict == "MATCH"
    other.execute("UPDATE t SET v = 'y'")
    result = trueup.diff("t", nodes=nodes, exclude_columns=["at"], recheck=0)
    assert result.pairs["a/b"].changed == 1
    # Names and rules are not in the report, so nothing is written or compared by it.
    with pytest.raises(TrueupError, match="the rows of the report were compared by value"):
        trueup.rerun(result.report, nodes=nodes)
    with pytest.raises(TrueupError, match="the rows of the report were compared by value"):
        trueup.repair(result.report, source_of_truth="a", nodes=nodes)


def test_queries_and_expressions(databases: Databases, tmp_path: Path, spark: Spark) -> None:
    pg = databases(1)[0]
    pg.execute(
        """CREATE TABLE lines (id int PRIMARY KEY, price numeric, pieces int, gone boolean);
           INSERT INTO lines VALUES (1, 1.5, 2, false), (2, 2, 3, false), (3, 1, 1, true);
           CREATE VIEW kept AS SELECT * FROM lines WHERE NOT gone;
           CREATE FUNCTION own(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1'"""
    )
    pq.write_table(pa.table({"id": [1, 2], "total": ["3", "6.00"], "half": [1.5, 3.0]}), tmp_path / "x.parquet")
    lake = f"parquet:{tmp_path}/x.parquet"
    query = "SELECT id, price * pieces AS total FROM public.kept -- a comment"
    options: dict[str, Any] = {"nodes": {"pg": pg.uri, "lake": lake}, "key": ["id"], "recheck": 1, "recheck_wait": 0}
    assert trueup.diff("lines", query={"pg": query}, columns=["total"], **options).verdict == "MATCH"
    mapping: dict[str, Any] = {"nodes": {"pg": {"filter": "NOT gone", "expressions": {"total": "price * pieces"}}}}
    mapping["nodes"]["lake"] = {"expressions": {"price": "half * 2"}}
    mapping["rules"] = {"price": {"scale": 0}}
    options["columns"] = ["total"]
    assert trueup.diff("lines", map=mapping, **options).verdict == "MATCH"
    pg.execute("UPDATE lines SET pieces = 4 WHERE id = 2")
    result = trueup.diff("lines", query={"pg": query}, **options)
    assert [(it["kind"], it["key"], it["columns"]) for it in result.to_arrow().to_pylist()] == [
        ("changed", [("id", "2")], ["total"])
    ]
    assert trueup.diff("lines", map=mapping, **options).pairs["pg/lake"].changed == 1
    arguments = ["diff", "--node", f"a={pg.uri}", "--node", f"b={pg.uri}", "--key", "id", "--columns", "price"]
    both = ["--query", "a=SELECT id, price FROM public.kept"]
    both += ["--query", "b=SELECT id, price FROM public.lines WHERE id < 3"]
    assert command([*arguments, *both]) == 0
    for wrong, message in [
        ("SELECT public.own(id) AS id FROM public.lines", "it calls public.own"),
        ("SELECT id, id FROM public.lines", "several columns with the name id"),
        ("SELECT id FROM public.lines; DROP TABLE lines", "it is not one expression"),
        ("SELECT no FROM public.lines", 'column "no" does not exist'),
        ("SELECT id FROM lines", "write tables with their schema"),
    ]:
        with pytest.raises(TrueupError, match=message):
            trueup.diff("lines", query={"pg": wrong}, **options)
    with pytest.raises(TrueupError, match="a query can be compared of PostgreSQL nodes only"):
        trueup.diff("lines", query={"lake": "SELECT 1"}, **options)


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
