"""`trueup tube`: record which keys of a table are touched. `run` and `dead-letters` are in `tube_run`."""

from __future__ import annotations

from typing import Any

import click

from trueup.cli.options import COUNT, POSITIVE, SHARED, flag, interval_option, option, timeout_option
from trueup.cli.output import echo, show
from trueup.cli.tube_options import FILTER, FORCE, LOCK_TIMEOUT, ON, SHARD, open_node, open_tube, tube_options
from trueup.cli.tube_run import dead_letters, prove, run
from trueup.config.wording import counted


@click.group()
def tube() -> None:
    """Record which keys of a table are touched, to keep a copy, cache or index in step with it.

    A tube is a queue table in the database of the tables. Triggers put the keys of touched rows into it, never the
    rows themselves.

    \b
    Examples:
      trueup tube install n1
      trueup tube ensure search
      trueup tube attach search public.orders --shard 0
      trueup tube backfill search public.orders
      trueup tube run search --to redis://cache:6379/0
      trueup tube prove search --to redis://cache:6379/0
      trueup tube stats
    """


@tube.command()
@click.argument("node")
@tube_options()
def install(as_json: bool, **options: Any) -> None:
    """Install or upgrade the functions of tubes on NODE; a second call changes nothing.

    \b
    Examples:
      trueup tube install n1
      trueup tube install n1 --schema tube --node n1=postgresql://db1/shop
    """
    from dataclasses import asdict

    from trueup.capture.triggers.install import install

    with open_node(options) as session:
        done = install(session)
    word = "installed" if done.before is None else "is up to date" if done.before == done.version else "upgraded"
    show(asdict(done), f"version {done.version} {word} in the schema {done.schema} of {done.node}", as_json=as_json)


@tube.command()
@click.argument("node")
@tube_options(FORCE)
def uninstall(force: bool, as_json: bool, **options: Any) -> None:
    """Detach all tables and drop the schema with all tubes from NODE.

    \b
    Examples:
      trueup tube uninstall n1
      trueup tube uninstall n1 --force
    """
    from trueup.capture.triggers.install import uninstall

    with open_node(options) as session:
        dropped = uninstall(session, force=force)
    show({"dropped": dropped}, f"dropped {counted(dropped, 'tube')} and the schema {session.schema}", as_json=as_json)


@tube.command("list")
@tube_options(ON)
def list_(as_json: bool, **options: Any) -> None:
    """List all tubes with their attached tables and problems.

    \b
    Examples:
      trueup tube list
      trueup tube list --on n1 --json
    """
    from trueup.capture.triggers.model import as_json as plain
    from trueup.capture.triggers.tubes import list_tubes
    from trueup.verbs.tube.text import tubes_text

    with open_node(options) as session:
        tubes = list_tubes(session)
    show([plain(info) for info in tubes], tubes_text(tubes), as_json=as_json)


@tube.command()
@click.argument("name", metavar="TUBE")
@tube_options(
    option(
        *("--partitions", "N"),
        "Number of workers that can share the tube; the partition of a shard is shard modulo N. [default: 1]",
        kind=POSITIVE,
    ),
    FILTER,
    SHARED["allow_functions"],
    option("--pod-size", "N", "Keys per pod. [default: 250]", kind=POSITIVE),
    ON,
)
def ensure(name: str, as_json: bool, **options: Any) -> None:
    """Create TUBE, or change the settings of an existing one; those that are not given stay as they are.

    \b
    Examples:
      trueup tube ensure search
      trueup tube ensure search --partitions 3 --filter "NOT is_draft"
    """
    from dataclasses import asdict

    with open_tube(name, options) as chosen:
        done = chosen.ensure(**options)
    text = f"created the tube {name}" if done.is_new else f"the tube {name} exists and is unchanged"
    if done.changed:
        text = "\n  ".join([f"changed the tube {name}", *done.changed])
    show(asdict(done), text, as_json=as_json)


@tube.command()
@click.argument("name", metavar="TUBE")
@tube_options(FORCE, LOCK_TIMEOUT, ON)
def drop(name: str, as_json: bool, **options: Any) -> None:
    """Detach all tables from TUBE and drop it.

    \b
    Examples:
      trueup tube drop search
      trueup tube drop search --force
    """
    with open_tube(name, options) as chosen:
        dropped = chosen.drop(**options)
    show(
        {"dropped": dropped},
        f"dropped the tube {name}" if dropped else f"the tube {name} did not exist",
        as_json=as_json,
    )


@tube.command()
@click.argument("name", metavar="TUBE")
@click.argument("table")
@tube_options(
    option("--shard", "N", "The shard. [default: the number in the name of schema or table]", kind=int),
    option("--routing", "SQL", "An expression over the row that returns its shard.", ""),
    FILTER,
    SHARED["allow_functions"],
    option(
        *("--capture", None),
        "row is slower; use it for tables whose writers fire no statement triggers. [default: statement]",
        kind=click.Choice(["statement", "row"]),
    ),
    LOCK_TIMEOUT,
    ON,
)
def attach(name: str, table: str, as_json: bool, **options: Any) -> None:
    """Attach TABLE to TUBE: every touched key is recorded from now on.

    Called again, it creates the triggers of new partitions, and changes the filter if one is given.

    \b
    Examples:
      trueup tube attach search public.orders --shard 0
      trueup tube attach search public.orders --routing "tenant_id % 100" --filter "NOT is_draft"
    """
    from trueup.capture.triggers.model import as_json as plain
    from trueup.verbs.tube.text import table_text

    with open_tube(name, options) as chosen:
        attached = chosen.attach(table, **options)
    backfill = f"next: trueup tube backfill {name} {attached.table}"
    if attached.backfill_is_scheduled:
        backfill = "a backfill is scheduled: trueup tube run runs it"
    text = f"attached to {name}: {table_text(attached)}\n  {backfill}"
    show(plain(attached), text, as_json=as_json)


@tube.command()
@click.argument("name", metavar="TUBE")
@click.argument("table")
@tube_options(LOCK_TIMEOUT, ON)
def detach(name: str, table: str, as_json: bool, **options: Any) -> None:
    """Detach TABLE from TUBE; waiting pods stay.

    \b
    Examples:
      trueup tube detach search public.orders
    """
    with open_tube(name, options) as chosen:
        detached = chosen.detach(table, **options)
    text = f"detached {table} from {name}" if detached else f"{table} was not attached to {name}"
    show({"detached": detached}, text, as_json=as_json)


@tube.command()
@click.argument("name", metavar="TUBE")
@click.argument("table")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@tube_options(
    option("--query", "SQL", "Touch all keys that this query returns, in its order.", ""),
    SHARED["allow_functions"],
    SHARD,
    ON,
)
def touch(
    name: str,
    table: str,
    keys: tuple[str, ...],
    query: str,
    shard: int | None,
    allow_functions: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Touch keys of TABLE in TUBE: each KEY, or the keys that a query returns.

    A key of several columns is written as a JSON array of texts.

    \b
    Examples:
      trueup tube touch search public.orders 17 18
      trueup tube touch search public.orders --query "SELECT id FROM public.orders WHERE region = 'EU'"
    """
    from trueup.errors import ConfigError

    if bool(keys) == bool(query):
        raise ConfigError("either keys or --query is required", cure="see trueup tube touch --help")
    with open_tube(name, options) as chosen:
        if query:
            pods = chosen.touch_query(table, query, shard=shard, allow_functions=allow_functions)
        else:
            pods = chosen.touch(table, keys, shard=shard)
    show({"pods": pods}, f"touched: {counted(pods, 'pod')}", as_json=as_json)


@tube.command()
@click.argument("name", metavar="TUBE")
@click.argument("table")
@tube_options(
    option("--order-col", "C", "Order of the keys by this column. [default: the key]", ""),
    SHARD,
    timeout_option(300.0),
    flag("--restart", "Start again instead of continuing an interrupted backfill."),
    flag("--schedule", "Let a worker of the tube run the backfill."),
    SHARED["quiet"],
    ON,
)
def backfill(name: str, table: str, schedule: bool, quiet: bool, as_json: bool, **options: Any) -> None:
    """Put all keys of TABLE into TUBE, behind the live touches; continue an interrupted backfill.

    \b
    Examples:
      trueup tube backfill search public.orders
      trueup tube backfill search public.orders --order-col created_at
      trueup tube backfill search public.orders --schedule
    """
    from trueup.capture.triggers.model import as_json as plain
    from trueup.engine.progress import Shown
    from trueup.verbs.tube.text import backfill_text

    with open_tube(name, options) as chosen:
        if schedule:
            number = chosen.schedule_backfill(table, order_col=options["order_col"], shard=options["shard"])
            show({"seq": number}, f"scheduled by the control pod {number}", as_json=as_json)
            return
        with Shown(quiet=quiet) as progress:
            done = chosen.backfill(table, progress=progress, **options)
    show(plain(done), f"backfill {backfill_text(done)}", as_json=as_json, quiet=quiet)


@tube.command()
@tube_options(
    flag("--watch", "Repeat until Ctrl-C; with --json, print one line each time."),
    interval_option(1.0),
    click.option("--times", type=COUNT, default=0, metavar="N", help="Outputs of --watch; 0: until Ctrl-C."),
    ON,
)
def stats(watch: bool, interval: float, times: int, as_json: bool, **options: Any) -> None:
    """Show waiting pods, worker and rate of each partition of each tube, and the progress of backfills.

    \b
    Examples:
      trueup tube stats
      trueup tube stats --watch
      trueup tube stats --watch --interval 10 --json
    """
    from trueup.verbs.tube import watch as output

    with open_node(options) as session:
        if watch:
            output.watch(session, interval=interval, times=times, as_lines=as_json, write=echo)
            return
        values, text = output.look(session)
    show(values, text, as_json=as_json)


tube.add_command(run)
tube.add_command(prove)
tube.add_command(dead_letters)
