"""Actions of the web page: pause, resume and stop tasks, run a comparison again, ignore an error. Each is recorded."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from trueup.api.validate import Validation
from trueup.config.model import Config
from trueup.config.process import own_command
from trueup.errors import ConfigError, TrueupError
from trueup.serve.pages.tasks import AGAIN
from trueup.serve.views import link_to
from trueup.store import RUNNING, Task, TaskStore, browse

_REQUESTS = {"pause": "pause", "resume": "", "stop": "stop"}


class Actions:
    """Runs actions for users and records who requested what, and what became of it."""

    def __init__(self, config: Config, stores: Sequence[Path]) -> None:
        self._config = config
        self._stores = stores

    def run(self, who: str, form: Mapping[str, str]) -> str:
        """Run the action of a form and return the address of the page to show next. Raises TrueupError."""
        action = form.get("action", "")
        target = form.get("task") or f"{form.get('validation', '')} error {form.get('id', '')}"
        # Recorded first: what cannot be recorded is not done.
        with TaskStore(self._stores[0]) as store:
            number = store.record_action(who, action, target)
        outcome = "failed"
        try:
            address, outcome = self._run(action, form)
        except TrueupError as error:
            outcome = f"failed: {error}"
            raise
        finally:
            with TaskStore(self._stores[0]) as store:
                store.end_action(number, outcome)
        return address

    def _run(self, action: str, form: Mapping[str, str]) -> tuple[str, str]:
        if action == "ignore":
            return self._ignore(form)
        path, task = self._find(form.get("task", ""))
        address = f"/tasks/{task.task_id}"
        if action in _REQUESTS:
            with TaskStore(path) as store:
                store.ask(task.task_id, _REQUESTS[action])
            return address, "requested"
        if action == "rerun":
            return "/tasks", self._again(path, task)
        raise ConfigError(f"there is no action '{action}'", cure="use the buttons of the page")

    def _find(self, task_id: str) -> tuple[Path, Task]:
        for path in self._stores:
            found = browse.find(path, task_id)
            if found is not None:
                return path, found
        raise ConfigError(f"task {task_id!r} does not exist", cure="it may have been deleted: reload the page")

    def _ignore(self, form: Mapping[str, str]) -> tuple[str, str]:
        number, name, node = form.get("id", ""), form.get("validation", ""), form.get("node", "")
        if not number.isdigit() or len(number) > 18:
            raise ConfigError("the number of the error is not valid", cure="use the buttons of the page")
        count = Validation(name, meta=node, config=self._config).ignore([int(number)])
        return link_to("/validation", node=node, name=name), f"{count} ignored"

    def _again(self, path: Path, task: Task) -> str:
        """Start the same comparison as a process of its own; its result is a new task."""
        if task.task_type not in AGAIN or task.task_status == RUNNING:
            raise ConfigError("this task cannot be run again", cure="run again a diff or a check that has ended")
        context = task.task_context
        if self._config.path is None:
            raise ConfigError("the server has no configuration file", cure="start it with --config")
        known = [name for name in str(context.get("nodes") or "").split(",") if name in self._config.nodes]
        if ",".join(known) != context.get("nodes"):
            raise ConfigError("a node of this task is not in the configuration", cure="add it to [nodes]")
        verb = "check" if task.task_type == "TABLE_CHECK" else "diff"
        arguments = [verb, "--config", str(self._config.path.absolute()), "--task-db", str(path), "--quiet"]
        arguments += ["--nodes", ",".join(known)]
        if task.cluster_name in self._config.clusters:
            arguments += ["--cluster", task.cluster_name]
        for option, value in (
            ("--filter", context.get("table_filter")),
            ("--columns", _quoted(context.get("columns"))),
            ("--exclude-columns", _quoted(context.get("exclude_columns"))),
            ("--key", _quoted(context.get("key"))),
            ("--report-dir", context.get("report_dir") if verb == "diff" else ""),
        ):
            arguments += [option, str(value)] if value else []
        process = subprocess.Popen(
            [*own_command(), *arguments, "--", str(context.get("qualified_table"))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        _reap(process)
        return f"started process {process.pid}"


def _quoted(names: object) -> str:
    if not isinstance(names, list):
        return ""
    return ",".join('"' + str(name).replace('"', '""') + '"' for name in names)


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Wait for the process in the background, so that it does not stay as a zombie."""
    threading.Thread(target=process.wait, daemon=True).start()
