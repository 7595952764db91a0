"""No check stops another: errors become findings, and who does not answer in time is left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from trueup.errors import TrueupError
from trueup.verbs.doctor.model import Finding, fail, failed

A = TypeVar("A")
T = TypeVar("T")


class Overdue(TrueupError):
    """Somebody did not answer in time."""


class Background(Generic[T]):
    """Something that is asked on a thread of its own, which nobody has to wait for: not even the end of the program."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._answer: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="trueup-doctor", daemon=True)
        self._begun = time.monotonic()
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer.append(self._ask())
        except BaseException as error:
            self._error = error

    def result(self, within: float) -> T:
        """The answer, or its error; Overdue when it is not there so many seconds after it was asked for."""
        self._thread.join(max(0.0, self._begun + within - time.monotonic()))
        if self._error is not None:
            raise self._error
        if not self._answer:
            raise Overdue(f"no answer within {within:g} seconds", cure="look whether it hangs, and ask again")
        return self._answer[0]


def all_at_once(things: Sequence[A], ask: Callable[[A], T], *, within: Callable[[A], float]) -> list[T | Exception]:
    """Ask for all things at the same time: answers or errors, in order."""
    asked = [(Background(_bound(ask, thing)), within(thing)) for thing in things]
    found: list[T | Exception] = []
    for background, seconds in asked:
        try:
            found.append(background.result(seconds))
        except Exception as error:
            found.append(error)
    return found


def _bound(ask: Callable[[A], T], thing: A) -> Callable[[], T]:
    return lambda: ask(thing)


def guarded(check: str, where: str, findings: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """The findings of a check; should it break, that is its finding."""
    try:
        yield from findings()
    except Exception as error:
        yield broken(check, where, error)


def broken(check: str, where: str, error: Exception) -> Finding:
    """A check that could not be made has failed."""
    if isinstance(error, TrueupError):
        return failed(check, where, error)
    cure = "this is a defect of trueup, or of what is named: please report it with this line"
    return fail(check, where, f"could not be checked: {type(error).__name__}: {error}", cure)
