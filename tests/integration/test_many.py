"""A diff of many tables: one run, one verdict, and a table that was not compared is never a match."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import trueup
from support.fixtures import Databases, OnAll
from trueup.engine.progress import Silent
from trueup.errors import ConfigError, Interrupted
from trueup.report.many import many_text, summary_of
from trueup.report.model import ManyResult, TableOutcome
from trueup.store import TaskStore
from trueup.task.shared import Shared
from trueup.testing.postgres import Database

TABLES = """
    CREATE SCHEMA sales;
    CREATE TABLE a (id int PRIMARY KEY, v text);
    CREATE TABLE a_b (id int PRIMARY KEY, v text);
    CREATE SCHEMA "public_a";
    CREATE TABLE "public_a".b (id int PRIMARY KEY, v text);
    CREATE TABLE nokey (v text);
    CREATE TABLE "Odd, Name" (id int PRIMARY KEY);
    CREATE TABLE tmp_1 (id int);
    CREATE TABLE sales.parts (at int, n int) PARTITION BY RANGE (at);
    CREATE TABLE sales.parts_1 PARTITION OF sales.parts FOR VALUES FROM (0) TO (10);
    CREATE VIEW seen AS SELECT * FROM a;
    INSERT INTO a SELECT i, 'v' || i FROM generate_series(1, 3000) i;
    INSERT INTO a_b SELECT i, 'v' FROM generate_series(1, 50) i;
    INSERT INTO public_a.b SELECT * FROM a_b;
    INSERT INTO nokey SELECT 'x' FROM generate_series(1, 20) i;
    INSERT INTO "Odd, Name" SELECT i FROM generate_series(1, 20) i;
    INSERT INTO sales.parts SELECT i, i FROM generate_series(0, 9) i;
"""
OPTIONS: dict[str, Any] = {"engine": "local", "recheck": 1, "recheck_wait": 0}


@pytest.fixture
def nodes(databases: Databases, on_all: OnAll) -> list[Database]:
    """Two nodes with the same tables."""
    pair: list[Database] = databases(2)
    on_all(pair, TABLES)
    return pair


def addresses(nodes: list[Database]) -> dict[str, str]:
    return {f"n{number}": node.uri for number, node in enumerate(nodes, 1)}


def outcomes(result: ManyResult) -> dict[str, TableOutcome]:
    return {table.table: table for table in result.tables}


def test_all_tables_in_one_run_with_one_verdict(nodes: list[Database], tmp_path: Path) -> None:
    every = {"schemas": ["public", "public_a"], "tables": ["sales.*"], "nodes": addresses(nodes), **OPTIONS}
    result = trueup.diff_many(**every, exclude_tables=['"Odd, Name", tmp_*'], output="json, html")
    found = outcomes(result)
    assert set(found) == {"public.a", "public.a_b", "public.nokey", "public_a.b", "sales.parts"}
    assert (result.verdict, result.exit_code) == ("MATCH", 0)
    assert result.skipped == ('public."Odd, Name"', "public.tmp_1")
    assert found["public.a"].rows_checked == 3000
    # Two tables whose reports would have the same name: both reports exist, in a private folder.
    reports = {table.report for table in result.tables}
    assert len(reports) == len(result.tables)
    folder = Path(result.report).parent
    assert folder.stat().st_mode & 0o077 == 0
    assert json.loads(Path(result.report).read_text())["verdict"] == "MATCH"
    page = Path(result.page).read_text()
    for each in result.tables:
        assert f'<a href="{Path(each.page).name}">{each.table}</a>' in page
        assert Path(each.page).exists()

    nodes[1].execute(
        "UPDATE a SET v = 'x' WHERE id IN (7, 9); CREATE TABLE more (id int); DELETE FROM nokey; DROP VIEW seen"
    )
    nodes[0].execute("CREATE TABLE gone (id int)")
    result = trueup.diff_many(**every)
    found = outcomes(result)
    assert (result.verdict, result.exit_code) == ("DIFFER", 1)
    assert (found["public.a"].verdict, found["public.a"].differences) == ("DIFFER", 2)
    assert found["public.nokey"].differences == 20
    assert (found["public.more"].verdict, found["public.more"].missing_on) == ("DIFFER", ("n1",))
    assert (found["public.gone"].verdict, found["public.gone"].missing_on) == ("DIFFER", ("n2",))
    assert found["sales.parts"].verdict == "MATCH"

    # One table cannot be compared: this decides the verdict, and the others are compared.
    nodes[1].execute("ALTER TABLE a_b ALTER v TYPE varchar(5)")
    quick = trueup.check_many(**every)
    found = outcomes(quick)
    assert (quick.verdict, quick.exit_code, quick.report) == ("INCOMPLETE", 2, "")
    assert found["public.a_b"].verdict == "INCOMPLETE"
    assert "different types" in found["public.a_b"].reason
    assert (found["public.a"].verdict, found["public_a.b"].verdict) == ("DIFFER", "MATCH")

    # After a fix only that table is compared again, and the verdict is about all tables.
    nodes[0].execute("ALTER TABLE a_b ALTER v TYPE varchar(5)")
    again = trueup.resume_many(quick.task_id, nodes=addresses(nodes))
    fixed = outcomes(again)
    assert again.verdict == "DIFFER"
    assert fixed["public.a_b"].verdict == "MATCH"
    assert {name: each.task_id for name, each in fixed.items()} == {
        name: each.task_id for name, each in found.items()
    } | {"public.a_b": fixed["public.a_b"].task_id}


def test_a_role_without_rights_and_three_nodes(databases: Databases, on_all: OnAll) -> None:
    three = databases(3)
    on_all(three, "CREATE TABLE x (id int PRIMARY KEY); CREATE TABLE y (id int PRIMARY KEY)")
    three[2].execute("DROP TABLE y")
    role = f"reader_{three[0].name}"
    three[0].server.database("postgres").execute(f"CREATE ROLE {role}")
    try:
        for node in three:
            node.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
        three[1].execute(f"REVOKE SELECT ON x FROM {role}")
        as_role = {name: f"{uri}?options=-crole%3D{role}" for name, uri in addresses(three).items()}
        result = trueup.diff_many(tables=["public.?"], nodes=as_role, **OPTIONS)
        found = outcomes(result)
        assert result.verdict == "INCOMPLETE"
        assert "may not SELECT" in found["public.x"].reason
        # Compared on the nodes that have it, and reported as a difference on the others.
        assert (found["public.y"].verdict, found["public.y"].missing_on) == ("DIFFER", ("n3",))
        assert found["public.y"].task_id
    finally:
        for node in three:
            node.execute(f"DROP OWNED BY {role}")
        three[0].server.database("postgres").execute(f"DROP ROLE {role}")


def test_patterns_without_a_match_are_refused(nodes: list[Database]) -> None:
    where = {"nodes": addresses(nodes), **OPTIONS}
    with pytest.raises(ConfigError, match=r"matches public\.b\*"):
        trueup.check_many(tables=["public.a", "public.b*"], **where)
    with pytest.raises(ConfigError, match="matches nowhere"):
        trueup.check_many(schemas=["nowhere"], **where)
    with pytest.raises(ConfigError, match="every table that matches is excluded"):
        trueup.check_many(tables=["public.a*"], exclude_tables=["public.*"], **where)
    with pytest.raises(ConfigError, match="no tables are selected"):
        trueup.check_many(**where)
    # Partitions are compared as part of their table unless named; tables of trueup only if named.
    nodes[0].execute("CREATE SCHEMA trueup; CREATE TABLE trueup.own (id int)")
    assert set(outcomes(trueup.check_many(tables=["*.*"], exclude_tables=["public*.*"], **where))) == {"sales.parts"}
    assert set(outcomes(trueup.check_many(tables=["sales.parts_1"], **where))) == {"sales.parts_1"}


class StopAt(Silent):
    """Interrupts the run, like Ctrl-C, when `count` tables are done."""

    def __init__(self, tables: int, is_stopping: threading.Event) -> None:
        self._left = tables
        self._is_stopping = is_stopping

    def advance(self, steps: int = 1, *, rows: int = 0, more: int = 0, stage: str = "") -> None:
        self._left -= steps
        if not self._left and steps:
            self._left -= 1
            os.kill(os.getpid(), signal.SIGINT)
            # The lock of the progress is held: the other tables wait until the signal is handled.
            assert self._is_stopping.wait(60)


def test_ctrl_c_and_resume(nodes: list[Database], monkeypatch: pytest.MonkeyPatch) -> None:
    is_stopping, stop = threading.Event(), Shared.stop

    def stop_and_notify(shared: Shared) -> None:
        stop(shared)
        is_stopping.set()

    monkeypatch.setattr(Shared, "stop", stop_and_notify)
    assert threading.current_thread() is threading.main_thread()
    nodes[1].execute("UPDATE a SET v = 'x' WHERE id = 5")
    progress = StopAt(2, is_stopping)
    with pytest.raises(Interrupted, match="stopped") as stopped:
        trueup.diff_many(tables=["*.*"], nodes=addresses(nodes), progress=progress, block_size=1000, **OPTIONS)
    with TaskStore() as store:
        parent_task = store.list(task_type="TABLES_DIFF")[0]
        parts = {part.task_context["qualified_table"]: part for part in store.list(limit=-1, task_type="TABLE_DIFF")}
    assert parent_task.task_status == "INTERRUPTED"
    assert f"--resume {parent_task.task_id[:8]}" in stopped.value.cure
    done = {name: part.task_id for name, part in parts.items() if part.task_status == "COMPLETED"}
    assert 2 <= len(done) < 7
    # What was finished is compared again only if it is another table now.
    replaced = next(name for name in sorted(done) if name != "public.a")
    reload = f"CREATE TEMP TABLE kept AS TABLE {replaced}; TRUNCATE {replaced}; INSERT INTO {replaced} TABLE kept"
    nodes[1].execute(f"BEGIN; {reload}; COMMIT")
    was = done.pop(replaced)
    result = trueup.resume_many(parent_task.task_id[:8], nodes=addresses(nodes))
    found = outcomes(result)
    assert (result.verdict, len(found)) == ("DIFFER", 7)
    assert {name: found[name].task_id for name in done} == done
    assert all(found[name].earlier.startswith("all rows at an earlier moment, since ") for name in done)
    assert (found[replaced].task_id != was, found[replaced].earlier) == (True, "")
    earlier = sum(bool(each.earlier) for each in found.values())
    assert f"the nodes differ; {earlier} table" in many_text(summary_of(result), result.task_id).splitlines()[0]
    assert {name for name, each in found.items() if each.verdict == "DIFFER"} == {"public.a"}
    assert found["public.a"].differences == 1


KILLED = """
import os, signal, sys, trueup
from trueup.engine.progress import Silent
class Kill(Silent):
    done = 0
    def advance(self, steps=1, **_):
        self.done += steps
        if self.done == 2:
            os.kill(os.getpid(), signal.SIGKILL)
trueup.diff_many(tables=["public.*"], nodes={"n1": sys.argv[1], "n2": sys.argv[2]}, engine="local", recheck=0,
                 progress=Kill())
"""


def test_a_killed_run_is_resumed(nodes: list[Database]) -> None:
    nodes[1].execute("UPDATE a SET v = 'x' WHERE id = 2999")
    ended = subprocess.run([sys.executable, "-c", KILLED, *addresses(nodes).values()], timeout=120, check=False)
    assert ended.returncode == -signal.SIGKILL
    with TaskStore() as store:
        parent_task = store.list(task_type="TABLES_DIFF")[0]
        done = [part.task_id for part in store.list(task_type="TABLE_DIFF", status="COMPLETED")]
    assert parent_task.task_status == "FAILED"
    assert len(done) >= 2
    result = trueup.resume_many(parent_task.task_id, nodes=addresses(nodes))
    found = outcomes(result)
    assert result.verdict == "DIFFER"
    assert {name for name, each in found.items() if each.verdict == "DIFFER"} == {"public.a"}
    assert set(found) == {"public.a", "public.a_b", "public.nokey", 'public."Odd, Name"', "public.tmp_1"}
    assert set(done) <= {table.task_id for table in result.tables}


def test_concurrent_tables_share_the_connection_limit(databases: Databases, on_all: OnAll) -> None:
    pair: list[Database] = databases(2)
    for number in range(12):
        on_all(pair, f"CREATE TABLE t{number} AS SELECT i FROM generate_series(1, 500) i")
    role = f"few_{pair[0].name}"
    # Both nodes are databases of one server: the role may have eight sessions per node, and some that were closed and
    # that the server has not ended yet.
    pair[0].execute(f"CREATE ROLE {role} LOGIN PASSWORD 'p' CONNECTION LIMIT 20")
    try:
        on_all(pair, f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
        few = {name: uri.replace("postgres@", f"{role}:p@") for name, uri in addresses(pair).items()}
        result = trueup.check_many(tables=["public.*"], nodes=few, max_connections=8, concurrency_factor=4.0, **OPTIONS)
        assert result.incomplete == ()
        assert (result.verdict, len(result.tables)) == ("MATCH", 12)
    finally:
        on_all(pair, f"DROP OWNED BY {role}")
        pair[0].execute(f"DROP ROLE {role}")
