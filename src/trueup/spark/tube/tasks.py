"""The executor part of a stream: reads the pods of a task again, enriches their keys, and returns them as Arrow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from trueup.capture.triggers import pods
from trueup.capture.triggers.batch import Batch, Refused, batch_of, places, texts
from trueup.capture.triggers.document import Document
from trueup.capture.triggers.enrich import RETRIES, Groups, enriched
from trueup.capture.triggers.hold import check_generation
from trueup.capture.triggers.model import Pod
from trueup.capture.triggers.problems import unreadable
from trueup.capture.triggers.session import Session
from trueup.capture.triggers.shape import Shape, Shapes
from trueup.config.model import Node
from trueup.db.reader import Reader, borrow
from trueup.errors import QueryError, TrueupError

# Minimum number of keys per task.
_MIN_KEYS = 500
_MAX_KEYS = 10_000
# The columns of a table may change between the look at the catalog and the read: then the next attempt succeeds.
_ATTEMPTS = 3


@dataclass(frozen=True)
class StreamTask:
    """Pods of some shards of a batch, and the generations that the driver must still hold."""

    node: Node
    schema: str
    tube: str
    numbers: tuple[tuple[int, int], ...]
    generations: tuple[tuple[int, int], ...]
    max_bytes: int


def split_pods(claimed: Sequence[tuple[int, Pod]], max_tasks: int) -> list[list[tuple[int, int]]]:
    """Return (partition, number) of the pods of each task. Each shard is in exactly one task."""
    sizes: dict[int, int] = {}
    for _, pod in claimed:
        sizes[pod.shard] = sizes.get(pod.shard, 0) + pod.size + 1
    parts = max(1, min(max_tasks, sum(sizes.values()) // _MIN_KEYS))
    part_of = places(sizes, parts)
    tasks: list[list[tuple[int, int]]] = [[] for _ in range(parts)]
    for partition, pod in claimed:
        tasks[part_of[pod.shard]].append((partition, pod.seq))
    return [task for task in tasks if task]


def rows_of(task: StreamTask) -> Iterator[pa.RecordBatch]:
    """Yield the keys of a task, each once, with their current rows, then its control pods.

    The pods of a table whose rows cannot be read, because it has changed since the claim, are put back.
    """
    session = Session(task.node, task.schema)
    try:
        _check(session, task)
        yield from _Rows(session, task).read()
    finally:
        session.close()


class _Rows:
    """The rows of one task."""

    def __init__(self, session: Session, task: StreamTask) -> None:
        self._session = session
        self._task = task
        partition_of = {seq: partition for partition, seq in task.numbers}
        existing = pods.read(session, task.tube, list(partition_of), any_bytes=True)
        claimed = [(partition_of[pod.seq], pod) for pod in existing]
        self._shapes = Shapes(session, task.tube)
        self._known = dict(self._shapes.get({pod.source for _, pod in claimed}))
        self._batch = batch_of(claimed, self._known)
        self._refused: list[Refused] = list(self._batch.unreadable)
        self._put_back: set[int] = set()

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, then the control pods; park the keys that cannot be read."""
        task, batch = self._task, self._batch
        controls = {pod.source for _, pod in batch.controls if pod.op != "!"}
        with borrow(task.node, None, application="trueup tube stream", retries=RETRIES) as reader:
            for source in sorted({*batch.keys, *controls} & self._known.keys()):
                yield from self._table(reader, source)
        if parked := [refusal for refusal in self._refused if refusal.is_unreadable]:
            # Parked, because no change of the row makes them readable; an attempt that is repeated parks them again.
            pods.park(self._session, task.tube, parked)
        if remaining := [refusal for refusal in self._refused if not refusal.is_unreadable]:
            first = remaining[0]
            raise TrueupError(
                f"key {first.key} of shard {first.shard}: {first.error}",
                cure="fix the row or the predicate: a stream cannot skip a key",
                table=self._known[first.source].table,
            )
        batch.controls = [(at, pod) for at, pod in batch.controls if pod.op == "!" or pod.source not in self._put_back]
        if batch.controls:
            yield _controls(batch, {source: shape.table for source, shape in self._known.items()})

    def _table(self, reader: Reader, source: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one table, or put its pods back if they cannot be read."""
        for attempt in range(1, _ATTEMPTS + 1):
            if self._is_unreadable(source):
                _check(self._session, self._task)
                pods.put_back(self._session, self._task.tube, [seq for _, seq in self._task.numbers], source)
                self._put_back.add(source)
                return
            is_yielded = False
            try:
                for chunk in self._documents(reader, self._known[source]):
                    _check(self._session, self._task)
                    yield _documents(chunk, self._batch)
                    is_yielded = True
                return
            except QueryError as error:
                if error.sqlstate[:2] != "42" or attempt == _ATTEMPTS:
                    raise
                self._shapes.forget()
                self._known.update(self._shapes.get([source]))
                # A batch has each key once.
                if is_yielded and not self._is_unreadable(source):
                    raise

    def _is_unreadable(self, source: int) -> bool:
        shape = self._known[source]
        return not shape.is_detached and bool(unreadable(self._session, shape))

    def _documents(self, reader: Reader, shape: Shape) -> Iterator[Sequence[Document]]:
        keys = self._batch.keys.get(shape.source, {})
        if shape.relation is not None:
            groups = Groups(_MAX_KEYS, self._task.max_bytes)
            return enriched(reader, {shape.source: keys}, {shape.source: shape}, groups, self._refused)
        # The rows of a detached table that does not exist any more do not exist either.
        gone = [Document(shape.table, shard, texts(key), op, None) for (shard, key), op in keys.items()]
        return iter([gone] if gone else [])


def arrow_schema() -> pa.Schema:
    """Return the schema of the stream."""
    return pa.schema(
        [
            ("shard", pa.int64()),
            ("table", pa.string()),
            ("key", pa.list_(pa.string())),
            ("op", pa.string()),
            ("row", pa.string()),
            ("seq", pa.int64()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("control", pa.string()),
        ]
    )


def _check(session: Session, task: StreamTask) -> None:
    for partition, generation in task.generations:
        check_generation(session, task.tube, partition, generation)


def _documents(chunk: Sequence[Document], batch: Batch) -> pa.RecordBatch:
    count = len(chunk)
    columns = [
        [document.shard for document in chunk],
        [document.table for document in chunk],
        [list(document.key) for document in chunk],
        [document.op for document in chunk],
        [None if document.row is None else json.dumps(document.row, ensure_ascii=False) for document in chunk],
        [batch.mark.seq] * count,
        [batch.mark.at] * count,
        [None] * count,
    ]
    schema = arrow_schema()
    return pa.RecordBatch.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)], schema=schema
    )


def _controls(batch: Batch, tables: dict[int, str]) -> pa.RecordBatch:
    rows = [
        {
            "shard": pod.shard,
            "table": tables.get(pod.source),
            "key": None,
            "op": pod.op,
            "row": None,
            "seq": pod.seq,
            "at": pod.at,
            "control": json.dumps(pod.payload, ensure_ascii=False),
        }
        for _, pod in batch.controls
    ]
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema())
