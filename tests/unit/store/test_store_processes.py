"""Several processes at once on one file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trueup.store import COMPLETED, TaskStore

Query = Callable[..., list[tuple[Any, ...]]]

FIFTY_TASKS = """
import sys
from trueup.store import TaskStore
path, reopen = sys.argv[1], sys.argv[2] == "reopen"
print("ready", flush=True)
sys.stdin.readline()
store = TaskStore(path)
for number in range(50):
    task = store.start("TABLE_DIFF", context={"number": number})
    store.heartbeat(task.task_id, {"number": number})
    if reopen:
        store.close()
        store = TaskStore(path)
    store.finish(task.task_id, "COMPLETED", summary={"number": number})
    assert store.get(task.task_id).task_status == "COMPLETED"
store.close()
"""


@pytest.mark.parametrize("way", ["keep", "reopen"])
def test_four_processes_of_fifty_tasks_each(path: Path, query: Query, way: str) -> None:
    command = [sys.executable, "-c", FIFTY_TASKS, str(path), way]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=pipe) for _ in range(4)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:  # all of them find no file, and create it
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (0, "")
    with TaskStore(path) as store:
        assert len(store.list(limit=-1, status=COMPLETED)) == 200
    number = "json_extract(task_context, '$.diff_summary.number')"
    assert query(f"SELECT count(DISTINCT task_id), sum({number}) FROM ace_tasks") == [(200, 4 * sum(range(50)))]
    assert query("PRAGMA integrity_check") == [("ok",)]


def test_importing_the_store_is_light() -> None:
    heavy = "{'platformdirs', 'psycopg', 'pyspark', 'pandas', 'pyarrow', 'rich', 'jinja2', 'click', 'numpy'}"
    code = f"import sys, trueup.store; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
