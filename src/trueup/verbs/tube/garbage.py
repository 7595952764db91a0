"""Garbage collection: touches the documents that are older than a backfill or a TRUNCATE again, through the tube.

They are enriched and rewritten, or found absent and removed, like any other key, and never at the same time as a live
touch of the same key. The control pod is deleted when all of them are in the tube.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TypeAlias

from psycopg import sql

from trueup.capture.triggers.batch import written
from trueup.capture.triggers.document import Document, Mark
from trueup.capture.triggers.hold import Hold
from trueup.capture.triggers.model import Pod
from trueup.capture.triggers.pods import park
from trueup.capture.triggers.session import block
from trueup.capture.triggers.shape import Shape
from trueup.sinks.base import Sink
from trueup.verbs.tube.deliver import Delivery

PAGE = 5_000
# Shard and key of a document.
Place: TypeAlias = "tuple[int, tuple[str, ...]]"


@dataclass
class _Round:
    partition: int
    pod: Pod
    after: tuple[str, ...] | None = None
    touched: int = 0


class Garbage:
    """The rounds of garbage collection that are not finished. One page at a time, so that live touches do not wait."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
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

    def set_aside(self, sources: Collection[int]) -> None:
        """Forget the rounds of these sources; their control pods stay in the tube."""
        self._rounds = deque(current for current in self._rounds if current.pod.source not in sources)

    def step(self, sink: Sink, shapes: Mapping[int, Shape]) -> str:
        """Process one page of the first round; return a progress line at the end of a round.

        The sink must not be written at the same time.
        """
        current = self._rounds[0]
        payload = current.pod.message
        shape = shapes.get(current.pod.source)
        page = (
            ()
            if shape is None or shape.relation is None
            else sink.older(
                shape.table,
                # Documents of a table with a fixed shard may be from a time when it was attached with another one.
                "all" if payload["shards"] == "all" or shape.shard_sql is None else [int(payload["shards"])],
                int(payload["start_seq"]),
                _time(payload["started_at"]),
                current.after,
                PAGE,
            )
        )
        if page and shape is not None:
            documents = list(page) if shape.shard_sql is None else _of_pod(page, current.pod)
            self._remove(shape, documents, sink)
            if shape.shard_sql is None:
                documents = [(current.pod.shard, key) for _, key in documents]
            self._touch(shape, documents)
            current.after = page[-1][1]
            current.touched += len(documents)
            return ""
        self._hold.acknowledge_control(current.partition, current.pod.seq)
        self._rounds.popleft()
        return f"{payload['type']} of {payload['table']}: {current.touched:,} older documents are checked again"

    def _remove(self, shape: Shape, documents: list[Place], sink: Sink) -> None:
        """Remove documents whose keys no row can have, because the table had another key; the others stay listed.

        No touch can have such a key, so they need not go through the tube.
        """
        session, tube = self._hold.session, self._hold.tube
        query = sql.SQL("SELECT {}(%s, %s)").format(session.name("tube_unreadable_keys"))
        keys = [written(key) for _, key in documents]
        unreadable = {key for (key,) in session.rows(query, [shape.source, keys])}
        width = len(shape.key)
        gone = [
            place for place, key in zip(documents, keys, strict=True) if len(place[1]) != width or key in unreadable
        ]
        if gone:
            delivery = Delivery(sink, Mark(0, datetime.now(timezone.utc)), {shape.source: shape})
            delivery.write([Document(shape.table, shard, key, "B", None) for shard, key in gone])
            park(session, tube, [replace(refused, is_unreadable=True) for refused in delivery.refused])
            removed = set(gone)
            documents[:] = [place for place in documents if place not in removed]

    def _touch(self, shape: Shape, documents: list[Place]) -> None:
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


def _of_pod(page: Sequence[Place], pod: Pod) -> list[Place]:
    """Return the documents that a control pod is for.

    With a routing expression there is one pod per partition that the tube had, each for the shards of its partition.
    """
    partitions = pod.message.get("partitions")
    return [place for place in page if partitions is None or abs(place[0]) % int(partitions) == pod.shard]


def _time(text: str) -> datetime:
    """Parse a time from JSON. PostgreSQL omits trailing zeros of the fraction, which Python 3.10 requires."""
    return datetime.fromisoformat(re.sub(r"\.(\d+)", lambda fraction: "." + fraction[1].ljust(6, "0"), text))
