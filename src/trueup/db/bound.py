"""Values that do not stand in the text of a statement: sent as parameters where the protocol allows it.

The text of a running statement, and the last one of an idle session, can be read in pg_stat_activity by members of
pg_monitor and by every session of the same role.
"""

from __future__ import annotations

from typing import Any

from psycopg import sql
from psycopg.abc import AdaptContext
from psycopg.adapt import Transformer

_TYPES = {int: b"int8", str: b"text"}


class Bound(sql.Composable):
    """A number or a text that `bind` makes a parameter; a statement without parameters (COPY) has it as a literal."""

    def __init__(self, value: int | str) -> None:
        super().__init__(value)
        self.value = value

    def as_bytes(self, context: AdaptContext | None = None) -> bytes:
        """Return the parameter, or the literal."""
        if not isinstance(context, _Binding):
            return sql.Literal(self.value).as_bytes(context)
        place = context.places.setdefault(self.value, len(context.places) + 1)
        return b"$%d::pg_catalog.%s" % (place, _TYPES[type(self.value)])


class _Binding(Transformer):  # type: ignore[misc,valid-type]  # written in C, or in Python
    """Renders one query, and has the place of each bound value."""

    places: dict[int | str, int]


def bind(query: sql.Composable, context: AdaptContext | None) -> tuple[bytes, list[Any]]:
    """Return the text of a query, with `$1` for its first bound value, and the values: for a `psycopg.RawCursor`."""
    binding = _Binding(context)
    binding.places = {}
    text = query.as_bytes(binding)
    return text, list(binding.places)
