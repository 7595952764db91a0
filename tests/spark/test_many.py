"""Many tables on one Spark session."""

from __future__ import annotations

from typing import Any

import trueup
from support.fixtures import Databases, OnAll, Spark


def test_many_tables_share_one_spark_session(spark: Spark, databases: Databases, on_all: OnAll) -> None:
    nodes = databases(2)
    for number in range(3):
        rows = f"SELECT i, 'v' || i FROM generate_series(1, {10 ** (number + 2)}) i"
        on_all(nodes, f"CREATE TABLE t{number} (id int PRIMARY KEY, v text); INSERT INTO t{number} {rows}")
    nodes[1].execute("UPDATE t2 SET v = 'x' WHERE id % 5000 = 1; DELETE FROM t0 WHERE id = 100")
    addresses = {"n1": nodes[0].uri, "n2": nodes[1].uri}
    options: dict[str, Any] = {
        "tables": ["public.*"],
        "nodes": addresses,
        "block_size": 2000,
        "recheck": 1,
        "recheck_wait": 0,
    }
    result = trueup.diff_many(**options, engine="spark")
    assert [(table.table, table.verdict, table.rows_checked, table.differences) for table in result.tables] == [
        ("public.t0", "DIFFER", 100, 1),
        ("public.t1", "MATCH", 1000, 0),
        ("public.t2", "DIFFER", 10_000, 2),
    ]
    # The session of the user is not stopped.
    assert spark.range(3).count() == 3
