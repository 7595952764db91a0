"""The rolling sweep: block after block of the whole tables, so that rows which never changed are looked at too.

A block that differs is taken apart into keys, and these are judged like changed ones: a row that is on its way is no
error here either. A truncated table is swept the same way, for nothing else says which rows should be gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from trueup.config.model import Node
from trueup.db.reader import borrow
from trueup.errors import TrueupError
from trueup.rows.align import differing_keys
from trueup.rows.digest import boundaries, digest
from trueup.rows.fetch import hashes_in_block
from trueup.rows.keys import Block, KeyValues
from trueup.verbs.validate.look import of_table
from trueup.verbs.validate.plan import Pair

_RETRIES = 2


@dataclass(frozen=True)
class Swept:
    """One block: how many rows it has, which differ, and where the next one begins (None: the table is done)."""

    rows: int
    differing: tuple[KeyValues, ...]
    next: KeyValues | None


def sweep_block(
    pair: Pair,
    nodes: tuple[Node, Node],
    start: KeyValues | None,
    *,
    rows: int,
    application: str,
    timeout: float,
) -> Swept:
    """The block of about so many rows that begins at a key, on both sides."""
    try:
        return _swept(pair, nodes, start, rows, application, timeout)
    except TrueupError as error:
        raise of_table(error, pair.name) from None


def _swept(
    pair: Pair, nodes: tuple[Node, Node], start: KeyValues | None, rows: int, application: str, timeout: float
) -> Swept:
    source_node, target_node = nodes
    with (
        borrow(target_node, None, application=application, retries=_RETRIES) as target,
        borrow(source_node, None, application=application, retries=_RETRIES) as source,
    ):
        edges = boundaries(source, pair.source, Block(start, None), step=rows, steps=1, timeout=timeout)
        # Where the source has no further row, the target may have many: they are cut by its own keys.
        if not edges:
            edges = boundaries(target, pair.target, Block(start, None), step=rows, steps=1, timeout=timeout)
        end = edges[0] if edges and edges[0] != start else None
        block = Block(start, end)
        theirs = digest(target, pair.target, block, timeout=timeout)
        mine = digest(source, pair.source, block, timeout=timeout)
        if mine == theirs:
            return Swept(mine.count, (), end)
        sides = {
            "target": hashes_in_block(target, pair.target, block, timeout=timeout),
            "source": hashes_in_block(source, pair.source, block, timeout=timeout),
        }
        return Swept(mine.count, tuple(differing_keys(sides)), end)


class Pace:
    """At most a share of the time: after a block that took long, a longer pause."""

    def __init__(self, share: float) -> None:
        self.share = share
        self._next = 0.0

    def is_due(self) -> bool:
        """Whether the next block may begin."""
        return self.share > 0 and time.monotonic() >= self._next

    def timed(self, work: Callable[[], None]) -> None:
        """Do it, and rest as the share says."""
        began = time.monotonic()
        work()
        now = time.monotonic()
        self._next = now + (now - began) * (1 - self.share) / self.share
