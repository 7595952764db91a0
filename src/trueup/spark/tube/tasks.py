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
from trueup.capture.triggers.shape import Shapes
from trueup.config.model import Node
from trueup.db.reader import borrow
from trueup.errors import CheckFailed, TrueupError

# Minimum number of keys per task.
_MIN_KEYS = 500
_MAX_KEYS = 10_000


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
    """Yield the keys of a task, each once, with their current rows, then its control pods."""
    session = Session(task.node, task.schema)
    try:
        _check(session, task)
        partition_of = {seq: partition for partition, seq in task.numbers}
        claimed = [(partition_of[pod.seq], pod) for pod in pods.read(session, task.tube, list(partition_of))]
        shapes = Shapes(session, task.tube).get({pod.source for _, pod in claimed})
        for shape in shapes.values():
            # The driver claims no pods of such tables; this one has changed since the claim.
            if reason := unreadable(session, shape) if not shape.is_detached else shape.problem:
                raise CheckFailed(
                    [reason], cure="fix the table, then start the stream again", table=shape.table or None
                )
        batch = batch_of(claimed, shapes)
        refused: list[Refused] = []
        with borrow(task.node, None, application="trueup tube stream", retries=RETRIES) as reader:
            for chunk in enriched(reader, batch.keys, shapes, Groups(_MAX_KEYS, task.max_bytes), refused):
                _check(session, task)
                yield _documents(chunk, batch)
        # The rows of a table that does not exist any more do not exist either.
        for shape in [shape for shape in shapes.values() if shape.relation is None]:
            keys = batch.keys.get(shape.source, {})
            yield _documents(
                [Document(shape.table, shard, texts(key), op, None) for (shard, key), op in keys.items()], batch
            )
        parked = [*batch.unreadable, *(refusal for refusal in refused if refusal.is_unreadable)]
        if parked:
            # Parked, because no change of the row makes them readable; an attempt that is repeated parks them again.
            pods.park(session, task.tube, parked)
        if remaining := [refusal for refusal in refused if not refusal.is_unreadable]:
            first = remaining[0]
            raise TrueupError(
                f"key {first.key} of shard {first.shard}: {first.error}",
                cure="fix the row or the predicate: a stream cannot skip a key",
                table=shapes[first.source].table,
            )
        if batch.controls:
            yield _controls(batch, {source: shape.table for source, shape in shapes.items()})
    finally:
        session.close()


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
