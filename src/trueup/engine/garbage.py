"""Garbage collection in the Python workers of Spark."""

from __future__ import annotations

import gc
from itertools import count

_tasks = count(1)


def freeze_imports() -> None:
    """Exclude imported objects from garbage collection; called at the start of each task of a worker.

    Spark runs a full collection after every task, which takes 30 ms with PySpark, pandas and trueup. Done in the first
    task and in the second one, because the first one imports more.
    """
    if next(_tasks) <= 2:
        gc.freeze()
