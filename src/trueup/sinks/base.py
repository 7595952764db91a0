"""The protocol of a sink: a class that writes batches of documents and finds its old documents.

A sink receives the current rows by table, shard and key; the row of a deleted key is None. A key is never in two
batches at the same time, so a sink needs no versions: the last write is correct. A batch may be repeated after a
crash, alone or together with others: writing it twice must have the same effect as writing it once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

from trueup.capture.triggers.document import Document, Identity, Mark, SourceTable
from trueup.config.model import Node
from trueup.errors import TrueupError

__all__ = [
    "CommittingSink",
    "Document",
    "DocumentSink",
    "Identity",
    "Mark",
    "Shards",
    "Sink",
    "SinkDown",
    "SinkRejected",
    "SourceTable",
    "SplittingSink",
    "StoredTable",
    "TableSink",
    "Target",
    "TaskWriter",
]

Shards: TypeAlias = "Sequence[int] | Literal['all']"


class SinkDown(TrueupError):
    """The sink cannot be reached or is overloaded: the batch is written again after a pause, until it succeeds."""


class SinkRejected(TrueupError):
    """The sink refuses documents because of their content, each with a reason.

    The other documents of the batch are written again without them. Without reasons, some documents are refused and the
    sink does not know which: the batch is halved until they are found.
    """

    def __init__(self, message: str, *, reasons: Mapping[Identity, str] | None = None, **where: Any) -> None:
        super().__init__(message, **where)
        self.reasons: dict[Identity, str] = dict(reasons or {})

    def __reduce__(self) -> tuple[Callable[..., TrueupError], tuple[Any, ...]]:
        rebuild, args = super().__reduce__()
        return partial(rebuild, reasons=self.reasons), args


@runtime_checkable
class Sink(Protocol):
    """The target of the documents. It is pickled before `setup`, so connections must be opened on first use."""

    # Whether a single process (the driver) must write: True for embedded databases.
    driver_only: ClassVar[bool]

    def setup(self, tables: Sequence[SourceTable]) -> None:
        """Create what is missing for these tables. Called again when a table is attached or its columns change.

        It is called on the driver first, then on every copy that writes, and never during a write of the same copy.
        """

    def write(self, batch: Sequence[Document], *, mark: Mark) -> None:
        """Write or delete each document of the batch, atomically or so that it can be repeated.

        A batch contains each document once; batches that are written at the same time have no common shard. Raises
        `SinkDown` or `SinkRejected`; any other error counts as a refusal of the batch.
        """

    def older(
        self,
        table: str,
        shards: Shards,
        start_seq: int,
        started_at: datetime,
        after: tuple[str, ...] | None,
        limit: int,
    ) -> Sequence[tuple[int, tuple[str, ...]]]:
        """Return one page of shard and key of documents that were last written for a pod below `start_seq`.

        Pages follow an order of keys that the sink chooses; `after` is the last key of the previous page. All shards of
        a key are in one page, which may exceed `limit` for that. Returning too many documents is allowed: they are
        only rewritten. A sink without marks returns all documents.
        """

    def close(self) -> None:
        """Close the connections; no write follows."""


@runtime_checkable
class SplittingSink(Protocol):
    """A sink whose copies may write documents of one shard at the same time, each with other keys."""

    splits_shards: ClassVar[bool]


class Target(Protocol):
    """What documents are written to: a sink, or the writer of a task."""

    def write(self, batch: Sequence[Document], *, mark: Mark) -> None:
        """Write or delete each document of the batch, as `Sink.write` does."""


class TaskWriter(Target, Protocol):
    """Writes the documents of one task of Spark. It is pickled on the driver."""

    def flush(self) -> None:
        """Write what is kept in memory; called after each chunk of documents. Raises SinkDown."""

    def finish(self) -> Sequence[Any]:
        """Close the connections and return what `commit` needs."""


@runtime_checkable
class CommittingSink(Protocol):
    """A sink that a single process writes on threads, but that tasks of Spark can write if the driver commits.

    A task may run twice, or be still running when its batch is over: what it writes must have no effect that the
    driver did not commit, or must be outdated by the next batch.
    """

    def begin(self, tables: Sequence[str]) -> TaskWriter:
        """Start a batch with keys of these tables, on the driver; return the writer for its tasks."""

    def part_of(self, table: str, key: tuple[str, ...], parts: int) -> int:
        """Return the number of the task, below `parts`, that has to write a key, with all its shards."""

    def commit(self, results: Sequence[Any]) -> None:
        """Make visible what the writers of all tasks returned; raise SinkDown if the batch must be repeated."""


@dataclass(frozen=True)
class StoredTable:
    """The table in which a sink stores the rows of a source table, as a node that can be compared."""

    node: Node
    table: str
    # Name of the source column -> name in the sink: those that the sink stores.
    columns: Mapping[str, str]
    # Whether key columns have the texts of keys; else, the values of the source.
    has_text_keys: bool
    # Whether the column trueup_shard is part of the identity.
    is_routed: bool


@runtime_checkable
class TableSink(Protocol):
    """A sink whose tables can be compared with their sources by digests."""

    def stored(self, source: SourceTable) -> StoredTable:
        """Return where the rows of a table are; create nothing. Raises CheckFailed if there is no such table."""


@runtime_checkable
class DocumentSink(Protocol):
    """A sink whose documents can be read one by one."""

    def know(self, tables: Sequence[SourceTable]) -> None:
        """Prepare `differing` and `older` for these tables; create nothing."""

    def differing(self, batch: Sequence[Document]) -> Mapping[Identity, str]:
        """Return the documents that are not as `write` would write them: missing, changed, or extra."""


@runtime_checkable
class ListingSink(Protocol):
    """A sink of documents that also lists those that other programs have written under its names."""

    def listed(self, table: str, shards: Shards) -> Iterator[Sequence[tuple[int, tuple[str, ...]]]]:
        """Yield shard and key of all documents of a table, in pages and in any order; some may be yielded twice."""
