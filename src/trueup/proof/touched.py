"""Finds the block of a changed key, so that a block which no captured change has touched is known.

Keys are compared here as the database orders them. Where that is not known (a collation, a type of an extension), a
change touches all blocks of its table: nothing is taken for untouched by mistake.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any

from trueup.proof.model import CertificateBlock
from trueup.rows.keys import KeyValues
from trueup.rows.spec import KeySpec
from trueup.rows.types import type_of

_DAY = re.compile(r"\d{4}-\d\d-\d\d")
# A key of a type whose order is known, or None for a value outside of what is known.
_Order = Callable[[str], Any]


class Cuts:
    """The blocks of one table, searched by key; `watch` is the last watch of the validation.

    Blocks that were touched before the watch began count as untouched: it is recorded that they are touched in it.
    """

    def __init__(self, key: Sequence[KeySpec], blocks: Sequence[CertificateBlock], watch: int = 0) -> None:
        self._ids = [block.id for block in blocks]
        self.untouched = {block.id for block in blocks if not block.is_touched or block.touched_in < watch}
        self._orders = [_order_of(part) for part in key]
        self._starts: list[tuple[Any, ...]] | None = self._sorted([block.block.start for block in blocks[1:]])

    def touched_by(self, keys: Iterable[KeyValues]) -> set[int]:
        """Return the numbers of those untouched blocks that have one of the keys; they are touched from now on."""
        if not self.untouched:
            return set()
        found: set[int] = set()
        for key in keys:
            place = self._place(key)
            if place is None:
                found = set(self.untouched)
                break
            found.add(self._ids[place])
        found &= self.untouched
        self.untouched -= found
        return found

    def touch_all(self) -> set[int]:
        """Return the numbers of all untouched blocks; they are touched from now on."""
        found, self.untouched = self.untouched, set()
        return found

    def set_touched(self, number: int, *, is_touched: bool) -> None:
        """Note that a block was hashed again."""
        if is_touched:
            self.untouched.discard(number)
        else:
            self.untouched.add(number)

    def _place(self, key: KeyValues) -> int | None:
        if self._starts is None:
            return None
        if not self._starts:
            return 0
        place = self._comparable(key)
        return None if place is None else bisect_right(self._starts, place)

    def _sorted(self, starts: Sequence[KeyValues | None]) -> list[tuple[Any, ...]] | None:
        """Return the starts of the blocks as comparable values; None if their order is not known here."""
        values = [None if start is None else self._comparable(start) for start in starts]
        known = [value for value in values if value is not None]
        is_sorted = all(left < right for left, right in pairwise(known))
        return known if is_sorted and len(known) == len(values) else None

    def _comparable(self, key: KeyValues) -> tuple[Any, ...] | None:
        if len(key) != len(self._orders):
            return None
        values = []
        for order, text in zip(self._orders, key, strict=True):
            value = order(text) if order is not None else None
            if value is None:
                return None
            values.append(value)
        return tuple(values)


def _order_of(part: KeySpec) -> _Order | None:
    if part.order == "bytes":
        return _bytes
    return _ORDERS.get(type_of(part.column).value_class) if part.column.type.startswith('"pg_catalog".') else None


def _bytes(text: str) -> bytes | None:
    # The bytes of other characters depend on the encoding of the server.
    return text.encode() if text.isascii() else None


def _integer(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _decimal(text: str) -> Decimal | None:
    try:
        value = Decimal(text)
    except ArithmeticError:
        return None
    return value if value.is_finite() else None


def _day(text: str) -> str | None:
    # Not 'infinity', not before Christ, not after 9999.
    return text if _DAY.fullmatch(text) else None


def _uuid(text: str) -> str | None:
    return text.lower() if len(text) == 36 else None


_ORDERS: dict[str, _Order] = {"int": _integer, "decimal": _decimal, "date": _day, "uuid": _uuid}
