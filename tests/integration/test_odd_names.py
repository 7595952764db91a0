"""Names with %, {}, quotes, a backslash, a line break and an emoji: compare, repair, sync and switch over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import trueup
from support.fixtures import Databases, OnAll
from support.odd_names import CHANGE, CREATE, FILL, KEY, ODD, PARTS, TABLE, VALUE, rows
from support.switchover import begin


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_compare_and_repair(databases: Databases, on_all: OnAll, engine: str, request: pytest.FixtureRequest) -> None:
    if engine == "spark":
        request.getfixturevalue("spark")
    nodes = databases(2)
    on_all(nodes, CREATE + FILL)
    nodes[0].execute(CHANGE)
    where = {"n1": nodes[0].uri, "n2": nodes[1].uri}
    settings: dict[str, Any] = {"nodes": where, "engine": engine, "recheck": 0}
    found = trueup.diff(TABLE, filter=f"{VALUE} IS NOT NULL", exclude_columns=[f"e{ODD}"], output=["html"], **settings)
    counts = found.pairs["n1/n2"]
    assert (found.verdict, counts.changed, counts.missing, counts.extra) == ("DIFFER", 1, 1, 1)
    found = trueup.diff(TABLE, **settings)
    report = json.loads(Path(found.report).read_text(encoding="utf-8"))
    differences = report["diffs"]["n1/n2"]["differences"]
    assert [each["columns"] for each in differences if each.get("columns")] == [[f"v{ODD}"]]
    repaired = trueup.repair(found.report, source_of_truth="n1", execute=True, **settings)
    assert repaired.verdict == "REPAIRED", repaired
    assert rows(nodes[0]) == rows(nodes[1])
    assert trueup.rerun(found.report, **settings).verdict == "RESOLVED"
    assert trueup.undo(repaired.undo, nodes=where, execute=True).verdict == "UNDONE"
    assert rows(nodes[0]) != rows(nodes[1])
    assert trueup.diff(PARTS, **settings).verdict == "DIFFER"
    many = trueup.check_many(tables=["*.*"], nodes=where, engine=engine)
    assert sorted(each.verdict for each in many.tables) == ["DIFFER", "DIFFER", "MATCH"]
    assert trueup.schema_diff(nodes=where).verdict == "MATCH"


def test_sync_and_switch_over(databases: Databases) -> None:
    old, new = databases(2)
    for database in (old, new):
        database.execute(CREATE)
    old.execute(FILL)
    moving = begin(old, new)
    old.execute(CHANGE)
    moving.run_sync()
    assert rows(old) == rows(new)
    assert rows(old, PARTS) == rows(new, PARTS)
    moving.execute()
    new.execute(f"INSERT INTO {TABLE} ({VALUE}) VALUES ('on the new one'); TRUNCATE {PARTS}")
    moving.rollback()
    assert rows(old) == rows(new)
    assert rows(old, PARTS) == []
    assert old.execute(f"INSERT INTO {TABLE} ({VALUE}) VALUES ('x') RETURNING {KEY}") == [(52,)]
