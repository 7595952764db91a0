"""What engines run: a queue of tasks, a function that does one task, and the room for its answers.

Answers are sent to the driver, so their size is limited: work that has used up its room hands back the rest of its
task as new tasks (`More`), which the driver puts into the queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from trueup.engine.failures import error_of
from trueup.errors import EngineError, TrueupError

T = TypeVar("T")

# Bytes of answers that one slice may send to the driver in one wave.
ROOM = 4 * 1024 * 1024


class Room:
    """How many bytes a slice may still send to the driver."""

    def __init__(self, size: int = ROOM) -> None:
        self.left = size

    def take(self, size: int) -> None:
        """Use some of it."""
        self.left -= size

    @property
    def is_used_up(self) -> bool:
        """Whether work must stop and hand back the rest."""
        return self.left <= 0


Work = Callable[[T, Room], Iterable[Any]]


@dataclass(frozen=True)
class Failure:
    """A task that ended with an error: its rows were not compared."""

    task: Any
    error: TrueupError


@dataclass(frozen=True)
class More:
    """The tasks that replace a task that used up its room or its time; `origin` is the caller's number for them."""

    tasks: tuple[Any, ...]
    origin: int = -1


@dataclass(frozen=True)
class Finished:
    """The last answer of every task. Engines count them, so that a lost task is an error."""


class Tasks(Generic[T]):
    """A queue of tasks: the first ones, which are read lazily, and those that are added while others run.

    Before tasks are taken, `gate(count)` returns how many may start; it may block, or raise to end the run. `expected`
    is the number of the first tasks, as far as it is known. Only the thread that runs the queue uses it. Engines
    call `finished` for each task whose answers were all yielded.
    """

    def __init__(self, tasks: Iterable[T] = (), gate: Callable[[int], int] | None = None, *, expected: int = 0) -> None:
        self._first = iter(tasks)
        self._added: deque[T] = deque()
        self._gate = gate
        self._expected = expected
        # The engine of the answer that was yielded last.
        self.ran_on = ""
        # Tasks that were taken and are not finished.
        self.under_way = 0

    @property
    def left(self) -> int:
        """How many tasks are waiting, as far as it is known."""
        return len(self._added) + max(0, self._expected)

    def add(self, tasks: Iterable[T]) -> None:
        """Add tasks; they are taken before the first ones, so that started blocks are finished soon."""
        self._added.extend(tasks)

    def put_back(self, tasks: Sequence[T]) -> None:
        """Return tasks that were taken and have no answers; they are taken next."""
        self._added.extendleft(reversed(tasks))
        self.under_way -= len(tasks)

    def finished(self, count: int = 1) -> None:
        """Count tasks whose answers were all yielded."""
        self.under_way -= count

    def take(self, count: int) -> list[T]:
        """Return the next tasks, at most `count`; none if the queue is empty now."""
        if self._gate is not None and count > 0:
            count = self._gate(count)
        taken: list[T] = []
        while self._added and len(taken) < count:
            taken.append(self._added.popleft())
        first = list(islice(self._first, count - len(taken)))
        self._expected -= len(first)
        self.under_way += len(taken) + len(first)
        return taken + first

    def rest(self) -> list[T]:
        """Return all tasks that were not taken."""
        return [*self._added, *self._first]


class Engine(Protocol):
    """Runs tasks and yields their answers in any order, `slots` tasks at once, and never more than `max_slots`."""

    slots: int
    max_slots: int

    @property
    def name(self) -> str:
        """The engines that have run tasks: local, spark or local+spark."""
        ...

    @property
    def remarks(self) -> Sequence[str]:
        """Warnings of the engine."""
        ...

    def run(self, work: Work[T], tasks: Tasks[T]) -> Iterator[Any]:
        """Run the queue until it is empty; the caller may add tasks between answers."""
        ...

    def interrupt(self) -> None:
        """End the running tasks, from another thread; `run` then raises."""
        ...

    def close(self) -> None:
        """Close threads, sessions and connections."""
        ...


def perform(work: Work[T], task: T, room: Room) -> Iterator[Any]:
    """Yield the answers of one task, then Finished; an error becomes an answer, so that the other tasks continue."""
    try:
        yield from work(task, room)
    except Exception as error:
        yield Failure(task, error_of(error))
    yield Finished()


def without_marks(results: Iterable[Any], tasks: int, *, at_mark: Callable[[], object] = lambda: None) -> Iterator[Any]:
    """Yield the answers of this many tasks without Finished; raise if a task is not finished."""
    finished = 0
    for result in results:
        if isinstance(result, Finished):
            finished += 1
            at_mark()
        else:
            yield result
    check_finished(finished, tasks)


def check_finished(finished: int, tasks: int) -> None:
    """Raise if a task is not finished."""
    if finished != tasks:
        what = f"{tasks - finished} of {tasks} tasks did not finish"
        raise EngineError(
            what if finished < tasks else f"{tasks} tasks have {finished} ends",
            cure="check the logs of the executors, and run the command again",
        )
