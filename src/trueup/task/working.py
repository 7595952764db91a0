"""Around the work on a task: whatever stops it is written down before it goes on to the user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trueup.errors import Interrupted, TrueupError
from trueup.store.tasks import FAILED, INTERRUPTED, TaskStore


@contextmanager
def working(store: TaskStore, task_id: str, *, interrupted: str) -> Iterator[None]:
    """The block works on the task, whose good end the caller notes. Ctrl-C becomes an error with this cure."""
    try:
        yield
    except KeyboardInterrupt:
        store.finish(task_id, INTERRUPTED, error="stopped by the user")
        raise Interrupted("stopped by the user", cure=interrupted) from None
    except TrueupError as error:
        store.finish(task_id, INTERRUPTED if isinstance(error, Interrupted) else FAILED, error=str(error))
        raise
    except BaseException as error:
        store.finish(task_id, FAILED, error=type(error).__name__)
        raise
