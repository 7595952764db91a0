"""A repair on Spark: the same rows, large rows in several batches, and one transaction per node."""

from __future__ import annotations

from typing import Any

import trueup
from support.fixtures import Databases, Spark


def test_a_repair_on_spark(spark: Spark, databases: Databases) -> None:
    truth, copy = databases(2)
    for node in (truth, copy):
        node.execute("CREATE TABLE items (id int PRIMARY KEY, name text, wide text)")
    truth.execute("INSERT INTO items SELECT i, 'n' || i, repeat('w', 1500) FROM generate_series(1, 4000) i")
    copy.execute("INSERT INTO items SELECT i, 'x', repeat('w', 9) FROM generate_series(2000, 4100) i")
    nodes = {"n1": truth.uri, "n2": copy.uri}
    report = trueup.diff("items", nodes=nodes, engine="local", recheck=0)
    options: dict[str, Any] = {"nodes": nodes, "engine": "spark", "recheck": 0}
    done = trueup.repair(report.report, source_of_truth="n1", execute=True, **options)
    assert (done.engine, done.verdict) == ("spark", "REPAIRED")
    assert done.written["n2"] == {"insert": 1999, "update": 2001, "delete": 100}
    assert trueup.check("items", nodes=nodes, engine="local", recheck=0).verdict == "MATCH"
