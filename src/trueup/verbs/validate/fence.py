"""A fence: a marker in the log of the source. It is validated when every change before it is proven or an error."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from trueup.capture.log.slot import emit_message, lsn_number, lsn_text
from trueup.config.model import Node
from trueup.db.connection import Connection
from trueup.db.node import connect, error_from_server
from trueup.db.server_identity import server_position
from trueup.verbs.validate.history import other_source
from trueup.verbs.validate.meta import Meta, Stored
from trueup.verbs.validate.status import GONE, Status, read_status

MARK = "trueup fence"
_POLL_SECONDS = 0.1
_GONE_SECONDS = 15.0


@dataclass(frozen=True)
class Fence:
    """The result of a fence: whether it is validated, and the number of open errors."""

    name: str
    position: str
    validated: bool
    seconds: float
    errors: int
    # Why it is not validated, or what was not checked.
    reasons: tuple[str, ...] = ()
    # What is not compared, because of the settings or of columns that one node lacks.
    remarks: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """Return the exit code as diff(1): 0 everything proven, 1 errors, 2 not validated or not everything checked."""
        if not self.validated or self.reasons:
            return 2
        return 1 if self.errors else 0

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            **self.__dict__,
            "reasons": list(self.reasons),
            "remarks": list(self.remarks),
            "exit_code": self.exit_code,
        }


def put_fence(source: Node, stored: Stored) -> tuple[int, str]:
    """Write the marker with a session of its own; return the position behind it, and why it cannot be validated, if so.

    After a failover or a restore, a position is not comparable with those of the validation.
    """
    connection = connect(source, application="trueup validate fence", read_only=False)
    try:
        return write_marker(connection), other_source(stored, server_position(connection))
    except Exception as error:
        raise error_from_server(error, source) from None
    finally:
        connection.close()


def refused(status: Status, position: int, reason: str) -> Fence:
    """Return a fence that is not validated."""
    return Fence(status.name, lsn_text(position), False, 0.0, status.open_errors, (reason, *status.blind_spots))


def write_marker(connection: Connection) -> int:
    """Write the marker in an open session in autocommit; return a position behind everything committed so far."""
    connection.execute("SET synchronous_commit = local")
    return emit_message(connection, MARK)


def wait_for(
    meta: Meta,
    name: str,
    position: int,
    *,
    timeout: float,
    every: float = _POLL_SECONDS,
    apart: Collection[str] = (),
    on_wait: Callable[[Status], object] = lambda status: None,
) -> Fence:
    """Wait until every change before a position, but of the tables `apart`, is validated; call `on_wait` meanwhile."""
    start = time.monotonic()
    last_seen = 0.0
    while True:
        status = read_status(meta, name)
        seconds = time.monotonic() - start
        status = replace(status, tables=tuple(table for table in status.tables if table.source not in apart))
        reached = status.validated is not None and lsn_number(status.validated) >= position
        if reached:
            spots, remarks = tuple(status.blind_spots), tuple(status.not_compared)
            return Fence(name, lsn_text(position), True, seconds, status.open_errors, spots, remarks)
        on_wait(status)
        reason = ""
        # A process that has lost its session with the meta database may come back.
        last_seen = seconds if status.reason != GONE else last_seen
        is_gone = status.reason != GONE or seconds - last_seen > _GONE_SECONDS
        # A process that is starting has the lock already.
        if status.state != "running" and is_gone and not meta.is_running(name):
            reason = f"the validation is stopped: {status.reason or 'it was not started'}"
        elif seconds >= timeout:
            reason = _obstacle(meta, name, status, position)
        if reason:
            return Fence(name, lsn_text(position), False, seconds, status.open_errors, (reason, *status.blind_spots))
        time.sleep(every)


def _obstacle(meta: Meta, name: str, status: Status, position: int) -> str:
    """Return what the fence is waiting for."""
    if status.syncer is None or lsn_number(status.syncer) < position:
        return f"the syncer is at {status.syncer}, the fence at {lsn_text(position)}"
    oldest = meta.rows("oldest", name=name, limit=3)
    if oldest:
        keys = ", ".join(f"{row['source']} {row['key']}{' (hot)' if row['is_hot'] else ''}" for row in oldest)
        return f"{status.total('pending'):,} rows are not proven yet, the oldest are {keys}"
    return f"changes are read up to {status.position} only"
