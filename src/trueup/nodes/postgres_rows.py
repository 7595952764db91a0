"""Read encoded rows of a PostgreSQL relation as Arrow batches: in this process, or in the tasks of Spark."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, Full, Queue, SimpleQueue
from threading import Event
from typing import TYPE_CHECKING

from psycopg import sql

from trueup.config.model import Node
from trueup.db.arrow import View, stream
from trueup.engine.envelope import packed, unpacked
from trueup.engine.garbage import freeze_imports
from trueup.engine.sealed import sealed, unsealed
from trueup.rows.canonical import decode_row, text_of
from trueup.rows.spec import ValueClass

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_BYTES = 4 * 1024 * 1024
# Classes for which an index of the first key column can be used.
ARRAYS: dict[ValueClass, str] = {"int": "int8[]", "text": "text[]", "uuid": "uuid[]"}
_HEX = "\\x"
# Seconds after which a reader that waits looks whether the others have failed.
_LOOK = 0.5


class Packed:
    """Work of a Python worker of Spark: no address is readable where Spark shows, logs or serves a function."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @classmethod
    def of(cls, work: object) -> Packed:
        """Return the work of an object with a method `run`."""
        return cls(sealed(packed(work)))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        work = unpacked(unsealed(self._data))
        freeze_imports()
        return work.run(batches)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class TaskSource:
    """Where the rows of statements come from: a node, and the snapshot that their sessions join."""

    node: Node
    view: View | None
    table: str
    is_view: bool

    def rows(self, query: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query."""
        yield from stream(
            self.node,
            query,
            view=self.view,
            table=self.table,
            block="",
            batch_bytes=_BATCH_BYTES,
            allow_views=self.is_view,
        )


def read_at_once(source: TaskSource, queries: Sequence[str], slots: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of queries, of which this many run at once; few batches wait in memory."""
    waiting: SimpleQueue[str] = SimpleQueue()
    for query in queries:
        waiting.put(query)
    # None: a thread has ended.
    found: Queue[pa.RecordBatch | Exception | None] = Queue(2 * slots)
    is_over = Event()

    def put(item: pa.RecordBatch | Exception | None) -> None:
        while not is_over.is_set():
            with suppress(Full):
                found.put(item, timeout=_LOOK)
                return

    def read() -> None:
        try:
            with suppress(Empty):
                while not is_over.is_set():
                    for batch in source.rows(waiting.get_nowait()):
                        put(batch)
            put(None)
        except Exception as error:
            put(error)

    with ThreadPoolExecutor(slots, thread_name_prefix="trueup-rows") as pool:
        try:
            running = len([pool.submit(read) for _ in range(slots)])
            while running:
                item = found.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    running -= 1
                else:
                    yield item
        finally:
            is_over.set()


@dataclass(frozen=True)
class ReadParts:
    """Work: run the queries whose numbers are in the batches."""

    source: TaskSource
    queries: tuple[str, ...]

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the queries."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self.source.rows(self.queries[number])


@dataclass(frozen=True)
class KeyQuery:
    """The rows of a relation, and the expressions of the encoded key and of its first column ('': no index)."""

    rows: str
    key: str
    first: str
    kind: ValueClass
    # The class of the first column here: an integer may be compared as a decimal.
    native: ValueClass

    def among(self, keys: Sequence[bytes]) -> str:
        """Return the query of the rows with these keys."""
        conditions = [f"{self.key} = ANY({_array(f'{_HEX}{key.hex()}' for key in keys)}::bytea[])"]
        if self.first:
            # Selects all rows with these keys, perhaps more, by an index.
            firsts = {text_of(self.kind, first) for key in keys if (first := decode_row(key)[0]) is not None}
            listed = _array(sorted(text for text in firsts if self._can_have(text)))
            conditions.insert(0, f"{self.first} = ANY({listed}::{ARRAYS[self.native]})")
        return " AND ".join([self.rows, *conditions])

    def _can_have(self, text: str) -> bool:
        """Return whether the first column can have a value."""
        if self.native == self.kind:
            # PostgreSQL has no such character.
            return "\0" not in text
        return re.fullmatch(r"-?\d+", text) is not None and -(2**63) <= int(text) < 2**63


def _array(texts: Iterable[str]) -> str:
    quoted = ('"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' for text in texts)
    return sql.Literal("{" + ",".join(quoted) + "}").as_string(None)


@dataclass(frozen=True)
class ReadKeys:
    """Work: read the current rows of the keys in the batches."""

    source: TaskSource
    query: KeyQuery

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the keys."""
        for batch in batches:
            keys = [bytes(key) for key in batch.column(0).to_pylist()]
            if keys:
                yield from self.source.rows(self.query.among(keys))
