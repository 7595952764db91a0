"""The answers of the API: documents of what was seen, and tasks and runs from the task stores."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from trueup.errors import StoreError
from trueup.serve import documents
from trueup.serve.collector import Collector
from trueup.serve.options import ServeOptions
from trueup.serve.reading import PAGE, Reading, next_page
from trueup.store import Task

_MOST_RUNS = 1000


class Api:
    """Answers requests of programs with JSON."""

    def __init__(self, collector: Collector, reading: Reading, options: ServeOptions) -> None:
        self._collector = collector
        self._reading = reading
        self._options = options

    def document(self, name: str) -> bytes:
        """Return a document of what was seen."""
        read = documents.READERS[name]
        return bytes(JSONResponse(read(self._collector.seen, show_rows=self._options.show_rows)).body)

    def without_rows(self, task: Task) -> Task:
        """Return the task without the output of commands, which may contain rows, unless rows are shown."""
        summary = task.task_context.get("diff_summary")
        if self._options.show_rows or not isinstance(summary, dict) or "said" not in summary:
            return task
        hidden = {**task.task_context, "diff_summary": {**summary, "said": "hidden; show it with --show-rows"}}
        return replace(task, task_context=hidden)

    def tasks(self, request: Request) -> Response:
        """Answer with a page of tasks."""
        try:
            chosen, listed = self._reading.tasks(request.query_params)
        except StoreError as error:
            return _failed(error)
        rows = [documents.task(self.without_rows(task)) for task in listed[:PAGE]]
        following = next_page(chosen, listed).replace("/tasks", "/api/v1/tasks", 1)
        return JSONResponse({"tasks": rows, "next": following or None})

    def task(self, request: Request) -> Response:
        """Answer with one task."""
        try:
            found = self._reading.find(request.path_params["task_id"])
        except StoreError as error:
            return _failed(error)
        if found is None:
            return JSONResponse({"error": "this task does not exist"}, 404)
        return JSONResponse(documents.task(self.without_rows(found[1])))

    def history(self, request: Request) -> Response:
        """Answer with the runs of a table."""
        name, nodes = request.query_params.get("name", ""), request.query_params.get("nodes")
        states = [
            state
            for state in self._collector.seen.states
            if state.run.table_name == name and nodes in (None, state.run.nodes)
        ]
        try:
            runs = [documents.run(run) for state in states for run in self._reading.runs(state, _MOST_RUNS)]
        except StoreError as error:
            return _failed(error)
        return JSONResponse({"runs": runs})


def _failed(error: StoreError) -> Response:
    return JSONResponse({"error": str(error), "cure": error.cure}, 503)
