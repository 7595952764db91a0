"""A fence: a marker in the source's log. When all before it is proven or an error, the marker is validated."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trueup.capture.log.slot import lsn_number, lsn_text
from trueup.config.model import Node
from trueup.db.connection import Connection, one_row
from trueup.db.node import connect, error_from_server
from trueup.verbs.validate.meta import Meta
from trueup.verbs.validate.status import GONE, Status, read_status

MARK = "trueup fence"
_POLL_SECONDS = 0.1
_GONE_SECONDS = 15.0


@dataclass(frozen=True)
class Fence:
    """What came of a fence: validated or not, and with which errors."""

    name: str
    position: str
    validated: bool
    seconds: float
    errors: int
    # Why it is not validated, or what nobody looked at.
    reasons: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """As diff(1): 0 all proven, 1 with errors, 2 not validated, or not all of it."""
        if not self.validated or self.reasons:
            return 2
        return 1 if self.errors else 0

    def as_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {**self.__dict__, "reasons": list(self.reasons), "exit_code": self.exit_code}


def put_fence(source: Node) -> int:
    """Write the marker; gives the position behind it."""
    connection: Any = connect(source, application="trueup validate fence", read_only=False)
    try:
        return write_marker(connection)
    except Exception as error:
        raise error_from_server(error, source) from None
    finally:
        connection.close()


def write_marker(connection: Connection) -> int:
    """The same in a session that is open, in autocommit: all that was committed before is before the position."""
    connection.execute("SET synchronous_commit = local")
    row = one_row(connection.execute("SELECT (pg_logical_emit_message(true, %s, '') - '0/0')::int8", [MARK]))
    return int(row[0])


def wait_for(
    meta: Meta,
    name: str,
    position: int,
    *,
    timeout: float,
    every: float = _POLL_SECONDS,
    told: Callable[[Status], object] = lambda status: None,
) -> Fence:
    """Wait until all before a position is validated; `told` hears of each look that did not find it so."""
    began = time.monotonic()
    last_seen = 0.0
    while True:
        status = read_status(meta, name)
        seconds = time.monotonic() - began
        reached = status.validated is not None and lsn_number(status.validated) >= position
        if reached:
            return Fence(name, lsn_text(position), True, seconds, status.open_errors, tuple(status.blind_spots))
        told(status)
        reason = ""
        # One that has lost its session with the meta database for the moment comes back.
        last_seen = seconds if status.reason != GONE else last_seen
        if status.state != "running" and (status.reason != GONE or seconds - last_seen > _GONE_SECONDS):
            reason = f"the validation is stopped: {status.reason or 'start it'}"
        elif seconds >= timeout:
            reason = _why(meta, name, status, position)
        if reason:
            return Fence(name, lsn_text(position), False, seconds, status.open_errors, (reason, *status.blind_spots))
        time.sleep(every)


def _why(meta: Meta, name: str, status: Status, position: int) -> str:
    """What holds it back."""
    if status.syncer is None or lsn_number(status.syncer) < position:
        return f"the syncer is at {status.syncer}, and the fence at {lsn_text(position)}"
    oldest = meta.rows("oldest", name=name, most=3)
    if oldest:
        named_ones = ", ".join(f"{row['source']} {row['key']}{' (hot)' if row['is_hot'] else ''}" for row in oldest)
        return f"{status.total('pending'):,} changes are not proven yet, the oldest of {named_ones}"
    return f"changes were read to {status.position} only"
