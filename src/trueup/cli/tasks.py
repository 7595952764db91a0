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
    """All that is known of one task (the start of its ID is enough)."""
    from trueup.report.text import task_text

    with _store(own_db or task_db) as store:
        task = asdict(store.get(task_id))
    click.echo(json.dumps(task) if as_json else task_text(task))


def _asks(name: str, wanted: str, text: str, said: str) -> None:
    """A command that asks something of a running task."""

    @tasks.command(name, help=text)
    @click.argument("task_id", metavar="ID")
    @click.option("--task-db", "own_db", metavar="FILE", help="The task store. [env: TRUEUP_TASKS_DB]")
    @verbose_option
    @click.pass_obj
    def ask(task_db: str | None, task_id: str, own_db: str | None) -> None:
        with _store(own_db or task_db) as store:
            task = store.get(task_id)
            store.ask(task.task_id, wanted)
        click.echo(f"task {task.task_id[:8]} {said}")


_asks("pause", "pause", "Let a running diff or check wait, after what it is just doing.", "was asked to pause")
_asks("resume", "", "Let a paused diff or check go on.", "was asked to go on")
_asks(
    "stop",
    "stop",
    "End a running diff or check; `trueup diff --resume ID` goes on with it later.",
    "was asked to stop",
)


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
    """Show the report of a diff.

    ID is that of its task (the start is enough), or the path of a JSON report.
    """
    from trueup.report.json_file import read_report

    path = Path(task_id) if task_id.endswith(".json") else _path_of(task_id, task_db)
    found = read_report(path)
    click.echo(_shown(found, path, output, to))


def _shown(found: dict[str, Any], path: Path, output: str, to: Path | None) -> str:
    from trueup.report.html import write_html
    from trueup.report.text import report_text

    if output == "html":
        return str(write_html(found, to or path.with_suffix(".html")))
    text = report_text(found) if output == "text" else json.dumps(found, indent=1)
    if to is None:
        return text
    from trueup.report.json_file import write_private

    write_private(to, text + "\n")
    return str(to)


def _path_of(task_id: str, task_db: str | None) -> Path:
    with _store(task_db) as store:
        task = store.get(task_id)
    if task.diff_file_path:
        return Path(task.diff_file_path)
    if task.task_type == "TABLE_CHECK":
        cure = "a check writes none: run trueup diff to see the rows"
    else:
        cure = f"see why with: trueup tasks show {task.task_id[:8]}"
    raise ConfigError(f"task {task.task_id[:8]} has no report (it is {task.task_status})", cure=cure)


def _store(task_db: str | None) -> TaskStore:
    from trueup.config import load
    from trueup.store import TaskStore

    # Where the store is known without it, the configuration (and what it may lack) does not matter.
    known = task_db or os.environ.get("TRUEUP_TASKS_DB")
    return TaskStore(known, configured="" if known else load().tasks.task_db)
