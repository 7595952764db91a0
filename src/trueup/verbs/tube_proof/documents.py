"""Prove the documents of a sink in batches: each row as it would be written, and each document that has no row."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from psycopg import sql

from trueup.capture.triggers.batch import Key, Refused, parsed, texts, written
from trueup.capture.triggers.document import Document, Identity
from trueup.capture.triggers.enrich import RETRIES, Groups, enriched, fits
from trueup.capture.triggers.shape import Shape
from trueup.config.model import Node
from trueup.config.settings import DiffSettings
from trueup.db.connection import Connection
from trueup.db.node import connect, error_from_server
from trueup.db.reader import Reader
from trueup.sinks.base import DocumentSink, ListingSink, Shards, Sink
from trueup.sinks.keys import NEWEST
from trueup.verbs.tube_proof.flight import Flight
from trueup.verbs.tube_proof.model import TableProof

_PAGE = 2_000
_BYTES = 32 * 1024 * 1024
_EXAMPLES = 10
_APPLICATION = "trueup tube prove"


@dataclass
class DocumentProof:
    """The proof of one table."""

    node: Node
    shape: Shape
    # The shard of all rows; not used with a routing expression.
    shard: int
    sink: Sink
    documents: DocumentSink
    flight: Flight
    settings: DiffSettings
    _rows: int = 0
    _cut: int = 0
    _suspects: dict[Identity, str] = field(default_factory=dict)
    _unreadable: list[Refused] = field(default_factory=list)

    def run(self) -> TableProof:
        """Compare all rows and all documents, then the differences again."""
        with _opened(self.node) as reader:
            for keys in self._source_keys():
                self._rows += len(keys)
                self._compare(reader, keys)
            for keys in self._stored_keys():
                self._compare(reader, keys, only_extra=True)
            in_flight = self._recheck(reader)
        return self._proof(in_flight)

    def _recheck(self, reader: Reader) -> int:
        """Look at the differences again, until none is on its way or the number of re-checks is reached."""
        in_flight = 0
        flying: set[tuple[str, ...]] = self.flight.keys(self._keys())
        for _ in range(max(1, self.settings.recheck)):
            if not self._suspects:
                break
            time.sleep(self.settings.recheck_wait)
            flying = self.flight.keys(self._keys())
            before, self._suspects = self._suspects, {}
            places = [(shard, self._place(key)) for _, shard, key in before]
            for start in range(0, len(places), _PAGE):
                self._compare(reader, places[start : start + _PAGE])
            in_flight += len(before) - len(self._suspects)
        flying |= self.flight.keys(self._keys())
        left = {identity: kind for identity, kind in self._suspects.items() if identity[2] not in flying}
        in_flight += len(self._suspects) - len(left)
        self._suspects = left
        return in_flight

    def _keys(self) -> list[tuple[str, ...]]:
        return [key for _, _, key in self._suspects]

    def _compare(self, reader: Reader, places: Sequence[tuple[int, Key]], *, only_extra: bool = False) -> None:
        """Read the rows of keys as the tube does, and compare their documents."""
        groups = Groups(_PAGE, _BYTES)
        known = [place for place in places if fits(self.shape, place[1])]
        keys = {self.shape.source: dict.fromkeys(known, "B")}
        for chunk in enriched(reader, keys, {self.shape.source: self.shape}, groups, self._unreadable):
            chosen = [document for document in chunk if document.row is None or not only_extra]
            for identity, kind in self.documents.differing(chosen).items():
                if len(self._suspects) < self.settings.max_diff_rows:
                    self._suspects[identity] = kind
                else:
                    self._cut += 1
        # No row can have such a key: its document should not be there.
        odd = [place for place in places if not fits(self.shape, place[1])]
        gone = [Document(self.shape.table, shard, texts(key), "B", None) for shard, key in odd]
        self._suspects.update(self.documents.differing(gone))

    def _source_keys(self) -> Iterator[list[tuple[int, Key]]]:
        """Yield shard and key of the rows that the tube delivers."""
        shape = self.shape
        selected = shape.key_sql if shape.shard_sql is None else f"{shape.key_sql}, ({shape.shard_sql})::int8"
        query = sql.SQL("SELECT {} FROM {} r WHERE {}").format(
            *(sql.SQL(text) for text in (selected, shape.relation or "", shape.condition))
        )
        width = len(shape.key)
        with (
            _connected(self.node) as connection,
            connection.transaction(),
            connection.cursor(name="trueup_prove") as cursor,
        ):
            cursor.execute(query)
            while rows := cursor.fetchmany(_PAGE):
                keys = (row[0] if shape.is_integer else tuple(row[:width]) for row in rows)
                yield [(self._shard(row, width), key) for row, key in zip(rows, keys, strict=True)]

    def _shard(self, row: Sequence[Any], width: int) -> int:
        return self.shard if self.shape.shard_sql is None else int(row[width])

    def _stored_keys(self) -> Iterator[list[tuple[int, Key]]]:
        """Yield shard and key of all documents of the sink."""
        after: tuple[str, ...] | None = None
        shards: Shards = "all" if self.shape.shard_sql is not None else [self.shard]
        if isinstance(self.sink, ListingSink):
            for listed in self.sink.listed(self.shape.table, shards):
                yield [(shard, self._place(key)) for shard, key in listed]
            return
        while page := self.sink.older(self.shape.table, shards, *NEWEST, after, _PAGE):
            yield [(shard, self._place(key)) for shard, key in page]
            after = page[-1][1]

    def _place(self, key: tuple[str, ...]) -> Key:
        try:
            return parsed(written(key), self.shape)
        except ValueError:
            return key

    def _proof(self, in_flight: int) -> TableProof:
        counts = Counter(self._suspects.values())
        incomplete = []
        if self._cut:
            incomplete.append(f"{self._cut:,} more differences were not checked again (--max-diff-rows)")
        if self._unreadable:
            incomplete.append(f"{len(self._unreadable):,} keys could not be read: {self._unreadable[0].error}")
        if self._suspects:
            incomplete += self.flight.unfinished()
        return TableProof(
            table=self.shape.table,
            verdict="INCOMPLETE" if incomplete else "DIFFER" if self._suspects else "MATCH",
            rows=self._rows,
            missing=counts["missing"],
            changed=counts["changed"],
            extra=counts["extra"],
            in_flight=in_flight,
            incomplete=tuple(incomplete),
            remarks=("the sink was read without a snapshot",),
            examples=tuple(f"{kind} {', '.join(key)}" for (_, _, key), kind in [*self._suspects.items()][:_EXAMPLES]),
        )


@contextmanager
def _connected(node: Node) -> Iterator[Connection]:
    connection = connect(node, application=_APPLICATION)
    try:
        yield connection
    except Exception as error:
        raise error_from_server(error, node) from None
    finally:
        connection.close()


@contextmanager
def _opened(node: Node) -> Iterator[Reader]:
    reader = Reader(node, None, application=_APPLICATION, retries=RETRIES)
    try:
        yield reader
    finally:
        reader.close()
