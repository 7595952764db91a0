"""A test that starts servers and then waits: `test_interrupted_run` runs this file and interrupts it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from support.run_guard import VARIABLE
from support.spark import SparkCluster
from trueup.testing.postgres import Server


def test_waits(request: pytest.FixtureRequest, server: Server) -> None:
    folder = Path(os.environ["INTERRUPTED_RUN_FOLDER"])
    if os.environ.get("INTERRUPTED_RUN_SPARK"):
        request.getfixturevalue("spark")
        SparkCluster(folder).start()
    (folder / "run_id").write_text(os.environ[VARIABLE])
    (folder / "data_dir").write_text(str(server.data_dir))
    (folder / "ready").touch()
    time.sleep(600)
