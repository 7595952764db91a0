"""An interrupted test run leaves no process behind: no PostgreSQL server, no JVM, no worker of xdist."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.run_guard import processes_of_run
from trueup.testing.processes import wait_until

TESTS = Path(__file__).parents[1]
PROGRAM = """
import signal, sys
import pytest
# A shell that starts this test run in the background makes its children ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("number", "spark", "count"),
    # The driver, and the master of a cluster.
    [(signal.SIGINT, "", 0), (signal.SIGKILL, "yes", 2)],
    ids=["SIGINT", "SIGKILL"],
)
def test_an_interrupted_run_leaves_no_process_behind(
    tmp_path: Path, number: signal.Signals, spark: str, count: int
) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"INTERRUPTED_RUN_FOLDER": str(tmp_path), "INTERRUPTED_RUN_SPARK": spark}
    environment |= {"TMPDIR": str(tmp_path)}
    options = ["-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'run'}"]
    with (tmp_path / "output").open("wb") as output:
        run = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *options, str(TESTS / "spark" / "interrupted_run.py")],
            cwd=TESTS.parent,
            env=environment,
            stdout=output,
            stderr=output,
        )
    try:
        wait_until(lambda: (tmp_path / "ready").exists() or run.poll() is not None, 120)
        assert (tmp_path / "ready").exists(), (tmp_path / "output").read_text()
        run_id = (tmp_path / "run_id").read_text()
        names = [process.name() for process in processes_of_run(run_id)]
        assert names.count("java") == count, names
        assert any(name.startswith("postgres") for name in names), names
        run.send_signal(number)
        run.wait(60)
        assert wait_until(lambda: not processes_of_run(run_id), 60), processes_of_run(run_id)
        data_dir = Path((tmp_path / "data_dir").read_text())
        assert wait_until(lambda: not data_dir.exists(), 60)
    finally:
        run.kill()
        run.wait()
