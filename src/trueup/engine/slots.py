"""How many tasks at once: a share of the cores that do the work, within the connections that a node may get."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from typing import Any

# To count through Spark Connect is a small job; a cluster does not grow faster than this.
_COUNT_SECONDS = 10.0
# More rows than any cluster has cores, so that no partition is empty.
_ROWS_TO_COUNT = 1_000_000


@dataclass(frozen=True)
class Share:
    """What the user allows: a share of the cores or a number given by hand, and connections to a node at most."""

    concurrency_factor: float = 1.0
    max_connections: int = 0
    by_hand: int = 0

    def of(self, cores: int) -> int:
        """The slots on so many cores: at least two, unless a factor of 0 asks for one."""
        # With one, the nodes have nothing to do while we compare what they gave, and we while they hash.
        least = 2 if self.concurrency_factor else 1
        slots = self.by_hand or max(least, math.floor(cores * self.concurrency_factor + 0.5))
        # One connection of each node is the driver's.
        return min(slots, self.max_connections - 1) if self.max_connections else slots


def cores_here() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Cores:
    """The cores of a Spark session: a cluster's executors come and go, so it is asked again."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._last = 0
        self._counted = 0.0

    def now(self) -> int:
        """The cores that are there now; the setting spark.default.parallelism, where it is given, speaks for them."""
        try:
            return int(self._session.sparkContext.defaultParallelism)
        except Exception:
            # Spark Connect shows no context.
            return self._counted_by_a_job()

    def _counted_by_a_job(self) -> int:
        """A range is cut into as many partitions as there are cores."""
        if not self._last or time.monotonic() - self._counted > _COUNT_SECONDS:
            parts = self._session.range(_ROWS_TO_COUNT).selectExpr("spark_partition_id() AS part")
            self._last = int(parts.groupBy().max("part").first()[0]) + 1
            self._counted = time.monotonic()
        return self._last
