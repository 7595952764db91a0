"""The history of tables: which run decides the verdict, what proves a table, and what pruning deletes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from trueup.store import COMPLETED, FAILED, INTERRUPTED, TaskStore, file
from trueup.store.history import TableState
from trueup.store.prune import prune

Query = Callable[..., list[tuple[Any, ...]]]


def start(store: TaskStore, *, table: str = "orders", mode: str = "diff", **context: Any) -> str:
    kind = {"diff": "TABLE_DIFF", "check": "TABLE_CHECK", "rerun": "TABLE_RERUN"}[mode]
    request = {"mode": mode, "nodes": "n1,n2", **context}
    return store.start(kind, cluster="shop", schema="public", table=table, context=request).task_id


def end(store: TaskStore, task_id: str, verdict: str, *, mode: str = "diff", rows: int = 100, **more: Any) -> None:
    count = 0 if verdict in ("MATCH", "RESOLVED") else 3
    summary = {
        "verdict": verdict,
        "mode": mode,
        "nodes": ["n1", "n2"],
        "total_rows_checked": rows,
        "mismatched_ranges_count": count,
        "diff_rows_count": {"n1/n2": count},
        "kinds": {"n1/n2": {"missing": count, "extra": 0, "changed": 0}},
        "positions": {"n1": "0/1"},
        "time_taken": 0.5,
    }
    store.finish(task_id, FAILED if verdict == "INCOMPLETE" else COMPLETED, summary=summary, **more)


def run(store: TaskStore, verdict: str, *, mode: str = "diff", **context: Any) -> str:
    task_id = start(store, mode=mode, **context)
    end(store, task_id, verdict, mode=mode)
    return task_id


def state(store: TaskStore) -> TableState:
    (only,) = store.states()
    return only


def test_a_row_per_table_and_run(store: TaskStore) -> None:
    first, second = run(store, "MATCH"), run(store, "DIFFER")
    newest, oldest = store.runs("public.orders")
    assert (newest.task_id, oldest.task_id) == (second, first)
    assert (newest.verdict, newest.differences, newest.rows, newest.seconds) == ("DIFFER", 3, 100, 0.5)
    assert newest.kinds == {"n1/n2": {"missing": 3, "extra": 0, "changed": 0}}
    assert newest.positions == {"n1": "0/1"}
    known = state(store)
    assert (known.run.verdict, known.runs, known.rows_total) == ("DIFFER", 2, 200)
    # The proof began before the run ended: later rows are not covered.
    assert known.matched_at == oldest.started_at


@pytest.mark.parametrize(
    ("mode", "context"),
    [
        ("rerun", {}),
        ("diff", {"table_filter": "id < 5"}),
        ("check", {"columns": ["id"]}),
        ("diff", {"exclude_columns": ["x"]}),
    ],
)
def test_a_part_proves_nothing(store: TaskStore, mode: str, context: dict[str, Any]) -> None:
    run(store, "RESOLVED" if mode == "rerun" else "MATCH", mode=mode, **context)
    assert state(store).matched_at is None
    run(store, "DIFFER")
    run(store, "RESOLVED" if mode == "rerun" else "MATCH", mode=mode, **context)
    assert (state(store).run.verdict, state(store).matched_at) == ("DIFFER", None)
    # A difference in a part is a difference of the table.
    run(store, "MATCH")
    proven = state(store).matched_at
    run(store, "DIFFER", mode=mode, **context)
    assert (state(store).run.verdict, state(store).matched_at) == ("DIFFER", proven)
    run(store, "INCOMPLETE", mode=mode, **context)
    assert state(store).run.verdict == "DIFFER"


def test_a_run_that_fails_is_incomplete_and_keeps_the_last_proof(store: TaskStore) -> None:
    # Nothing was ever compared: the name may be wrong.
    store.finish(start(store, table="ordrs"), FAILED, error="no such table")
    assert store.states() == []
    run(store, "MATCH")
    proven = state(store).matched_at
    store.finish(start(store), INTERRUPTED, error="stopped by the user")
    assert (state(store).run.verdict, state(store).run.differences, state(store).matched_at) == (
        "INCOMPLETE",
        None,
        proven,
    )


def test_a_resumed_task_has_one_row(store: TaskStore) -> None:
    run(store, "MATCH")
    task_id = start(store)
    store.finish(task_id, INTERRUPTED, error="stopped")
    store.reopen(task_id)
    end(store, task_id, "MATCH", rows=150)
    assert [each.verdict for each in store.runs()] == ["MATCH", "MATCH"]
    assert (state(store).run.task_id, state(store).runs, state(store).rows_total) == (task_id, 2, 250)


@pytest.mark.parametrize("first", ["INCOMPLETE", "DIFFER"])
def test_a_resumed_part_does_not_hide_that_the_table_differs(store: TaskStore, first: str) -> None:
    """The first end of the part decides (DIFFER) or not; when it is equal after the resume, the whole run decides."""
    whole = run(store, "DIFFER")
    part = start(store, table_filter="id < 10")
    summary = {"verdict": first, "mode": "diff", "nodes": ["n1", "n2"], "diff_rows_count": {"n1/n2": 1}}
    store.finish(part, INTERRUPTED, summary=summary)
    assert state(store).run.task_id == (part if first == "DIFFER" else whole)
    store.reopen(part)
    end(store, part, "MATCH")
    assert (state(store).run.task_id, state(store).run.verdict, state(store).matched_at) == (whole, "DIFFER", None)
    assert (state(store).runs, len(store.runs("public.orders"))) == (2, 2)


def test_a_table_that_is_missing_on_a_node_differs(store: TaskStore) -> None:
    task = store.start("TABLES_DIFF", cluster="shop", table="public.*", context={"mode": "diff"})
    tables = [
        {"table": "public.a", "verdict": "DIFFER", "missing_on": ["n2"], "task_id": ""},
        {"table": "public.b", "verdict": "INCOMPLETE", "missing_on": [], "task_id": ""},
        {"table": "public.c", "verdict": "MATCH", "missing_on": [], "task_id": "x"},
    ]
    store.finish(task.task_id, FAILED, summary={"mode": "diff", "nodes": ["n1", "n2"], "tables": tables})
    assert [(each.run.table_name, each.run.verdict) for each in store.states()] == [
        ("public.a", "DIFFER"),
        ("public.b", "INCOMPLETE"),
    ]


def test_an_older_store_gets_its_history(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for step in file.STEPS[:2]:
            connection.executescript(file.sql(step))
        connection.execute(f"PRAGMA application_id = {file.APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 2")
        summary = '{"mode": "diff", "nodes": "n1,n2", "diff_summary": {"verdict": "MATCH", "nodes": ["n1", "n2"]}}'
        connection.execute(
            "INSERT INTO tasks (task_id, task_type, task_status, cluster_name, task_context, schema, table_name,"
            " repset_name, started_at, finished_at, heartbeat_at, host, boot_id, pid_space, pid, pid_started)"
            " VALUES ('x', 'TABLE_DIFF', 'COMPLETED', '', ?, 'public', 'Old \"Table', '', ?, ?, ?, '', '', '', 1, '')",
            (summary, *["2025-07-22T12:03:51.042Z"] * 3),
        )
        connection.commit()
    with TaskStore(path) as store:
        assert state(store).run.table_name == 'public."Old ""Table"'
        assert state(store).matched_at == "2025-07-22T12:03:51.042Z"


def test_pruning_deletes_tasks_and_their_own_reports(store: TaskStore, tmp_path: Path) -> None:
    own, foreign = tmp_path / "own.json", tmp_path / "foreign.json"
    page, undo = own.with_suffix(".html"), tmp_path / "own-undo.gz"
    for each in (page, undo):
        each.write_text("x")
    foreign.write_text('{"summary": {"task_id": "another"}}')
    first, second, running = start(store), start(store), start(store)
    own.write_text(f'{{"summary": {{"task_id": "{first}"}}}}')
    end(store, first, "MATCH", diff_file_path=str(own))
    end(store, second, "DIFFER", diff_file_path=str(foreign))
    assert vars(prune(store, "9999", dry_run=True)) == {"tasks": 2, "files": 2, "runs": 0}
    assert vars(prune(store, "2020-01-01T00:00:00.000Z")) == {"tasks": 0, "files": 0, "runs": 0}
    assert own.exists()
    assert vars(prune(store, "9999", with_history=True)) == {"tasks": 2, "files": 2, "runs": 1}
    assert [each.exists() for each in (own, page, undo, foreign)] == [False, False, True, True]
    assert [task.task_id for task in store.list()] == [running]
    # The verdict and the sums of the table stay.
    assert (state(store).run.verdict, state(store).rows_total) == ("DIFFER", 200)


def prove(store: TaskStore, verdict: str, *, cluster: str = "", nodes: str = "n2,n1", **extent: Any) -> None:
    """Record a proof of a validation."""
    task = store.start("TABLES_PROVE", cluster=cluster, table="shop", context={"validation": "shop"})
    table = {"table": "public.orders", "verdict": verdict, "extent": extent, "errors": 2, "ignored": 0}
    summary = {
        "verdict": verdict,
        "nodes": nodes,
        "pair": "n2/n1",
        "positions": {},
        "at": task.started_at,
        "seconds": 1.0,
    }
    store.finish(task.task_id, COMPLETED, summary={**summary, "tables": [table]})


def proven(store: TaskStore) -> dict[str, bool]:
    return {state.run.cluster_name: state.is_proven for state in store.states()}


def test_proven_has_one_meaning_however_the_nodes_are_compared(store: TaskStore) -> None:
    run(store, "MATCH")
    assert proven(store) == {"shop": True}
    # A validation of the same nodes, which belong to no cluster there.
    for verdict in ("DIFFER", "INCOMPLETE"):
        prove(store, verdict)
        assert proven(store) == {"shop": False, "": False}
        shop = next(state for state in store.states() if state.run.cluster_name)
        assert (shop.run.verdict, verdict in shop.against, bool(shop.matched_at)) == ("MATCH", True, True)
    run(store, "MATCH")
    assert proven(store) == {"shop": True, "": False}
    run(store, "DIFFER")
    # Equal under one name proves nothing under another: both may be in different configurations.
    prove(store, "MATCH")
    assert proven(store) == {"shop": False, "": True}
    # As the cluster of both nodes: the same table.
    prove(store, "MATCH", cluster="shop", nodes="n1,n2", left_out=["note"])
    assert proven(store) == {"shop": False, "": True}
    prove(store, "MATCH", cluster="shop", nodes="n1,n2")
    assert proven(store) == {"shop": True, "": True}
    prove(store, "DIFFER", cluster="shop", nodes="n1,n2")
    assert (proven(store), store.runs("public.orders")[0].differences) == ({"shop": False, "": False}, 2)
