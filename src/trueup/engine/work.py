"""What engines run: a queue of tasks, a function that works on one, and room for its results.

A task's results travel to the driver, so their size is bounded: work that finds its room used up hands back what is
left of its task as new tasks, which the driver puts into the queue again.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from trueup.config.secrets import mask
from trueup.errors import EngineError, TrueupError

T = TypeVar("T")

# Bytes of results that one slice may bring home in one wave.
ROOM = 4 * 1024 * 1024


class Room:
    """How much a slice may still send home."""

    def __init__(self, size: int = ROOM) -> None:
        self.left = size

    def take(self, size: int) -> None:
        """Use up some of it."""
        self.left -= size

    @property
    def is_used_up(self) -> bool:
        """Whether work should stop and hand back the rest."""
        return self.left <= 0


Work = Callable[[T, Room], Iterable[Any]]


@dataclass(frozen=True)
class Failure:
    """A task that ended with an error; what it was to look at has not been looked at."""

    task: Any
    error: TrueupError


@dataclass(frozen=True)
class More:
    """The tasks that replace a task that used up its room or its time; `origin` is the caller's number for them."""

    tasks: tuple[Any, ...]
    origin: int = -1


@dataclass(frozen=True)
class Finished:
    """The last answer of every task: engines count them, so that no task can get lost without a word."""


class Tasks(Generic[T]):
    """A queue of tasks: given ones (read lazily), and those added while others run.

    Before tasks are taken the `gate` is asked how many of so many may be: it may wait, or raise to end the run.
    """

    def __init__(self, tasks: Iterable[T] = (), gate: Callable[[int], int] | None = None) -> None:
        self._given = iter(tasks)
        self._added: deque[T] = deque()
        self._gate = gate

    def add(self, tasks: Iterable[T]) -> None:
        """Put more tasks in; they go before the ones that were not begun yet, so that findings come out soon."""
        self._added.extend(tasks)

    def take(self, count: int) -> list[T]:
        """The next tasks, at most `count`; none when the queue is empty for now."""
        if self._gate is not None and count > 0:
            count = self._gate(count)
        taken: list[T] = []
        while self._added and len(taken) < count:
            taken.append(self._added.popleft())
        taken += islice(self._given, count - len(taken))
        return taken

    def rest(self) -> list[T]:
        """All that was not taken, for naming what was left out."""
        return [*self._added, *self._given]


class Engine(Protocol):
    """Runs tasks and yields results in any order; `slots` tasks are worked on at the same time, never over `most`."""

    name: str
    slots: int
    most: int

    def run(self, work: Work[T], tasks: Tasks[T]) -> Iterator[Any]:
        """Work on the queue until it is empty; the caller may add tasks between results."""
        ...

    def interrupt(self) -> None:
        """End what is under way, from another thread; its runs end with an error."""
        ...

    def close(self) -> None:
        """Let go of threads, sessions and connections."""
        ...


def perform(work: Work[T], task: T, room: Room) -> Iterator[Any]:
    """The results of one task, and that it is finished; an error becomes a result, so that the other tasks go on."""
    try:
        yield from work(task, room)
    except TrueupError as error:
        yield Failure(task, error)
    except Exception as error:
        # Not one of ours, so a defect: its place is worth more than its text.
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename.rpartition('/')[2]}:{place.lineno}"
        yield Failure(
            task,
            EngineError(
                f"unexpected {type(error).__name__} at {where}: {mask(str(error))}",
                cure="this is a defect of trueup: please report it with this line",
            ),
        )
    yield Finished()


def without_marks(results: Iterable[Any], tasks: int) -> Iterator[Any]:
    """The results of so many tasks; raises if one of them was never finished."""
    finished = 0
    for result in results:
        if isinstance(result, Finished):
            finished += 1
        else:
            yield result
    if finished != tasks:
        raise EngineError(
            f"{tasks - finished} of {tasks} tasks gave no answer", cure="look at the executors' logs, and run again"
        )
