"""Makes a class-data archive: runs small Spark jobs of the kinds that trueup runs, in a process of its own.

Java writes the archive when it ends, which takes seconds. A process that is killed meanwhile leaves a file with
another name, which the next one removes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from trueup.engine.archive import PART, Archive, remove_parts
from trueup.engine.jvm import end_session, start_callbacks
from trueup.engine.scratch import ScratchFolder
from trueup.engine.session import start_to_archive

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

_END_SECONDS = 600.0
# The archives that are kept: the most recently used ones of this many Java and PySpark versions.
_KEPT = 4


def _run_jobs(session: SparkSession, folder: str) -> None:
    """Run what loads the classes of a run: Python workers, a shuffle, files, a stream."""
    session.range(0, 4, 1, 4).mapInArrow(_same, "id bigint").toArrow()
    rows = session.range(100).selectExpr("id", "id % 7 AS k", "cast(id AS string) AS t", "array(id) AS a")
    rows.write.parquet(f"{folder}/rows")
    read = session.read.parquet(f"{folder}/rows")
    joined = read.join(read.groupBy("k").agg({"id": "sum", "t": "max"}), "k", "left").orderBy("id")
    joined.selectExpr("*", "row_number() OVER (PARTITION BY k ORDER BY id) AS n").write.parquet(f"{folder}/joined")
    session.read.parquet(f"{folder}/joined").limit(3).collect()
    stream = session.readStream.schema("id bigint").parquet(f"{folder}/rows")
    start_callbacks(session)
    writer = stream.writeStream.foreachBatch(_batch).trigger(availableNow=True)
    query = writer.option("checkpointLocation", f"{folder}/stream").start()
    query.awaitTermination(60)
    query.stop()


def _batch(batch: DataFrame, _: int) -> None:
    batch.mapInArrow(_same, batch.schema).collect()


def _same(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    yield from batches


# Writes the archive to a path, and returns the exit code of Java.
Train: TypeAlias = Callable[[Archive, Path], int]


def main() -> None:
    """Make the archive that is described on stdin."""
    order = json.load(sys.stdin)
    os.nice(10)
    make(Archive(**order))


def make(archive: Archive, train: Train | None = None) -> bool:
    """Make the archive unless another process does; return whether there is a new one."""
    try:
        lock = archive.lock()
    except BlockingIOError:
        return False
    try:
        if archive.is_ready():
            return False
        archive.remove_left()
        return _make(archive, train or _train)
    finally:
        os.close(lock)


def _make(archive: Archive, train: Train) -> bool:
    part = Path(f"{archive.path}.{os.getpid()}{PART}")
    try:
        for path in filter(None, (archive.path, archive.base)):
            archive.make_room(path)
        if archive.base:
            _make_base(archive)
        code = train(archive, part)
        if code == 0 and part.exists():
            archive.keep(part, archive.path)
            _remove_old(Path(archive.path).parent)
            return True
        # Java that was killed is no reason to wait before the next attempt.
        if code >= 0:
            archive.failed(f"Java ended with exit code {code}, without an archive")
    except Exception as error:
        archive.failed(str(error))
        raise
    finally:
        with suppress(OSError):
            part.unlink()
    return False


def _make_base(archive: Archive) -> None:
    """Make the archive of Java's own classes."""
    if Archive(archive.base, "", archive.java, {}).is_ready():
        return
    part = Path(f"{archive.base}.{os.getpid()}{PART}")
    command = [str(Path(archive.java) / "bin" / "java"), "-Xshare:dump", f"-XX:SharedArchiveFile={part}"]
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_END_SECONDS, check=False)
    if part.exists():
        archive.keep(part, archive.base)


def _train(archive: Archive, part: Path) -> int:
    """Run jobs, and return the exit code of Java, which has written the archive."""
    session = start_to_archive(part, archive)
    with ScratchFolder("trueup-archive-") as folder:
        try:
            # A job that fails here has loaded classes too.
            with suppress(Exception):
                _run_jobs(session, str(folder))
        finally:
            process = end_session(session)
    return process.wait(_END_SECONDS) if process is not None else 1


def _remove_old(folder: Path) -> None:
    """Remove the archives that were not used for the longest time, and what killed makers of others have left."""
    for pattern in ("spark-*.jsa", "java-*.jsa"):
        by_use = sorted(folder.glob(pattern), key=_time, reverse=True)
        for path in by_use[_KEPT:]:
            for each in (path, path.with_suffix(".json"), path.with_suffix(".failed")):
                with suppress(OSError):
                    each.unlink()
    remove_parts(folder)


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


if __name__ == "__main__":
    main()
