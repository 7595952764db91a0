"""The executors' half of a stream: the pods of a task are read again, their keys enriched, and sent on as Arrow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trueup.capture.triggers import pods
from trueup.capture.triggers.batch import Batch, batch_of, places, texts
from trueup.capture.triggers.document import Document
from trueup.capture.triggers.enrich import RETRIES, Groups, Refused, enriched
from trueup.capture.triggers.hold import check_generation
from trueup.capture.triggers.model import Pod
from trueup.capture.triggers.session import Session
from trueup.capture.triggers.shape import Shapes
from trueup.config.model import Node
from trueup.db.reader import borrow
from trueup.errors import TrueupError

if TYPE_CHECKING:
    import pyarrow as pa

# Fewer keys are not worth a task of their own.
_LEAST_KEYS = 500
_MOST_KEYS = 10_000


@dataclass(frozen=True)
class StreamTask:
    """The pods of some shards of a batch, and the generation that the driver must still have."""

    node: Node
    schema: str
    tube: str
    numbers: tuple[tuple[int, int], ...]
    generations: tuple[tuple[int, int], ...]
    most_bytes: int


def deal(claimed: Sequence[tuple[int, Pod]], most: int) -> list[list[tuple[int, int]]]:
    """(partition, number) of the pods of each task; one shard is in exactly one of them."""
    sizes: dict[int, int] = {}
    for _, pod in claimed:
        sizes[pod.shard] = sizes.get(pod.shard, 0) + len(pod.ids) + len(pod.keys or ()) + 1
    parts = max(1, min(most, sum(sizes.values()) // _LEAST_KEYS))
    place = places(sizes, parts)
    dealt: list[list[tuple[int, int]]] = [[] for _ in range(parts)]
    for partition, pod in claimed:
        dealt[place[pod.shard]].append((partition, pod.seq))
    return [each for each in dealt if each]


def rows_of(task: StreamTask) -> Iterator[pa.RecordBatch]:
    """The keys of a task, each once, with their rows as they are now; then its control pods."""
    session = Session(task.node, task.schema)
    try:
        _check(session, task)
        place = {seq: partition for partition, seq in task.numbers}
        claimed = [(place[pod.seq], pod) for pod in pods.read(session, task.tube, list(place))]
        shapes, _ = Shapes(session, task.tube).get({pod.source for _, pod in claimed})
        batch = batch_of(claimed, {source for source, shape in shapes.items() if len(shape.key) > 1})
        refused: list[Refused] = []
        with borrow(task.node, None, application="trueup tube stream", retries=RETRIES) as reader:
            for chunk in enriched(reader, batch.keys, shapes, Groups(_MOST_KEYS, task.most_bytes), refused):
                _check(session, task)
                yield _documents(chunk, batch)
        # Of tables that are gone, the rows are gone too.
        for shape in [each for each in shapes.values() if each.relation is None]:
            keys = batch.keys.get(shape.source, {})
            yield _documents(
                [Document(shape.table, each[0], texts(each[1]), op, None) for each, op in keys.items()], batch
            )
        if refused:
            first = refused[0]
            raise TrueupError(
                f"key {first.key} of shard {first.shard}: {first.error}",
                cure="mend the row or the predicate: a stream cannot leave a key out",
                table=shapes[first.source].table,
            )
        if batch.controls:
            yield _controls(batch, {source: shape.table for source, shape in shapes.items()})
    finally:
        session.close()


def arrow_schema() -> pa.Schema:
    """The columns of the stream."""
    import pyarrow as pa

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
    import pyarrow as pa

    count = len(chunk)
    columns = [
        [each.shard for each in chunk],
        [each.table for each in chunk],
        [list(each.key) for each in chunk],
        [each.op for each in chunk],
        [None if each.row is None else json.dumps(each.row, ensure_ascii=False) for each in chunk],
        [batch.mark.seq] * count,
        [batch.mark.at] * count,
        [None] * count,
    ]
    schema = arrow_schema()
    return pa.RecordBatch.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)], schema=schema
    )


def _controls(batch: Batch, tables: dict[int, str]) -> pa.RecordBatch:
    import pyarrow as pa

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
