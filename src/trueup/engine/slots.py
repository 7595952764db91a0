"""How many tasks run at once: a share of the cores, within the limit of connections per node."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Seconds between two counts through Spark Connect, each of which is a small job.
_COUNT_SECONDS = 10.0
# More rows than a cluster has cores, so that no partition is empty.
_ROWS_TO_COUNT = 1_000_000


@dataclass(frozen=True)
class Share:
    """The configured limits: a share of the cores or a fixed number of slots, and connections per node."""

    concurrency_factor: float = 1.0
    max_connections: int = 0
    fixed: int = 0

    @property
    def is_part(self) -> bool:
        """Whether not all cores may be used, also those of executors that start later."""
        return self.concurrency_factor < 1 or self.max_connections > 0

    def of(self, cores: int) -> int:
        """Return the slots on this many cores: at least two, or one with a factor of 0."""
        # With one slot the nodes are idle while the driver compares, and the driver while they hash.
        least = 2 if self.concurrency_factor else 1
        slots = self.fixed or max(least, math.floor(cores * self.concurrency_factor + 0.5))
        # One connection per node is for the driver.
        return min(slots, self.max_connections - 1) if self.max_connections else slots


def cores_here() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class IdleCores:
    """How many cores of this machine have had nothing to do since this object was made."""

    def __init__(self) -> None:
        self._before = psutil.cpu_times()

    def now(self) -> float:
        """Return the average number."""
        spent = [after - before for after, before in zip(psutil.cpu_times(), self._before, strict=True)]
        times = dict(zip(self._before._fields, spent, strict=True))
        idle = times["idle"] + times.get("iowait", 0.0)
        return float(idle / max(sum(spent), 0.001) * (psutil.cpu_count() or 1))


class Cores:
    """The cores of a Spark session, which change with the executors of a cluster."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._last = 0
        self._counted_at = 0.0

    def now(self) -> int:
        """Return the current number of cores, or spark.default.parallelism if it is set."""
        try:
            return int(self._session.sparkContext.defaultParallelism)
        except Exception:
            # Spark Connect has no context.
            return self._counted()

    def _counted(self) -> int:
        """Count the partitions of a range, which has one per core."""
        if not self._last or time.monotonic() - self._counted_at > _COUNT_SECONDS:
            parts = self._session.range(_ROWS_TO_COUNT).selectExpr("spark_partition_id() AS part")
            row = parts.groupBy().max("part").first()
            self._last = int(row[0]) + 1 if row else 1
            self._counted_at = time.monotonic()
        return self._last
