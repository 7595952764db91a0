"""Run the work of a verb as a task of the task store."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from trueup.config.logs import log_fields
from trueup.engine.failures import known_error
from trueup.engine.progress import Progress, RecordedProgress, Silent
from trueup.errors import EngineError, Interrupted, NodeError, QueryError, StoreError
from trueup.store import COMPLETED, FAILED, INTERRUPTED, Task, TaskStore

_log = logging.getLogger(__name__)


class OpenTask:
    """A task that this process works on."""

    def __init__(self, store: TaskStore, task: Task, progress: Progress | None, on_interrupt: str) -> None:
        self.store = store
        self.task = task
        self.task_id = task.task_id
        # Shown to the user, and written to the task store as heartbeats.
        self.progress: Progress = RecordedProgress(progress or Silent(), self.heartbeat)
        # What was written on nodes and stays written if the task fails later: added to its error.
        self.written: list[str] = []
        self.on_interrupt = on_interrupt
        # What to do after a failure of a server, a disk or Spark, in addition to the cure of the error.
        self.on_failure = on_interrupt
        self._status, self._summary, self._error, self._report = COMPLETED, dict[str, object](), "", ""

    @property
    def short_id(self) -> str:
        """The start of the task's id, as the command line shows and accepts it."""
        return self.task_id[:8]

    def named(self, cure: str) -> str:
        """Return a cure with the id of this task."""
        return cure.replace("{task}", self.short_id)

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
        self._finish(self._status, self._error or None, summary=self._summary, report=self._report)

    def fail(self, status: str, error: str) -> str:
        """Write to the task store that the task failed or was interrupted; return the error with what was written."""
        text = "; ".join([error, *self.written])
        self._finish(status, text)
        return text

    def _finish(
        self, status: str, error: str | None, *, summary: Mapping[str, object] | None = None, report: str = ""
    ) -> None:
        try:
            self.store.finish(self.task_id, status, summary=summary, error=error, diff_file_path=report)
        except StoreError as failure:
            # It must not hide the result or the error of the work: a node may have been written.
            _log.error("the end of task %s (%s) is not in the task store: %s", self.short_id, status, failure)


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

    The block calls `finish` with its summary. An error in the block is recorded and raised again, an error of a driver
    as one of trueup; Ctrl-C is raised as Interrupted. Its cure is `on_interrupt`, in which `{task}` is replaced by the
    short id of the task. That is also what to do after a failure of a server, a disk or Spark.
    """
    task = store.start(task_type, cluster=cluster, schema=schema, table=table, context=context)
    with _recorded(OpenTask(store, task, progress, on_interrupt)) as opened:
        yield opened


@contextmanager
def reopen_task(
    store: TaskStore, task: Task, *, on_interrupt: str, progress: Progress | None = None
) -> Iterator[OpenTask]:
    """Continue a task that was interrupted or failed, under its id; otherwise like `open_task`."""
    with _recorded(OpenTask(store, store.reopen(task.task_id), progress, on_interrupt)) as opened:
        yield opened


@contextmanager
def _recorded(task: OpenTask) -> Iterator[OpenTask]:
    table = f"{task.task.schema}.{task.task.table_name}".strip(".")
    try:
        with log_fields(task=task.task_id, table=table):
            yield task
    except KeyboardInterrupt:
        text = task.fail(INTERRUPTED, "stopped by the user")
        raise Interrupted(text, cure=task.named(task.on_interrupt)) from None
    except BaseException as error:
        known = known_error(error)
        if known is None:
            task.fail(FAILED, type(error).__name__)
            for written in task.written:
                _log.error("%s", written)
            raise
        task.fail(INTERRUPTED if isinstance(known, Interrupted) else FAILED, str(known))
        known.message = "; ".join([known.message, *task.written])
        if isinstance(known, Interrupted):
            # Of a task that is a part of this one.
            known.cure = known.cure or task.named(task.on_interrupt)
        if isinstance(known, _PASSING):
            known.cure = "; ".join(filter(None, (known.cure, task.named(task.on_failure))))
        if known is error:
            raise
        raise known from error
    task.record()


# Failures after which the same command can succeed.
_PASSING = (NodeError, EngineError, StoreError, QueryError)
