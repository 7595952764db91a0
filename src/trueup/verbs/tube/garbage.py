"""Garbage collection: touches the documents that are older than a backfill or a TRUNCATE again, through the tube.

They are enriched and rewritten, or found absent and removed, like any other key, and never at the same time as a live
touch of the same key. The control pod is deleted when all of them are in the tube.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from trueup.capture.triggers.batch import written
from trueup.capture.triggers.hold import Hold
from trueup.capture.triggers.model import Pod
from trueup.capture.triggers.session import block
from trueup.capture.triggers.shape import Shape
from trueup.sinks.base import Sink

PAGE = 5_000


@dataclass
class _Round:
    partition: int
    pod: Pod
    after: tuple[str, ...] | None = None
    touched: int = 0


class Garbage:
    """The rounds of garbage collection that are not finished. One page at a time, so that live touches do not wait."""

    def __init__(self, hold: Hold, partitions: int) -> None:
        self._hold = hold
        self._partitions = partitions
        self._rounds: deque[_Round] = deque()

    def __bool__(self) -> bool:
        return bool(self._rounds)

    @property
    def pods(self) -> list[int]:
        """Return the numbers of the control pods of all rounds."""
        return [current.pod.seq for current in self._rounds]

    @property
    def sources(self) -> list[int]:
        """Return the sources of all rounds."""
        return [current.pod.source for current in self._rounds]

    def add(self, partition: int, pod: Pod) -> None:
        """Add a round for a control pod that reports the end of a backfill, or a TRUNCATE."""
        self._rounds.append(_Round(partition, pod))

    def step(self, sink: Sink, shapes: Mapping[int, Shape]) -> str:
        """Process one page of the first round; return a progress line at the end of a round.

        The sink must not be written at the same time.
        """
        current = self._rounds[0]
        payload = current.pod.message
        shape = shapes[current.pod.source]
        page = (
            ()
            if shape.relation is None
            else sink.older(
                shape.table,
                "all" if payload["shards"] == "all" else [int(payload["shards"])],
                int(payload["start_seq"]),
                _time(payload["started_at"]),
                current.after,
                PAGE,
            )
        )
        if page:
            current.after = page[-1][1]
            # With a routing expression, each partition collects the shards of its own.
            documents = [place for place in page if abs(place[0]) % self._partitions == current.partition]
            self._touch(shape, documents)
            current.touched += len(documents)
            return ""
        self._hold.acknowledge_control(current.partition, current.pod.seq)
        self._rounds.popleft()
        return f"{payload['type']} of {shape.table}: {current.touched:,} older documents are checked again"

    def _touch(self, shape: Shape, documents: list[tuple[int, tuple[str, ...]]]) -> None:
        session = self._hold.session
        query = block(session, "touch_again", pods=session.name(f"pods_{self._hold.tube}"))
        keys = [written(key) for _, key in documents]
        session.rows(
            query,
            {
                "tube": self._hold.tube,
                "source": shape.source,
                "shards": [shard for shard, _ in documents],
                "ids": [int(key) for key in keys] if shape.is_integer else [None] * len(keys),
                "keys": [None] * len(keys) if shape.is_integer else keys,
            },
        )


def _time(text: str) -> datetime:
    """Parse a time from JSON. PostgreSQL omits trailing zeros of the fraction, which Python 3.10 requires."""
    return datetime.fromisoformat(re.sub(r"\.(\d+)", lambda fraction: "." + fraction[1].ljust(6, "0"), text))
