"""The background steps of a batch as Spark tasks, which read the rows and write them to their copy of the sink."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from trueup.capture.triggers.batch import Batch, Keys, places
from trueup.capture.triggers.document import Mark, SourceTable
from trueup.capture.triggers.enrich import RETRIES, Groups, enriched
from trueup.capture.triggers.hold import check_generation
from trueup.capture.triggers.session import Session
from trueup.capture.triggers.shape import Shape, tables_of
from trueup.config.model import Node
from trueup.db.reader import borrow
from trueup.engine.work import Engine, Failure, Room, Tasks
from trueup.sinks.base import Sink
from trueup.verbs.tube.deliver import Delivery
from trueup.verbs.tube.model import Job
from trueup.verbs.tube.pipeline import EnrichedBatch, LocalPipeline, Outcome


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
    sink: bytes
    tables: tuple[SourceTable, ...]
    refusals: int
    max_bytes: int


class SparkPipeline:
    """Spark tasks that read, write and return the refused keys. Each shard is in exactly one task."""

    keys_at_once = 200_000
    seconds_at_once = 3.0

    def __init__(self, engine: Engine, job: Job, node: Node, pickled: bytes) -> None:
        self._engine = engine
        self._job = job
        self._node = node
        self._pickled = pickled
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trueup-spark")
        self._tables: tuple[SourceTable, ...] = ()
        self._generations = tuple(job.hold.generations.items())

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
        tasks = [replace(task, keys=keys) for keys in split_keys(enriched.batch.keys, self._engine.slots)]
        outcome = Outcome(refused=list(enriched.batch.unreadable))
        failures: list[Failure] = []
        for result in self._engine.run(deliver_task, Tasks(tasks)):
            if isinstance(result, Failure):
                failures.append(result)
            else:
                outcome.add(result)
        if failures:
            raise failures[0].error
        return outcome

    def close(self) -> None:
        """Wait for the running wave."""
        self._thread.shutdown(wait=True, cancel_futures=True)


# An executor keeps its sink for the next task.
_sinks: dict[tuple[bytes, tuple[SourceTable, ...]], Sink] = {}


def deliver_task(task: SparkTask, room: Room) -> Iterator[Outcome]:
    """Read the rows of the keys of a task and write them, as long as the driver holds its locks."""
    outcome = Outcome()
    with (
        Session(task.node, task.schema) as session,
        borrow(task.node, None, application="trueup tube run", retries=RETRIES) as reader,
    ):
        groups = Groups(LocalPipeline.keys_at_once, task.max_bytes)
        sink = _sink_of(task)
        for chunk in enriched(reader, task.keys, task.shapes, groups, outcome.refused):
            for partition, generation in task.generations:
                check_generation(session, task.tube, partition, generation)
            delivery = Delivery(sink, task.mark, task.shapes, refusals=task.refusals)
            delivery.write(chunk)
            outcome.add(delivery)
    yield outcome


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


def split_keys(keys: Keys, parts: int) -> list[Keys]:
    """Split the keys of a batch into at most `parts` parts of similar size; all keys of a shard are in one part."""
    sizes: dict[int, int] = {}
    for operations in keys.values():
        for shard, _ in operations:
            sizes[shard] = sizes.get(shard, 0) + 1
    part_of = places(sizes, parts)
    lists: list[Keys] = [{} for _ in range(parts)]
    for source, operations in keys.items():
        for (shard, key), op in operations.items():
            lists[part_of[shard]].setdefault(source, {})[shard, key] = op
    return [part for part in lists if part]
