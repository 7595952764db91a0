"""`trueup sync`: copy a database to another one, and keep the copy up to date."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import click

from trueup.cli.metrics import PORT, serving_metrics
from trueup.cli.options import (
    SECONDS,
    SHARED,
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
from trueup.config.wording import counted

if TYPE_CHECKING:
    from trueup.api.sync import Sync

_options = partial(sync_options, "The node to copy from.", "The node to copy to.")
_WHAT = (
    shared("tables", "exclude_tables"),
    flag("--create-schema", "Create the target's schema, with pg_dump and pg_restore."),
    flag("--create-roles", "Create roles that the target lacks; with --create-schema."),
    flag("--no-owner", "Let the role on the target own all objects, instead of their owners; with --create-schema."),
    option("--pg-bin", "DIR", "Folder of pg_dump and pg_restore.", ""),
)
_WORK = (
    shared("engine", "master", "remote"),
    option("--concurrency-factor", "F", "Concurrent tasks per core, from 0.0 to 4.0; 0: one task.", 1.0),
    shared("max_connections", "quiet", "task_db"),
)


@click.group()
def sync() -> None:
    """Copy a database to another one, and keep the copy up to date.

    Triggers on the source record the keys of touched rows, never the rows. All rows are copied once, in one snapshot;
    then rounds copy the current rows of the touched keys. Writes on the source continue, and never fail because
    of a sync.

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
    """Show what a sync would do: tables, sequences, their order, and problems. Writes nothing.

    The exit code is 2 if there are problems.

    \b
    Examples:
      trueup sync plan --from n1 --to n2
      trueup sync plan --from n1 --to n2 --tables public.orders,public.customers --json
      trueup sync plan --from n1 --to n2 --create-schema --exclude-tables public.log
    """
    from trueup.verbs.sync.text import plan_text

    as_json, sync = _sync(options)
    plan = sync.plan()
    show(plan.as_json(), plan_text(plan), as_json=as_json)
    return 2 if plan.problems else 0


@sync.command()
@_options(*_WHAT, *_WORK, timeout_option(300.0))
def start(quiet: bool, timeout: float, **options: Any) -> int:
    """Record changes on the source from now on, and copy all rows. After a stop or a kill, run it again to continue.

    A table whose definition is changed meanwhile is set aside, and all other tables are copied. The exit code is 2 if
    anything is set aside.

    \b
    Examples:
      trueup sync start --from n1 --to n2
      trueup sync start --from n1 --to n2 --create-schema
      trueup sync start --from n1 --to n2 --engine spark --master spark://host:7077
    """
    from trueup.engine.progress import Shown
    from trueup.report.text import engines

    as_json, sync = _sync(options)
    with Shown(quiet=quiet) as progress:
        plan = sync.start(timeout=timeout, progress=progress)
    following = f"trueup sync run --from {plan.source} --to {plan.target}"
    engine = f", engine {engines('+'.join(plan.ran_on), plan.ran_on)}" if plan.ran_on else ""
    text = f"copied {counted(len(plan.tables), 'table')} to {plan.target}{engine}; next: {following}"
    values: dict[str, Any] = {"sync": plan.name, "tables": len(plan.tables), "mode": plan.mode}
    values["ran_on"] = dict(plan.ran_on)
    values["aside"] = [asdict(problem) for problem in plan.problems]
    text += "".join(f"\nSET ASIDE: {problem}; to fix it: {problem.cure}" for problem in plan.problems)
    show(values, text, as_json=as_json, quiet=quiet)
    return 2 if plan.problems else 0


@sync.command()
@_options(
    click.option(
        "--until-close", "how", flag_value="close", default="close", help="End when few changes are left (default)."
    ),
    click.option("--follow", "how", flag_value="follow", help="Continue until trueup sync stop."),
    click.option("--once", "how", flag_value="once", help="Run one round."),
    SHARED["close_keys"],
    option("--close-seconds", "S", "Few changes are left if a round takes at most S seconds.", 1.0, SECONDS),
    interval_option(0.2),
    flag("--follow-ddl", "Apply changes of the tables on the target, except what drops something there."),
    *_WORK,
    PORT,
)
def run(how: Literal["close", "follow", "once"], quiet: bool, follow_ddl: bool, **options: Any) -> int:
    """Apply changes in rounds, until few are left, until it is stopped, or once.

    A table whose definition was changed is set aside: its changes stay in the change log, and all other tables go on.
    The exit code is 2 if anything is set aside.

    \b
    Examples:
      trueup sync run --from n1 --to n2
      trueup sync run --from n1 --to n2 --follow --follow-ddl
      trueup sync run --from n1 --to n2 --once --json
    """
    from trueup.engine.progress import Shown

    end = {name: options.pop(name) for name in ("close_keys", "close_seconds", "interval")}
    port = options.pop("metrics_port")
    as_json, sync = _sync(options)
    with Shown(quiet=quiet) as progress, serving_metrics(port, sync.config, options["task_db"]):
        totals = sync.run(how, follow_ddl=follow_ddl, progress=progress, **end)
    lines = [totals.text(), *(f"SET ASIDE: {problem}; to fix it: {problem.cure}" for problem in totals.aside)]
    show(totals.as_json(), as_lines(lines), as_json=as_json, quiet=quiet)
    return 2 if totals.aside else 0


@sync.command()
@_options()
def status(**options: Any) -> int:
    """Show how far a sync is: pending changes, the last round, the running process, and what is set aside.

    The exit code is 2 if tables are set aside, if the sync cannot continue because a database went back, or if a
    database does not answer.

    \b
    Examples:
      trueup sync status --from n1 --to n2
      trueup sync status --from n1 --to n2 --json
    """
    from trueup.verbs.sync.text import status_text

    as_json, sync = _sync(options)
    state = sync.status()
    show(state.as_json(), status_text(state), as_json=as_json)
    is_stopped = state.problem or state.lost or state.known is None
    return 2 if is_stopped or (state.known is not None and state.known.aside) else 0


@sync.command()
@click.argument("names", metavar="TABLE...", nargs=-1, required=True)
@_options(timeout_option(300.0), *_WORK)
def add(names: tuple[str, ...], quiet: bool, timeout: float, **options: Any) -> None:
    """Add tables to a started sync, also while it runs, and copy only their rows. A table of the sync is copied again.

    TABLE is a name or a pattern with * and ?. The table must exist on the target, with the same definition (trueup sync
    ddl --apply creates and adds it). After a kill, run it again to continue.

    \b
    Examples:
      trueup sync add public.invoices --from n1 --to n2
      trueup sync add invoices payments --from n1 --to n2
    """
    from trueup.engine.progress import Shown

    as_json, sync = _sync(options)
    with Shown(quiet=quiet) as progress:
        added = sync.add(names, timeout=timeout, progress=progress)
    show({"added": list(added)}, f"copied {', '.join(added)}", as_json=as_json, quiet=quiet)


@sync.command()
@click.argument("names", metavar="TABLE...", nargs=-1, required=True)
@_options(timeout_option(30.0))
def remove(names: tuple[str, ...], timeout: float, **options: Any) -> None:
    """Remove tables from a started sync, also while it runs: triggers and waiting changes. Their rows stay.

    TABLE is a name or a pattern with * and ?.

    \b
    Examples:
      trueup sync remove public.invoices --from n1 --to n2
      trueup sync remove 'archive.*' --from n1 --to n2
    """
    as_json, sync = _sync(options)
    removed = sync.remove(names, timeout=timeout)
    show({"removed": list(removed)}, f"removed {', '.join(removed)} from the sync", as_json=as_json)


@sync.command()
@_options(flag("--apply", "Apply the statements on the target.", key="applies"), timeout_option(30.0))
def ddl(applies: bool, timeout: float, **options: Any) -> int:
    """Show the statements that make the tables of the target like those of the source, or apply them.

    Tables and columns are recognized by their numbers, so a rename is not a drop. Each table is one transaction, with
    short attempts for its locks. Rows that would have to be converted are deleted and copied again by the rounds.
    Tables that were dropped on the source are dropped on the target only by this command. With --apply the exit code
    is 2 if a statement was not applied, or if a difference is left that has to be removed by hand.

    \b
    Examples:
      trueup sync ddl --from n1 --to n2
      trueup sync ddl --from n1 --to n2 --apply
    """
    from trueup.verbs.sync_ddl.text import applied_text, as_json_values, ddl_text

    as_json, sync = _sync(options)
    if not applies:
        found = sync.ddl()
        show(as_json_values(found), ddl_text(found), as_json=as_json)
        return 0
    done = sync.apply_ddl(timeout=timeout)
    values = [{"table": each.change.table, "problem": each.problem} for each in done]
    notes = sync.ddl().notes
    show({"applied": values, "by_hand": list(notes)}, applied_text(done, notes), as_json=as_json)
    return 2 if notes or any(each.problem for each in done) else 0


@sync.command()
@_options(timeout_option(60.0))
def stop(timeout: float, **options: Any) -> None:
    """Stop the running sync after its round. Changes are still recorded, so rounds can continue later.

    \b
    Examples:
      trueup sync stop --from n1 --to n2
    """
    as_json, sync = _sync(options)
    was_running = sync.stop(timeout=timeout)
    show({"stopped": was_running}, "stopped" if was_running else "the sync was not running", as_json=as_json)


@sync.command()
@click.argument("names", metavar="[TABLE]...", nargs=-1)
@_options()
def accept(names: tuple[str, ...], **options: Any) -> None:
    """Continue a sync after a failover or a restore that lost rows on one of the nodes.

    Compare and repair all tables first: a sync copies only rows that change. Rounds continue where they ended; changes
    made in the meantime are in the change log.

    Tables that were replaced on the target (restored from a dump, or dropped and created again) are accepted only if
    they are named. TABLE is a name or a pattern with * and ?.

    \b
    Examples:
      trueup diff --schema public --nodes n1,n2
      trueup repair TASK --source-of-truth n1 --execute
      trueup sync accept --from n1 --to n2
      trueup sync accept 'public.*' --from n1 --to n2
      trueup sync run --from n1 --to n2
    """
    as_json, sync = _sync(options)
    accepted = sync.accept(names)
    text = f"accepted: {accepted}; next: trueup sync run" if accepted else "there is nothing to accept"
    show({"accepted": accepted}, text, as_json=as_json)


@sync.command()
@_options(
    timeout_option(30.0),
    flag("--without-source", "The --from node is lost: clear the --to node only."),
    flag("--without-target", "The --to node is lost: clear the --from node only."),
)
def drop(timeout: float, without_source: bool, without_target: bool, **options: Any) -> None:
    """Remove what the sync created on both nodes: triggers, change log, state. The copied rows stay.

    If start --create-schema has not finished, the tables that it created are dropped too.

    \b
    Examples:
      trueup sync drop --from n1 --to n2
      trueup sync drop --from n1 --to n2 --without-target
    """
    name = options["name"]
    as_json, sync = _sync(options)
    dropped = sync.drop(timeout=timeout, without_source=without_source, without_target=without_target)
    parts = (
        ("the change log", dropped.log),
        ("the state on the target", dropped.state),
        ("what --create-schema created", dropped.schema),
    )
    existed = [part for part, did_exist in parts if did_exist]
    text = f"dropped {' and '.join(existed)}" if existed else f"the sync {name} does not exist"
    values = {"log": dropped.log, "sync": dropped.state, "schema": dropped.schema, "left": dropped.left}
    show(values, as_lines(filter(None, (text, *dropped.left.splitlines()))), as_json=as_json)


def _sync(options: dict[str, Any]) -> tuple[bool, Sync]:
    """Return whether to print JSON, and the sync that the options describe."""
    from trueup.api.sync import Sync

    arguments = dict(options)
    arguments["exclude_tables"] = arguments.pop("skip", ())
    as_json, inline = arguments.pop("as_json"), inline_nodes(arguments.pop("inline"))
    return as_json, Sync(arguments.pop("source"), arguments.pop("target"), nodes=inline or None, **arguments)
