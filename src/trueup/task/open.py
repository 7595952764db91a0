"""Run the work of a verb as a task of the task store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from trueup.config.logs import log_fields
from trueup.engine.progress import Progress, RecordedProgress, Silent
from trueup.errors import Interrupted, TrueupError
from trueup.store import COMPLETED, FAILED, INTERRUPTED, Task, TaskStore


class OpenTask:
    """A task that this process works on."""

    def __init__(self, store: TaskStore, task: Task, progress: Progress | None) -> None:
        self.store = store
        self.task = task
        self.task_id = task.task_id
        # Shown to the user, and written to the task store as heartbeats.
        self.progress: Progress = RecordedProgress(progress or Silent(), self.heartbeat)
        self._status, self._summary, self._error, self._report = COMPLETED, dict[str, object](), "", ""

    @property
    def short_id(self) -> str:
        """The start of the task's id, as the command line shows and accepts it."""
        return self.task_id[:8]

    def heartbeat(self, facts: Mapping[str, object]) -> None:
        """Record that the task is alive, and its progress."""
        self.store.heartbeat(self.task_id, facts)

    def request(self) -> str:
        """Return what another process requested of this task: 'pause', 'stop', or ''."""
        return self.store.wanted(self.task_id)

    def finish(self, summary: Mapping[str, object], *, failed: bool = False, error: str = "", report: str = "") -> None:
        """Set the outcome that is recorded when the block ends without an error."""
        self._status = FAILED if failed else COMPLETED
        self._summary, self._error, self._report = dict(summary), error, report

    def record(self) -> None:
        """Write the outcome to the task store."""
        self.store.finish(
            self.task_id,
            self._status,
            summary=self._summary,
            error=self._error or None,
            diff_file_path=self._report,
        )


@contextmanager
def open_task(
    store: TaskStore,
    task_type: str,
    *,
    on_interrupt: str,
    context: Mapping[str, object],
    cluster: str = "",
    schema: str = "",
    table: str = "",
    progress: Progress | None = None,
) -> Iterator[OpenTask]:
    """Record a new task, run the block as its work, and record how it ended.

    The block calls `finish` with its summary. An error in the block is recorded and raised again; Ctrl-C is raised as
    Interrupted with the cure `on_interrupt`, in which `{task}` is replaced by the short id of the task.
    """
    task = store.start(task_type, cluster=cluster, schema=schema, table=table, context=context)
    with _recorded(OpenTask(store, task, progress), on_interrupt) as opened:
        yield opened


@contextmanager
def reopen_task(
    store: TaskStore, task: Task, *, on_interrupt: str, progress: Progress | None = None
) -> Iterator[OpenTask]:
    """Continue a task that was interrupted or failed, under its id; otherwise like `open_task`."""
    with _recorded(OpenTask(store, store.reopen(task.task_id), progress), on_interrupt) as opened:
        yield opened


@contextmanager
def _recorded(task: OpenTask, on_interrupt: str) -> Iterator[OpenTask]:
    table = f"{task.task.schema}.{task.task.table_name}".strip(".")
    try:
        with log_fields(task=task.task_id, table=table):
            yield task
    except KeyboardInterrupt:
        task.store.finish(task.task_id, INTERRUPTED, error="stopped by the user")
        raise Interrupted("stopped by the user", cure=on_interrupt.replace("{task}", task.short_id)) from None
    except TrueupError as error:
        status = INTERRUPTED if isinstance(error, Interrupted) else FAILED
        task.store.finish(task.task_id, status, error=str(error))
        raise
    except BaseException as error:
        task.store.finish(task.task_id, FAILED, error=type(error).__name__)
        raise
    task.record()
