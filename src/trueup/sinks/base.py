"""What a sink is: a small class that takes batches of documents, and knows which of its documents are old.

A sink gets the rows as they are now, keyed by table, shard and key; the row of a key that is gone is None. One key is
never in two batches at the same time, so a sink needs no versions: what is written last is true. A batch may come
again after a crash, whole or together with others: writing it twice must have no other effect than writing it once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

from trueup.capture.triggers.document import Document, Identity, Mark, SourceTable
from trueup.errors import TrueupError

__all__ = ["Document", "Identity", "Mark", "Shards", "Sink", "SinkDown", "SinkRejected", "SourceTable"]

Shards: TypeAlias = "Sequence[int] | Literal['all']"


class SinkDown(TrueupError):
    """The sink cannot be reached, or is too busy: the batch is written again after a pause, as long as it takes."""


class SinkRejected(TrueupError):
    """The sink refuses documents for what is in them, each with a reason.

    The others of the batch are written again without them, whether they were written or not. Without any reasons it
    means that some of the batch are refused, and it is not known which: the batch is halved until it is.
    """

    def __init__(self, message: str, *, reasons: Mapping[Identity, str] | None = None, **where: Any) -> None:
        super().__init__(message, **where)
        self.reasons: dict[Identity, str] = dict(reasons or {})

    def __reduce__(self) -> tuple[Callable[..., TrueupError], tuple[Any, ...]]:
        rebuild, args = super().__reduce__()
        return partial(rebuild, reasons=self.reasons), args


@runtime_checkable
class Sink(Protocol):
    """Where the documents go. It is pickled before `setup`, so connections are opened when they are first needed."""

    # Whether it must be written from one process (the driver): True for embedded databases.
    driver_only: ClassVar[bool]

    def setup(self, tables: Sequence[SourceTable]) -> None:
        """Make what is missing, and learn of the tables; again when one is attached or has other columns.

        It is called in the driver first, then on every copy that writes, and never while the same copy writes.
        """

    def write(self, batch: Sequence[Document], *, mark: Mark) -> None:
        """Put or delete each document of the batch, all or nothing or so that it can be repeated.

        A batch has each document once; batches that are written at the same time have no shard in common. Raises
        `SinkDown` or `SinkRejected`; any other error is taken for a refusal of the batch.
        """

    def older(
        self,
        table: str,
        shards: Shards,
        start_seq: int,
        started_at: datetime,
        after: tuple[str, ...] | None,
        most: int,
    ) -> Sequence[tuple[int, tuple[str, ...]]]:
        """Shard and key of documents of a table that were last written for a pod below `start_seq`, a page at a time.

        They come in an order of keys that is the sink's own; `after` is the last key of the page before. A key that is
        in several shards is whole in one page, which may be longer than `most` for it. More documents than those
        are allowed: what is touched once too often is only rewritten. A sink that keeps no marks gives all of them.
        """

    def close(self) -> None:
        """End connections; nothing more is written."""
