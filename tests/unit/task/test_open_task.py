"""A task of the store ends with the status, summary and error of its work, however the work ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from trueup.errors import Interrupted, NodeError
from trueup.store import Task, TaskStore
from trueup.task.open import open_task, reopen_task

CURE = "continue with: trueup diff --resume {task}"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TaskStore]:
    with TaskStore(tmp_path / "tasks.db") as opened:
        yield opened


def end_with(store: TaskStore, error: BaseException) -> tuple[Task, BaseException]:
    """Raise an error in the work of a task; return the task as recorded, and the error that the caller gets."""
    try:
        with open_task(store, "TABLE_DIFF", on_interrupt=CURE, context={}) as task:
            # The outcome of work that fails afterwards must not be recorded.
            task.finish({"verdict": "MATCH"}, report="report.json")
            raise error
    except BaseException as raised:
        return store.get(task.task_id), raised
    raise AssertionError("the error was not raised again")


def test_work_that_succeeds(store: TaskStore) -> None:
    with open_task(store, "TABLE_DIFF", on_interrupt=CURE, context={"mode": "diff"}, table="t") as task:
        assert store.get(task.task_id).task_status == "RUNNING"
        task.finish({"verdict": "DIFFER"}, report="report.json")
        assert store.get(task.task_id).task_status == "RUNNING"
    ended = store.get(task.task_id)
    assert (ended.task_status, ended.diff_file_path) == ("COMPLETED", "report.json")
    assert ended.task_context == {"mode": "diff", "diff_summary": {"verdict": "DIFFER"}}


def test_work_that_is_incomplete(store: TaskStore) -> None:
    with open_task(store, "TABLE_DIFF", on_interrupt=CURE, context={}) as task:
        task.finish({"verdict": "INCOMPLETE"}, failed=True, error="n1: lost", report="report.json")
    ended = store.get(task.task_id)
    assert (ended.task_status, ended.diff_file_path) == ("FAILED", "report.json")
    assert ended.task_context == {"diff_summary": {"verdict": "INCOMPLETE"}, "error": "n1: lost"}


def test_an_error_of_trueup(store: TaskStore) -> None:
    error = NodeError("the connection was lost", node="n1")
    ended, raised = end_with(store, error)
    assert raised is error
    assert (ended.task_status, ended.diff_file_path) == ("FAILED", "")
    assert ended.task_context == {"error": str(error)}


def test_a_request_to_stop(store: TaskStore) -> None:
    ended, raised = end_with(store, Interrupted("stopped with `trueup tasks stop`", cure="continue"))
    assert ended.task_status == "INTERRUPTED"
    assert ended.task_context == {"error": "stopped with `trueup tasks stop`"}
    assert isinstance(raised, Interrupted)
    assert raised.cure == "continue"


def test_ctrl_c(store: TaskStore) -> None:
    ended, raised = end_with(store, KeyboardInterrupt())
    assert ended.task_status == "INTERRUPTED"
    assert ended.task_context == {"error": "stopped by the user"}
    assert isinstance(raised, Interrupted)
    assert raised.cure == f"continue with: trueup diff --resume {ended.task_id[:8]}"


@pytest.mark.parametrize("error", [ValueError("password=secret"), SystemExit(1)])
def test_an_unexpected_error(store: TaskStore, error: BaseException) -> None:
    ended, raised = end_with(store, error)
    assert raised is error
    assert ended.task_status == "FAILED"
    # Only the type: the text may contain anything.
    assert ended.task_context == {"error": type(error).__name__}


def test_a_task_that_is_continued(store: TaskStore) -> None:
    failed, _ = end_with(store, ValueError())
    with reopen_task(store, failed, on_interrupt=CURE) as task:
        assert task.task_id == failed.task_id
        assert store.get(task.task_id).task_status == "RUNNING"
        task.finish({"verdict": "MATCH"})
    ended = store.get(task.task_id)
    assert ended.task_status == "COMPLETED"
    assert ended.task_context == {"diff_summary": {"verdict": "MATCH"}}
