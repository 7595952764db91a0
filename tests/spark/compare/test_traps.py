"""Values that engines store differently: zero dates, unsigned numbers, padding, NULL, collations of keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trueup
from support.fixtures import Databases, Spark
from support.mariadb import MariaDb
from trueup.db.clickhouse import Embedded


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
