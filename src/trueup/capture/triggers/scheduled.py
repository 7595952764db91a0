"""Backfills that were asked for by a control pod: one at a time, beside the work, in a session of their own."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from trueup.capture.triggers.backfill import backfill
from trueup.capture.triggers.model import Pod
from trueup.capture.triggers.session import Session
from trueup.config.model import Node
from trueup.engine.progress import Silent
from trueup.errors import TrueupError

# Of a transaction: small enough that live touches wait for no lock, and a stopped job is soon at its end.
_PART_KEYS = 100_000
_TIMEOUT = 300.0
_AGAIN_SECONDS = 30.0


class Scheduled:
    """The backfills that wait, and the one that runs. A pod is given back when its backfill is in the tube."""

    def __init__(self, node: Node, schema: str, tube: str, *, again: float = _AGAIN_SECONDS) -> None:
        self._node = node
        self._schema = schema
        self._tube = tube
        self._again = again
        self._waiting: deque[tuple[int, Pod]] = deque()
        self._thread: threading.Thread | None = None
        self._error: TrueupError | None = None
        self._begin_at = 0.0
        self._session: Session | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def pods(self) -> list[int]:
        """The control pods that are being heeded."""
        return [pod.seq for _, pod in self._waiting]

    def add(self, partition: int, pod: Pod) -> None:
        """Heed a control pod."""
        self._waiting.append((partition, pod))

    def step(self) -> tuple[tuple[int, Pod] | None, TrueupError | None]:
        """Begin the next one if none runs; the pod of one that has ended, or its error, after which it begins again."""
        if self._thread is not None:
            if self._thread.is_alive():
                return None, None
            self._thread = None
            if self._error is not None:
                self._begin_at = time.monotonic() + self._again
                error, self._error = self._error, None
                return None, error
            return self._waiting.popleft(), None
        if self._waiting and time.monotonic() >= self._begin_at:
            self._thread = threading.Thread(target=self._run, args=[self._waiting[0][1].payload or {}], daemon=True)
            self._thread.start()
        return None, None

    def give_up(self) -> tuple[int, Pod]:
        """Forget the first one."""
        return self._waiting.popleft()

    def close(self) -> None:
        """End the one that runs; whoever works on the tube next goes on with it."""
        session = self._session
        if self._thread is not None and session is not None and session.is_open:
            session.connection.cancel_safe(timeout=5)
            self._thread.join(timeout=10)
        self._waiting.clear()
        self._thread = None

    def _run(self, payload: dict[str, Any]) -> None:
        session = self._session = Session(self._node, self._schema)
        try:
            backfill(
                session,
                self._tube,
                payload["table"],
                order_col=payload.get("order_col") or "",
                shard=payload.get("shard"),
                timeout=_TIMEOUT,
                restart=False,
                part_keys=_PART_KEYS,
                progress=Silent(),
            )
        except TrueupError as error:
            self._error = error
        finally:
            session.close()
