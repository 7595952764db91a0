"""Ask all nodes at the same time: their answers should speak of the same moment, and waiting adds up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


def together(things: Sequence[A], ask: Callable[[A], B]) -> list[B]:
    """`ask` for each thing on a thread of its own; answers in order; the first error is raised when all are done."""
    if len(things) == 1:
        return [ask(things[0])]
    with ThreadPoolExecutor(len(things), thread_name_prefix="trueup-node") as threads:
        return [future.result() for future in [threads.submit(ask, thing) for thing in things]]
