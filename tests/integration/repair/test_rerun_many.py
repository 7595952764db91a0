"""A rerun of a run over many tables compares the keys of all its tables, and names what it cannot compare."""

from __future__ import annotations

from typing import Any

import trueup
from support.fixtures import Databases, OnAll
from trueup.report.many import many_text, summary_of
from trueup.report.model import ManyResult, TableOutcome

TABLES = "".join(f"CREATE TABLE t{number} (id int PRIMARY KEY, v text);" for number in range(1, 7))
FILL = "".join(f"INSERT INTO t{number} SELECT i, 'v' FROM generate_series(1, 20) i;" for number in range(1, 7))
OPTIONS: dict[str, Any] = {"engine": "local", "recheck": 0}


def outcomes(result: ManyResult) -> dict[str, TableOutcome]:
    return {table.table.removeprefix("public."): table for table in result.tables}


def test_a_rerun_of_a_run(databases: Databases, on_all: OnAll) -> None:
    pair = databases(2)
    on_all(pair, TABLES + FILL)
    nodes = {f"n{number}": node.uri for number, node in enumerate(pair, 1)}
    options = {"nodes": nodes, **OPTIONS}
    pair[1].execute(
        "UPDATE t1 SET v = 'x' WHERE id < 4; DELETE FROM t2 WHERE id = 1; ALTER TABLE t3 ALTER v TYPE char(5)"
    )
    pair[1].execute("DROP TABLE t4; INSERT INTO t5 VALUES (99, 'extra')")
    run = trueup.diff_many(tables=["public.t*"], **options)
    assert run.verdict == "INCOMPLETE"
    again = trueup.rerun_many(run.task_id[:8], **options)
    seen = outcomes(again)
    # t6 matched: it has no keys. t3 and t4 were not compared, and are not left out.
    assert set(seen) == {"t1", "t2", "t3", "t4", "t5"}
    assert (again.verdict, again.exit_code, again.mode) == ("INCOMPLETE", 2, "rerun")
    assert [seen[name].verdict for name in ("t1", "t2", "t4", "t5")] == ["DIFFER"] * 4
    assert (seen["t1"].rows_checked, seen["t1"].differences, seen["t4"].missing_on) == (3, 3, ("n2",))
    assert "different types" in seen["t3"].reason
    assert "1 table without differences" in many_text(summary_of(again), again.task_id)

    # Of what is fixed nothing is said about tables that were never compared.
    pair[1].execute("ALTER TABLE t3 ALTER v TYPE text; CREATE TABLE t4 (id int PRIMARY KEY, v text)")
    pair[1].execute("UPDATE t1 SET v = 'v'; INSERT INTO t2 VALUES (1, 'v'); DELETE FROM t5 WHERE id = 99")
    pair[1].execute("UPDATE t6 SET v = 'not compared'")
    seen = outcomes(trueup.rerun_many(run.report, **options))
    assert [seen[name].verdict for name in ("t1", "t2", "t5")] == ["RESOLVED"] * 3
    assert [seen[name].verdict for name in ("t3", "t4")] == ["INCOMPLETE"] * 2
    assert "exists on n2 now" in seen["t4"].reason
