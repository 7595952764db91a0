"""`trueup tasks` and `trueup report`: what was run, and what came out of it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trueup.cli.options import verbose_option
from trueup.errors import ConfigError

if TYPE_CHECKING:
    from trueup.store import TaskStore

_STORE = click.option("--task-db", metavar="FILE", help="The task store. [env: TRUEUP_TASKS_DB]")


@click.group(invoke_without_command=True)
@click.option(
    "--limit",
    default=20,
    show_default=True,
    type=click.IntRange(min=0),
    metavar="N",
    help="How many, the newest first; 0: all.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
@_STORE
@verbose_option
@click.pass_context
def tasks(ctx: click.Context, limit: int, as_json: bool, task_db: str | None) -> None:
    """List what was run; `trueup tasks show ID` tells all of one.

    \b
    Examples:
      trueup tasks
      trueup tasks --limit 0 --json

    A task is RUNNING, COMPLETED, FAILED (also when its process is gone) or INTERRUPTED. Times are UTC.
    """
    ctx.obj = task_db
    if ctx.invoked_subcommand is not None:
        return
    from trueup.report.text import task_table

    with _store(task_db) as store:
        found = store.list(limit=limit or -1)
    if as_json:
        click.echo(json.dumps([asdict(task) for task in found]))
    elif found:
        click.echo(task_table([asdict(task) for task in found]))
    else:
        click.echo(f"no tasks yet in {store.path}", err=True)


@tasks.command()
@click.argument("task_id", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--task-db", "own_db", metavar="FILE", help="The task store. [env: TRUEUP_TASKS_DB]")
@verbose_option
@click.pass_obj
def show(task_db: str | None, task_id: str, as_json: bool, own_db: str | None) -> None:
    """All that is known of one task (the start of its ID is enough).

    \b
    Examples:
      trueup tasks show 3f2a9c1e
    """
    from trueup.report.text import task_text

    with _store(own_db or task_db) as store:
        task = asdict(store.get(task_id))
    click.echo(json.dumps(task) if as_json else task_text(task))


def _ask(task_db: str | None, task_id: str, wanted: str, said: str) -> None:
    with _store(task_db) as store:
        task = store.get(task_id)
        store.ask(task.task_id, wanted)
    click.echo(f"task {task.task_id[:8]} was asked to {said}")


@tasks.command()
@click.argument("task_id", metavar="ID")
@click.option("--task-db", "own_db", metavar="FILE", help="The task store. [env: TRUEUP_TASKS_DB]")
@verbose_option
@click.pass_obj
def pause(task_db: str | None, task_id: str, own_db: str | None) -> None:
    """Let the running diff or check ID wait, after what it is just doing (the start of the ID is enough).

    \b
    Examples:
      trueup tasks pause 3f9a
    """
    _ask(own_db or task_db, task_id, "pause", "pause")


@tasks.command()
@click.argument("task_id", metavar="ID")
@click.option("--task-db", "own_db", metavar="FILE", help="The task store. [env: TRUEUP_TASKS_DB]")
@verbose_option
@click.pass_obj
def resume(task_db: str | None, task_id: str, own_db: str | None) -> None:
    """Let the paused diff or check ID go on (the start of the ID is enough).

    \b
    Examples:
      trueup tasks resume 3f9a
    """
    _ask(own_db or task_db, task_id, "", "go on")


@tasks.command()
@click.argument("task_id", metavar="ID")
@click.option("--task-db", "own_db", metavar="FILE", help="The task store. [env: TRUEUP_TASKS_DB]")
@verbose_option
@click.pass_obj
def stop(task_db: str | None, task_id: str, own_db: str | None) -> None:
    """End the running diff or check ID; `trueup diff --resume ID` goes on with it later.

    \b
    Examples:
      trueup tasks stop 3f9a
    """
    _ask(own_db or task_db, task_id, "stop", "stop")


@click.command()
@click.argument("task_id", metavar="ID")
@click.option(
    "--output",
    type=click.Choice(["text", "json", "html"]),
    default="text",
    show_default=True,
    help="As text or JSON on stdout, or as an HTML page in a file.",
)
@click.option("--to", type=click.Path(path_type=Path), default=None, metavar="FILE", help="Write it to this file.")
@_STORE
@verbose_option
def report(task_id: str, output: str, to: Path | None, task_db: str | None) -> None:
    """Show the report of a diff, or what any other task found.

    \b
    Examples:
      trueup report 3f2a9c1e
      trueup report 3f2a9c1e --output html
      trueup report public_orders_diffs-20260701120000.json --output text

    ID is that of its task (the start is enough), or the path of a JSON report.
    """
    if task_id.endswith(".json"):
        click.echo(_diff_report(Path(task_id), output, to))
        return
    with _store(task_db) as store:
        task = store.get(task_id)
    if task.task_type in ("TABLE_DIFF", "TABLE_RERUN") and task.diff_file_path:
        click.echo(_diff_report(Path(task.diff_file_path), output, to))
    elif "diff_summary" in task.task_context:
        click.echo(_task_report(asdict(task), output, to))
    else:
        cure = f"see why with: trueup tasks show {task.task_id[:8]}"
        raise ConfigError(f"task {task.task_id[:8]} has no report (it is {task.task_status})", cure=cure)


def _diff_report(path: Path, output: str, to: Path | None) -> str:
    """The report of a diff, from its file."""
    from trueup.report.html import write_html
    from trueup.report.json_file import read_report, showing
    from trueup.report.page import page_of_diff
    from trueup.report.text import report_text

    found = read_report(path)
    with showing(path):
        if output == "html":
            pairs = [(pair, counts, counts["differences"]) for pair, counts in found["diffs"].items()]
            page = page_of_diff(found, found["diffs"], str(path))
            return str(write_html(to or path.with_suffix(".html"), page, pairs))
        text = report_text(found) if output == "text" else json.dumps(found, indent=1)
    return _given(text, to)


def _task_report(task: dict[str, Any], output: str, to: Path | None) -> str:
    """What a task without a file of its own found, from the task store."""
    from trueup.report.html import write_html
    from trueup.report.many import many_text, page_of_many
    from trueup.report.page import page_of_task
    from trueup.report.text import task_text

    many = task["task_context"]["diff_summary"] if task["task_type"] in ("TABLES_DIFF", "TABLES_CHECK") else None
    if output == "html":
        name = f"{task['task_type'].lower()}-{task['task_id'][:8]}.html"
        page = page_of_many(many, task["task_id"]) if many else page_of_task(task)
        return str(write_html(to or Path(name).absolute(), page))
    if output == "json":
        return _given(json.dumps(task, indent=1), to)
    return _given(many_text(many, task["task_id"]) if many else task_text(task), to)


def _given(text: str, to: Path | None) -> str:
    """The text for stdout, or the name of the file it is in now."""
    if to is None:
        return text
    from trueup.report.json_file import write_private

    write_private(to, text + "\n")
    return str(to)


def _store(task_db: str | None) -> TaskStore:
    from trueup.config.load import load
    from trueup.store import TaskStore

    # Where the store is known without it, the configuration (and what it may lack) does not matter.
    known = task_db or os.environ.get("TRUEUP_TASKS_DB")
    return TaskStore(known, configured="" if known else load().tasks.task_db)
