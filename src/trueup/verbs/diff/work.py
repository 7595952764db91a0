"""The tasks of a diff and their results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from trueup.rows.keys import Block, KeyValues
from trueup.task.compare.model import NOWHERE, CompareKeys

T = TypeVar("T")


@dataclass(frozen=True)
class HashBlock:
    """Hash a block on these nodes; where it differs, go down to the rows. `counted`: its rows were counted before.

    The keys `inner` cut it into units that are hashed apart. In a `dense` block most units are expected to differ: its
    rows are marked one by one at once. With a `step`, only about so many of its rows are hashed at a time, and the rest
    comes back as another task.
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
    """Compare the rows of a block that is small enough and known to differ."""

    block: Block
    nodes: tuple[str, ...]
    origin: int = NOWHERE


Task = HashBlock | CompareUnit | CompareKeys


@dataclass(frozen=True)
class Ended:
    """A task of this block came to its end without an error."""

    origin: int
