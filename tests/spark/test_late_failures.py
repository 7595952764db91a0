"""Starts of Spark that fail or are interrupted when Java runs already: no process and no file is left."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

# Java runs, and its session or the engine is not ready. Prints each error, and what is left in the temporary folder.
LATE = """
import os, signal, psutil, tempfile
from trueup.engine import choose, jvm, session
from trueup.engine.launch import Launch
from trueup.engine.slots import Share
from trueup.config.settings import SparkSettings

def start(**conf):
    settings = SparkSettings(engine="spark", slots=1, conf=conf)
    choose.start_spark(settings, Share(), None, Launch()).close()

def kill(process):
    os.kill(process.pid, signal.SIGKILL)
    process.wait()

def interrupt(process):
    raise KeyboardInterrupt

def fails(module, name, disturb, **conf):
    real = getattr(module, name)

    def disturbed(*arguments, **options):
        disturb(jvm.own_process())
        return real(*arguments, **options)

    setattr(module, name, disturbed)
    try:
        start(**conf)
    except BaseException as error:
        print(type(error).__name__, getattr(error, "message", ""), os.listdir(tempfile.gettempdir()))
    setattr(module, name, real)

fails(session, "_remembering", kill)
fails(choose, "SparkEngine", kill)
fails(session, "_remembering", interrupt)
fails(session, "_remembering", lambda process: None, **{"spark.default.parallelism": "abc"})
# The next start needs another Java.
start()
_, left = psutil.wait_procs(psutil.Process().children(recursive=True), timeout=30)
print([process.name() for process in left], os.listdir(tempfile.gettempdir()))
"""


def test_a_start_that_fails_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ran = subprocess.run([sys.executable, "-c", LATE], stdout=subprocess.PIPE, text=True, check=True, timeout=180)
    first, second, third, fourth, left = ran.stdout.splitlines()
    assert first == "EngineError Spark failed to start: its Java process was killed (SIGKILL) []"
    assert second == "EngineError the Java process of Spark was killed (SIGKILL) []"
    assert third == "KeyboardInterrupt  []"
    assert re.fullmatch(r"EngineError .*\babc\b.* \[\]", fourth)
    assert left == "[] []"
