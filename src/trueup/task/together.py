"""Ask all nodes at the same time: their answers should speak of the same moment, and waiting adds up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar, runtime_checkable

A = TypeVar("A")
B = TypeVar("B")


@runtime_checkable
class _Cancellable(Protocol):
    def cancel(self) -> None: ...


def together(things: Sequence[A], ask: Callable[[A], B]) -> list[B]:
    """`ask` for each thing on a thread of its own; answers in order; the first error is raised when all are done."""
    if len(things) == 1:
        return [ask(things[0])]
    with ThreadPoolExecutor(len(things), thread_name_prefix="trueup-node") as threads:
        futures = [threads.submit(ask, thing) for thing in things]
        try:
            return [future.result() for future in futures]
        except KeyboardInterrupt:
            # The threads are waited for, and their queries may take hours: end those first.
            for thing in things:
                if isinstance(thing, _Cancellable):
                    thing.cancel()
            raise
