"""How many tasks run at once: a share of the cores, within the limit of connections per node."""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from trueup.engine.memory import CGROUP

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
    """Return the number of cores that this process may use, within the limit of its container."""
    return max(1, math.ceil(min(len(_allowed()), _container_cores())))


class IdleCores:
    """How many of the cores that this process may use have had nothing to do since this object was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._idle, self._used = _idle_seconds(), _container_seconds()

    def now(self) -> float:
        """Return the average number."""
        seconds = max(time.monotonic() - self._began, 0.001)
        idle = (_idle_seconds() - self._idle) / seconds
        left = _container_cores() - (_container_seconds() - self._used) / seconds
        return max(0.0, min(idle, left))


def _allowed() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _idle_seconds() -> float:
    """Return the time for which the allowed cores had nothing to do, since the start of the machine."""
    allowed, times = _allowed(), psutil.cpu_times(percpu=True)
    idle = [core.idle + getattr(core, "iowait", 0.0) for number, core in enumerate(times) if number in allowed]
    return float(sum(idle))


def _container_cores() -> float:
    """Return the limit of the container; without one, infinity."""
    with suppress(OSError, ValueError):
        limit, period = (CGROUP / "cpu.max").read_text().split()
        if limit != "max":
            return int(limit) / int(period)
    return math.inf


def _container_seconds() -> float:
    """Return the processor time that the container has used."""
    with suppress(OSError, ValueError, IndexError):
        return int((CGROUP / "cpu.stat").read_text().split("usage_usec ")[1].split()[0]) / 1e6
    return 0.0


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
