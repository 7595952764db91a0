"""Dead letters: keys that could not be delivered, tried again alone, parked after some times, never forgotten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trueup.capture.triggers.batch import Batch, Key, parsed, written
from trueup.capture.triggers.enrich import Refused
from trueup.capture.triggers.session import Session, block
from trueup.capture.triggers.shape import Shape

ATTEMPTS = 5
PAUSE = 1.0
_AT_ONCE = 20


@dataclass(frozen=True)
class Letter:
    """A key that could not be delivered. `next_at` None: it is parked, until a later touch of it succeeds."""

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
    """The dead letters of the partitions that a worker has; it alone makes and clears them."""

    def __init__(
        self, session: Session, tube: str, partitions: int, mine: Sequence[int], *, attempts: int, pause: float
    ) -> None:
        self._session = session
        self._place = {"tube": tube, "partitions": partitions, "mine": list(mine)}
        self._patience = {"attempts": attempts, "pause": pause}
        self.count, self.trying = self._counted()

    def look(self) -> None:
        """How many there are now; somebody may have dropped some, or asked for another try."""
        self.count, self.trying = self._counted()

    def due(self) -> list[tuple[int, int, str, str]]:
        """Source, shard, key and operation of those that it is time to try again."""
        if not self.trying:
            return []
        rows = self._session.rows(block(self._session, "letters_due"), {**self._place, "most": _AT_ONCE})
        return [(source, shard, key, op) for source, shard, key, op in rows]

    def settle(self, batch: Batch, refused: Sequence[Refused]) -> int:
        """Note what a batch could not deliver, and take out what it could; gives how many are parked from now on."""
        parked = 0
        gone = {(each.source, each.shard, each.key) for each in refused}
        if self.count:
            clear = [
                (source, shard, text)
                for source, keys in batch.keys.items()
                for shard, key in keys
                if (source, shard, text := written(key)) not in gone
            ]
            self._session.rows(block(self._session, "letter_cleared"), {**self._place, **_columns(clear)})
        if refused:
            values = {
                **self._place,
                **self._patience,
                **_columns([(each.source, each.shard, each.key) for each in refused]),
                "ops": [each.op for each in refused],
                "errors": [each.error for each in refused],
            }
            rows = self._session.rows(block(self._session, "letter_refused"), values)
            parked = sum(is_parked for *_, is_parked in rows)
        if refused or self.count:
            self.look()
        return parked

    def _counted(self) -> tuple[int, int]:
        total, trying = self._session.rows(block(self._session, "letters_open"), self._place)[0]
        return int(total), int(trying)


def key_of(shape: Shape, text: str) -> Key:
    """The key of a letter, as batches have it."""
    if shape.is_integer:
        return int(text)
    return next(iter(parsed([text], is_composite=len(shape.key) > 1)))


def letters(session: Session, tube: str, *, keys: Sequence[str] | None = None, most: int = 1000) -> list[Letter]:
    """The dead letters of a tube, newest first."""
    values = {"tube": tube, "keys": None if keys is None else list(keys), "most": most}
    return [Letter(**row) for row in session.records(block(session, "letters"), values)]


def retry(session: Session, tube: str, *, keys: Sequence[str] | None = None) -> int:
    """Have letters tried again by whoever works on the tube; gives how many."""
    return _changed(session, "letters_retry", tube, keys)


def drop(session: Session, tube: str, *, keys: Sequence[str] | None = None) -> int:
    """Forget letters; gives how many."""
    return _changed(session, "letters_drop", tube, keys)


def _changed(session: Session, name: str, tube: str, keys: Sequence[str] | None) -> int:
    values = {"tube": tube, "keys": None if keys is None else list(keys)}
    with session.errors():
        return session.connection.execute(block(session, name), values).rowcount


def _columns(keys: Sequence[tuple[int, int, str]]) -> Mapping[str, Any]:
    sources, shards, texts = zip(*keys, strict=True) if keys else ((), (), ())
    return {"sources": list(sources), "shards": list(shards), "keys": list(texts)}
