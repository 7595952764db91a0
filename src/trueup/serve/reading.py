"""What pages read from the task stores: pages of tasks, one task, and the runs of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from trueup.errors import StoreError
from trueup.serve.collector import Collector
from trueup.serve.views import link_to
from trueup.store import Task, browse
from trueup.store.browse import Filter
from trueup.store.history import TableRun, TableState

# Tasks on a page.
PAGE = 50
Scope = tuple[str, str, str]


class Reading:
    """Reads all task stores; one that cannot be read does not hide the others."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def trends(self, states: Sequence[TableState], limit: int) -> dict[Scope, list[TableRun]]:
        """Return the last runs of tables, the newest first."""
        found: dict[Scope, list[TableRun]] = {}
        scopes = [scope_of(state.run) for state in states]
        for path in self._readable():
            for run in browse.trends(path, scopes, limit):
                found.setdefault(scope_of(run), []).append(run)
        return {scope: _newest(runs, limit) for scope, runs in found.items()}

    def runs(self, state: TableState, limit: int) -> list[TableRun]:
        """Return the last runs of a table, the newest first."""
        run = state.run
        found: list[TableRun] = []
        for path in self._readable():
            found += browse.runs(path, run.table_name, run.cluster_name, run.nodes, limit)
        return _newest(found, limit)

    def report_of(self, runs: Sequence[TableRun]) -> str:
        """Return the path of the last report of a table."""
        for run in runs:
            if run.mode != "check":
                found = self.find(run.task_id)
                return found[1].diff_file_path if found else ""
        return ""

    def tasks(self, query: Mapping[str, str]) -> tuple[Filter, list[Task]]:
        """Return the chosen tasks of all stores, one more than fits on a page."""
        names = {"task_type": "type", "status": "status", "before": "before", "before_id": "before_id"}
        chosen = Filter(**{name: query.get(key, "") for name, key in names.items()})
        listed: list[Task] = []
        problems: list[StoreError] = []
        for path in self._collector.scope.stores:
            try:
                listed += browse.page(path, chosen, PAGE + 1)
            except StoreError as error:
                problems.append(error)
        if problems and not listed:
            raise problems[0]
        return chosen, sorted(listed, key=lambda task: (task.started_at, task.task_id), reverse=True)[: PAGE + 1]

    def find(self, task_id: str) -> tuple[Path, Task] | None:
        """Return a task and its store, or None."""
        for path in self._collector.scope.stores:
            try:
                task = browse.find(path, task_id)
            except StoreError:
                if len(self._collector.scope.stores) == 1:
                    raise
                continue
            if task is not None:
                return path, task
        return None

    def _readable(self) -> list[Path]:
        return [path for path, part in self._collector.seen.stores.items() if part.value is not None]


def scope_of(run: TableRun) -> Scope:
    """Return the table, the cluster and the nodes of a run."""
    return run.table_name, run.cluster_name, run.nodes


def next_page(chosen: Filter, listed: Sequence[Task]) -> str:
    """Return the address of the next page of tasks; '' if there is none."""
    if len(listed) <= PAGE:
        return ""
    last = listed[PAGE - 1]
    return link_to(
        "/tasks", type=chosen.task_type, status=chosen.status, before=last.started_at, before_id=last.task_id
    )


def _newest(runs: Sequence[TableRun], limit: int) -> list[TableRun]:
    return sorted(runs, key=lambda run: run.finished_at, reverse=True)[:limit]
