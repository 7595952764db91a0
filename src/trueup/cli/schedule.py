"""`trueup schedule`: run the jobs of the configuration at their times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from trueup.cli.metrics import PORT, serving_metrics
from trueup.cli.options import SHARED, flag, shared
from trueup.cli.output import show
from trueup.errors import ConfigError

if TYPE_CHECKING:
    from trueup.verbs.schedule.model import Job


@click.command()
@SHARED["config"]
@flag("--list", "Show next times and last results; run nothing.", key="as_list")
@shared("json", "quiet", "task_db")
@PORT
@click.pass_context
def schedule(
    ctx: click.Context,
    config: str | None,
    as_list: bool,
    as_json: bool,
    quiet: bool,
    task_db: str | None,
    metrics_port: int | None,
) -> int:
    """Run the jobs of [schedule] in the configuration, each at its times, until stopped.

    A job is a command of trueup that runs as a separate process, never twice at a time. A job that fails runs again at
    its next time. Ctrl-C or SIGTERM terminates running jobs, waits for their end, and exits with 0.

    \b
    Examples:
      trueup schedule
      trueup schedule --list
      trueup schedule --config /etc/trueup/trueup.toml --quiet

    A job is a table [schedule.NAME] with verb, arguments, and every or cron; `trueup init` writes an example.
    """
    from trueup.config.load import load
    from trueup.store import TaskStore
    from trueup.verbs.schedule.config import load_jobs
    from trueup.verbs.schedule.listing import due, due_json, due_text
    from trueup.verbs.schedule.run import run

    root = ctx.find_root()
    assert isinstance(root.command, click.Group)
    settings = load(config)
    jobs = load_jobs(config, verbs=root.command.list_commands(root))
    for job in jobs:
        _check_arguments(root, job)
    with TaskStore(task_db, configured=settings.tasks.task_db) as store:
        if as_list:
            listed = due(jobs, store)
            show(due_json(listed), due_text(listed), as_json=as_json)
            return 0
        # The jobs use the same configuration and the same store.
        env = {"TRUEUP_TASKS_DB": str(store.path.absolute())}
        if settings.path is not None:
            env["TRUEUP_CONFIG"] = str(settings.path.absolute())
        # --quiet hides its log records.
        with serving_metrics(metrics_port, settings, task_db):
            run(jobs, store=store, env=env)
    return 0


def _check_arguments(root: click.Context, job: Job) -> None:
    """Raise ConfigError if the command does not accept these arguments."""
    assert isinstance(root.command, click.Group)
    command = root.command.get_command(root, job.verb)
    assert command is not None
    try:
        with command.make_context(job.verb, list(job.arguments), parent=root) as context:
            if isinstance(command, click.Group):
                _check_subcommand(command, context)
    except click.exceptions.Exit:
        raise ConfigError(f"schedule.{job.name}: this only shows help", cure="remove --help") from None
    except click.ClickException as error:
        cure = f"see trueup {job.verb} --help"
        raise ConfigError(f"schedule.{job.name}: {error.format_message().rstrip('.')}", cure=cure) from None


def _check_subcommand(group: click.Group, context: click.Context) -> None:
    rest = [*context._protected_args, *context.args]
    if not rest:
        # A group that needs a subcommand has already been rejected.
        return
    name, command, arguments = group.resolve_command(context, rest)
    assert command is not None
    command.make_context(name, arguments, parent=context).close()
