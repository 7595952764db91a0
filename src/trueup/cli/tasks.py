"""`trueup tasks` and `trueup report`: list, show and control tasks; show their reports."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trueup.cli.options import COUNT, SHARED, choice, decorated, flag, option, shared
from trueup.cli.output import echo, echo_json, show_cut, write_json
from trueup.cli.output import show as print_result
from trueup.config.wording import counted
from trueup.errors import ConfigError

if TYPE_CHECKING:
    from trueup.store import TaskStore

# A task, and the task store: given here, or before the subcommand (`trueup tasks --task-db F show ID`).
_of_task = decorated(
    click.argument("task_id", metavar="ID"),
    option("--task-db", "FILE", "Task store. [env: TRUEUP_TASKS_DB]", key="own_db"),
    click.pass_obj,
)


@click.group(invoke_without_command=True)
@option("--limit", "N", "Maximum entries to show, the newest first; 0: all.", 20, COUNT)
@shared("json", "task_db")
@click.pass_context
def tasks(ctx: click.Context, limit: int, as_json: bool, task_db: str | None) -> None:
    """List all runs; `trueup tasks show ID` shows one of them.

    \b
    Examples:
      trueup tasks
      trueup tasks --limit 0 --json

    A task is RUNNING, COMPLETED, FAILED (also if its process has died) or INTERRUPTED. Times are UTC.
    """
    ctx.obj = task_db
    if ctx.invoked_subcommand is not None:
        return
    from trueup.report.text import task_table

    with open_store(task_db) as store:
        listed = [asdict(task) for task in store.list(limit=limit + 1 if limit else -1)]
    has_more = bool(limit) and len(listed) > limit
    listed = listed[:limit] if limit else listed
    if as_json:
        echo_json(listed)
    elif listed:
        echo(task_table(listed))
    else:
        echo(f"no tasks yet in {store.path}", err=True)
    if has_more:
        show_cut(limit, None, "tasks", option="--limit 0 for all")


@tasks.command()
@_of_task
@SHARED["json"]
def show(task_db: str | None, task_id: str, as_json: bool, own_db: str | None) -> None:
    """Show the request, the result and the progress of one task (the start of its ID is enough).

    \b
    Examples:
      trueup tasks show 3f2a9c1e
    """
    from trueup.report.text import task_text

    with open_store(own_db or task_db) as store:
        task = asdict(store.get(task_id))
    print_result(task, task_text(task), as_json=as_json)


@tasks.command()
@_of_task
def pause(task_db: str | None, task_id: str, own_db: str | None) -> None:
    """Pause a running diff or check after its current query (the start of its ID is enough).

    \b
    Examples:
      trueup tasks pause 3f9a
    """
    _request(own_db or task_db, task_id, "pause", "pause")


@tasks.command()
@_of_task
def resume(task_db: str | None, task_id: str, own_db: str | None) -> None:
    """Continue a paused diff or check (the start of its ID is enough).

    \b
    Examples:
      trueup tasks resume 3f9a
    """
    _request(own_db or task_db, task_id, "", "continue")


@tasks.command()
@_of_task
def stop(task_db: str | None, task_id: str, own_db: str | None) -> None:
    """Stop a running diff or check (the start of its ID is enough); `trueup diff --resume ID` continues it later.

    \b
    Examples:
      trueup tasks stop 3f9a
    """
    _request(own_db or task_db, task_id, "stop", "stop")


@tasks.command()
@option("--older-than", "T", "Delete tasks that ended longer ago, such as 90d or 12h.", key="older_than")
@flag("--with-history", "Delete the history of tables as well, except the last verdict of each table.")
@flag("--dry-run", "Show what would be deleted; delete nothing.")
@option("--task-db", "FILE", "Task store. [env: TRUEUP_TASKS_DB]", key="own_db")
@SHARED["json"]
@click.pass_obj
def prune(
    task_db: str | None, older_than: str | None, with_history: bool, dry_run: bool, own_db: str | None, as_json: bool
) -> None:
    """Delete old tasks with their reports; `trueup history` still shows their results.

    \b
    Examples:
      trueup tasks prune --older-than 90d
      trueup tasks prune --older-than 1d --dry-run

    Running tasks, undo files, and files that other tasks wrote are kept.
    """
    from datetime import datetime, timedelta, timezone

    from trueup.store import times
    from trueup.store.prune import prune as delete
    from trueup.verbs.schedule.times import seconds_of

    try:
        age = timedelta(seconds=seconds_of(older_than or ""))
    except (ValueError, OverflowError):
        cure = "write a number with s, m, h or d: --older-than 90d"
        message = f"--older-than: '{older_than}' is not an interval" if older_than else "--older-than is missing"
        raise ConfigError(message, cure=cure) from None
    with open_store(own_db or task_db) as store:
        before = times.iso(datetime.now(timezone.utc) - age)
        pruned = delete(store, before, with_history=with_history, dry_run=dry_run)
    text = f"{counted(pruned.tasks, 'task')} and {counted(pruned.files, 'file')} of reports"
    text += f", {counted(pruned.runs, 'run')} of the history" if with_history and not dry_run else ""
    print_result(asdict(pruned), f"{'would delete' if dry_run else 'deleted'} {text}", as_json=as_json)


def _request(task_db: str | None, task_id: str, request: str, verb: str) -> None:
    with open_store(task_db) as store:
        task = store.get(task_id)
        store.ask(task.task_id, request)
    echo(f"asked task {task.task_id[:8]} to {verb}")


@click.command()
@click.argument("task_id", metavar="ID")
@choice("--output", ["text", "json", "html"], "Format of the report; html is written to a file.")
@shared("to_file", "task_db")
def report(task_id: str, output: str, to: Path | None, task_db: str | None) -> None:
    """Show the report of a diff, or the result of another task.

    \b
    Examples:
      trueup report 3f2a9c1e
      trueup report 3f2a9c1e --output html
      trueup report public_orders_diffs-20260701120000.json --output text

    ID is the id of a task (the start is enough), or the path of a JSON report.
    """
    if task_id.endswith(".json"):
        _show_diff(Path(task_id), output, to)
        return
    with open_store(task_db) as store:
        task = store.get(task_id)
    if task.task_type in ("TABLE_DIFF", "TABLE_RERUN") and task.diff_file_path:
        _show_diff(Path(task.diff_file_path), output, to)
    elif "diff_summary" in task.task_context:
        echo(_task_report(asdict(task), output, to))
    else:
        cure = f"see the reason with: trueup tasks show {task.task_id[:8]}"
        raise ConfigError(f"task {task.task_id[:8]} has no report (its status is {task.task_status})", cure=cure)


def _show_diff(path: Path, output: str, to: Path | None) -> None:
    """Print the report of a diff, read from its file, or the path of the file that it is written to."""
    from trueup.report.html import write_diff_page
    from trueup.report.json_file import private_file
    from trueup.report.json_reader import open_report, showing
    from trueup.report.text import report_text

    content = open_report(path)
    if output == "html":
        echo(str(write_diff_page(to or path.with_suffix(".html"), content)))
        return
    with showing(path):
        if to is None and output == "json":
            write_json(content.lines())
        elif to is None:
            echo(report_text(content))
        else:
            with private_file(to) as file:
                file.writelines(content.lines() if output == "json" else [report_text(content) + "\n"])
    if to is None:
        return
    echo(str(to))


def _task_report(task: dict[str, Any], output: str, to: Path | None) -> str:
    """Return the result of a task without a report file, from the task store, or the path of the page."""
    from trueup.report.html import write_html
    from trueup.report.many import many_text
    from trueup.report.tasks import OF_MANY, task_page
    from trueup.report.text import task_text

    if output == "html":
        name = f"{task['task_type'].lower()}-{task['task_id'][:8]}.html"
        return str(write_html(to or Path(name).absolute(), task_page(task)))
    if output == "json":
        return _written(json.dumps(task, indent=1), to)
    many = task["task_context"].get("diff_summary") if task["task_type"] in OF_MANY else None
    return _written(many_text(many, task["task_id"]) if many else task_text(task), to)


def _written(text: str, to: Path | None) -> str:
    """Return the text for stdout, or write it to the file and return the path."""
    if to is None:
        return text
    from trueup.report.json_file import write_private

    write_private(to, text + "\n")
    return str(to)


def open_store(task_db: str | None) -> TaskStore:
    """Open the task store: that of the option, of the variable, or of the configuration."""
    from trueup.config.load import load
    from trueup.store import TaskStore

    # If the store is given, the configuration is not read, so that errors in it do not matter.
    path = task_db or os.environ.get("TRUEUP_TASKS_DB")
    return TaskStore(path, configured="" if path else load().tasks.task_db)
