"""The tasks of a diff."""

from __future__ import annotations

from dataclasses import dataclass

from trueup.rows.keys import Block, KeyValues
from trueup.task.compare.model import NOWHERE, CompareKeys


@dataclass(frozen=True)
class HashBlock:
    """Task: hash a block on these nodes, and find the rows that differ.

    The keys `inner` cut it into units that are hashed separately. `counted`: its rows are already counted. `dense`:
    most units are expected to differ, so its rows are marked without hashing the units first. With a `step`, only about
    that many rows are hashed, and the rest is handed back as another task.
    """

    block: Block
    nodes: tuple[str, ...]
    counted: bool = False
    inner: tuple[KeyValues, ...] = ()
    dense: bool = False
    step: int = 0
    origin: int = NOWHERE


@dataclass(frozen=True)
class CompareUnit:
    """Task: compare the rows of a small block that differs."""

    block: Block
    nodes: tuple[str, ...]
    origin: int = NOWHERE


Task = HashBlock | CompareUnit | CompareKeys


@dataclass(frozen=True)
class Ended:
    """Answer: a task of this block ended without an error."""

    origin: int
