"""The rows of a frame of Spark in this process, one partition at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row


def local_rows(frame: DataFrame) -> Iterator[Row]:
    """Yield the rows of a frame; one partition is in memory.

    Not for a job that runs for weeks: the jobs of PySpark's iterator stay in the memory of the Java process.
    """
    rows: Any = frame.toLocalIterator()
    # If Java was killed, PySpark's iterator fails once more when it is deleted, and Python prints that. Its file is
    # closed before.
    of_generator = getattr(rows, "gi_frame", None)
    file = getattr(of_generator.f_locals.get("self"), "_sockfile", None) if of_generator is not None else None
    try:
        yield from rows
    except Exception:
        if file is not None:
            with suppress(OSError, ValueError):
                file.close()
        raise
