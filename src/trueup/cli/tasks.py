"""`trueup tasks` and `trueup report`: what was run, and what came out of it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from trueup.errors import ConfigError

_STORE = click.option("--task-db", metavar="FILE", help="The task store. [env: TRUEUP_TASKS_DB]")


@click.group(invoke_without_command=True)
@click.option("--limit", default=20, show_default=True, metavar="N", help="So many, the newest first.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
@_STORE
@click.pass_context
def tasks(ctx: click.Context, limit: int, as_json: bool, task_db: str | None) -> None:
    """List the tasks; `trueup tasks show ID` tells all of one."""
    ctx.obj = task_db
    if ctx.invoked_subcommand is not None:
        return
    with _store(task_db) as store:
        found = store.list(limit=limit)
    if as_json:
        click.echo(json.dumps([asdict(task) for task in found]))
        return
    for task in found:
        took = f"{task.time_taken:.1f} s" if task.time_taken is not None else ""
        verdict = task.task_context.get("diff_summary", {}).get("verdict", "")
        table = task.table_name and f"{task.schema}.{task.table_name}".lstrip(".")
        line = f"{task.task_id[:8]}  {task.started_at[:19]}Z  {task.task_type:<12} {task.task_status:<11}"
        click.echo(f"{line} {verdict:<10} {took:>8}  {table}")
    if not found:
        click.echo("no tasks yet", err=True)


@tasks.command()
@click.argument("task_id")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_obj
def show(task_db: str | None, task_id: str, as_json: bool) -> None:
    """All that is known of one task (the start of its ID is enough)."""
    with _store(task_db) as store:
        task = store.get(task_id)
    if as_json:
        click.echo(json.dumps(asdict(task)))
        return
    for name, value in asdict(task).items():
        if name == "task_context":
            for key, part in value.items():
                click.echo(f"{key:>16}: {part if isinstance(part, str) else json.dumps(part)}")
        elif value not in ("", None, {}):
            click.echo(f"{name:>16}: {value}")


@click.command()
@click.argument("task_id")
@click.option("--output", type=click.Choice(["text", "json", "html"]), default="text", show_default=True)
@click.option("--to", type=click.Path(path_type=Path), default=None, metavar="FILE", help="Write it here.")
@_STORE
def report(task_id: str, output: str, to: Path | None, task_db: str | None) -> None:
    """Show the report of a past diff: TASK_ID, or the path of a JSON report."""
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
    if not task.diff_file_path:
        raise ConfigError(
            f"task {task.task_id} has no report (it is {task.task_status})",
            cure=f"see trueup tasks show {task.task_id[:8]}",
        )
    return Path(task.diff_file_path)


def _store(task_db: str | None) -> Any:
    from trueup.config import load
    from trueup.store import TaskStore

    return TaskStore(task_db or load().tasks.task_db or None)
