"""Dead letters: keys that could not be delivered. Each is retried alone and parked after some attempts, never lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trueup.capture.triggers.batch import Batch, Refused, UnreadableKey, parsed, written
from trueup.capture.triggers.document import Mark
from trueup.capture.triggers.pods import park
from trueup.capture.triggers.session import Session, block
from trueup.capture.triggers.shape import Shapes
from trueup.verbs.tube.model import Job

_RETRIES_AT_ONCE = 20


@dataclass(frozen=True)
class Letter:
    """A key that could not be delivered. `next_at` None: it is parked until a later touch of the key succeeds."""

    tube: str
    table: str | None
    source: int
    shard: int
    key: str
    op: str
    error: str
    attempts: int
    first_at: datetime
    last_at: datetime
    next_at: datetime | None


class Letters:
    """The dead letters of the partitions of a job. Only that job creates and clears them."""

    def __init__(self, job: Job, partitions: int) -> None:
        self._session = job.session
        self._hold = job.hold
        self._where: dict[str, Any] = {"tube": job.tube, "partitions": partitions, "mine": list(job.hold.partitions)}
        self._where["aside"] = []
        self._tube = job.tube
        self._attempts, self._pause = job.options.attempts, job.options.retry_pause
        self.refresh()

    def refresh(self) -> None:
        """Count the dead letters again: `trueup tube dead-letters` may have dropped or retried some."""
        total, retrying = self._session.rows(block(self._session, "letters_open"), self._where)[0]
        self.count, self.retrying = int(total), int(retrying)

    def set_aside(self, sources: Sequence[int]) -> None:
        """Leave the dead letters of these sources alone: their rows cannot be read."""
        if self._where["aside"] != list(sources):
            self._where["aside"] = list(sources)
            self.refresh()

    def due(self, shapes: Shapes, mark: Mark) -> Iterator[Batch]:
        """Yield a batch of one key for each dead letter whose next attempt is due."""
        if not self.retrying:
            return
        rows = self._session.rows(block(self._session, "letters_due"), {**self._where, "most": _RETRIES_AT_ONCE})
        for source, shard, text, op in rows:
            shape = shapes.get([source]).get(source)
            batch = Batch({}, mark)
            if shape is None or shape.relation is None:
                self._refuse(batch, Refused(source, shard, text, op, "the table does not exist any more"))
            else:
                try:
                    batch.keys[source] = {(shard, parsed(text, shape)): op}
                except UnreadableKey as error:
                    self._refuse(batch, Refused(source, shard, text, op, str(error), is_unreadable=True))
                else:
                    yield batch

    def settle(self, batch: Batch, refused: Sequence[Refused]) -> int:
        """Record the refused keys of a batch and clear the delivered ones; return how many keys are parked now."""
        parked = 0
        if self.count:
            failed = {(refusal.source, refusal.shard, refusal.key) for refusal in refused}
            delivered = [
                (source, shard, text)
                for source, keys in batch.keys.items()
                for shard, key in keys
                if (source, shard, text := written(key)) not in failed
            ]
            self._session.rows(block(self._session, "letter_cleared"), {**self._where, **_columns(delivered)})
        if refused:
            parked = park(self._session, self._tube, refused, attempts=self._attempts, pause=self._pause)
        if refused or self.count:
            self.refresh()
        return parked

    def _refuse(self, batch: Batch, refused: Refused) -> None:
        self._hold.acknowledge(batch, also=lambda: self.settle(batch, [refused]))


def letters(session: Session, tube: str, *, keys: Sequence[str] | None = None, limit: int = 1000) -> list[Letter]:
    """Return the dead letters of a tube, newest first."""
    values = {"tube": tube, "keys": None if keys is None else list(keys), "most": limit}
    return [Letter(**row) for row in session.records(block(session, "letters"), values)]


def retry(session: Session, tube: str, *, keys: Sequence[str] | None = None) -> int:
    """Let the worker of the tube deliver dead letters again; return how many."""
    return _change(session, "letters_retry", tube, keys)


def drop(session: Session, tube: str, *, keys: Sequence[str] | None = None) -> int:
    """Delete dead letters; return how many."""
    return _change(session, "letters_drop", tube, keys)


def _change(session: Session, statement: str, tube: str, keys: Sequence[str] | None) -> int:
    values = {"tube": tube, "keys": None if keys is None else list(keys)}
    with session.errors():
        return session.connection.execute(block(session, statement), values).rowcount


def _columns(keys: Sequence[tuple[int, int, str]]) -> Mapping[str, Any]:
    sources, shards, texts = zip(*keys, strict=True) if keys else ((), (), ())
    return {"sources": list(sources), "shards": list(shards), "keys": list(texts)}
