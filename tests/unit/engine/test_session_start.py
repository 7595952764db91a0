"""The start of Spark: a Java that is killed, ends or hangs; settings of long sessions; formats that load little."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import closing
from functools import partial
from pathlib import Path
from zipfile import ZipFile

import psutil
import pytest
from pyspark import java_gateway
from pyspark.find_spark_home import _find_spark_home

from support.spark import LAUNCHES
from trueup.engine import session
from trueup.engine.java import find_java
from trueup.engine.launch import Launch
from trueup.engine.session import lasting_conf, start_session
from trueup.errors import EngineError
from trueup.testing.processes import wait_until

# In a process of its own: this one may have a Java process already.
START = """
from trueup.engine import session
from trueup.errors import EngineError
session.LEAST_SECONDS = 3.0

# A class-data archive that is complete.
class Ready:
    is_ready = lambda self: True
    options = lambda self: "-Dtrueup.archive=yes"

session.archive_for = lambda *_: Ready()
try:
    session.start_session(slots=1, seconds=3.0 if {is_limited} else 0.0)
except EngineError as failed:
    print(failed.message, failed.cure, sep="\\n")
"""


def _start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, *, is_limited: bool = False) -> list[str]:
    """Start Spark with a Java that is a script; return the error, and its cure."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o700)
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="17"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    files = tmp_path / "files"
    files.mkdir()
    monkeypatch.setenv("TMPDIR", str(files))
    code = START.format(is_limited=is_limited)
    ran = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    assert list(files.iterdir()) == []
    return ran.stdout.splitlines()


# PySpark waits for ever for a process that has ended with exit code 0.
@pytest.mark.parametrize(
    ("before", "end", "ended", "starts"),
    [
        ("", "kill -9 $$", "was killed, or ended without a message", 1),
        ("", "exit 0", "was killed, or ended without a message", 1),
        (LAUNCHES, "kill -9 $$", "was killed (SIGKILL)", 1),
        (LAUNCHES, "kill -15 $$", "was killed (SIGTERM)", 1),
        (LAUNCHES, "exit 0", "was killed, or ended without a message", 2),
        # As a crash, which an archive can be the reason of.
        (LAUNCHES, "kill -6 $$", "was killed (SIGABRT)", 2),
    ],
    ids=["launcher, SIGKILL", "launcher, no error", "SIGKILL", "SIGTERM", "no error", "SIGABRT"],
)
def test_java_ends_while_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, end: str, ended: str, starts: int
) -> None:
    counted = tmp_path / "starts"
    message, cure = _start(tmp_path, monkeypatch, f"{before}echo >> {counted}\n{end}")
    assert message == f"Spark failed to start: its Java process {ended}"
    assert "too little memory" in cure
    # Without the archive, if it may be the reason: a process that was killed is not started again.
    assert len(counted.read_text()) == starts


def test_checkpoints_of_streams_are_written_without_processes() -> None:
    """The package of the class depends on the version of Spark: a wrong name would fail every stream."""
    name = lasting_conf()["spark.sql.streaming.checkpointFileManagerClass"]
    jars = Path(_find_spark_home()) / "jars"
    entries = {entry for jar in jars.glob("spark-sql_*.jar") for entry in ZipFile(jar).namelist()}
    assert name.replace(".", "/") + ".class" in entries


def test_a_spark_without_that_class_keeps_its_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-sql_2.13-4.0.jar").write_bytes(b"no archive")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert "spark.sql.streaming.checkpointFileManagerClass" not in lasting_conf()


@pytest.mark.parametrize("module", ["pyspark_trueup", "pyspark_trueup_changes", "pyspark_trueup_tube"])
def test_formats_are_looked_up_without_pyarrow(module: str) -> None:
    """Each process of Spark that looks formats up imports all of them, and would use 45 MB more."""
    code = f"import sys, {module}; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _has_ended(number: int) -> bool:
    try:
        return bool(psutil.Process(number).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("before", ["", LAUNCHES], ids=["launcher", "driver"])
def test_java_hangs_while_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str) -> None:
    script = f"{before}trap '' TERM\necho $$ > {tmp_path}/hangs\nexec sleep 600"
    message, cure = _start(tmp_path, monkeypatch, script, is_limited=True)
    assert message == "Spark did not start within 3 s, and its Java process was ended"
    assert "stall_seconds" in cure
    # The launcher is a child of the process that was started. On a busy machine, it may not have come that far.
    for line in (tmp_path / "hangs").read_text().splitlines() if (tmp_path / "hangs").exists() else ():
        assert wait_until(partial(_has_ended, int(line)), 30)


def test_temporary_files_of_pyspark(tmp_path: Path) -> None:
    """Those of a process that was killed are removed by the next start, with the folder."""
    names = vars(java_gateway)
    with Launch().recorded(tmp_path):
        folder = names["tempfile"].mkdtemp()
        file, name = names["tempfile"].mkstemp(dir=folder)
        os.close(file)
    assert Path(name).parent.parent == tmp_path
    assert names["tempfile"] is tempfile


def test_a_java_that_hangs_when_it_is_asked_for_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended with the start, together with what it has started."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {tmp_path}/child\nwait\n")
    java.chmod(0o700)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    launch, reasons = Launch(), []

    def find() -> None:
        with pytest.raises(EngineError) as refused:
            find_java(launch.popen)
        reasons.append(refused.value.message)

    thread = threading.Thread(target=find)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    thread.start()
    child = tmp_path / "child"
    assert wait_until(lambda: child.exists() and child.read_text().endswith("\n"), 30)
    launch.end()
    thread.join(10)
    assert "has no readable version" in reasons[0]
    assert wait_until(partial(_has_ended, int(child.read_text())), 30)


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("Picked up JAVA_TOOL_OPTIONS: -Dtrust.password=s3cret\nno license", "no license"),
        ("NOTE: Picked up JDK_JAVA_OPTIONS: -Dtrust.password=s3cret\nno license", "no license"),
        ("Invalid heap size: -Xmxabc\nError: Could not create the Java Virtual Machine.", "Invalid heap size: -Xmxabc"),
        (
            'Exception in thread "main" java.lang.ExceptionInInitializerError\n\tat A.b(C:1)\n'
            "Caused by: java.net.UnknownHostException: h: Name or service not known\n",
            "java.net.UnknownHostException: h: Name or service not known",
        ),
    ],
)
def test_the_reason_in_what_java_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, reason: str
) -> None:
    (tmp_path / "written").write_text(f"{written}\n")
    message, _ = _start(tmp_path, monkeypatch, f"cat {tmp_path}/written >&2; exit 1")
    assert message == f"Spark failed to start: {reason}"


def test_a_master_that_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raised = "org.apache.spark.SparkException: Could not parse Master URL: 'foo://bar'"
    (tmp_path / "written").write_text(f'Exception in thread "main" {raised}\n')
    message, cure = _start(tmp_path, monkeypatch, f"cat {tmp_path}/written >&2; exit 1")
    assert message == f"Spark failed to start: {raised}"
    assert cure.startswith("set master to ")


def test_a_spark_home_without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    message, cure = _start(tmp_path, monkeypatch, "exit 1")
    assert str(tmp_path) in message
    assert "unset SPARK_HOME" in cure


def test_the_spark_of_spark_home_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "spark-submit").write_text("#!/bin/sh\necho no license >&2; exit 1\n")
    (tmp_path / "bin" / "spark-submit").chmod(0o700)
    message, cure = _start(tmp_path, monkeypatch, "exit 1")
    assert message == "Spark failed to start: no license"
    assert "check SPARK_HOME" in cure


@pytest.mark.parametrize(("name", "value"), [("SPARK_REMOTE", "sc://host"), ("SPARK_API_MODE", "Connect")])
def test_a_variable_that_names_another_place(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(EngineError, match=f"the variable {name} ") as failed:
        start_session(slots=1)
    assert name in failed.value.cure


def test_a_spark_connect_server_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark itself tries for many minutes, without a message."""
    monkeypatch.setattr(session, "CONNECT_SECONDS", 0.5)
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    with pytest.raises(EngineError, match=f"server 127.0.0.1:{port} cannot be reached: no connection within") as caught:
        start_session(slots=1, remote=f"sc://127.0.0.1:{port}/;token=secret-token")
    assert "secret-token" not in f"{caught.value} {caught.value.cure}"
