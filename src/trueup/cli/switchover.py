"""`trueup switchover`: move applications to the copy that a sync keeps, with a pause of milliseconds, and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from trueup.cli.options import inline_nodes, sync_options

if TYPE_CHECKING:
    from trueup.verbs.switchover.ending import Ended

_options = partial(sync_options, "The node that the sync copies from.", "The node that the sync copies to.")
_PATIENCE = click.option(
    "--patience",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Seconds for locks on tables in use, for a sync that has to stop, and for rounds that have to come close.",
)
_ADDRESSES = (
    click.option(
        "--first-address",
        default="",
        metavar="CONNINFO",
        help="How applications reach the --from node. [default: host, port and database of ours]",
    ),
    click.option(
        "--second-address",
        default="",
        metavar="CONNINFO",
        help="How applications reach the --to node. [default: host, port and database of ours]",
    ),
)
_MOVE = (
    click.option(
        "--budget",
        default="5s",
        show_default=True,
        metavar="TIME",
        help="How long applications may be made to wait: 5s, 500ms. Past it, all is released.",
    ),
    click.option(
        "--proof",
        type=click.Choice(["digest", "keys", "validated"]),
        default="digest",
        show_default=True,
        help="digest: all tables inside of the pause. keys: all tables before it, changed keys inside of it."
        " validated: what a running trueup validate has looked at, up to a marker inside of it.",
    ),
    click.option(
        "--validation",
        metavar="NAME",
        help="With --proof validated: which validation. [default: the only one between the two nodes]",
    ),
    click.option(
        "--meta",
        metavar="NODE",
        help="With --proof validated: the node that keeps the validation. [default: one of the two]",
    ),
    click.option(
        "--close-keys",
        type=click.IntRange(min=0),
        default=1000,
        show_default=True,
        metavar="N",
        help="The pause begins when a round had so few keys.",
    ),
    click.option(
        "--jobs",
        type=click.IntRange(min=1, max=64),
        default=4,
        show_default=True,
        metavar="N",
        help="Sessions with each node that compare rows.",
    ),
    click.option("--accept-schema", is_flag=True, help="Go on where schemas differ, but not in tables and columns."),
    _PATIENCE,
    *_ADDRESSES,
    click.option("--quiet", "-q", is_flag=True, help="No progress, no summary."),
    click.option("--task-db", metavar="FILE", help="The task store. [env: TRUEUP_TASKS_DB]"),
)


@click.group()
def switchover() -> None:
    """Move applications to the copy that a sync keeps, with a pause of milliseconds, and back.

    Writers wait while the last changes are carried over, sequences are set and both databases are proven equal. One
    commit on the old database decides; from then on it refuses writes and names the new one. Whatever fails before
    that commit releases everything.

    \b
    Examples:
      trueup switchover prepare --from n1 --to n2
      trueup switchover execute --from n1 --to n2 --budget 2s
      trueup switchover status --from n1 --to n2
      trueup switchover rollback --from n1 --to n2
      trueup switchover finish --from n1 --to n2
    """


@switchover.command()
@_options(_PATIENCE, *_ADDRESSES)
def prepare(**options: Any) -> None:
    """Put the pointer and the guards into both nodes, so that applications can use the pointer from now on.

    `execute` does it too. Nothing is switched, and nobody waits for more than a moment.

    \b
    Examples:
      trueup switchover prepare --from n1 --to n2
      trueup switchover prepare --from n1 --to n2 --second-address "host=db2.internal dbname=shop"
    """
    from trueup.api import switchover as call

    as_json, ends, given = _given(options)
    in_use, guards = call.prepare(*ends, **given)
    text = f"{in_use} is in use; {guards} guards were put on. Applications: trueup.connect, see docs/switchover.md"
    click.echo(json.dumps({"in_use": in_use, "guards": guards}) if as_json else text)


@switchover.command()
@_options(*_MOVE)
def execute(**options: Any) -> None:
    """Move the applications from the --from node to the --to node.

    If an earlier call decided it and died, this completes it.

    \b
    Examples:
      trueup switchover execute --from n1 --to n2
      trueup switchover execute --from n1 --to n2 --proof keys --budget 500ms
      trueup switchover execute --from n1 --to n2 --proof validated --validation shop
      trueup switchover execute --from n1 --to n2 --json
    """
    from trueup.api import switchover as call

    _moved(call.execute, options)


@switchover.command()
@_options(*_MOVE)
def rollback(**options: Any) -> None:
    """Move the applications back from the --to node to the --from node, with all that was written meanwhile.

    The same path backwards, with the same gate. Afterwards the sync goes on as before.

    \b
    Examples:
      trueup switchover rollback --from n1 --to n2
      trueup switchover rollback --from n1 --to n2 --proof keys --budget 500ms
    """
    from trueup.api import switchover as call

    _moved(call.rollback, options)


@switchover.command()
@_options(
    click.option("--watch", is_flag=True, help="Again and again, until Ctrl-C."),
    click.option(
        "--interval",
        type=click.FloatRange(min=0.1),
        default=1.0,
        show_default=True,
        metavar="S",
        help="Seconds between two looks.",
    ),
)
def status(watch: bool, interval: float, **options: Any) -> None:
    """Which node is in use, the phase, who holds which lock, what waits, and how long each phase took.

    \b
    Examples:
      trueup switchover status --from n1 --to n2
      trueup switchover status --from n1 --to n2 --watch
      trueup switchover status --from n1 --to n2 --json
    """
    import time

    from trueup.api import switchover as call
    from trueup.verbs.switchover.status import status_text

    as_json, ends, given = _given(options)
    while True:
        found = call.status(*ends, **given)
        click.echo(json.dumps(found.as_json()) if as_json else status_text(found))
        if not watch:
            return
        time.sleep(interval)


@switchover.command()
@_options()
def abort(**options: Any) -> None:
    """End a switchover that is under way: its sessions are ended, and the old node is in use as before.

    What is decided already is not taken back: that is `rollback`.

    \b
    Examples:
      trueup switchover abort --from n1 --to n2
    """
    from trueup.api import switchover as call

    as_json, ends, given = _given(options)
    _ended(call.abort(*ends, **given), as_json)


@switchover.command()
@_options(_PATIENCE)
def reset(**options: Any) -> None:
    """Take pointer, guards and the way back out of both nodes, as if no switchover had been prepared.

    The sync stays. Refused while the --to node is in use.

    \b
    Examples:
      trueup switchover reset --from n1 --to n2
    """
    from trueup.api import switchover as call

    as_json, ends, given = _given(options)
    _ended(call.reset(*ends, **given), as_json)


@switchover.command()
@_options(
    _PATIENCE, click.option("--keep-refusal", is_flag=True, help="The node that is not in use goes on refusing writes.")
)
def finish(**options: Any) -> None:
    """Take all of trueup out of both nodes: triggers, logs, pointers. There is no way back afterwards.

    Applications must know the address of the node in use by then, for the pointer is gone. The other node takes writes
    again, unless --keep-refusal is given: stop it, or take its users' rights away.

    \b
    Examples:
      trueup switchover finish --from n1 --to n2
      trueup switchover finish --from n1 --to n2 --keep-refusal
    """
    from trueup.api import switchover as call

    as_json, ends, given = _given(options)
    _ended(call.finish(*ends, **given), as_json)


def _moved(move: Callable[..., Any], options: dict[str, Any]) -> None:
    from trueup.engine.progress import Shown
    from trueup.verbs.switchover.outcome import outcome_text

    quiet = options.pop("quiet")
    as_json, ends, given = _given(options)
    with Shown(quiet=quiet) as progress:
        outcome = move(*ends, progress=progress, **given)
    if as_json:
        click.echo(json.dumps(outcome.as_json()))
    elif not quiet:
        click.echo(outcome_text(outcome))


def _ended(done: Ended, as_json: bool) -> None:
    click.echo(json.dumps(done.as_json()) if as_json else "\n".join([*done.done, f"{done.in_use} is in use"]))


def _given(options: dict[str, Any]) -> tuple[bool, tuple[str, str], dict[str, Any]]:
    """What is printed, the two nodes, and all else as the Python calls take it."""
    given = dict(options)
    as_json, inline = given.pop("as_json"), inline_nodes(given.pop("inline"))
    return as_json, (given.pop("source"), given.pop("target")), {**given, "nodes": inline or None}
