"""A repair of a run writes all its tables in one transaction per node, in the order of the foreign keys."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

import trueup
from support import zoo
from support.fixtures import Databases
from trueup.cli.main import run as command
from trueup.errors import CheckFailed, ConfigError
from trueup.report.repairs import run_text
from trueup.store import TaskStore
from trueup.testing.postgres import Database

OPTIONS: dict[str, Any] = {"engine": "local", "recheck": 0}


def addresses(nodes: list[Database]) -> dict[str, str]:
    return {f"n{number}": node.uri for number, node in enumerate(nodes, 1)}


@pytest.fixture
def pair(databases: Databases) -> list[Database]:
    """Two nodes whose tables differ."""
    nodes: list[Database] = databases(2)
    return nodes


def diff(pair: list[Database], tables: list[str] | None = None) -> trueup.ManyResult:
    return trueup.diff_many(nodes=addresses(pair), **{**zoo.RUN, **({"tables": tables} if tables else {})}, **OPTIONS)


@pytest.mark.parametrize("fire", [False, True])
def test_parents_and_children_both_missing_and_extra(pair: list[Database], fire: bool) -> None:
    zoo.create(pair, one_code=not fire)
    before = [zoo.rows(node) for node in pair]
    run = diff(pair)
    options: dict[str, Any] = {"nodes": addresses(pair), "source_of_truth": "n1", "fire_triggers": fire, **OPTIONS}
    done = trueup.repair_many(run.report, execute=True, **options)
    assert (done.verdict, done.exit_code) == ("REPAIRED", 0), run_text(done)
    assert zoo.rows(pair[1]) == zoo.rows(pair[0]) == before[0]
    if not fire:
        _check_records(done)
    undo: dict[str, Any] = {"nodes": addresses(pair), "fire_triggers": fire}
    undone = trueup.undo_many(done.undo, execute=True, **undo)
    assert (undone.verdict, undone.exit_code) == ("UNDONE", 0), run_text(undone)
    assert [zoo.rows(node) for node in pair] == before
    if fire:
        return
    # The rows differ again, and a dry run writes nothing. The undo can be undone.
    dry = trueup.repair_many(run.task_id[:8], **options)
    assert (dry.verdict, dry.exit_code, dry.failed) == ("DRY RUN", 1, {})
    assert {table.table: table.planned for table in dry.tables} == {
        table.table: {"n1": {"insert": 0, "update": 0, "delete": 0}, **table.written} for table in done.tables
    }
    assert trueup.undo_many(undone.undo, **undo).verdict == "DRY RUN"
    assert [zoo.rows(node) for node in pair] == before
    assert trueup.undo_many(undone.undo, execute=True, **undo).verdict == "UNDONE"
    assert zoo.rows(pair[1]) == before[0]
    with pytest.raises(ConfigError, match="several tables"):
        trueup.undo(done.undo, nodes=addresses(pair))


def _check_records(done: trueup.RepairsResult) -> None:
    # A table without differences is not part of it; one undo file has the rows of all tables.
    assert {table.table.removeprefix("public.") for table in done.tables} == set(zoo.NAMES)
    assert {table.undo for table in done.tables} == {done.undo}
    summary = json.loads(Path(done.report).read_text())
    assert (summary["verdict"], len(summary["tables"])) == ("REPAIRED", len(zoo.NAMES))
    with TaskStore() as store:
        parent = store.list(task_type="TABLES_REPAIR")[0]
        parts = [part for part in store.list(limit=-1) if part.task_context.get("part_of") == parent.task_id]
    assert (parent.task_status, parent.diff_file_path) == ("COMPLETED", done.report)
    assert [part.task_status for part in parts if part.task_type == "TABLE_REPAIR"] == ["COMPLETED"] * len(zoo.NAMES)


def test_both_directions_and_what_cannot_be_repaired_is_named(pair: list[Database]) -> None:
    zoo.create(pair)
    for node in pair:
        node.execute("CREATE TABLE nokey (v text); CREATE TABLE gone (id int PRIMARY KEY); INSERT INTO gone VALUES (1)")
    pair[0].execute("INSERT INTO nokey VALUES ('a'); CREATE TABLE lonely (id int); DELETE FROM gone")
    pair[0].execute("CREATE TABLE odd (id int PRIMARY KEY, v text)")
    pair[1].execute("CREATE TABLE odd (id int PRIMARY KEY, v bytea)")
    before = [zoo.rows(node) for node in pair]
    run = diff(pair)
    pair[1].execute("DROP TABLE gone")
    done = trueup.repair_many(run.report, bidirectional=True, execute=True, nodes=addresses(pair), **OPTIONS)
    assert (done.verdict, done.exit_code) == ("FAILED", 2)
    assert set(done.failed) == {"public.nokey", "public.lonely", "public.odd", "public.gone"}
    assert "no key" in done.failed["public.nokey"]
    assert "missing on n2" in done.failed["public.lonely"]
    assert "different types" in done.failed["public.odd"]
    after = [zoo.rows(node) for node in pair]
    # All other tables are written: rows of either node are on both, changed rows are left.
    for name in zoo.NAMES:
        keys = {row[0] for node in before for row in node[name]}
        assert [{row[0] for row in node[name]} for node in after] == [keys, keys], name
    kids = next(table for table in done.tables if table.table == "public.kids")
    assert kids.verdict == "REMAINS"
    assert kids.left_counts == {"the nodes have different rows: this mode does not change rows": 1}
    text = run_text(done)
    for line in ("public.lonely: FAILED: the table is missing on n2", "public.kids: left 1: "):
        assert line in text
    with TaskStore() as store:
        assert store.list(task_type="TABLES_REPAIR")[0].task_status == "FAILED"


def test_some_tables_of_a_run_and_a_plan_for_them(
    pair: list[Database], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place, node in enumerate(pair, 1):
        node.execute("CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE b (LIKE a INCLUDING ALL);"
                     "CREATE TABLE same (LIKE a INCLUDING ALL); CREATE TABLE nokey (v text);"
                     "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id);"
                     "CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (10);"
                     f"INSERT INTO a VALUES (1, 'n{place}'); INSERT INTO b VALUES (1, 'n{place}');"
                     f"INSERT INTO parts VALUES ({place}); INSERT INTO nokey VALUES ('n{place}')")  # fmt: skip
    nodes = [text for name, uri in addresses(pair).items() for text in ("--node", f"{name}={uri}")]

    def call(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = command([*words, *nodes])
        output = capsys.readouterr()
        return code, output.out + output.err

    def rows() -> list[Any]:
        return [[node.execute(f"SELECT * FROM {name} ORDER BY 1") for name in "ab"] for node in pair]

    before = rows()
    run = trueup.diff_many(tables=["a,b,same,nokey,parts,low"], nodes=addresses(pair), **OPTIONS).report
    repair = ("repair", run, "--engine", "local", "--recheck", "0")

    # A table and its partition have the same rows: nothing is written twice.
    code, text = call(*repair, "--source-of-truth", "n1", "--execute")
    assert (code, "public.low and public.parts have the same rows" in text) == (2, True), text
    code, text = call(*repair, "--source-of-truth", "n1", "--tables", "parts", "--execute")
    assert (code, pair[1].execute("SELECT id FROM parts")) == (0, [(1,)]), text
    assert "not selected by --tables, and not repaired: public.a, public.b, public.low, public.nokey" in text

    code, text = call(*repair, "--source-of-truth", "n1", "--tables", "a,none*", "--execute")
    assert (code, "--tables none* matches no table of the run" in text) == (2, True)
    plan = tmp_path / "plan.yaml"
    assert call("repair", run, "--tables", "a,b,nokey", "--write-plan", str(plan))[0] == 0
    assert list(yaml.safe_load(plan.read_text())["tables"]) == ["public.a", "public.b"]
    assert "# public.nokey: the table has no key" in plan.read_text()
    # The plan as it is written decides nothing.
    code, text = call(*repair, "--tables", "a,b", "--plan", str(plan), "--execute")
    assert (code, rows()) == (1, before), text
    # An entry for a table of the run that is not selected, or has no differences, is not an error.
    plan.write_text("tables: {a: {default: {keep: n2}}, same: {default: {keep: n1}}, b: {default: {keep: n1}}}")
    code, text = call(*repair, "--tables", "a", "--plan", str(plan), "--execute")
    assert (code, rows()) == (0, [[before[1][0], before[0][1]], before[1]]), text
    with TaskStore() as store:
        tasks = len(store.list(limit=-1))
        plan.write_text("tables: {b: {default: {keep: n1}}, sames: {default: {keep: n1}}}")
        code, text = call(*repair, "--tables", "b", "--plan", str(plan), "--execute")
        assert (code, rows()[1]) == (2, before[1])
        assert "sames: this table is not in the run" in text
        assert len(store.list(limit=-1)) == tasks
    one = trueup.diff("b", nodes=addresses(pair), **OPTIONS).report
    assert "this report has one table" in call("repair", one, "--tables", "b", "--source-of-truth", "n1")[1]


def test_a_table_outside_of_the_run_and_all_or_nothing_per_node(pair: list[Database]) -> None:
    zoo.create(pair)
    pair[0].execute("INSERT INTO outside VALUES (9); UPDATE kids SET other = 9 WHERE id = 20")
    before = zoo.rows(pair[1])
    run = diff(pair, ["far.parents", "public.kids", "public.a_grandkids", "public.tree", "public.parts"])
    options: dict[str, Any] = {"nodes": addresses(pair), "source_of_truth": "n1", "execute": True, **OPTIONS}
    for fire in (False, True):
        failed = trueup.repair_many(run.report, fire_triggers=fire, **options)
        assert (failed.verdict, failed.exit_code) == ("FAILED", 2)
        assert {"n2"} == set(failed.node_errors)
        assert "kids_other_fkey" in failed.node_errors["n2"]
        assert zoo.rows(pair[1]) == before
    # A right that is missing on one table: nothing is written on any node.
    role = f"writer_{pair[0].name}"
    pair[1].execute(f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA far TO {role}; INSERT INTO outside VALUES (9)")
    try:
        pair[1].execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public, far TO {role}; REVOKE DELETE ON tree FROM {role}")
        options["nodes"] = {"n1": pair[0].uri, "n2": f"{pair[1].uri}?options=-crole%3D{role}"}
        with pytest.raises(CheckFailed, match=r"may not DELETE from public\.tree"):
            trueup.repair_many(run.report, **options)
        before = zoo.rows(pair[1])
        pair[1].execute(f"GRANT DELETE ON tree TO {role}")
        # It may not silence triggers: rows are written in the order of the foreign keys.
        done = trueup.repair_many(run.report, **options)
        assert done.verdict == "REPAIRED", run_text(done)
        after = [zoo.rows(node) for node in pair]
        assert all(after[0][name] == after[1][name] for name in ("far.parents", "kids", "a_grandkids", "tree", "parts"))
    finally:
        pair[1].execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_cycle_that_cannot_be_deferred(pair: list[Database]) -> None:
    for place, node in enumerate(pair, 1):
        node.execute(
            "CREATE TABLE a (id int PRIMARY KEY, b int); CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a)"
        )
        node.execute("ALTER TABLE a ADD CONSTRAINT a_to_b FOREIGN KEY (b) REFERENCES b")
        node.execute(f"INSERT INTO a VALUES ({place}); INSERT INTO b VALUES ({place}, {place}); UPDATE a SET b = id")
    run = trueup.diff_many(schemas=["public"], nodes=addresses(pair), **OPTIONS)
    options: dict[str, Any] = {"nodes": addresses(pair), "source_of_truth": "n1", **OPTIONS}
    with pytest.raises(
        CheckFailed, match=r"public\.a, public\.b refer to each other .* not deferrable \(a_to_b, b_a_fkey\)"
    ):
        trueup.repair_many(run.report, fire_triggers=True, execute=True, **options)
    dry = trueup.repair_many(run.report, fire_triggers=True, **options)
    assert "--execute would fail" in run_text(dry)
    assert trueup.repair_many(run.report, execute=True, **options).verdict == "REPAIRED"

    # An ON DELETE action cannot be deferred: it would delete rows of the other table before the repair does.
    for node in pair:
        node.execute("ALTER TABLE a DROP CONSTRAINT a_to_b")
        node.execute("ALTER TABLE a ADD FOREIGN KEY (b) REFERENCES b ON DELETE CASCADE DEFERRABLE")
    pair[1].execute("INSERT INTO a VALUES (8); INSERT INTO b VALUES (8, 8); UPDATE a SET b = id WHERE id = 8")
    run = trueup.diff_many(schemas=["public"], nodes=addresses(pair), **OPTIONS)
    failed = trueup.repair_many(run.report, fire_triggers=True, execute=True, **options)
    assert "does not list, or deletes later" in failed.node_errors["n2"]
    assert pair[1].execute("SELECT a.id, b.id FROM a JOIN b ON a.b = b.id ORDER BY 1") == [(1, 1), (8, 8)]
    assert trueup.repair_many(run.report, execute=True, **options).verdict == "REPAIRED"


def test_a_cascade_removes_no_row_that_the_repair_does_not_list(pair: list[Database]) -> None:
    for node in pair:
        node.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY, a int, v text)")
        node.execute("ALTER TABLE b ADD FOREIGN KEY (a) REFERENCES a ON DELETE CASCADE")
    pair[1].execute("INSERT INTO a VALUES (1); INSERT INTO b VALUES (1, 1)")
    run = trueup.diff_many(schemas=["public"], nodes=addresses(pair), **OPTIONS)
    # A row that is not in the report refers to a row that is deleted.
    pair[1].execute("INSERT INTO b VALUES (2, 1)")
    options: dict[str, Any] = {"nodes": addresses(pair), "source_of_truth": "n1", "execute": True, **OPTIONS}
    for fire in (False, True):
        failed = trueup.repair_many(run.report, fire_triggers=fire, **options)
        assert failed.verdict == "FAILED"
        assert "public.b" in failed.node_errors["n2"]
        assert pair[1].execute("SELECT count(*) FROM b") == [(2,)]
    pair[1].execute("DELETE FROM b WHERE id = 2")
    assert trueup.repair_many(run.report, fire_triggers=True, **options).verdict == "REPAIRED"


def test_foreign_keys_of_one_partition_are_checked(pair: list[Database]) -> None:
    for node in pair:
        node.execute("CREATE TABLE up (id int PRIMARY KEY); CREATE TABLE parts (id int PRIMARY KEY, up int)"
                     " PARTITION BY RANGE (id); CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (10);"
                     "CREATE TABLE high PARTITION OF parts FOR VALUES FROM (10) TO (20);"
                     "ALTER TABLE low ADD FOREIGN KEY (up) REFERENCES up;"
                     "CREATE TABLE down (id int PRIMARY KEY, high int REFERENCES high)")  # fmt: skip
    pair[0].execute("INSERT INTO up VALUES (1); INSERT INTO parts VALUES (5, 1), (15, 9)")
    options: dict[str, Any] = {"nodes": addresses(pair), "engine": "local", "recheck": 0}
    report = trueup.diff("parts", **options).report
    failed = trueup.repair(report, source_of_truth="n1", execute=True, **options)
    assert failed.verdict == "FAILED"
    assert "low_up_fkey" in failed.failed["n2"]
    # Rows of the other partition have no parent.
    pair[1].execute("INSERT INTO up VALUES (1)")
    assert trueup.repair(report, source_of_truth="n1", execute=True, **options).verdict == "REPAIRED"
    pair[1].execute("INSERT INTO down VALUES (1, 15)")
    pair[0].execute("DELETE FROM parts")
    report = trueup.diff("parts", **options).report
    failed = trueup.repair(report, source_of_truth="n1", execute=True, **options)
    assert "down_high_fkey" in failed.failed["n2"]


PROGRAM = """
import sys, trueup
trueup.repair_many(sys.argv[1], nodes={"n1": sys.argv[2], "n2": sys.argv[3]}, source_of_truth="n1", execute=True,
                   undo="killed.gz", engine="local", recheck=0, lock_timeout=0)
"""
# A session of the repair that has written some tables, and waits to write another one.
WAITING = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND application_name LIKE 'trueup repair%%' AND backend_xid IS NOT NULL
   AND wait_event_type = 'Lock'
"""


def test_a_repair_of_a_run_that_is_killed_wrote_all_tables_or_none(pair: list[Database]) -> None:
    zoo.create(pair)
    before = [zoo.rows(node) for node in pair]
    run = diff(pair, ["far.parents", "public.kids", "public.a_grandkids", "public.parts"])
    with psycopg.connect(pair[1].uri) as other, psycopg.connect(pair[1].uri, autocommit=True) as session:
        # The repair inserts this key after parents and children.
        other.execute("INSERT INTO a_grandkids VALUES (100, 1)")
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, run.report, *addresses(pair).values()])
        try:
            end = time.monotonic() + 60
            while not session.execute(WAITING).fetchall()[0][0]:
                assert process.poll() is None, "the run ended before it could be killed"
                assert time.monotonic() < end
                time.sleep(0.01)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        other.rollback()
    nodes = addresses(pair)
    assert [zoo.rows(node) for node in pair] == before
    undo = trueup.undo_many("killed.gz", nodes=nodes)
    assert (undo.exit_code, sum(table.keys - table.agree for table in undo.tables)) == (0, 0)
    with TaskStore() as store:
        kinds = ("TABLES_REPAIR", "TABLE_REPAIR")
        assert {task.task_status for task in store.list(limit=-1) if task.task_type in kinds} == {"FAILED"}
    again = trueup.repair_many(run.report, source_of_truth="n1", execute=True, nodes=nodes, **OPTIONS)
    assert again.verdict == "REPAIRED"
    after = zoo.rows(pair[1])
    assert all(after[name] == before[0][name] for name in ("far.parents", "kids", "a_grandkids", "parts"))
