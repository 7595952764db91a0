"""Which keys are on their way: in a pod of the tube that is not acknowledged."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from psycopg import sql

from trueup.capture.triggers.batch import written
from trueup.capture.triggers.session import Session
from trueup.capture.triggers.shape import Shape

Key = tuple[str, ...]
_IDS = "SELECT DISTINCT u.id::text FROM {} p, unnest(p.ids) u(id) WHERE p.source = %s AND u.id = ANY (%s::int8[])"
_TEXTS = "SELECT DISTINCT u.key FROM {} p, unnest(p.keys) u(key) WHERE p.source = %s AND u.key = ANY (%s::text[])"
_CONTROLS = "SELECT count(*) FROM {} p WHERE p.source = %s AND p.payload IS NOT NULL"


class Flight:
    """The pods of one table."""

    def __init__(self, session: Session, tube: str, shape: Shape) -> None:
        self._session = session
        self._pods = session.name(f"pods_{tube}")
        self._shape = shape

    def keys(self, keys: Collection[Key]) -> set[Key]:
        """Return those of the keys that are in the tube; they may have the shard as their last part."""
        width = len(self._shape.key)
        by_text: dict[str, list[Key]] = {}
        for key in keys:
            by_text.setdefault(written(key[:width]), []).append(key)
        if not by_text:
            return set()
        query = sql.SQL(_IDS if self._shape.is_integer else _TEXTS).format(self._pods)
        found = self._session.rows(query, [self._shape.source, list(by_text)])
        return {key for (text,) in found for key in by_text[text]}

    def unfinished(self) -> list[str]:
        """Return what concerns all documents of the table and is waiting in the tube."""
        waiting: Sequence[tuple[int]] = self._session.rows(sql.SQL(_CONTROLS).format(self._pods), [self._shape.source])
        if not waiting[0][0]:
            return []
        return ["the end of a backfill or a TRUNCATE is waiting in the tube: old documents are not removed yet"]
