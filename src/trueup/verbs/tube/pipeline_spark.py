"""The background steps of a batch as Spark tasks, which read the rows and write them.

They write to their own copies of the sink, or, if the sink has to be committed by the driver, through the writer of the
batch: the driver commits what all tasks have written, if it still holds its locks.
"""

from __future__ import annotations

import pickle
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from trueup.capture.triggers.batch import Batch, Key, Keys, places, texts
from trueup.capture.triggers.document import Mark, SourceTable
from trueup.capture.triggers.enrich import RETRIES, Groups, enriched
from trueup.capture.triggers.hold import check_generation
from trueup.capture.triggers.session import Session
from trueup.capture.triggers.shape import Shape, tables_of
from trueup.config.model import Node
from trueup.db.reader import borrow, close_idle
from trueup.engine.spark import SparkEngine
from trueup.engine.work import Failure, Room, Tasks
from trueup.sinks.base import CommittingSink, Sink, SplittingSink, TaskWriter
from trueup.verbs.tube.deliver import Delivery
from trueup.verbs.tube.model import Job
from trueup.verbs.tube.pipeline import EnrichedBatch, LocalPipeline, Outcome

# Fewer keys are not worth a second task.
_MIN_KEYS = 200


@dataclass(frozen=True)
class SparkTask:
    """Keys of some shards of a batch, and everything that an executor needs to deliver them."""

    node: Node
    schema: str
    tube: str
    generations: tuple[tuple[int, int], ...]
    keys: Keys
    shapes: Mapping[int, Shape]
    mark: Mark
    # Not shown: it may contain a password.
    sink: bytes = field(repr=False)
    tables: tuple[SourceTable, ...]
    refusals: int
    max_bytes: int
    # Pickled, for each task its own: the writer of a sink that the driver commits.
    writer: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Written:
    """What the writer of a task returned."""

    results: Sequence[Any]


class SparkPipeline:
    """Spark tasks that read, write and return the refused keys. Each shard is in exactly one task, or each key."""

    # A Spark job takes about 0.1 s, however small it is, and longer on a busy machine: smaller batches are not faster.
    least_keys_at_once = 8_000
    # Batches are as short as those of threads: live touches wait for the batch that is being written.
    keys_at_once = 50_000
    seconds_at_once = 0.4
    # Nothing is read in this process: keys that are claimed early would only wait.
    reads_ahead = False

    def __init__(self, engine: SparkEngine, job: Job, node: Node, pickled: bytes) -> None:
        self._engine = engine
        self._batches = 0
        self._last = 0, 0.0
        self._job = job
        self._node = node
        self._pickled = pickled
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trueup-spark")
        self._tables: tuple[SourceTable, ...] = ()
        self._generations = tuple(job.hold.generations.items())

    @property
    def engine(self) -> dict[str, Any]:
        """Return the number of jobs and batches, and the size, the time and the rate of the last batch."""
        keys, seconds = self._last
        return {
            "name": "spark",
            "jobs": self._engine.jobs,
            "batches": self._batches,
            "batch_keys": keys,
            "batch_seconds": round(seconds, 3),
            "input_per_second": round(keys / seconds) if seconds else 0,
        }

    def take_over(self) -> bool:
        """Return False: it stays as it is."""
        return False

    def check(self) -> None:
        """Check the Java process of Spark."""
        self._engine.check()

    def setup(self, shapes: Sequence[Shape]) -> None:
        """Set up the sink here; the executors set up their copies, which find all tables created."""
        self._tables = tuple(tables_of(shapes))
        self._job.sink.setup(self._tables)

    def enrich(self, batch: Batch, shapes: Mapping[int, Shape]) -> Future[EnrichedBatch]:
        """Return the batch without rows: the tasks read them."""
        ready: Future[EnrichedBatch] = Future()
        ready.set_result(EnrichedBatch(batch, shapes, iter(())))
        return ready

    def write(self, enriched: EnrichedBatch) -> Future[Outcome]:
        """Start one wave of tasks."""
        enriched.started_at = time.monotonic()
        return self._thread.submit(self._write, enriched)

    def _write(self, enriched: EnrichedBatch) -> Outcome:
        task = SparkTask(
            self._node,
            self._job.session.schema,
            self._job.tube,
            self._generations,
            {},
            enriched.shapes,
            enriched.batch.mark,
            self._pickled,
            self._tables,
            enriched.refusals,
            self._job.options.max_bytes,
        )
        sink = self._job.sink
        if isinstance(sink, CommittingSink) and not self._pickled:
            outcome, results = self._run(self._tasks_of_writer(sink, task, enriched))
            self._check_locks()
            sink.commit(results)
        else:
            parts = split_keys(enriched.batch.keys, self._engine.slots, by_key=isinstance(sink, SplittingSink))
            outcome, _ = self._run([replace(task, keys=keys) for keys in parts])
        outcome.refused += enriched.batch.unreadable
        self._batches += 1
        self._last = enriched.batch.size, time.monotonic() - enriched.started_at
        return outcome

    def _tasks_of_writer(self, sink: CommittingSink, task: SparkTask, enriched: EnrichedBatch) -> list[SparkTask]:
        shapes, keys = enriched.shapes, enriched.batch.keys
        tables = sorted({shapes[source].table for source in keys if shapes[source].relation is not None})
        writer = pickle.dumps(sink.begin(tables))
        parts: list[Keys] = [{} for _ in range(self._engine.slots)]
        for source, operations in keys.items():
            table = shapes[source].table
            for (shard, key), op in operations.items():
                part = sink.part_of(table, texts(key), len(parts)) if table in tables else 0
                parts[part].setdefault(source, {})[shard, key] = op
        return [replace(task, keys=part, writer=writer) for part in parts if part]

    def _run(self, tasks: Sequence[SparkTask]) -> tuple[Outcome, list[Any]]:
        """Run the tasks; return what they did, and what the driver has to commit."""
        outcome, results = Outcome(), list[Any]()
        failures: list[Failure] = []
        for result in self._engine.run(deliver_task, Tasks(tasks)):
            if isinstance(result, Failure):
                failures.append(result)
            elif isinstance(result, Written):
                results += result.results
            else:
                outcome.add(result)
        if failures:
            raise failures[0].error
        return outcome, results

    def _check_locks(self) -> None:
        """Raise HoldLost if another worker has the locks; with a session of its own, because the job uses its own."""
        with Session(self._node, self._job.session.schema) as session:
            for partition, generation in self._generations:
                check_generation(session, self._job.tube, partition, generation)

    def interrupt(self) -> None:
        """End the running wave, and a Spark of this job: a Java process that hangs would keep it for minutes."""
        self._engine.interrupt()
        self._engine.close()

    def close(self) -> None:
        """Wait for the running wave."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        close_idle()


# An executor keeps its sink for the next task.
_sinks: dict[tuple[bytes, tuple[SourceTable, ...]], Sink] = {}


def deliver_task(task: SparkTask, room: Room) -> Iterator[Outcome | Written]:
    """Read the rows of the keys of a task and write them, as long as the driver holds its locks."""
    outcome = Outcome()
    with (
        Session(task.node, task.schema) as session,
        borrow(task.node, None, application="trueup tube run", retries=RETRIES) as reader,
    ):
        groups = Groups(LocalPipeline.keys_at_once, task.max_bytes)
        writer: TaskWriter | None = pickle.loads(task.writer) if task.writer else None
        sink = writer or _sink_of(task)
        for chunk in enriched(reader, task.keys, task.shapes, groups, outcome.refused):
            for partition, generation in task.generations:
                check_generation(session, task.tube, partition, generation)
            delivery = Delivery(sink, task.mark, task.shapes, refusals=task.refusals)
            delivery.write(chunk)
            if writer is not None:
                writer.flush()
            outcome.add(delivery)
    yield outcome
    if writer is not None:
        yield Written(writer.finish())


def _sink_of(task: SparkTask) -> Sink:
    identity = task.sink, task.tables
    if identity not in _sinks:
        for sink in _sinks.values():
            sink.close()
        _sinks.clear()
        sink = pickle.loads(task.sink)
        sink.setup(task.tables)
        _sinks[identity] = sink
    return _sinks[identity]


def split_keys(keys: Keys, parts: int, *, by_key: bool = False) -> list[Keys]:
    """Split the keys of a batch into at most `parts` parts of similar size.

    All shards of a key are in one part (`by_key`), or all keys of a shard.
    """
    sizes: dict[int, int] = {}
    for operations in keys.values():
        for shard, _ in operations:
            sizes[shard] = sizes.get(shard, 0) + 1
    parts = min(parts, -(-sum(sizes.values()) // _MIN_KEYS)) if by_key else parts
    part_of = places(sizes, parts)
    lists: list[Keys] = [{} for _ in range(parts)]
    for source, operations in keys.items():
        for (shard, key), op in operations.items():
            number = _number_of(key) % parts if by_key else part_of[shard]
            lists[number].setdefault(source, {})[shard, key] = op
    return [part for part in lists if part]


def _number_of(key: Key) -> int:
    return key if isinstance(key, int) else zlib.crc32("\0".join(key).encode())
