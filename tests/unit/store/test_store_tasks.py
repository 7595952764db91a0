"""The life cycle of a task: start, heartbeat, finish, get, list."""

from __future__ import annotations

import dataclasses
import re
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trueup.errors import StoreError
from trueup.store import COMPLETED, FAILED, INTERRUPTED, RUNNING, Task, TaskStore

Query = Callable[..., list[tuple[Any, ...]]]
REQUEST = {"qualified_table": "public.customers", "mode": "diff", "nodes": ["n1", "n2"]}


def start(store: TaskStore, task_type: str = "TABLE_DIFF") -> Task:
    return store.start(task_type, cluster="acctg", schema="public", table="customers", context=REQUEST)


def test_a_started_task_runs(store: TaskStore) -> None:
    task = store.start(
        "TABLE_DIFF", cluster="acctg", schema="public", table="customers", repset="default", context=REQUEST
    )
    assert uuid.UUID(task.task_id).version == 4
    assert (task.task_type, task.task_status) == ("TABLE_DIFF", RUNNING)
    assert (task.cluster_name, task.schema, task.table_name) == ("acctg", "public", "customers")
    assert task.repset_name == "default"
    assert task.task_context == REQUEST
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", task.started_at)
    assert (task.finished_at, task.time_taken, task.diff_file_path) == (None, None, "")
    assert store.get(task.task_id) == task


def test_a_task_cannot_be_changed_in_memory(store: TaskStore) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        start(store).task_status = FAILED  # type: ignore[misc]


def test_finish_adds_the_result_to_the_request(store: TaskStore) -> None:
    task = start(store)
    done = store.finish(
        task.task_id, COMPLETED, summary={"total_rows_checked": 7, "mode": "mine"}, diff_file_path="d.json"
    )
    assert done.task_status == COMPLETED
    assert done.task_context == {**REQUEST, "diff_summary": {"total_rows_checked": 7, "mode": "mine"}}
    assert done.diff_file_path == "d.json"
    assert done.finished_at is not None
    assert done.finished_at >= done.started_at
    assert store.get(task.task_id) == done


def test_time_taken_is_end_minus_start(store: TaskStore, query: Query) -> None:
    task = start(store)
    aged = "UPDATE tasks SET started_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-90 seconds')"
    query(aged)
    done = store.finish(task.task_id, COMPLETED)
    assert done.time_taken is not None
    assert 90 <= done.time_taken < 120


def test_time_taken_is_never_negative(store: TaskStore, query: Query) -> None:
    task = start(store)
    query("UPDATE tasks SET started_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '1 hour')")
    assert store.finish(task.task_id, COMPLETED).time_taken == 0


@pytest.mark.parametrize("status", [FAILED, INTERRUPTED])
def test_an_error_is_kept(store: TaskStore, status: str) -> None:
    done = store.finish(start(store).task_id, status, error="user lacks a right")
    assert (done.task_status, done.task_context) == (status, {**REQUEST, "error": "user lacks a right"})


@pytest.mark.parametrize("key", ["error", "diff_summary"])
def test_a_request_may_not_use_the_keys_of_the_answer(store: TaskStore, key: str) -> None:
    with pytest.raises(StoreError, match=key) as caught:
        store.start("TABLE_DIFF", context={key: "mine"})
    assert caught.value.cure
    assert store.list() == []


@pytest.mark.parametrize("second", [COMPLETED, FAILED])
def test_only_the_first_finish_counts(store: TaskStore, second: str) -> None:
    task = start(store)
    done = store.finish(task.task_id, FAILED, error="first")
    with pytest.raises(StoreError, match="has already ended with status FAILED"):
        store.finish(task.task_id, second, error="second")
    assert store.get(task.task_id) == done


@pytest.mark.parametrize("status", [RUNNING, "DONE", ""])
def test_only_three_statuses_end_a_task(store: TaskStore, status: str) -> None:
    task = start(store)
    with pytest.raises(StoreError) as caught:
        store.finish(task.task_id, status)
    assert "COMPLETED, FAILED, INTERRUPTED" in caught.value.cure
    assert store.get(task.task_id).task_status == RUNNING


def test_heartbeat_records_time_and_progress(store: TaskStore, query: Query) -> None:
    task = start(store)
    query("UPDATE tasks SET heartbeat_at = '2020-01-01T00:00:00.000Z'")
    store.heartbeat(task.task_id, {"blocks": 3, "of": 9})
    beaten = store.get(task.task_id)
    assert beaten.progress == {"blocks": 3, "of": 9}
    assert beaten.heartbeat_at >= task.started_at
    store.heartbeat(task.task_id)
    assert store.get(task.task_id).progress == {"blocks": 3, "of": 9}


def test_a_late_heartbeat_does_not_change_a_finished_task(store: TaskStore) -> None:
    done = store.finish(start(store).task_id, COMPLETED)
    store.heartbeat(done.task_id, {"blocks": 1})
    assert store.get(done.task_id) == done


def test_heartbeat_and_finish_of_an_unknown_task(store: TaskStore) -> None:
    with pytest.raises(StoreError, match="task 'nope' does not exist"):
        store.heartbeat("nope")
    with pytest.raises(StoreError, match="task 'nope' does not exist"):
        store.finish("nope", COMPLETED)


def test_get_by_prefix(store: TaskStore, query: Query) -> None:
    for name in ("aa-1", "aa-2", "b_-1"):
        query("UPDATE tasks SET task_id = ? WHERE task_id = ?", name, start(store).task_id)
    assert store.get(" AA-1 ").task_id == "aa-1"
    assert store.get("b").task_id == "b_-1"
    with pytest.raises(StoreError, match="2 tasks") as ambiguous:
        store.get("aa")
    assert "aa-1" in ambiguous.value.cure
    assert "aa-2" in ambiguous.value.cure


@pytest.mark.parametrize("text", ["", "  ", "%", "_", "-", "zz", "\udc80", "' OR 1=1 --"])
def test_get_of_an_unknown_task(store: TaskStore, text: str) -> None:
    start(store)
    with pytest.raises(StoreError, match="does not exist") as caught:
        store.get(text)
    assert str(store.path) in caught.value.cure


def test_list_is_newest_first_filtered_and_cut(store: TaskStore) -> None:
    first, second, third = start(store), start(store, "TABLE_CHECK"), start(store)
    store.finish(first.task_id, COMPLETED)

    def ids(**filters: Any) -> list[str]:
        return [task.task_id for task in store.list(**filters)]

    assert ids() == [third.task_id, second.task_id, first.task_id]
    assert ids(limit=1) == [third.task_id]
    assert ids(task_type="TABLE_CHECK") == [second.task_id]
    assert ids(status=COMPLETED) == [first.task_id]
    assert ids(task_type="TABLE_CHECK", status=COMPLETED) == []
    for _ in range(25):
        start(store)
    assert len(ids()) == 20
    assert len(ids(limit=-1)) == 28


def test_threads_may_share_a_store(store: TaskStore) -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for number in range(20):
                task = start(store)
                store.heartbeat(task.task_id, {"at": number})
                store.finish(task.task_id, COMPLETED)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(store.list(limit=-1, status=COMPLETED)) == 120


def test_a_closed_store_raises(path: Path) -> None:
    with TaskStore(path) as store:
        pass
    with pytest.raises(StoreError, match="closed"):
        store.list()


def test_a_failed_write_leaves_nothing_behind(store: TaskStore, query: Query) -> None:
    task = start(store)

    class Stubborn:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    with pytest.raises(RuntimeError, match="no text"):
        store.finish(task.task_id, COMPLETED, summary={"x": Stubborn()})
    assert store.get(task.task_id) == task
    assert query("UPDATE tasks SET repset_name = 'free'") == []  # the lock is free
