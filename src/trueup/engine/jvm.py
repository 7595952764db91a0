"""The Java process of Spark: whether it has ended, and how to stop its session and let it end."""

from __future__ import annotations

import logging
import secrets
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import psutil

from trueup.engine.scratch import ScratchFolder

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_CONNECT_SECONDS = 5.0
# How long a Java process that is being killed may still accept connections.
ENDING_SECONDS = 0.3
_END_SECONDS = 5.0
# A session is stopped within this time, unless its Java process hangs.
_STOP_SECONDS = 10.0
_SHUTDOWN_SECONDS = 1.0

_log = logging.getLogger(__name__)


class Gateway(Protocol):
    """The connection to Java; `proc` is None if another program started it."""

    proc: subprocess.Popen[bytes] | None

    def shutdown(self) -> None:
        """Close it."""


class AccumulatorServer(Protocol):
    """What reads the counters of Python workers from Java; its address is the path of a Unix socket, or a port."""

    server_address: object

    def shutdown(self) -> None:
        """Stop reading."""


def start_callbacks(session: SparkSession) -> None:
    """Start the server through which Java calls this process (foreachBatch), unless it runs.

    PySpark starts one that accepts every user of the machine: here both sides have a token.
    """
    from pyspark.java_gateway import ensure_callback_server_started

    gateway: Any = session.sparkContext._gateway
    if gateway.__dict__.get("_callback_server") is not None:
        return
    token = gateway.callback_server_parameters.auth_token = secrets.token_hex(32)
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    # The client of Java loses its token when it gets the port of the server.
    client = gateway.java_gateway_server.getCallbackClient()
    field = client.getClass().getSuperclass().getDeclaredField("authToken")
    field.setAccessible(True)
    field.set(client, token)


class _Own:
    """The Java process that this process started."""

    def __init__(self, gateway: Gateway, process: subprocess.Popen[bytes], files: ScratchFolder) -> None:
        self.gateway = gateway
        self.process = process
        # Its temporary files.
        self.files = files
        self.at_end: Callable[[], object] = lambda: None


_own: _Own | None = None


def why_ended(seconds: float = 0.0) -> str:
    """Return how the Java process has ended, such as "was killed (SIGKILL)"; '' if it runs, or if there is none.

    After a failure, when it may be ending: `seconds` is how long a connection must stay open (ENDING_SECONDS), because
    the process accepts connections until its last file is closed.
    """
    if "pyspark" not in sys.modules:
        return ""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return ""
    address = (gateway.gateway_parameters.address, gateway.gateway_parameters.port)
    with suppress(OSError), socket.create_connection(address, timeout=_CONNECT_SECONDS) as connection:
        if not seconds or _stays_open(connection, seconds):
            return ""
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    return (ending_of(process) if process is not None else "") or "does not respond"


def _stays_open(connection: socket.socket, seconds: float) -> bool:
    """Return whether the other side keeps a connection open; it sends nothing before it is asked."""
    connection.settimeout(seconds)
    try:
        return connection.recv(1) != b""
    except TimeoutError:
        return True


def ending_of(process: subprocess.Popen[bytes]) -> str:
    """Return how a process has ended, such as "was killed (SIGKILL)"; '' if it goes on, or ended without an error."""
    with suppress(subprocess.TimeoutExpired):
        # Its sockets are closed before its exit code can be read.
        code = process.wait(_END_SECONDS)
        if code < 0:
            return f"was killed ({signal.Signals(-code).name})"
        if code > 0:
            return f"ended with exit code {code}"
    return ""


def log_accumulator_errors(context: SparkContext) -> None:
    """Let the thread that reads counters from Java log its errors: it would print a trace when Java is killed."""
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: _log.debug("no more counters of Spark", exc_info=True)


def own_gateway(gateway: Gateway, files: ScratchFolder) -> None:
    """Take over the Java process that this process started, and its files: `end_session` lets it end."""
    from pyspark import SparkContext

    global _own
    _own = _Own(gateway, gateway.proc, files) if gateway.proc is not None else None
    if _own is None:
        files.close()
    SparkContext._ensure_initialized(gateway=gateway)


def own_process() -> subprocess.Popen[bytes] | None:
    """Return the Java process that this process started."""
    return _own.process if _own is not None else None


def when_stopped(action: Callable[[], object]) -> None:
    """Call the action when the session of the own Java process was stopped."""
    if _own is not None:
        _own.at_end = action


def stop_session(session: SparkSession) -> None:
    """Stop a session without waiting for the end of its Java process. Never raises.

    The error of a session that failed was raised by its job.
    """
    own = _own
    # What is done at the end needs memory, and a process that was killed may have had too little.
    was_running = not why_ended()
    if end_session(session) is not None and own is not None and was_running:
        try:
            own.at_end()
        except Exception as error:
            _log.debug("after the stop of Spark: %s", error)


def end_session(session: SparkSession) -> subprocess.Popen[bytes] | None:
    """Stop a session; return its Java process, which ends by itself, or None if this process did not start it."""
    return end_context(getattr(session, "_sc", None), session.stop)


def end_context(context: Any, stop: Callable[[], object]) -> subprocess.Popen[bytes] | None:
    """Stop what uses a context of PySpark (None: Spark Connect), as `end_session`."""
    accumulators = getattr(context, "_accumulatorServer", None)
    if context is not None:
        # Stopping this server takes half a second, which is not waited for.
        context._accumulatorServer = None
    # The Python workers end here, and with them their sessions of the nodes.
    is_stopped = within(_STOP_SECONDS, lambda: _stop_quietly(stop))
    if not is_stopped and context is not None:
        kill_own_process()
    _remove_socket(accumulators)
    process = end_own_process(0.0 if is_stopped else _END_SECONDS) if context is not None else None
    threading.Thread(target=_finish, args=(accumulators, process), daemon=True).start()
    return process


def _remove_socket(accumulators: AccumulatorServer | None) -> None:
    """Remove the socket of a server: it does that half a second later, when this process may have ended."""
    address = getattr(accumulators, "server_address", None)
    if isinstance(address, str):
        Path(address).unlink(missing_ok=True)


def _stop_quietly(stop: Callable[[], object]) -> None:
    """Call `stop`; PySpark warns if its Java process was killed meanwhile."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stop()


def within(seconds: float, action: Callable[[], object]) -> bool:
    """Call Java, which may hang, in a thread; return whether it has ended in time. Errors are logged."""

    def call() -> None:
        try:
            action()
        except Exception as error:
            _log.debug("Spark: %s", error)

    thread = threading.Thread(target=call, name="trueup-java", daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def kill_own_process() -> bool:
    """Kill the Java process and its Python workers, which may be stopped; return whether there was one.

    What waits for an answer of it fails.
    """
    own = _own
    if own is None:
        return False
    signal_all(own.process, signal.SIGKILL)
    return True


def signal_all(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to a process and to all that it has started."""
    processes: list[psutil.Process] = []
    with suppress(psutil.Error):
        first = psutil.Process(process.pid)
        processes = [first, *first.children(recursive=True)]
    for each in processes:
        with suppress(psutil.Error):
            each.send_signal(number)


def end_own_process(seconds: float = 0.0) -> subprocess.Popen[bytes] | None:
    """Let the Java process end, which removes its temporary folders, if this process started it.

    One whose Spark has not stopped may still create files: it is waited for, at most this long.
    """
    global _own
    own, _own = _own, None
    if own is None:
        forget_ended()
        return None
    # A thread of Spark that called this process, and waits for its next call, can keep this from ending. Then it ends
    # with Java.
    within(_SHUTDOWN_SECONDS, own.gateway.shutdown)
    with suppress(OSError):
        # It ends when its standard input is closed.
        if own.process.stdin is not None:
            own.process.stdin.close()
    if seconds:
        with suppress(subprocess.TimeoutExpired):
            own.process.wait(seconds)
    # A process that was killed cannot remove its files.
    own.files.close()
    _forget()
    return own.process


def _finish(accumulators: AccumulatorServer | None, process: subprocess.Popen[bytes] | None) -> None:
    """Wait for what ends by itself, so that nothing is left in a process that continues."""
    with suppress(Exception):
        if accumulators is not None:
            accumulators.shutdown()
    if process is not None:
        process.wait()


def forget_ended() -> None:
    """Let the next run in this process start a new Java process, if the one of this process has ended."""
    if why_ended():
        _forget()


def _forget() -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    # What `SparkSession.stop` resets; it fails when it calls Java.
    SparkContext._active_spark_context = None
    SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
