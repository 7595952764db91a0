"""`trueup sync`: copy a database to another one, and keep the copy up to date."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from trueup.cli.options import inline_nodes, sync_options

if TYPE_CHECKING:
    from trueup.config.model import Config
    from trueup.verbs.sync.start import SyncRequest

_options = partial(sync_options, "The node that is copied.", "The node that becomes the copy.")
_WHAT = (
    click.option("--tables", default="", metavar="A,B,…", help="Only these tables; without it, all of the database."),
    click.option("--leave-out", default="", metavar="A,B,…", help="All tables but these."),
    click.option("--create-schema", is_flag=True, help="Make the target's schema first, with pg_dump and pg_restore."),
    click.option("--pg-bin", default="", metavar="DIR", help="Where pg_dump and pg_restore are."),
)
_WORK = (
    click.option(
        "--engine",
        type=click.Choice(["auto", "spark", "local"]),
        default=None,
        help="Where the copy runs: auto decides by the number of rows. [default: auto] [env: TRUEUP__SPARK__ENGINE]",
    ),
    click.option(
        "--master",
        default=None,
        metavar="URL",
        help="Spark master, such as spark://host:7077. [env: TRUEUP__SPARK__MASTER]",
    ),
    click.option("--remote", default=None, metavar="URL", help="Spark Connect server. [env: TRUEUP__SPARK__REMOTE]"),
    click.option(
        "--concurrency-factor",
        type=click.FloatRange(min=0, max=4),
        default=1.0,
        show_default=True,
        metavar="F",
        help="Parts at once, as a share of the cores.",
    ),
    click.option(
        "--max-connections",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        metavar="N",
        help="Connections to each node at most; 0: no limit.",
    ),
    click.option("--quiet", "-q", is_flag=True, help="No progress, no summary."),
    click.option("--task-db", metavar="FILE", help="The task store. [env: TRUEUP_TASKS_DB]"),
)
_PATIENCE = click.option(
    "--patience",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="S",
    help="Seconds to try for the locks on tables in use; every attempt is short.",
)


@click.group()
def sync() -> None:
    """Copy a database to another one, and keep the copy up to date.

    Triggers on the source record which keys are touched, never the rows. All rows are copied once, in one snapshot;
    then rounds carry the touched rows over as they are now. Writes on the source go on, and never fail because of it.

    \b
    Examples:
      trueup sync plan --from n1 --to n2
      trueup sync start --from n1 --to n2 --create-schema
      trueup sync run --from n1 --to n2 --until-close
      trueup sync status --from n1 --to n2
    """


@sync.command()
@_options(*_WHAT)
def plan(**options: Any) -> int:
    """What a sync would do: every table and sequence, their order, and what cannot be handled. Nothing is written.

    The exit code is 2 if anything cannot be handled.

    \b
    Examples:
      trueup sync plan --from n1 --to n2
      trueup sync plan --from n1 --to n2 --tables public.orders,public.customers --json
      trueup sync plan --from n1 --to n2 --create-schema --leave-out public.log
    """
    from trueup.verbs.sync import run as path
    from trueup.verbs.sync.text import plan_text

    as_json, request, _ = _request(options)
    found = path.plan(request)
    click.echo(json.dumps(found.as_json()) if as_json else plan_text(found))
    return 2 if found.problems else 0


@sync.command()
@_options(
    *_WHAT,
    *_WORK,
    _PATIENCE,
    click.option(
        "--barrier",
        type=click.FloatRange(min=0),
        default=300.0,
        show_default=True,
        metavar="S",
        help="Seconds to wait for transactions that began before.",
    ),
)
def start(quiet: bool, task_db: str | None, **options: Any) -> None:
    """Record changes on the source from now on, and copy all rows. Stopped or killed, the same command goes on.

    \b
    Examples:
      trueup sync start --from n1 --to n2
      trueup sync start --from n1 --to n2 --create-schema
      trueup sync start --from n1 --to n2 --engine spark --master spark://host:7077
    """
    from trueup.api import sync_calls as sync_call
    from trueup.engine.progress import Shown

    as_json, request, config = _request(options)
    with Shown(quiet=quiet) as progress:
        found = sync_call.start(request, config, task_db=task_db, progress=progress)
    if as_json:
        click.echo(json.dumps({"sync": found.name, "tables": len(found.tables), "mode": found.mode}))
    elif not quiet:
        click.echo(
            f"{len(found.tables)} tables are on {found.target}; next: "
            f"trueup sync run --from {found.source} --to {found.target}"
        )


@sync.command()
@_options(
    click.option(
        "--until-close", "how", flag_value="close", default="close", help="End when little is left (default)."
    ),
    click.option("--follow", "how", flag_value="follow", help="Go on until it is stopped."),
    click.option("--once", "how", flag_value="once", help="One round."),
    click.option(
        "--close-keys",
        type=click.IntRange(min=0),
        default=1000,
        show_default=True,
        metavar="N",
        help="Close: a round had so few keys, and nothing waits.",
    ),
    click.option(
        "--close-seconds",
        type=click.FloatRange(min=0),
        default=1.0,
        show_default=True,
        metavar="S",
        help="Close: a round took no longer.",
    ),
    click.option(
        "--interval",
        type=click.FloatRange(min=0.001),
        default=0.2,
        show_default=True,
        metavar="S",
        help="Seconds between two looks while nothing waits.",
    ),
    *_WORK,
)
def run(
    how: str,
    close_keys: int,
    close_seconds: float,
    interval: float,
    quiet: bool,
    task_db: str | None,
    **options: Any,
) -> None:
    """Carry changes over, round after round, until the target is close, or for as long as it is wanted.

    \b
    Examples:
      trueup sync run --from n1 --to n2
      trueup sync run --from n1 --to n2 --follow
      trueup sync run --from n1 --to n2 --once --json
    """
    from trueup.api import sync_calls as sync_call
    from trueup.engine.progress import Shown
    from trueup.verbs.sync import run as path

    as_json, request, config = _request(options)
    until = path.Until(how == "once", how == "follow", close_keys, close_seconds, interval)
    with Shown(quiet=quiet) as progress:
        totals = sync_call.run(request, config, until, task_db=task_db, progress=progress)
    if as_json:
        click.echo(json.dumps(path.facts(totals)))
    elif not quiet:
        click.echo(path.told_text(totals))


@sync.command()
@_options()
def status(**options: Any) -> None:
    """How far a sync is: what waits, the last round, who is at work.

    \b
    Examples:
      trueup sync status --from n1 --to n2
      trueup sync status --from n1 --to n2 --json
    """
    from trueup.verbs.sync import run as path
    from trueup.verbs.sync.text import state_json, state_text

    as_json, request, _ = _request(options)
    found = path.status(request)
    click.echo(json.dumps(state_json(found)) if as_json else state_text(found))


@sync.command()
@_options(
    click.option(
        "--timeout",
        type=click.FloatRange(min=0),
        default=60.0,
        show_default=True,
        metavar="S",
        help="Seconds to wait for the end of its round.",
    )
)
def stop(timeout: float, **options: Any) -> None:
    """End whoever carries changes over, after its round. Changes are still recorded: rounds can go on later.

    \b
    Examples:
      trueup sync stop --from n1 --to n2
    """
    from trueup.verbs.sync import run as path

    as_json, request, _ = _request(options)
    was = path.stop(request, timeout=timeout)
    text = "stopped" if was else "nobody carried changes over"
    click.echo(json.dumps({"stopped": was}) if as_json else text)


@sync.command()
@_options(_PATIENCE)
def drop(**options: Any) -> None:
    """Take all away that the sync put onto both nodes: triggers, change log, notes. The copied rows stay.

    \b
    Examples:
      trueup sync drop --from n1 --to n2
    """
    from trueup.verbs.sync import run as path

    as_json, request, _ = _request(options)
    had_log, had_sync = path.drop(request)
    words = [word for word, was in (("the change log", had_log), ("the notes on the target", had_sync)) if was]
    text = f"dropped {' and '.join(words)}" if words else f"there was no sync {request.name}"
    click.echo(json.dumps({"log": had_log, "sync": had_sync}) if as_json else text)


def _request(options: dict[str, Any]) -> tuple[bool, SyncRequest, Config]:
    from trueup.api.sync_calls import request_of

    given = dict(options)
    for name in ("tables", "leave_out"):
        given[name] = _names(given.pop(name, ""))
    as_json, inline = given.pop("as_json"), inline_nodes(given.pop("inline"))
    request, config = request_of(given.pop("source"), given.pop("target"), nodes=inline or None, **given)
    return as_json, request, config


def _names(text: str) -> list[str]:
    """Names between commas; a name in quotes may hold some."""
    import re

    return [part.strip() for part in re.findall(r'(?:[^,"]|"(?:[^"]|"")*")+', text) if part.strip()]
