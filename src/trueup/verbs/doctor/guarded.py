"""Runs checks so that an error becomes a finding and a timeout does not stop the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Generic, TypeVar

from trueup.engine.failures import known_error
from trueup.errors import TrueupError
from trueup.verbs.doctor.model import Finding, fail, failed

A = TypeVar("A")
T = TypeVar("T")


class Overdue(TrueupError):
    """A check did not finish in time."""


class Background(Generic[T]):
    """A call in a daemon thread, which does not delay the end of the program."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="trueup-doctor", daemon=True)
        self._started = time.monotonic()
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result.append(self._call())
        except BaseException as error:
            self._error = error

    def result(self, within: float) -> T:
        """Return the result or raise its error; raise Overdue if it takes more than `within` seconds from the start."""
        self._thread.join(max(0.0, self._started + within - time.monotonic()))
        if self._error is not None:
            raise self._error
        if not self._result:
            raise Overdue(f"no answer within {within:g} seconds", cure="check whether it hangs, and run doctor again")
        return self._result[0]


def in_parallel(items: Sequence[A], call: Callable[[A], T], *, within: Callable[[A], float]) -> list[T | Exception]:
    """Call a function for all items in parallel, and return results or errors, in order."""
    started = [(Background(partial(call, item)), within(item)) for item in items]
    results: list[T | Exception] = []
    for background, seconds in started:
        try:
            results.append(background.result(seconds))
        except Exception as error:
            results.append(error)
    return results


def guarded(check: str, where: str, findings: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Yield the findings of a check; an error in the check becomes a finding."""
    try:
        yield from findings()
    except Exception as error:
        yield broken(check, where, error)


def broken(check: str, where: str, error: Exception) -> Finding:
    """Return the finding of a check that raised an error."""
    if known := known_error(error):
        return failed(check, where, known)
    cure = "report this as a bug of trueup, with this line"
    return fail(check, where, f"the check failed: {type(error).__name__}: {error}", cure)
