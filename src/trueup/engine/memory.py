"""The memory of the machine that is free, and Python's garbage collector while a run creates millions of objects."""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from trueup.errors import EngineError

_NEW_OBJECTS = 1_000_000
# What Spark and two Python workers use; a machine with less would end processes, maybe this one.
_SPARK_MB = 1_000
# Of a container: its limits, and what is used of them.
CGROUP = Path("/sys/fs/cgroup")

_lock = threading.Lock()
_before = gc.get_threshold()
_depth = 0


def check_memory_for_spark() -> None:
    """Raise EngineError if Spark on this machine would use more memory than is free."""
    free = free_megabytes()
    if free < _SPARK_MB:
        raise EngineError(
            f"Spark needs about {_SPARK_MB:,} MB of memory, and {free:,} MB are free",
            cure="free memory, or use --engine local",
        )


def free_megabytes() -> int:
    """Return the memory that processes can get, within the limit of the container."""
    free = psutil.virtual_memory().available
    with suppress(OSError, ValueError):
        limit, used = ((CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        if limit != "max":
            # Pages of files are counted as used, and given up when they are needed.
            pages = re.search(r"^inactive_file (\d+)$", (CGROUP / "memory.stat").read_text(), re.MULTILINE)
            free = min(free, int(limit) - int(used) + int(pages[1] if pages else 0))
    return max(0, int(free)) // 2**20


@contextmanager
def many_objects() -> Iterator[None]:
    """Raise the threshold of the garbage collector in the block, which saves a tenth of the time."""
    global _before, _depth
    with _lock:
        if not _depth:
            _before = gc.get_threshold()
            # 0: the program has switched it off.
            if _before[0]:
                gc.set_threshold(max(_before[0], _NEW_OBJECTS), *_before[1:])
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if not _depth:
                gc.set_threshold(*_before)
