"""Backfills requested by control pods: one at a time, in a background thread with a session of its own."""

from __future__ import annotations

import threading
import time
from collections import deque

from trueup.capture.triggers.backfill import backfill
from trueup.capture.triggers.model import Pod
from trueup.capture.triggers.session import Session
from trueup.config.model import Node
from trueup.errors import TrueupError

# Keys per transaction: few, so that live touches do not wait for locks and a stopped job ends soon.
_PART_KEYS = 100_000
_RETRY_SECONDS = 30.0


class Scheduled:
    """The requested backfills, and the one that is running."""

    def __init__(self, node: Node, schema: str, tube: str, *, retry_seconds: float = _RETRY_SECONDS) -> None:
        self._node = node
        self._schema = schema
        self._tube = tube
        self._retry_seconds = retry_seconds
        self._waiting: deque[tuple[int, Pod]] = deque()
        self._thread: threading.Thread | None = None
        self._error: TrueupError | None = None
        self._start_at = 0.0
        self._session: Session | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def pods(self) -> list[int]:
        """Return the numbers of the control pods that are not finished."""
        return [pod.seq for _, pod in self._waiting]

    def add(self, partition: int, pod: Pod) -> None:
        """Add the backfill that a control pod requests."""
        self._waiting.append((partition, pod))

    def step(self) -> tuple[tuple[int, Pod] | None, TrueupError | None]:
        """Start the next backfill if none is running.

        Return the partition and pod of a backfill that has finished, or the error of one that failed and is retried.
        """
        if self._thread is not None:
            if self._thread.is_alive():
                return None, None
            self._thread = None
            if self._error is not None:
                self._start_at = time.monotonic() + self._retry_seconds
                error, self._error = self._error, None
                return None, error
            return self._waiting.popleft(), None
        if self._waiting and time.monotonic() >= self._start_at:
            self._thread = threading.Thread(target=self._run, args=[self._waiting[0][1]], daemon=True)
            self._thread.start()
        return None, None

    @property
    def source(self) -> int | None:
        """Return the source of the first backfill."""
        return self._waiting[0][1].source if self._waiting else None

    def give_up(self) -> tuple[int, Pod]:
        """Remove the first backfill and return its partition and pod."""
        return self._waiting.popleft()

    def close(self) -> None:
        """Cancel the running backfill; the next worker of the tube continues it."""
        session = self._session
        if self._thread is not None and session is not None and session.is_open:
            session.connection.cancel_safe(timeout=5)
            self._thread.join(timeout=10)
        self._waiting.clear()
        self._thread = None

    def _run(self, pod: Pod) -> None:
        payload = pod.message
        try:
            with Session(self._node, self._schema) as session:
                self._session = session
                backfill(
                    session,
                    self._tube,
                    payload["table"],
                    order_col=payload.get("order_col") or "",
                    shard=payload.get("shard"),
                    part_keys=_PART_KEYS,
                    since=pod.at,
                )
        except TrueupError as error:
            self._error = error
