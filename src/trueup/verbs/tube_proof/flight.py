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
# By value: a pod has the text 1.50 of a key that a comparison prints as 1.5.
_VALUES = (
    "SELECT DISTINCT k.key FROM {pods} p, unnest(p.keys) u(key) JOIN unnest(%s::text[]) k(key)"
    " ON {pod_value} = {value} WHERE p.source = %s"
)
_VALUE = (
    "(SELECT jsonb_agg(CASE WHEN e.n = ANY ({numeric}::int8[])"
    " THEN regexp_replace(e.part, '(\\.[0-9]*[1-9])0+$|\\.0+$', '\\1') ELSE e.part END ORDER BY e.n)"
    " FROM jsonb_array_elements_text({parts}) WITH ORDINALITY e(part, n))"
)
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
        if any("numeric" in name for name in self._shape.key_types):
            found = self._session.rows(self._by_value(), [list(by_text), self._shape.source])
        else:
            query = sql.SQL(_IDS if self._shape.is_integer else _TEXTS).format(self._pods)
            found = self._session.rows(query, [self._shape.source, list(by_text)])
        return {key for (text,) in found for key in by_text[text]}

    def _by_value(self) -> sql.Composed:
        """Return the query of keys that are in the tube in any scale of their decimals."""
        types = self._shape.key_types
        numeric = [number for number, name in enumerate(types, 1) if "numeric" in name]
        parts = "{}::jsonb" if len(types) > 1 else "jsonb_build_array({})"

        def value(key: str) -> sql.Composed:
            array = sql.SQL(parts).format(sql.SQL(key))
            return sql.SQL(_VALUE).format(numeric=sql.Literal(numeric), parts=array)

        return sql.SQL(_VALUES).format(pods=self._pods, pod_value=value("u.key"), value=value("k.key"))

    def unfinished(self) -> list[str]:
        """Return what concerns all documents of the table and is waiting in the tube."""
        waiting: Sequence[tuple[int]] = self._session.rows(sql.SQL(_CONTROLS).format(self._pods), [self._shape.source])
        if not waiting[0][0]:
            return []
        return ["the end of a backfill or a TRUNCATE is waiting in the tube: old documents are not removed yet"]
