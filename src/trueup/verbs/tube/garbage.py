"""Garbage collection: documents that are older than a backfill or a TRUNCATE are touched again, through the tube.

So they are enriched and rewritten, or found absent and removed, on the same path as all others, and never at the same
time as a live touch of the same key. Only when all of them are in the tube is the control pod deleted.
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
    """The rounds that are to be made, one page at a time, so that live touches need not wait."""

    def __init__(self, hold: Hold, partitions: int) -> None:
        self._hold = hold
        self._partitions = partitions
        self._rounds: deque[_Round] = deque()

    def __bool__(self) -> bool:
        return bool(self._rounds)

    @property
    def pods(self) -> list[int]:
        """The control pods that are being heeded."""
        return [each.pod.seq for each in self._rounds]

    @property
    def sources(self) -> list[int]:
        """The tables that they are of."""
        return [each.pod.source for each in self._rounds]

    def add(self, partition: int, pod: Pod) -> None:
        """Heed a control pod that ends a backfill, or tells of a TRUNCATE."""
        self._rounds.append(_Round(partition, pod))

    def step(self, sink: Sink, shapes: Mapping[int, Shape]) -> str:
        """One page of the first round; the sink must not be written meanwhile. Something to say at the end of one."""
        current = self._rounds[0]
        payload = current.pod.payload or {}
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
            # Of a table with a routing expression, every partition collects its own shards.
            mine = [each for each in page if abs(each[0]) % self._partitions == current.partition]
            self._touch(shape, mine)
            current.touched += len(mine)
            return ""
        self._hold.acknowledge_control(current.partition, current.pod.seq)
        self._rounds.popleft()
        return f"{payload['type']} of {shape.table}: {current.touched:,} older documents are looked at again"

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
    """A time as the server writes it into JSON, without zeros at the end of its fraction, which Python 3.10 wants."""
    return datetime.fromisoformat(re.sub(r"\.(\d+)", lambda found: "." + found[1].ljust(6, "0"), text))
