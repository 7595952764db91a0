"""`trueup rerun` of a run over many tables on the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import trueup
from support.fixtures import Cli, Databases, OnAll
from trueup.errors import ConfigError
from trueup.store import TaskStore

TABLES = "".join(f"CREATE TABLE t{n} AS SELECT i AS id, 'v' AS v FROM generate_series(1, 20) i;" for n in (1, 2, 3))
KEYS = "".join(f"ALTER TABLE t{n} ADD PRIMARY KEY (id);" for n in (1, 2, 3))
OPTIONS: dict[str, Any] = {"engine": "local", "recheck": 0}


def test_the_command_and_its_files(cli: Cli, databases: Databases, on_all: OnAll) -> None:
    pair = databases(2)
    on_all(pair, TABLES + KEYS)
    nodes = {f"n{number}": node.uri for number, node in enumerate(pair, 1)}
    pair[1].execute("UPDATE t1 SET v = 'x' WHERE id = 1; UPDATE t2 SET v = 'x' WHERE id = 1")
    run = trueup.diff_many(schemas=["public"], nodes=nodes, **OPTIONS)
    arguments = [*(f"--node={name}={uri}" for name, uri in nodes.items()), "--engine=local", "--recheck=0"]
    pair[1].execute("UPDATE t1 SET v = 'v'")
    differ = cli("rerun", run.task_id[:8], *arguments)
    assert differ.code == 1
    assert "DIFFER: 2 tables on n1, n2: some of the keys that differed still differ" in differ.out
    pair[1].execute("UPDATE t2 SET v = 'v'")
    # The folder of the run may be moved.
    shutil.move(Path(run.report).parent, "moved")
    resolved = cli("rerun", "moved/summary.json", *arguments, "--json")
    assert resolved.code == 0
    result = resolved.json
    assert (result["verdict"], len(result["tables"])) == ("RESOLVED", 2)
    assert result["rerun_of"] == str(Path("moved/summary.json").absolute())
    assert json.loads(Path(result["report"]).read_text())["verdict"] == "RESOLVED"
    with TaskStore() as store:
        parent = store.list(task_type="TABLES_RERUN")[0]
        parts = [task for task in store.list(task_type="TABLE_RERUN") if task.task_context["part_of"] == parent.task_id]
    assert (parent.task_status, len(parts)) == ("COMPLETED", 2)
    assert "RESOLVED: 2 tables" in cli("report", parent.task_id[:8]).out
    with pytest.raises(ConfigError, match="is a run over many tables"):
        trueup.rerun("moved/summary.json", nodes=nodes)
    with pytest.raises(ConfigError, match="is not a run over many tables"):
        trueup.rerun_many(result["tables"][0]["report"], nodes=nodes)
