"""Hashes one block of a table on both nodes at the same time, and finds the keys that differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from trueup.config.model import Node
from trueup.db.reader import Reader, borrow
from trueup.rows.align import differing_keys
from trueup.rows.digest import Digest, boundaries, digest
from trueup.rows.fetch import hashes_in_block
from trueup.rows.keys import Block, KeyValues
from trueup.rows.spec import TableSpec, with_new_seed
from trueup.verbs.validate.plan import Pair

T = TypeVar("T")
_RETRIES = 2
# A block that has this many times the rows of a new one is split.
_SPLIT = 2


@dataclass(frozen=True)
class Hashed:
    """One block: its digest on the source with this seed, whether the target had the same one, the keys that differ.

    `rest` is the second part of a block that was split, and is not hashed yet.
    """

    block: Block
    seed: int
    digest: Digest
    is_equal: bool
    differing: tuple[KeyValues, ...]
    rest: Block | None


@dataclass(frozen=True)
class BlockReader:
    """Reads blocks of a table with sessions of both nodes."""

    pair: Pair
    nodes: tuple[Node, Node]
    application: str
    timeout: float
    executor: ThreadPoolExecutor

    def hash(self, block: Block, *, rows: int, known: int | None) -> Hashed:
        """Hash a block. If it has more than `rows` rows, hash its first part; `known` is its number of rows before."""
        first, rest = self._first_part(block, rows) if known is None or known > rows * _SPLIT else (block, None)
        # A seed for this block and this time only: a row that was made to fit it fits no later one.
        specs = with_new_seed(self.pair.source, self.pair.target)
        source, target = self._both(specs, lambda reader, spec: digest(reader, spec, first, timeout=self.timeout))
        if source == target:
            return Hashed(first, specs[0].seed, source, True, (), rest)
        rows_of = self._both(specs, lambda reader, spec: hashes_in_block(reader, spec, first, timeout=self.timeout))
        differing = differing_keys(dict(zip(("source", "target"), rows_of, strict=True)))
        return Hashed(first, specs[0].seed, source, False, tuple(differing), rest)

    def _first_part(self, block: Block, rows: int) -> tuple[Block, Block | None]:
        edges: list[KeyValues] = []
        # Behind the last row of the source, the target may have many rows: they are split by the keys of the target.
        for node, spec in zip(self.nodes, (self.pair.source, self.pair.target), strict=True):
            with borrow(node, None, application=self.application, retries=_RETRIES) as reader:
                edges = boundaries(reader, spec, block, step=rows, steps=1, timeout=self.timeout)
            if edges:
                break
        if not edges or edges[0] == block.start:
            return block, None
        return Block(block.start, edges[0]), Block(edges[0], block.end)

    def _both(self, specs: Sequence[TableSpec], read: Callable[[Reader, TableSpec], T]) -> tuple[T, T]:
        """Read both nodes at the same time: rows that change meanwhile are few."""

        def on(node: Node, spec: TableSpec) -> T:
            with borrow(node, None, application=self.application, retries=_RETRIES) as reader:
                return read(reader, spec)

        target = self.executor.submit(on, self.nodes[1], specs[1])
        try:
            source = on(self.nodes[0], specs[0])
        finally:
            # Its session is not used by anything else before it has ended.
            target.exception()
        return source, target.result()
