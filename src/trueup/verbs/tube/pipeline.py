"""The two background steps of a batch, enrich and write, on threads of this process.

The rows of the next batch are read while the current one is written. Batches are written one after the other: of two
batches with a common key, the one that was read later is written later. Documents of different shards of a batch are
written in parallel, by one copy of the sink per thread.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from trueup.capture.triggers.batch import Batch, Refused, places
from trueup.capture.triggers.document import Document
from trueup.capture.triggers.enrich import RETRIES, Groups, enriched
from trueup.capture.triggers.shape import Shape, tables_of
from trueup.config.model import Node
from trueup.db.reader import borrow, close_idle
from trueup.errors import CheckFailed
from trueup.sinks.base import Sink
from trueup.verbs.tube.deliver import Delivery
from trueup.verbs.tube.model import Job
from trueup.verbs.tube.pace import Limits

# Batches with fewer documents are written by one thread.
_MIN_PARALLEL = 500


@dataclass
class Outcome:
    """The result of a batch: documents written and removed, and the refused keys."""

    written: int = 0
    removed: int = 0
    refused: list[Refused] = field(default_factory=list)

    def add(self, part: Outcome | Delivery) -> None:
        """Add the result of a part of the batch."""
        self.written += part.written
        self.removed += part.removed
        self.refused += part.refused

    def report(self, job: Job, batch: Batch, parked: int, engine: dict[str, Any]) -> None:
        """Add the result to the summary of a job, and write progress lines about refused keys."""
        summary, name = job.summary, engine["name"]
        job.hold.engine = engine
        summary.batches += 1
        summary.ran_on[name] = summary.ran_on.get(name, 0) + 1
        summary.keys += batch.size
        summary.written += self.written
        summary.removed += self.removed
        summary.refused += len(self.refused)
        summary.parked += parked
        for refused in self.refused[:3]:
            job.say(f"key {refused.key} of shard {refused.shard} was refused: {refused.error}")
        for table, keys in batch.superseded.items():
            job.say(f"skipped {keys:,} touches with the former key of {table}: a backfill replaces them")
        if parked:
            job.say(f"{parked:,} keys are parked; see trueup tube dead-letters {job.tube}")


class EnrichedBatch:
    """A batch with the rows of its keys, in chunks. Up to two chunks are in memory; the rest is read on demand."""

    def __init__(self, batch: Batch, shapes: Mapping[int, Shape], chunks: Iterator[list[Document]]) -> None:
        self.batch = batch
        self.shapes = shapes
        self.outcome = Outcome()
        self.started_at = 0.0
        # How often the sink refused all documents.
        self.refusals = 0
        # Two, so that the reading session of a batch with a single chunk is free for the next batch.
        self._ahead = [chunk for chunk in (next(chunks, None), next(chunks, None)) if chunk is not None]
        self._rest = chunks

    @property
    def chunk(self) -> list[Document] | None:
        """Return the chunk to write now; None when all chunks are written."""
        return self._ahead[0] if self._ahead else None

    def renew(self, fresh: EnrichedBatch) -> None:
        """Continue with the rows of the same batch, read again."""
        self.shapes, self.outcome = fresh.shapes, fresh.outcome
        self._ahead, self._rest = fresh._ahead, fresh._rest

    def chunk_done(self) -> None:
        """Continue with the next chunk."""
        self._ahead.pop(0)
        following = next(self._rest, None)
        if following is not None:
            self._ahead.append(following)


class Pipeline(Limits, Protocol):
    """The background steps. A write that raised SinkDown is repeated with the same batch."""

    @property
    def reads_ahead(self) -> bool:
        """Return whether the rows of the next batch are read while one is written."""
        ...

    @property
    def engine(self) -> dict[str, Any]:
        """What runs the steps and how fast it is, for the statistics."""
        ...

    def take_over(self) -> bool:
        """Change to another engine if one is ready; return whether. Nothing may be written, and `setup` must follow."""
        ...

    def check(self) -> None:
        """Raise EngineError if the engine has ended: without a batch, nothing else would notice. Called often."""

    def setup(self, shapes: Sequence[Shape]) -> None:
        """Announce the tables to the sink."""

    def enrich(self, batch: Batch, shapes: Mapping[int, Shape]) -> Future[EnrichedBatch]:
        """Start to read the rows of a batch."""

    def write(self, enriched: EnrichedBatch) -> Future[Outcome]:
        """Start to write a batch."""

    def interrupt(self) -> None:
        """End the running steps as far as possible, without their results; `close` must follow."""

    def close(self) -> None:
        """Wait for the running steps and close the connections."""


class LocalPipeline:
    """Threads of this process."""

    least_keys_at_once = 250
    keys_at_once = 10_000
    seconds_at_once = 0.3
    reads_ahead = True

    def __init__(self, node: Node, sink: Sink, pickled: bytes, *, threads: int, max_bytes: int) -> None:
        self._node = node
        self._sinks: list[Sink] = [sink]
        if pickled:
            self._sinks += [pickle.loads(pickled) for _ in range(threads - 1)]
        self._groups = Groups(self.keys_at_once, max_bytes)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="trueup-enrich")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="trueup-write")
        self._threads = ThreadPoolExecutor(len(self._sinks), thread_name_prefix="trueup-sink")

    @property
    def engine(self) -> dict[str, Any]:
        """Return the name of the engine."""
        return {"name": "local"}

    def take_over(self) -> bool:
        """Return False: it stays as it is."""
        return False

    def check(self) -> None:
        """Do nothing: threads do not end."""

    def setup(self, shapes: Sequence[Shape]) -> None:
        """Set up the sink, which creates its tables, then its copies."""
        for sink in self._sinks:
            sink.setup(tables_of(shapes))

    def enrich(self, batch: Batch, shapes: Mapping[int, Shape]) -> Future[EnrichedBatch]:
        """Start to read the first chunks."""
        return self._reader.submit(self._enrich, batch, shapes)

    def _enrich(self, batch: Batch, shapes: Mapping[int, Shape]) -> EnrichedBatch:
        refused = list(batch.unreadable)
        result = EnrichedBatch(batch, shapes, self._chunks(batch, shapes, refused))
        result.outcome.refused = refused
        return result

    def _chunks(self, batch: Batch, shapes: Mapping[int, Shape], refused: list[Refused]) -> Iterator[list[Document]]:
        with borrow(self._node, None, application="trueup tube run", retries=RETRIES) as reader:
            yield from enriched(reader, batch.keys, shapes, self._groups, refused)

    def write(self, enriched: EnrichedBatch) -> Future[Outcome]:
        """Write one chunk after the other, each on as many threads as it has shards."""
        enriched.started_at = time.monotonic()
        return self._writer.submit(self._write, enriched)

    def _write(self, enriched: EnrichedBatch) -> Outcome:
        while (chunk := enriched.chunk) is not None:
            parts = _by_shard(chunk, len(self._sinks))
            deliveries = [
                Delivery(sink, enriched.batch.mark, enriched.shapes, refusals=enriched.refusals)
                for sink in self._sinks[: len(parts)]
            ]
            running = [
                self._threads.submit(delivery.write, part) for delivery, part in zip(deliveries, parts, strict=True)
            ]
            errors = [error for future in running if (error := future.exception()) is not None]
            if errors:
                raise errors[0]
            for delivery in deliveries:
                enriched.outcome.add(delivery)
            enriched.chunk_done()
        return enriched.outcome

    def interrupt(self) -> None:
        """Do nothing: threads cannot be ended."""

    def close(self) -> None:
        """Wait for the threads and close the copies of the sink; the caller closes the sink itself."""
        for threads in (self._reader, self._writer, self._threads):
            threads.shutdown(wait=True, cancel_futures=True)
        for sink in self._sinks[1:]:
            sink.close()
        close_idle()


def set_up(pipeline: Pipeline, shapes: Sequence[Shape]) -> dict[int, str]:
    """Announce the tables to the sink; return those that it refuses with the reasons. Raise if it refuses all."""
    try:
        pipeline.setup(shapes)
    except CheckFailed:
        refused: dict[int, str] = {}
        for shape in shapes:
            try:
                pipeline.setup([shape])
            except CheckFailed as error:
                refused[shape.source] = f"the sink refuses it: {error.message}: {error.cure or 'change the target'}"
        accepted = [shape for shape in shapes if shape.source not in refused]
        if not refused or not tables_of(accepted):
            raise
        pipeline.setup(accepted)
        return refused
    return {}


def pickled(sink: Sink) -> bytes:
    """Pickle a sink before its setup, for copies with their own connections; empty if it does not allow copies."""
    if sink.driver_only:
        return b""
    try:
        return pickle.dumps(sink)
    except Exception:
        return b""


def _by_shard(documents: list[Document], parts: int) -> list[list[Document]]:
    """Distribute documents to at most `parts` lists; all documents of a shard are in the same list."""
    if parts == 1 or len(documents) < _MIN_PARALLEL:
        return [documents]
    sizes: dict[int, int] = {}
    for document in documents:
        sizes[document.shard] = sizes.get(document.shard, 0) + 1
    part_of = places(sizes, parts)
    lists: list[list[Document]] = [[] for _ in range(parts)]
    for document in documents:
        lists[part_of[document.shard]].append(document)
    return [part for part in lists if part]
