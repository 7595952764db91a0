"""The question how the Java process of Spark has ended."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pyspark  # noqa: F401  (only a process that has loaded it can have a Java process)
import pytest

from trueup.engine.failures import failed_job
from trueup.engine.jvm import why_ended


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket of a Java process that was killed, and whose files are not closed yet."""
    process = subprocess.Popen(["sleep", "600"])
    process.send_signal(signal.SIGKILL)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        host, port = listening.getsockname()
        gateway = SimpleNamespace(gateway_parameters=SimpleNamespace(address=host, port=port), proc=process)
        monkeypatch.setattr("pyspark.SparkContext", SimpleNamespace(**{"_gateway": gateway}))
        yield listening
    process.wait()


def test_java_that_is_being_killed(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    # The thread that closes the socket may be late.
    monkeypatch.setattr("trueup.engine.failures.ENDING_SECONDS", 20.0)
    assert why_ended() == ""
    closing = threading.Timer(0.1, listener.close)
    closing.start()
    assert failed_job(OSError("An error occurred while calling o1.getResult")).message == (
        "the Java process of Spark was killed (SIGKILL)"
    )
    closing.join()


def test_a_connection_stays_open(listener: socket.socket) -> None:
    assert why_ended(0.1) == ""
