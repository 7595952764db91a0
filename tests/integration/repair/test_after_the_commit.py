"""What fails after the commit of a node: the result, the error and the task say that the node was written."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.repair import ITEMS, AtStage, Nodes, NodesWith
from trueup.errors import Interrupted
from trueup.store import TaskStore

FILL = "INSERT INTO items SELECT i, 'name ' || i, i FROM generate_series(1, 9) i"


@pytest.fixture
def nodes(nodes_with: NodesWith) -> Nodes:
    """Return two nodes: n2 lacks a row, has another one changed, and has one more."""
    nodes = nodes_with(ITEMS, FILL, FILL)
    nodes[2].execute("DELETE FROM items WHERE id = 1; UPDATE items SET price = 0 WHERE id = 2")
    nodes[2].execute("INSERT INTO items VALUES (10, 'new', 1)")
    return nodes


@pytest.fixture
def no_more_files() -> Iterator[Callable[[], None]]:
    """Return a function after which this process can write to no file, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_folder_that_is_gone(nodes: Nodes, tmp_path: Path) -> None:
    report, folder = nodes.diff(), tmp_path / "reports"
    folder.mkdir()

    def replace_folder() -> None:
        shutil.rmtree(folder)
        folder.write_text("a file")

    undo = str(tmp_path / "before.gz")
    done = nodes.repair(
        report,
        source_of_truth="n1",
        execute=True,
        undo=undo,
        report_dir=str(folder),
        progress=AtStage("comparing keys", replace_folder),
    )
    assert (done.verdict, done.exit_code, done.report, done.undo) == ("FAILED", 2, "", undo)
    assert done.written == {"n2": {"insert": 1, "update": 1, "delete": 1}}
    assert {place: "cannot write the report" in error for place, error in done.failed.items()} == {
        "the rerun": True,
        "the report": True,
    }
    with TaskStore() as store:
        task = store.get(done.task_id)
    assert task.task_status == "FAILED"
    assert f"node n2 was written (1 inserted, 1 updated, 1 deleted; undo file: {undo})" in task.task_context["error"]
    assert nodes.rows()[0] == nodes.rows()[1]

    # The same for an undo, whose own undo file is in the folder that is removed.
    folder.unlink()
    folder.mkdir()
    undone = nodes.undo(undo, execute=True)
    assert undone.verdict == "UNDONE"
    progress = AtStage("comparing keys", replace_folder)
    again = nodes.undo(undone.undo, execute=True, report_dir=str(folder), progress=progress)
    assert (again.verdict, again.exit_code) == ("FAILED", 2)
    assert set(again.failed) == {"the report", "the undo file"}
    assert again.written == {"n2": {"insert": 1, "update": 1, "delete": 1}}


def test_a_full_disk(
    nodes: Nodes, no_more_files: Callable[[], None], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    done = nodes.repair(
        nodes.diff(), source_of_truth="n1", execute=True, progress=AtStage("comparing keys", no_more_files)
    )
    assert (done.verdict, done.written["n2"]["insert"]) == ("FAILED", 1)
    assert Path(done.undo).exists()
    assert set(done.failed) == {"the rerun", "the report"}
    # The task store cannot be written either: that does not hide the result.
    assert "is not in the task store" in caplog.text


def test_ctrl_c_after_the_commit(nodes: Nodes) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match=r"stopped by the user; node n2 was written \(1 inserted, .*; undo file: "):
        nodes.repair(nodes.diff(), source_of_truth="n1", execute=True, progress=AtStage("comparing keys", interrupt))
    with TaskStore() as store:
        (task,) = store.list(task_type="TABLE_REPAIR")
    assert task.task_status == "INTERRUPTED"
    assert "node n2 was written" in task.task_context["error"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_result_that_cannot_be_printed(nodes: Nodes) -> None:
    addresses = [part for name, uri in nodes.addresses.items() for part in ("--node", f"{name}={uri}")]
    command = [sys.executable, "-m", "trueup", "repair", nodes.diff().report, "--source-of-truth", "n1", "--execute"]
    with open("/dev/full", "w") as full:
        ran = subprocess.run([*command, *addresses, "--recheck", "0"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert ran.returncode == 2
    assert "cannot write the result to stdout: No space left on device" in ran.stderr
    assert "items on n2 was written (1 inserted, 1 updated, 1 deleted; undo file: " in ran.stderr
    assert nodes.rows()[0] == nodes.rows()[1]
