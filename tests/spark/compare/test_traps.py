"""Values that engines store differently: zero dates, unsigned numbers, padding, NULL, collations of keys."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import trueup
from support.fixtures import Databases, Spark
from support.mariadb import MariaDb
from trueup.db.clickhouse import Embedded
from trueup.errors import TrueupError
from trueup.nodes.databases.mysql import MySqlDialect
from trueup.rows.spec import ValueClass


def found(nodes: dict[str, str], table: str, **options: Any) -> list[tuple[str, str, list[str]]]:
    result = trueup.diff(table, nodes=nodes, recheck=1, recheck_wait=0, **options)
    return sorted((it["kind"], it["key"][0][1], it["columns"]) for it in result.to_arrow().to_pylist())


def test_mariadb(databases: Databases, maria: MariaDb, spark: Spark) -> None:
    pg = databases(1)[0]
    pg.execute("CREATE TABLE traps (k varchar(9) PRIMARY KEY, u numeric, d date, at timestamp, c char(5), f boolean)")
    pg.execute(
        """INSERT INTO traps VALUES ('a', 18446744073709551615, NULL, '2024-01-01 00:00:00.000001', 'x', true),
               ('A', 1.0, '2024-01-01', NULL, 'y', false), ('é', NULL, '9999-12-31', NULL, NULL, NULL)"""
    )
    maria.execute("DROP TABLE IF EXISTS traps")
    maria.execute(
        """CREATE TABLE traps (K varchar(9) COLLATE utf8mb4_bin PRIMARY KEY, u bigint unsigned, d date, at datetime(6),
               c char(5), f tinyint(1)) CHARACTER SET utf8mb4"""
    )
    maria.execute(
        """INSERT INTO traps VALUES ('a', 18446744073709551615, '0000-00-00', '2024-01-01 00:00:00.000001', 'x  ', 1),
               ('A', 1, '2024-01-01', NULL, 'y', 0), ('é', NULL, '9999-12-31', NULL, NULL, 2)"""
    )
    nodes = {"pg": pg.uri, "my": maria.uri}
    # A zero date is not NULL, and 2 is not NULL either.
    assert found(nodes, "traps") == [("changed", "a", ["d"]), ("changed", "é", ["f"])]
    maria.execute("UPDATE traps SET d = NULL, f = NULLIF(f, 2)")
    pg.execute("UPDATE traps SET d = NULL")
    assert found(nodes, "traps") == []


def test_a_unique_index_over_a_prefix_is_no_key(databases: Databases, maria: MariaDb, spark: Spark) -> None:
    pg = databases(1)[0]
    pg.execute("CREATE TABLE prefixes (a int, b varchar(9), PRIMARY KEY (a, b)); INSERT INTO prefixes VALUES (1, 'xx')")
    maria.execute("DROP TABLE IF EXISTS prefixes")
    maria.execute("CREATE TABLE prefixes (a int NOT NULL, b varchar(9) NOT NULL, UNIQUE (a, b(2)))")
    maria.execute("INSERT INTO prefixes VALUES (1, 'xx'), (1, 'yy')")
    result = trueup.diff("prefixes", nodes={"my": maria.uri, "pg": pg.uri}, recheck=0)
    assert [it["key"] for it in result.to_arrow().to_pylist()] == [[("a", "1"), ("b", "yy")]]


def test_texts_and_days_of_mariadb(databases: Databases, maria: MariaDb, spark: Spark) -> None:
    pg = databases(1)[0]
    pg.execute("CREATE TABLE odd (k char(36) PRIMARY KEY, s text, u uuid, d date, at timestamp, n text)")
    pg.execute(
        """INSERT INTO odd VALUES ('a', '?', '6f9619ff-8b86-d011-b42d-00cf4fc964ff', '2024-03-01', '2024-03-01', '5'),
               ('b', 'é', NULL, '2024-02-29', '2024-02-29 00:00:00.5', '6')"""
    )
    maria.execute("DROP TABLE IF EXISTS odd")
    maria.execute(
        """CREATE TABLE odd (k varchar(36) PRIMARY KEY, s varchar(9) CHARACTER SET sjis, u char(36), d date,
               at datetime(6), n bit(8)) CHARACTER SET latin1"""
    )
    # A character of a vendor that Unicode lacks, and a day that no calendar has.
    maria.execute(
        """SET STATEMENT sql_mode = 'ALLOW_INVALID_DATES' FOR INSERT INTO odd VALUES
               ('a', X'8790', '6F9619FF-8B86-D011-B42D-00CF4FC964FF', '2024-02-30', '2024-02-30', b'101'),
               ('b', NULL, NULL, '2024-02-29', '2024-02-29 00:00:00.5', b'110')"""
    )
    nodes = {"pg": pg.uri, "my": maria.uri}
    assert found(nodes, "odd") == [("changed", "a", ["s", "d", "at"]), ("changed", "b", ["s"])]
    maria.execute("UPDATE odd SET s = '?', d = '2024-03-01', at = '2024-03-01'")
    pg.execute("UPDATE odd SET s = '?', d = '2024-03-01', at = '2024-03-01'")
    assert found(nodes, "odd") == []


def test_clickhouse(databases: Databases, tmp_path: Path, spark: Spark) -> None:
    pg = databases(1)[0]
    pg.execute("CREATE TABLE traps (k bigint PRIMARY KEY, s text, n int, big numeric)")
    pg.execute("INSERT INTO traps VALUES (1, NULL, NULL, 7), (2, '', 0, 340282366920938463463374607431768211455)")
    backend = Embedded(tmp_path / "ch")
    backend.execute("CREATE DATABASE shop")
    backend.execute(
        "CREATE TABLE shop.traps (k Int64, s String, n Int32, big UInt128, v UInt64)"
        " ENGINE = ReplacingMergeTree(v) ORDER BY k"
    )
    backend.execute("INSERT INTO shop.traps VALUES (1, 'old', 0, 0, 1), (2, 'old', 0, 0, 1)")
    backend.execute(
        "INSERT INTO shop.traps VALUES (1, '', 0, 7, 2), (2, '', 0, 340282366920938463463374607431768211455, 2)"
    )
    backend.close()
    nodes = {"pg": pg.uri, "ch": f"chdb:{tmp_path}/ch?database=shop"}
    # The current versions of rows; their empty text and 0 are not NULL.
    assert found(nodes, "traps", exclude_columns=["v"]) == [("changed", "1", ["s", "n"])]


@pytest.mark.parametrize("engine", ["spark", "local"])
def test_time_zones_of_clickhouse(databases: Databases, tmp_path: Path, spark: Spark, engine: str) -> None:
    pg = databases(1)[0]
    # In the second row, the hour exists twice in New York.
    pg.execute("CREATE TABLE zones (k int PRIMARY KEY, a timestamptz, b timestamptz, c timestamptz, d timestamp)")
    pg.execute(
        "INSERT INTO zones SELECT k, at, at, at, at AT TIME ZONE 'UTC' FROM (VALUES"
        " (1, timestamptz '2024-02-29 12:34:56Z'), (2, '2024-11-03 06:30:00Z'), (3, '1970-01-01 00:00:00Z')) t(k, at)"
    )
    backend = Embedded(tmp_path / "ch")
    backend.execute("CREATE DATABASE shop")
    backend.execute(
        "CREATE TABLE shop.zones (k Int32, a DateTime('Asia/Tokyo'), b DateTime64(3, 'America/New_York'), c DateTime,"
        " d DateTime('UTC')) ENGINE = MergeTree ORDER BY k"
    )
    backend.execute(
        "INSERT INTO shop.zones SELECT k, at, at, at, at FROM"
        " (SELECT c1 AS k, fromUnixTimestamp(c2) AS at FROM values((1, 1709210096), (2, 1730615400), (3, 0)))"
    )
    nodes = {"pg": pg.uri, "ch": f"chdb:{tmp_path}/ch?database=shop"}
    backend.close()
    assert found(nodes, "zones", key=["k"], engine=engine) == []
    pg.execute(
        "UPDATE zones SET b = b + interval '1 hour' WHERE k = 2; UPDATE zones SET d = d + interval '9 h' WHERE k = 1"
    )
    assert found(nodes, "zones", key=["k"], engine=engine) == [("changed", "1", ["d"]), ("changed", "2", ["b"])]
    # A time with a zone is not one without, unless a rule says so.
    pg.execute("ALTER TABLE zones ALTER a TYPE timestamp USING a AT TIME ZONE 'UTC'")
    with pytest.raises(TrueupError, match=r"column a: .* cannot be compared exactly"):
        found(nodes, "zones", key=["k"], columns=["a"], engine=engine)
    rule = {"rules": {"a": {"zone": "UTC"}}}
    assert found(nodes, "zones", key=["k"], columns=["a"], map=rule, engine=engine) == []


def test_arrays_maps_and_structs(databases: Databases, tmp_path: Path, spark: Spark) -> None:
    pg = databases(1)[0]
    pg.execute("CREATE TABLE nested (k int PRIMARY KEY, a int[], t text[], n numeric[], m jsonb)")
    pg.execute(
        """INSERT INTO nested VALUES (1, '{1,2}', ARRAY['a"b', NULL, ''], '{1.50}', '{"x": 1}'),
               (2, '{}', NULL, '{18446744073709551615}', '{}'), (3, '{{1},{2}}', '{}', '{0}', NULL)"""
    )
    backend = Embedded(tmp_path / "ch")
    backend.execute("CREATE DATABASE shop")
    backend.execute(
        "CREATE TABLE shop.nested (k Int32, a Array(Int32), t Array(Nullable(String)), n Array(Decimal(30, 2)),"
        " m Map(String, Int32)) ENGINE = MergeTree ORDER BY k"
    )
    backend.execute(
        """INSERT INTO shop.nested VALUES (1, [2, 1, 1], ['a"b', NULL, ''], [1.5], {'x': 1}),
               (2, [], [], [18446744073709551615], {})"""
    )
    backend.close()
    table = pa.table(
        {
            "k": [1, 2],
            "a": [[1, 2], []],
            "t": [['a"b', None, ""], None],
            "n": pa.array([[Decimal("1.5")], [Decimal(2**64 - 1)]], pa.list_(pa.decimal128(30, 1))),
            "m": pa.array([[("x", 1)], []], pa.map_(pa.string(), pa.int32())),
        }
    )
    pq.write_table(table, tmp_path / "x.parquet")
    lake, ch = f"parquet:{tmp_path}/x.parquet", f"chdb:{tmp_path}/ch?database=shop"
    # Two dimensions have another type in Spark; an empty array is not NULL, and an order is not another one.
    assert found({"pg": pg.uri, "lake": lake}, "nested") == [("missing", "3", [])]
    changed = found({"pg": pg.uri, "ch": ch}, "nested", filter="k < 3")
    assert changed == [("changed", "1", ["a"]), ("changed", "2", ["t"])]
    mapping = {"rules": {"a": {"set": True}}}
    assert found({"pg": pg.uri, "ch": ch}, "nested", filter="k = 1", map=mapping) == []
    pq.write_table(pa.table({"k": [1], "a": pa.array([[1.5]], pa.list_(pa.float32()))}), tmp_path / "y.parquet")
    with pytest.raises(TrueupError, match="float in array<float> has no exact form in JSON"):
        found({"pg": pg.uri, "lake": f"parquet:{tmp_path}/y.parquet"}, "nested", columns=["a"])


def test_a_class_that_a_server_computes_otherwise_is_compared_by_value(
    databases: Databases, maria: MariaDb, spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = MySqlDialect.value

    def value(self: MySqlDialect, source: str, native: ValueClass, target: ValueClass, type_name: str) -> str:
        # As of a server whose arithmetic differs: all values would have the same bytes.
        return "X'00'" if target in ("date", "float") else right(self, source, native, target, type_name)

    monkeypatch.setattr(MySqlDialect, "value", value)
    pg = databases(1)[0]
    maria.execute("DROP TABLE IF EXISTS other")
    for run in (pg.execute, maria.execute):
        run("CREATE TABLE other (k int PRIMARY KEY, d date, f double precision)")
        run("INSERT INTO other VALUES (1, '2024-02-29', 0.5), (2, '0001-01-01', 1e300)")
    nodes = {"pg": pg.uri, "my": maria.uri}
    result = trueup.diff("other", nodes=nodes, recheck=0)
    assert (result.verdict, result.incomplete) == ("MATCH", ())
    why = "is compared as text, and by value where texts differ: my computes other bytes of the class"
    assert result.remarks == (f"d {why} date", f"f {why} float")
    maria.execute("UPDATE other SET d = '2024-02-28', f = 0.1 WHERE k = 1")
    assert found(nodes, "other") == [("changed", "1", ["d", "f"])]
    with pytest.raises(TrueupError, match="values of the class date do not have their canonical form"):
        found(nodes, "other", key=["d"])
