"""Run the same question on several nodes at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_EXCEPTION, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from trueup.engine.waits import wait_for

A = TypeVar("A")
B = TypeVar("B")


@runtime_checkable
class _Cancellable(Protocol):
    def cancel(self) -> None: ...


def together(items: Sequence[A], ask: Callable[[A], B], *, cancel: Callable[[], object] | None = None) -> list[B]:
    """Call `ask` for each item in a thread of its own; return the answers in order.

    Ctrl-C cancels the items, and is raised when all calls have ended: none of them is left in the middle.

    An error is raised when all calls have ended. `cancel` is called at the first error and ends the other calls.
    """
    if len(items) == 1 and not isinstance(items[0], _Cancellable):
        return [ask(items[0])]
    with ThreadPoolExecutor(len(items), thread_name_prefix="trueup-node") as threads:
        futures = [threads.submit(ask, item) for item in items]
        try:
            done, _ = wait_for(futures, FIRST_EXCEPTION if cancel else ALL_COMPLETED)
        except KeyboardInterrupt:
            # The pool waits for its threads, whose queries may take hours.
            _cancel_all(items, cancel)
            raise
        failed = next((future for future in futures if future in done and future.exception()), None)
        if failed is not None:
            if cancel is not None:
                cancel()
            failed.result()
        return [future.result() for future in futures]


def _cancel_all(items: Sequence[Any], cancel: Callable[[], object] | None) -> None:
    if cancel is not None:
        cancel()
    for item in items:
        if isinstance(item, _Cancellable):
            item.cancel()


def both(first: Callable[[], A], second: Callable[[], B], *, cancel: Callable[[], object] | None = None) -> tuple[A, B]:
    """Call two functions at the same time and return both answers; errors as in `together`."""
    calls: list[Callable[[], Any]] = [first, second]
    one, other = together(calls, lambda call: call(), cancel=cancel)
    return cast("tuple[A, B]", (one, other))
