"""The Java process of Spark that this process started: whether it has ended, and how to stop its session."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_CONNECT_SECONDS = 5.0
_END_SECONDS = 5.0

_log = logging.getLogger(__name__)


def why_ended() -> str:
    """Return how the Java process has ended, such as "was killed (SIGKILL)"; '' if it runs, or if there is none."""
    if "pyspark" not in sys.modules:
        return ""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return ""
    address = (gateway.gateway_parameters.address, gateway.gateway_parameters.port)
    with suppress(OSError), socket.create_connection(address, timeout=_CONNECT_SECONDS):
        return ""
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    with suppress(subprocess.TimeoutExpired):
        # Its sockets are closed before its exit code can be read.
        code = process.wait(_END_SECONDS) if process is not None else 0
        if code < 0:
            return f"was killed ({signal.Signals(-code).name})"
        if code > 0:
            return f"ended with exit code {code}"
    return "does not respond"


def log_accumulator_errors(context: SparkContext) -> None:
    """Let the thread that reads counters from Java log its errors: it would print a trace when Java is killed."""
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: _log.debug("no more counters of Spark", exc_info=True)


def stop_session(session: SparkSession) -> None:
    """Stop a session. Never raises: the error of a session that failed was raised by its job."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            session.stop()
    except Exception as error:
        _log.debug("Spark was not stopped: %s", error)
    forget_ended()


def forget_ended() -> None:
    """Let the next run in this process start a new Java process, if the one of this process has ended."""
    if not why_ended():
        return
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    # What `SparkSession.stop` resets; it fails when it calls Java.
    SparkContext._active_spark_context = None
    SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
