"""Java is killed while Spark starts: the error says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# In a process of its own: this one may have a Java process already.
START = """
from trueup.engine.session import start_session
from trueup.errors import EngineError
try:
    start_session(slots=1)
except EngineError as failed:
    print(failed.message, failed.cure, sep="\\n")
"""

# As a command, the launcher prints an empty line, and then its words, each with a NUL.
LAUNCHES = r"""case "$*" in *launcher.Main*) printf '\n%s\0Submit\0' "$0"; exit 0 ;; esac
echo "WARNING: Using incubator modules: jdk.incubator.vector" >&2
"""


@pytest.mark.parametrize("before", ["", LAUNCHES], ids=["launcher", "driver"])
def test_java_is_killed_while_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\n{before}kill -9 $$\n")
    java.chmod(0o700)
    (tmp_path / "release").write_text('JAVA_VERSION="17"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    ran = subprocess.run([sys.executable, "-c", START], stdout=subprocess.PIPE, text=True, check=True)
    message, cure = ran.stdout.splitlines()
    assert message == "Spark failed to start: its Java process was killed, or ended without a message"
    assert "too little memory" in cure
