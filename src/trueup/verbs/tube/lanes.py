"""How a batch goes from its keys to the sink: on threads of this process, or as Spark tasks, with the same functions.

In one process the rows of the next batch are read while this one is written. Batches are written one after the other:
so of two that have a key in common, the later one, which was read later, is written later. Inside of a batch, what has
no shard in common is written at the same time, each lane with a copy of the sink.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from trueup.capture.triggers.batch import Batch, Keys, places
from trueup.capture.triggers.enrich import RETRIES, Groups, Refused, enriched
from trueup.capture.triggers.hold import check_generation
from trueup.capture.triggers.session import Session
from trueup.capture.triggers.shape import Shape, tables_of
from trueup.config.model import Node
from trueup.db.reader import borrow, close_idle
from trueup.engine.work import Engine, Failure, Room, Tasks
from trueup.sinks.base import Document, Mark, Sink, SourceTable
from trueup.verbs.tube.deliver import Delivery

# Fewer documents are not worth a second lane.
_LEAST_FOR_LANES = 500


@dataclass
class Outcome:
    """What became of a batch: how many documents were written or removed, and what was refused."""

    written: int = 0
    removed: int = 0
    refused: list[Refused] = field(default_factory=list)

    def add(self, part: Outcome | Delivery) -> None:
        """Count a part of it."""
        self.written += part.written
        self.removed += part.removed
        self.refused += part.refused


class Prepared:
    """A batch whose rows are being read: a chunk or two, and the rest when those are written."""

    def __init__(self, batch: Batch, shapes: Mapping[int, Shape], chunks: Iterator[list[Document]]) -> None:
        self.batch = batch
        self.shapes = shapes
        self.outcome = Outcome()
        self.began = 0.0
        # How often the sink refused all of it.
        self.refusals = 0
        # Two, so that the session is free for the next batch where there is no more than one.
        self._ahead = [chunk for chunk in (next(chunks, None), next(chunks, None)) if chunk is not None]
        self._rest = chunks

    @property
    def chunk(self) -> list[Document] | None:
        """The chunk to write now; None when all are written."""
        return self._ahead[0] if self._ahead else None

    def chunk_done(self) -> None:
        """Go on to the next one."""
        self._ahead.pop(0)
        following = next(self._rest, None)
        if following is not None:
            self._ahead.append(following)


class Lanes(Protocol):
    """Two steps, each in the background. A write that raised SinkDown is called again with the same batch."""

    keys_at_once: int
    seconds_at_once: float

    def setup(self, shapes: Sequence[Shape]) -> None:
        """Tell the sink of its tables."""

    def prepare(self, batch: Batch, shapes: Mapping[int, Shape]) -> Future[Prepared]:
        """Begin to read the rows of a batch."""

    def write(self, prepared: Prepared) -> Future[Outcome]:
        """Write a batch that is prepared."""

    def close(self) -> None:
        """Wait for what is under way, and end connections."""


class LocalLanes:
    """Threads of this process; the servers do most of the work."""

    keys_at_once = 10_000
    seconds_at_once = 0.3

    def __init__(self, node: Node, sink: Sink, packed: bytes, *, lanes: int, most_bytes: int) -> None:
        self._node = node
        self._sinks: list[Sink] = [sink]
        if packed:
            self._sinks += [pickle.loads(packed) for _ in range(lanes - 1)]
        self._groups = Groups(self.keys_at_once, most_bytes)
        self._readers = ThreadPoolExecutor(1, thread_name_prefix="trueup-enrich")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="trueup-write")
        self._threads = ThreadPoolExecutor(len(self._sinks), thread_name_prefix="trueup-sink")

    def setup(self, shapes: Sequence[Shape]) -> None:
        """The first sink makes what is missing, the others only learn of it."""
        for sink in self._sinks:
            sink.setup(tables_of(shapes))

    def prepare(self, batch: Batch, shapes: Mapping[int, Shape]) -> Future[Prepared]:
        """Read the first rows."""
        return self._readers.submit(self._prepare, batch, shapes)

    def _prepare(self, batch: Batch, shapes: Mapping[int, Shape]) -> Prepared:
        refused: list[Refused] = []
        prepared = Prepared(batch, shapes, self._chunks(batch, shapes, refused))
        prepared.outcome.refused = refused
        return prepared

    def _chunks(self, batch: Batch, shapes: Mapping[int, Shape], refused: list[Refused]) -> Iterator[list[Document]]:
        with borrow(self._node, None, application="trueup tube run", retries=RETRIES) as reader:
            yield from enriched(reader, batch.keys, shapes, self._groups, refused)

    def write(self, prepared: Prepared) -> Future[Outcome]:
        """Chunk after chunk, each in as many lanes as it has shards."""
        prepared.began = time.monotonic()
        return self._writer.submit(self._write, prepared)

    def _write(self, prepared: Prepared) -> Outcome:
        while (chunk := prepared.chunk) is not None:
            deals = _by_shard(chunk, len(self._sinks))
            deliveries = [
                Delivery(sink, prepared.batch.mark, prepared.shapes, refusals=prepared.refusals)
                for sink in self._sinks[: len(deals)]
            ]
            running = [
                self._threads.submit(delivery.write, deal) for delivery, deal in zip(deliveries, deals, strict=True)
            ]
            errors = [error for each in running if (error := each.exception()) is not None]
            if errors:
                raise errors[0]
            for delivery in deliveries:
                prepared.outcome.add(delivery)
            prepared.chunk_done()
        return prepared.outcome

    def close(self) -> None:
        """Wait, and close the copies; the sink itself belongs to the caller."""
        for threads in (self._readers, self._writer, self._threads):
            threads.shutdown(wait=True, cancel_futures=True)
        for sink in self._sinks[1:]:
            sink.close()
        close_idle()


@dataclass(frozen=True)
class SparkTask:
    """Keys of some shards of a batch, and all that a worker needs to deliver them."""

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
    most_bytes: int


class SparkLanes:
    """Spark tasks that read, write and answer with what was refused; one shard is in exactly one of them."""

    keys_at_once = 200_000
    seconds_at_once = 3.0

    def __init__(
        self,
        engine: Engine,
        session: Session,
        tube: str,
        node: Node,
        sink: Sink,
        packed: bytes,
        *,
        generations: Mapping[int, int],
        most_bytes: int,
    ) -> None:
        self._engine = engine
        self._session = session
        self._tube = tube
        self._node = node
        self._sink = sink
        self._packed = packed
        self._most_bytes = most_bytes
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trueup-spark")
        self._tables: tuple[SourceTable, ...] = ()
        self._generations = tuple(generations.items())

    def setup(self, shapes: Sequence[Shape]) -> None:
        """Here first, then in each worker, which finds everything made."""
        self._tables = tuple(tables_of(shapes))
        self._sink.setup(self._tables)

    def prepare(self, batch: Batch, shapes: Mapping[int, Shape]) -> Future[Prepared]:
        """The tasks read for themselves."""
        ready: Future[Prepared] = Future()
        ready.set_result(Prepared(batch, shapes, iter(())))
        return ready

    def write(self, prepared: Prepared) -> Future[Outcome]:
        """One wave of tasks."""
        prepared.began = time.monotonic()
        return self._thread.submit(self._write, prepared)

    def _write(self, prepared: Prepared) -> Outcome:
        tasks = [
            SparkTask(
                self._node,
                self._session.schema,
                self._tube,
                self._generations,
                keys,
                prepared.shapes,
                prepared.batch.mark,
                self._packed,
                self._tables,
                prepared.refusals,
                self._most_bytes,
            )
            for keys in deal_keys(prepared.batch.keys, self._engine.slots)
        ]
        whole = Outcome()
        failures: list[Failure] = []
        for found in self._engine.run(deliver_task, Tasks(tasks)):
            if isinstance(found, Failure):
                failures.append(found)
            else:
                whole.add(found)
        if failures:
            raise failures[0].error
        return whole

    def close(self) -> None:
        """Wait for the wave that is under way."""
        self._thread.shutdown(wait=True, cancel_futures=True)


# A worker keeps its sink for the next task.
_sinks: dict[tuple[bytes, tuple[SourceTable, ...]], Sink] = {}


def deliver_task(task: SparkTask, room: Room) -> Iterator[Outcome]:
    """Read the rows of a task's keys and write them; not if the driver has lost its lock."""
    session = Session(task.node, task.schema)
    refused: list[Refused] = []
    outcome = Outcome(refused=refused)
    try:
        with borrow(task.node, None, application="trueup tube run", retries=RETRIES) as reader:
            groups = Groups(LocalLanes.keys_at_once, task.most_bytes)
            sink = _sink_of(task)
            for chunk in enriched(reader, task.keys, task.shapes, groups, refused):
                for partition, generation in task.generations:
                    check_generation(session, task.tube, partition, generation)
                delivery = Delivery(sink, task.mark, task.shapes, refusals=task.refusals)
                delivery.write(chunk)
                outcome.add(delivery)
    finally:
        session.close()
    yield outcome


def _sink_of(task: SparkTask) -> Sink:
    address = task.sink, task.tables
    if address not in _sinks:
        for old in _sinks.values():
            old.close()
        _sinks.clear()
        sink: Sink = pickle.loads(task.sink)
        sink.setup(task.tables)
        _sinks[address] = sink
    return _sinks[address]


def deal_keys(keys: Keys, parts: int) -> list[Keys]:
    """The keys of a batch in so many parts, all keys of a shard in the same one, evenly by number of keys."""
    sizes: dict[int, int] = {}
    for wanted in keys.values():
        for shard, _ in wanted:
            sizes[shard] = sizes.get(shard, 0) + 1
    place = places(sizes, parts)
    dealt: list[Keys] = [{} for _ in range(parts)]
    for source, wanted in keys.items():
        for (shard, key), op in wanted.items():
            dealt[place[shard]].setdefault(source, {})[shard, key] = op
    return [each for each in dealt if each]


def _by_shard(documents: list[Document], lanes: int) -> list[list[Document]]:
    if lanes == 1 or len(documents) < _LEAST_FOR_LANES:
        return [documents]
    sizes: dict[int, int] = {}
    for each in documents:
        sizes[each.shard] = sizes.get(each.shard, 0) + 1
    place = places(sizes, lanes)
    dealt: list[list[Document]] = [[] for _ in range(lanes)]
    for each in documents:
        dealt[place[each.shard]].append(each)
    return [each for each in dealt if each]


def packed(sink: Sink) -> bytes:
    """A sink that was not set up yet, for copies with connections of their own; nothing if it allows none."""
    if sink.driver_only:
        return b""
    try:
        return pickle.dumps(sink)
    except Exception:
        return b""
