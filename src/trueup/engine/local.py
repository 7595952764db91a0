"""The engine for small work: the same functions on threads of this process, without a JVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from typing import Any, TypeVar

from trueup.engine.waits import wait_for
from trueup.engine.work import Room, Tasks, Work, perform, without_marks

T = TypeVar("T")


class LocalEngine:
    """Runs tasks on threads: the work is done by the nodes, so threads are enough."""

    name = "local"
    remarks: Sequence[str] = ()

    def __init__(self, slots: int) -> None:
        self.slots = self.max_slots = slots
        self._threads = ThreadPoolExecutor(slots, thread_name_prefix="trueup")

    def run(self, work: Work[T], tasks: Tasks[T]) -> Iterator[Any]:
        """Keep every slot busy until the queue is empty and no task is running."""
        running: set[Future[list[Any]]] = set()
        tasks.ran_on = self.name
        try:
            while True:
                for task in tasks.take(self.slots - len(running)):
                    running.add(self._threads.submit(answers_of, work, task))
                if not running:
                    return
                done, running = wait_for(running, FIRST_COMPLETED)
                for future in done:
                    yield from future.result()
                    tasks.finished()
        finally:
            for future in running:
                future.cancel()

    def interrupt(self) -> None:
        """Do nothing: stopping a run cancels the queries that the threads wait for."""

    def close(self) -> None:
        """Wait for the running tasks and end the threads."""
        self._threads.shutdown(wait=True, cancel_futures=True)


def answers_of(work: Work[T], task: T) -> list[Any]:
    """Return the answers of a task that is done in this thread."""
    return list(without_marks(perform(work, task, Room()), 1))
