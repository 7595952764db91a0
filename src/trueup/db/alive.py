"""Cut sessions whose server does not answer any more, although its machine still acknowledges what is sent to it.

A server whose processes are frozen answers no statement, and no time-out of the server or of TCP ends the wait. A
statement may also take hours. So a server that has not answered for a while is asked on a new connection: any answer,
also a refusal, shows that it works. If two new connections get none, all sessions that wait for it are cut. That is the
same as a lost connection: the command ends with an error that names the node, or tries again.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from weakref import WeakSet

import psycopg

from trueup.db.connection import Connection, NodeConnection, same_server

# Seconds without an answer after which the server is asked, and the seconds that it has to answer.
SILENT_SECONDS = 30.0
ANSWER_SECONDS = 10
ATTEMPTS = 2
_INTERVAL = 1.0

# Host and port.
Address = tuple[str, int]
# A session, and since when it waits.
Waiting = tuple[NodeConnection, float]

_lock = threading.Lock()
_watched: WeakSet[NodeConnection] = WeakSet()
_thread: threading.Thread | None = None


def watch(connection: NodeConnection) -> None:
    """Cut this session when its server does not answer any more, until it is closed."""
    global _thread
    with _lock:
        _watched.add(connection)
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_run, name="trueup-alive", daemon=True)
            _thread.start()


def _forget() -> None:
    """Watch nothing in a child process: the sessions belong to its parent, and its threads do not exist here."""
    global _lock, _thread, _watched
    _lock, _thread, _watched = threading.Lock(), None, WeakSet()


os.register_at_fork(after_in_child=_forget)


def cut(connection: Connection) -> None:
    """Cut a connection that another thread may be waiting for; that thread gets an error."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as wire:
        wire.shutdown(socket.SHUT_RDWR)


def _run() -> None:
    global _thread
    # By address: when the server last answered on a new connection.
    answered: dict[Address, float] = {}
    while True:
        time.sleep(_INTERVAL)
        with _lock:
            if all(connection.closed for connection in _watched):
                _thread = None
                return
            late = _late(answered)
        for address in list(late):
            cut_silent(address, late.pop(address), answered)


def _late(answered: dict[Address, float]) -> dict[Address, list[Waiting]]:
    """Return the sessions that have waited too long, by the address of their server."""
    late: dict[Address, list[Waiting]] = {}
    for connection in _watched:
        with suppress(psycopg.Error):
            address = (connection.info.host, connection.info.port)
            since = connection.waits_since
            if since is not None and time.monotonic() - max(since, answered.get(address, 0.0)) > SILENT_SECONDS:
                late.setdefault(address, []).append((connection, since))
    return late


def cut_silent(address: Address, waiting: list[Waiting], answered: dict[Address, float]) -> None:
    """Cut these sessions if their server does not answer on new connections."""
    if any(answers(waiting[0][0]) for _ in range(ATTEMPTS)):
        answered[address] = time.monotonic()
        return
    for connection, since in waiting:
        # A session that waits for something else by now had an answer.
        if connection.waits_since == since:
            seconds = time.monotonic() - since
            connection.cut_because = f"no answer for {seconds:.0f} s, and none on a new connection"
            cut(connection)


def answers(connection: NodeConnection) -> bool:
    """Whether the server of this session answers on a new connection, also with a refusal."""
    if connection.node is None:
        return True
    try:
        address = same_server(connection.node.conninfo, connection)
        psycopg.connect(address, connect_timeout=ANSWER_SECONDS, application_name="trueup: is it alive").close()
    except psycopg.errors.ConnectionTimeout:
        return False
    except psycopg.Error:
        # A refusal is an answer, and so is the end of this session.
        return True
    return True
