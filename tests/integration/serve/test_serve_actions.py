"""Actions of the web page: each is recorded before it is done, with who requested it and what became of it."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from support.fixtures import Databases
from support.serve import PROVEN, PROXY, Answer, Served, serving
from support.validate import Copy
from trueup.cli.main import run
from trueup.config.load import load
from trueup.store import TaskStore, browse, file
from trueup.testing.postgres import Database


@pytest.fixture
def nodes(databases: Databases) -> list[Database]:
    return databases(2)


@pytest.fixture
def config(nodes: list[Database], tmp_path: Path) -> Path:
    path = tmp_path / "trueup.toml"
    one, two = nodes
    path.write_text(f'[nodes]\nn1 = "{one.uri}"\nn2 = "{two.uri}"\n[tasks]\ntask_db = "{tmp_path}/tasks.db"\n')
    path.chmod(0o600)
    for database in (one, two):
        database.execute("CREATE TABLE items AS SELECT i AS id, 'x' AS note FROM generate_series(1, 20) i")
        database.execute("ALTER TABLE items ADD PRIMARY KEY (id)")
    two.execute("DELETE FROM items WHERE id = 7")
    return path


def act(running: Served, page: str, **form: str) -> Answer:
    csrf = re.search(r'name="csrf" value="([^"]+)"', running.get(page, X_User="ann", **PROVEN).text)
    assert csrf
    return running.post("/actions", {**form, "csrf": csrf[1]}, X_User="ann", **PROVEN)


def acting(store: Path, config: Path | None = None) -> Any:
    settings = load(str(config)) if config else None
    return serving([store], settings, allow_actions=True, **PROXY)


def test_pause_resume_and_stop(tmp_path: Path) -> None:
    with TaskStore(tmp_path / "tasks.db") as store, acting(store.path) as running:
        task = store.start("TABLE_DIFF", schema="public", table="t", context={}).task_id
        for action, wanted in (("pause", "pause"), ("resume", ""), ("stop", "stop")):
            assert act(running, f"/tasks/{task}", action=action, task=task).status == 303
            assert store.wanted(task) == wanted
        recorded = [(row["who"], row["action"], row["target"], row["outcome"]) for row in browse.actions(store.path, 9)]
    assert recorded == [("ann", action, task, "requested") for action in ("stop", "resume", "pause")]


def test_run_again(config: Path, tmp_path: Path) -> None:
    """The same comparison: nodes, filter and columns are those of the task."""
    path = tmp_path / "tasks.db"
    filtered = ["--filter", "id < 10", "--columns", "id,note"]
    assert run(["diff", "items", "--config", str(config), "--engine", "local", *filtered]) == 1
    with TaskStore(path) as store:
        (first,) = store.list()
    with acting(path, config) as running:
        page = f"/tasks/{first.task_id}"
        assert act(running, page, action="rerun", task=first.task_id).headers["location"] == "/tasks"
        done = running.until(lambda: [task for task in browse.page(path, browse.Filter("TABLE_DIFF"), 9)
                                      if task.task_id != first.task_id and task.task_status != "RUNNING"])  # fmt: skip
        assert done[0].task_context["diff_summary"]["verdict"] == "DIFFER"
        for name in ("nodes", "table_filter", "columns", "qualified_table"):
            assert done[0].task_context[name] == first.task_context[name], name
        # A task of other nodes cannot be repeated with this configuration.
        with TaskStore(path) as store:
            other = store.start("TABLE_DIFF", context={"nodes": "n1,gone", "qualified_table": "items"})
            store.finish(other.task_id, "COMPLETED")
        refused = act(running, page, action="rerun", task=other.task_id)
        assert (refused.status, "not in the configuration" in refused.text) == (409, True)
    assert [row["outcome"].split()[0] for row in browse.actions(path, 9)] == ["failed:", "started"]


def test_an_error_of_a_validation_is_ignored(config: Path, tmp_path: Path, nodes: list[Database]) -> None:
    one, two = nodes
    copy = Copy(one, two)
    copy.start(syncer="lag:0")
    try:
        one.execute("UPDATE items SET note = 'secret' WHERE id = 3")
        (error,) = copy.until(copy.errors)
        with acting(tmp_path / "tasks.db", config) as running:
            TaskStore(tmp_path / "tasks.db").close()
            running.until(lambda: running.collector.seen.validations())
            page = "/validation?node=n2&name=v"
            form = {"action": "ignore", "validation": "v", "node": "n2"}
            running.until(lambda: 'name="csrf"' in running.get(page, X_User="ann", **PROVEN).text)
            for wrong in ("x", "", "9" * 30):
                assert act(running, page, id=wrong, **form).status == 409
            assert act(running, page, id=str(error.id), **form).headers["location"] == page
        assert [found.id for found in copy.errors("ignored")] == [error.id]
        assert browse.actions(tmp_path / "tasks.db", 1)[0]["outcome"] == "1 ignored"
    finally:
        copy.stop()
        one.execute(f"SELECT pg_drop_replication_slot('{copy.slot}')")


def test_what_cannot_be_recorded_is_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other.db"
    with TaskStore(tmp_path / "tasks.db") as store, TaskStore(other):
        task = store.start("TABLE_DIFF", schema="public", table="t", context={}).task_id
    monkeypatch.setattr(file, "BUSY_SECONDS", 0.1)
    # The first store has the records, the second one the task.
    scope = serving([other, tmp_path / "tasks.db"], allow_actions=True, **PROXY)
    with scope as running, closing(sqlite3.connect(other, isolation_level=None)) as lock:
        lock.execute("BEGIN IMMEDIATE")
        refused = act(running, f"/tasks/{task}", action="stop", task=task)
        assert (refused.status, "is locked" in refused.text) == (409, True)
    with TaskStore(tmp_path / "tasks.db") as store:
        assert store.wanted(task) == ""
