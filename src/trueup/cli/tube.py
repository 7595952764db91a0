"""`trueup tube`: record which keys of a table are touched; running a job on it is in `tube_run`."""

from __future__ import annotations

from typing import Any

import click

from trueup.cli.tube_options import FORCE as _FORCE
from trueup.cli.tube_options import ON as _ON
from trueup.cli.tube_options import PATIENCE as _PATIENCE
from trueup.cli.tube_options import SHARD as _SHARD
from trueup.cli.tube_options import open_tubes as _open
from trueup.cli.tube_options import options as _options
from trueup.cli.tube_options import show as _show
from trueup.cli.tube_run import dead_letters, run


@click.group()
def tube() -> None:
    """Record which keys of a table are touched, for whoever keeps something in step with it.

    A tube is a queue table in the database of the tables. Triggers put the keys of touched rows into it, never the
    rows themselves.

    \b
    Examples:
      trueup tube install n1
      trueup tube ensure search
      trueup tube attach search public.orders --shard 0
      trueup tube backfill search public.orders
      trueup tube run search --to redis://cache:6379/0
      trueup tube stats
    """


@tube.command()
@click.argument("node")
@_options()
def install(node: str, **options: Any) -> None:
    """Install the tubes' functions on NODE, or bring them to this version; a second call changes nothing.

    \b
    Examples:
      trueup tube install n1
      trueup tube install n1 --schema tube --node n1=postgresql://db1/shop
    """
    as_json = options.pop("as_json")
    with _open(node=node, **options) as tubes:
        done = tubes.install()
    word = "installed" if done.before is None else "is up to date" if done.before == done.version else "upgraded"
    result = {"node": done.node, "schema": done.schema, "before": done.before, "version": done.version}
    _show(as_json, result, f"version {done.version} {word} in the schema {done.schema} of {done.node}")


@tube.command()
@click.argument("node")
@_options(_FORCE)
def uninstall(node: str, force: bool, **options: Any) -> None:
    """Detach all tables and drop the schema with all tubes from NODE.

    \b
    Examples:
      trueup tube uninstall n1
      trueup tube uninstall n1 --force
    """
    as_json = options.pop("as_json")
    with _open(node=node, **options) as tubes:
        dropped = tubes.uninstall(force=force)
    _show(as_json, {"dropped": dropped}, f"dropped {dropped} tubes and the schema {options['schema']}")


@tube.command("list")
@_options(_ON)
def list_(**options: Any) -> None:
    """All tubes, the tables attached to them, and what is wrong with one.

    \b
    Examples:
      trueup tube list
      trueup tube list --on n1 --json
    """
    from trueup.capture.triggers.model import as_json as plain
    from trueup.verbs.tube.text import tubes_text

    as_json = options.pop("as_json")
    with _open(**options) as tubes:
        found = tubes.list()
    _show(as_json, [plain(each) for each in found], tubes_text(found))


@tube.command()
@click.argument("name", metavar="TUBE")
@_options(
    click.option(
        "--partitions",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        metavar="N",
        help="Workers that share the tube; shard modulo N says which one has a shard.",
    ),
    click.option("--predicate", default="", metavar="SQL", help="Only rows of which this is true, before or after."),
    click.option(
        "--pod-size", type=click.IntRange(min=1), default=250, show_default=True, metavar="N", help="Keys of a pod."
    ),
    _ON,
)
def ensure(name: str, partitions: int, predicate: str, pod_size: int, **options: Any) -> None:
    """Make TUBE, or give the one that is there these settings.

    \b
    Examples:
      trueup tube ensure search
      trueup tube ensure search --partitions 3 --predicate "NOT is_draft"
    """
    as_json = options.pop("as_json")
    with _open(**options) as tubes:
        tubes.ensure(name, partitions=partitions, predicate=predicate, pod_size=pod_size)
    _show(as_json, {"tube": name}, f"the tube {name} is there")


@tube.command()
@click.argument("name", metavar="TUBE")
@_options(_FORCE, _PATIENCE, _ON)
def drop(name: str, force: bool, patience: float, **options: Any) -> None:
    """Detach all tables from TUBE and drop it.

    \b
    Examples:
      trueup tube drop search
      trueup tube drop search --force
    """
    as_json = options.pop("as_json")
    with _open(**options) as tubes:
        dropped = tubes.drop(name, force=force, patience=patience)
    _show(as_json, {"dropped": dropped}, f"the tube {name} is dropped" if dropped else f"there was no tube {name}")


@tube.command()
@click.argument("name", metavar="TUBE")
@click.argument("table")
@_options(
    click.option("--shard", type=int, metavar="N", help="The shard; without it, the number in the table's name."),
    click.option("--routing", default="", metavar="SQL", help="An expression over the row that gives its shard."),
    click.option("--predicate", default="", metavar="SQL", help="Only rows of which this is true, before or after."),
    click.option(
        "--capture",
        type=click.Choice(["statement", "row"]),
        default="statement",
        show_default=True,
        help="row is slower, and for tables whose writers fire no triggers for statements.",
    ),
    _PATIENCE,
    _ON,
)
def attach(name: str, table: str, **options: Any) -> None:
    """Attach TABLE to TUBE: from now on every touched key is recorded.

    Called again, it gives new partitions their triggers and takes the predicate.

    \b
    Examples:
      trueup tube attach search public.orders --shard 0
      trueup tube attach search public.orders --routing "tenant_id % 100" --predicate "NOT is_draft"
    """
    from trueup.capture.triggers.model import as_json as plain
    from trueup.verbs.tube.text import table_text

    given = {each: options.pop(each) for each in ("shard", "routing", "predicate", "capture", "patience")}
    as_json = options.pop("as_json")
    with _open(**options) as tubes:
        found = tubes.attach(name, table, **given)
    text = f"attached to {name}: {table_text(found)}\n  next: trueup tube backfill {name} {found.table}"
    _show(as_json, plain(found), text)


@tube.command()
@click.argument("name", metavar="TUBE")
@click.argument("table")
@_options(_PATIENCE, _ON)
def detach(name: str, table: str, patience: float, **options: Any) -> None:
    """Detach TABLE from TUBE; pods that wait stay.

    \b
    Examples:
      trueup tube detach search public.orders
    """
    as_json = options.pop("as_json")
    with _open(**options) as tubes:
        was = tubes.detach(name, table, patience=patience)
    _show(as_json, {"detached": was}, f"{table} is detached" if was else f"{table} was not attached to {name}")


@tube.command()
@click.argument("name", metavar="TUBE")
@click.argument("table")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@_options(
    click.option("--query", default="", metavar="SQL", help="Touch all keys that this query finds, in its order."),
    _SHARD,
    _ON,
)
def touch(name: str, table: str, keys: tuple[str, ...], query: str, shard: int | None, **options: Any) -> None:
    """Touch keys of TABLE in TUBE by hand: each KEY, or what a query finds.

    A key of several columns is written as a JSON array of texts.

    \b
    Examples:
      trueup tube touch search public.orders 17 18
      trueup tube touch search public.orders --query "SELECT id FROM public.orders WHERE region = 'EU'"
    """
    from trueup.errors import ConfigError

    if bool(keys) == bool(query):
        raise ConfigError("give keys, or a query", cure="see trueup tube touch --help")
    as_json = options.pop("as_json")
    with _open(**options) as tubes:
        pods = (
            tubes.touch_query(name, table, query, shard=shard) if query else tubes.touch(name, table, keys, shard=shard)
        )
    _show(as_json, {"pods": pods}, f"touched: {pods} pods")


@tube.command()
@click.argument("name", metavar="TUBE")
@click.argument("table")
@_options(
    click.option("--order-col", default="", metavar="C", help="The column to go by; without it, the key."),
    _SHARD,
    click.option(
        "--timeout",
        type=click.FloatRange(min=0),
        default=300.0,
        show_default=True,
        metavar="S",
        help="Seconds to wait for transactions that began before.",
    ),
    click.option("--restart", is_flag=True, help="Begin anew, and forget one that was stopped."),
    click.option("--schedule", is_flag=True, help="Only ask the workers of the tube for it."),
    click.option("--quiet", "-q", is_flag=True, help="No progress, no summary."),
    _ON,
)
def backfill(name: str, table: str, order_col: str, shard: int | None, **options: Any) -> None:
    """Put all keys of TABLE into TUBE, behind the live touches; one that was stopped goes on.

    \b
    Examples:
      trueup tube backfill search public.orders
      trueup tube backfill search public.orders --order-col created_at
      trueup tube backfill search public.orders --schedule
    """
    from trueup.capture.triggers.model import as_json as plain
    from trueup.engine.progress import Shown
    from trueup.verbs.tube.text import backfill_text

    as_json, quiet, schedule = options.pop("as_json"), options.pop("quiet"), options.pop("schedule")
    timeout, restart = options.pop("timeout"), options.pop("restart")
    with _open(**options) as tubes:
        if schedule:
            number = tubes.schedule_backfill(name, table, order_col=order_col, shard=shard)
            _show(as_json, {"seq": number}, f"scheduled by the control pod {number}")
            return
        with Shown(quiet=quiet) as progress:
            done = tubes.backfill(
                name, table, order_col=order_col, shard=shard, timeout=timeout, restart=restart, progress=progress
            )
    if as_json or not quiet:
        _show(as_json, plain(done), f"backfill {backfill_text(done)}")


@tube.command()
@_options(
    click.option("--watch", is_flag=True, help="Look again and again, until Ctrl-C; with --json a line each time."),
    click.option(
        "--every",
        type=click.FloatRange(min=0, min_open=True),
        default=1.0,
        show_default=True,
        metavar="S",
        help="Seconds between two looks of --watch.",
    ),
    click.option(
        "--times", type=click.IntRange(min=0), default=0, metavar="N", help="Looks of --watch; 0: until Ctrl-C."
    ),
    _ON,
)
def stats(watch: bool, every: float, times: int, **options: Any) -> None:
    """What waits in each partition of each tube, who works on it and how fast, and where backfills are.

    \b
    Examples:
      trueup tube stats
      trueup tube stats --watch
      trueup tube stats --watch --every 10 --json
    """
    from trueup.verbs.tube import watch as looks

    as_json = options.pop("as_json")
    with _open(**options) as tubes:
        if watch:
            looks.watch(tubes.session, every=every, times=times, as_lines=as_json, write=click.echo)
            return
        values, text = looks.look(tubes.session)
    _show(as_json, values, text)


tube.add_command(run)
tube.add_command(dead_letters)
