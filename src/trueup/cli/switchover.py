"""`trueup switchover`: move applications to the copy that a sync keeps, with a pause of milliseconds, and back."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from trueup.cli.options import (
    SHARED,
    Bytes,
    choice,
    flag,
    inline_nodes,
    interval_option,
    option,
    shared,
    sync_options,
    timeout_option,
)
from trueup.cli.output import show
from trueup.config.visible import as_lines

if TYPE_CHECKING:
    from trueup.api.switchover import Switchover
    from trueup.verbs.switchover.ending import Ended
    from trueup.verbs.switchover.outcome import Outcome

_options = partial(sync_options, "The node that the sync copies from.", "The node that the sync copies to.")
_TIMEOUT = timeout_option(60.0)
_ADDRESSES = tuple(
    option(
        *(f"--{which}-address", "CONNINFO"),
        f"The address of the {node} node for applications. [default: host, port and database of the node]",
        default="",
    )
    for which, node in (("first", "--from"), ("second", "--to"))
)
_WAY_BACK_LIMIT = option(
    *("--way-back-limit", "SIZE"),
    "Maximum size of the change log for the way back; 0: no limit. At the limit the way back is closed."
    " [default: 10GB]",
    None,
    Bytes(),
)
_MOVE = (
    option(
        *("--budget", "TIME"),
        "Maximum pause of applications: 5s, 500ms. If it is exceeded, everything is released.",
        default="5s",
    ),
    choice(
        *("--proof", ["digest", "keys", "validated"]),
        "digest: compare all tables inside of the pause. keys: all tables before it, changed keys inside of it."
        " validated: use a running trueup validate, up to a marker inside of the pause.",
    ),
    option(
        *("--validation", "NAME"),
        "With --proof validated: the validation. [default: the only one between the two nodes]",
        default="",
    ),
    option(
        "--meta", "NODE", "Node of the meta database, with --proof validated. [default: one of the two]", default=""
    ),
    SHARED["close_keys"],
    option("--jobs", "N", "Sessions per node that compare rows.", 4, click.IntRange(min=1, max=64)),
    click.option(
        "--accept-schema",
        multiple=True,
        metavar="NAMES",
        is_flag=False,
        # Without a value it is refused with a message that explains the names.
        flag_value="*",
        help="Accept the differences of these objects, except in tables and columns: names or patterns with * and ?,"
        " comma-separated; KIND:NAME for objects of a kind, owner:NAME and grants:NAME if only that differs.",
    ),
    _TIMEOUT,
    *_ADDRESSES,
    shared("report_dir", "quiet", "task_db"),
)


@click.group()
def switchover() -> None:
    """Move applications to the copy that a sync keeps, with a pause of milliseconds, and back.

    Writers wait while the last changes are applied, sequences are set and both databases are proven equal. One
    commit on the old database is the decision; after it the old database refuses writes and names the new one. Any
    failure before that commit releases everything.

    \b
    Examples:
      trueup switchover prepare --from n1 --to n2
      trueup switchover rehearse --from n1 --to n2 --budget 2s
      trueup switchover execute --from n1 --to n2 --budget 2s
      trueup switchover status --from n1 --to n2
      trueup switchover rollback --from n1 --to n2
      trueup switchover finish --from n1 --to n2
    """


@switchover.command()
@_options(_TIMEOUT, _WAY_BACK_LIMIT, *_ADDRESSES)
def prepare(**options: Any) -> None:
    """Create pointers and guards on both nodes, so that applications can use the pointer from now on.

    `execute` does this too. Nothing is switched, and writers wait for a moment at most.

    \b
    Examples:
      trueup switchover prepare --from n1 --to n2
      trueup switchover prepare --from n1 --to n2 --second-address "host=db2.internal dbname=shop"
    """
    as_json, switchover, arguments = _switchover(options)
    in_use, guards = switchover.prepare(**arguments)
    created = f"created {guards} guards" if guards else "prepared already"
    text = f"{in_use} is in use; {created}. For applications see trueup.connect in docs/switchover.md"
    show({"in_use": in_use, "guards": guards}, text, as_json=as_json)


@switchover.command()
@_options(flag("--rollback", "Rehearse the rollback: the --to node is in use."), *_MOVE)
def rehearse(**options: Any) -> None:
    """Rehearse the switchover on the live system: everything except the decision.

    Writers wait in a real pause of at most --budget, which ends with a release: the --from node stays in use. The
    report, an HTML page, has the measured pause, the conditions, what is not copied, and how to go back. Both
    nodes are prepared afterwards, and `trueup sync run --follow` continues.

    \b
    Examples:
      trueup switchover rehearse --from n1 --to n2 --budget 500ms
      trueup switchover rehearse --from n1 --to n2 --proof keys --report-dir reports
      trueup switchover rehearse --from n1 --to n2 --rollback
    """
    _move("rehearse", options)


@switchover.command()
@_options(*_MOVE, _WAY_BACK_LIMIT)
def execute(**options: Any) -> None:
    """Move the applications from the --from node to the --to node.

    If an earlier call was killed after its decision, this completes it.

    \b
    Examples:
      trueup switchover execute --from n1 --to n2
      trueup switchover execute --from n1 --to n2 --proof keys --budget 500ms
      trueup switchover execute --from n1 --to n2 --proof validated --validation shop
      trueup switchover execute --from n1 --to n2 --json
    """
    _move("execute", options)


@switchover.command()
@_options(*_MOVE)
def rollback(**options: Any) -> None:
    """Move the applications back from the --to node to the --from node, with all later writes.

    The same path in the other direction, with the same gate. Afterwards the sync can continue.

    \b
    Examples:
      trueup switchover rollback --from n1 --to n2
      trueup switchover rollback --from n1 --to n2 --proof keys --budget 500ms
    """
    _move("rollback", options)


@switchover.command()
@_options(SHARED["watch"], interval_option(1.0))
def status(watch: bool, interval: float, **options: Any) -> None:
    """Show the node in use, the phase, the locks and their holders, pending changes, and the time of each phase.

    \b
    Examples:
      trueup switchover status --from n1 --to n2
      trueup switchover status --from n1 --to n2 --watch
      trueup switchover status --from n1 --to n2 --json
    """
    from trueup.verbs.switchover.status import status_text

    as_json, switchover, _ = _switchover(options)
    while True:
        state = switchover.status()
        show(state.as_json(), status_text(state), as_json=as_json)
        if not watch:
            return
        time.sleep(interval)


@switchover.command()
@_options()
def abort(**options: Any) -> None:
    """End a running switchover: its sessions are terminated, and the old node stays in use.

    A decision that was made is not undone: use `rollback`.

    \b
    Examples:
      trueup switchover abort --from n1 --to n2
    """
    as_json, switchover, _ = _switchover(options)
    _print_ended(switchover.abort(), as_json)


@switchover.command()
@_options(_TIMEOUT)
def reset(**options: Any) -> None:
    """Remove pointers, guards and the way back from both nodes. The sync stays.

    Refused while the --to node is in use.

    \b
    Examples:
      trueup switchover reset --from n1 --to n2
    """
    as_json, switchover, arguments = _switchover(options)
    _print_ended(switchover.reset(**arguments), as_json)


@switchover.command()
@_options(
    _TIMEOUT,
    flag("--reopen-old", "The node that is not in use accepts writes again, also later."),
    flag("--without-old", "The --from node is lost: finish on the --to node only."),
    flag("--without-new", "The --to node is lost: finish on the --from node only."),
    flag("--accept-loss", "Put the remaining node into use although it was not, and lacks changes of the lost one."),
    flag("--keep-closed", "Leave the remaining node closed to writes: applications use a third one."),
)
def finish(**options: Any) -> None:
    """End the switchover and the sync. There is no way back afterwards.

    The node in use keeps nothing of trueup, so applications need its address by then. The other node stays closed to
    writes: its guards and its pointer remain, until --reopen-old removes them.

    \b
    Examples:
      trueup switchover finish --from n1 --to n2
      trueup switchover finish --from n1 --to n2 --reopen-old
      trueup switchover finish --from n1 --to n2 --without-old
    """
    as_json, switchover, arguments = _switchover(options)
    _print_ended(switchover.finish(**arguments), as_json)


def _move(action: str, options: dict[str, Any]) -> None:
    from trueup.engine.progress import Shown
    from trueup.verbs.switchover.outcome import outcome_text

    quiet = options.pop("quiet")
    as_json, switchover, arguments = _switchover(options)
    with Shown(quiet=quiet) as progress:
        outcome: Outcome = getattr(switchover, action)(progress=progress, **arguments)
    done = f"{outcome.source if action == 'rehearse' else outcome.target} is in use"
    show(outcome.as_json(), outcome_text(outcome), as_json=as_json, quiet=quiet, done=done)


def _print_ended(ended: Ended, as_json: bool) -> None:
    done = [*ended.done, f"{ended.in_use} is in use"] if ended.in_use else list(ended.done)
    show(ended.as_json(), as_lines(done), as_json=as_json, done="; ".join(done))


def _switchover(options: dict[str, Any]) -> tuple[bool, Switchover, dict[str, Any]]:
    """Return whether to print JSON, the switchover that the options describe, and the arguments of its method."""
    from trueup.api.switchover import Switchover

    arguments = dict(options)
    inline = inline_nodes(arguments.pop("inline"))
    switchover = Switchover(
        arguments.pop("source"),
        arguments.pop("target"),
        name=arguments.pop("name"),
        nodes=inline or None,
        config=arguments.pop("config"),
        task_db=arguments.pop("task_db", None),
    )
    return arguments.pop("as_json"), switchover, arguments
