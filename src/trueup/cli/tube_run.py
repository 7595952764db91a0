"""`trueup tube run` and `trueup tube dead-letters`: keep a sink in step, and what could not be delivered."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from trueup.cli.tube_options import ON, open_tubes, options, show

if TYPE_CHECKING:
    from trueup.config.model import Config
    from trueup.verbs.tube.run import Summary


@click.command("run")
@click.argument("name", metavar="TUBE")
@options(
    click.option(
        "--to", "sink", required=True, metavar="SINK", help="Where rows go, as an address; ${VAR} in it is filled in."
    ),
    click.option(
        "--option", "given", multiple=True, metavar="NAME=VALUE", help="A setting of the sink; may be given often."
    ),
    click.option(
        "--map",
        "mapping",
        multiple=True,
        metavar="FROM=TO",
        help="Of a PostgreSQL sink: only these columns of the source, under these names; may be given often.",
    ),
    click.option("--partitions", default="", metavar="0,2,…", help="Only these partitions; without it all."),
    click.option("--until-empty", is_flag=True, help="End when the tube is empty and backfills have ended."),
    click.option(
        "--wait",
        type=click.FloatRange(min=0),
        default=0.0,
        show_default=True,
        metavar="S",
        help="Seconds to wait for somebody else who works on the tube.",
    ),
    click.option(
        "--batch-keys", type=click.IntRange(min=1), metavar="N", help="Keys of a batch at most. [default: 10000]"
    ),
    click.option(
        "--attempts",
        type=click.IntRange(min=1),
        default=5,
        show_default=True,
        metavar="N",
        help="How often a row that the sink refuses is tried alone before it is parked.",
    ),
    click.option(
        "--engine",
        type=click.Choice(["auto", "spark", "local"]),
        default=None,
        help="Where rows are read and written: auto is Spark where a master or remote is set. [default: auto]"
        " [env: TRUEUP__SPARK__ENGINE]",
    ),
    click.option("--master", metavar="URL", help="Spark master. [env: TRUEUP__SPARK__MASTER]"),
    click.option("--remote", metavar="URL", help="Spark Connect server. [env: TRUEUP__SPARK__REMOTE]"),
    click.option("--quiet", "-q", is_flag=True, help="No progress, no summary."),
    click.option("--task-db", metavar="FILE", help="The task store. [env: TRUEUP_TASKS_DB]"),
    ON,
)
def run(name: str, **given: Any) -> int:
    """Keep SINK in step with the tables of TUBE: read the rows of touched keys as they are now, write, acknowledge.

    It runs until it is stopped (Ctrl-C, SIGTERM), which ends it in order: the batch is finished, and the exit code is
    0. A second signal stops at once; nothing is lost by it. Sinks and nodes that are down are waited for.

    \b
    Examples:
      trueup tube run search --to 'postgresql://app:${PW}@db2/copies'
      trueup tube run search --to n2 --option table=copy.orders --map id=order_id --map total=amount
      trueup tube run search --to redis://cache:6379/0 --partitions 0,2
      trueup tube run search --to python:mypackage.sinks:write --until-empty
    """
    import os
    from dataclasses import asdict, replace

    from trueup.config.values import interpolate
    from trueup.engine.progress import Shown
    from trueup.verbs.tube.run import Limits

    as_json, quiet = given.pop("as_json"), given.pop("quiet")
    wanted = {each: given.pop(each) for each in ("until_empty", "wait", "task_db")}
    sink = interpolate(given.pop("sink"), os.environ, "--to")
    extra = _pairs(given.pop("given"))
    if mapping := given.pop("mapping"):
        extra["map"] = ",".join(mapping)
    partitions = _numbers(given.pop("partitions"))
    limits = Limits(most_keys=given.pop("batch_keys") or 0, letter_attempts=given.pop("attempts"))
    spark = {each: value for each in ("engine", "master", "remote") if (value := given.pop(each)) is not None}
    with open_tubes(**given) as tubes, Shown(quiet=quiet) as progress, _stopping() as stop:
        config = _config(given)
        summary = tubes.run(
            name,
            sink,
            options=extra,
            nodes=config.nodes,
            partitions=partitions,
            limits=limits,
            spark=replace(config.spark, **spark).validated(),
            progress=progress,
            stop=stop,
            configured=config.tasks.task_db,
            **wanted,
        )
    if as_json or not quiet:
        show(as_json, asdict(summary), _text(summary))
    # What nobody could deliver is not "all is well", once the work is said to be at its end.
    return 2 if wanted["until_empty"] and summary.dead_letters else 0


@click.command("dead-letters")
@click.argument("name", metavar="TUBE")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@options(
    click.option("--retry", is_flag=True, help="Have them tried again by whoever works on the tube."),
    click.option("--drop", is_flag=True, help="Forget them: their documents stay as they are."),
    click.option(
        "--limit", type=click.IntRange(min=1), default=100, show_default=True, metavar="N", help="Show so many."
    ),
    ON,
)
def dead_letters(name: str, keys: tuple[str, ...], retry: bool, drop: bool, limit: int, **given: Any) -> None:
    """Keys of TUBE that could not be delivered, and why: all, or each KEY that is given.

    A later touch of a key that succeeds takes it out by itself.

    \b
    Examples:
      trueup tube dead-letters search
      trueup tube dead-letters search 4711 --retry
      trueup tube dead-letters search --drop
    """
    from trueup.capture.triggers.model import as_json as plain
    from trueup.errors import ConfigError
    from trueup.verbs.tube.text import letters_text

    if retry and drop:
        raise ConfigError("--retry and --drop cannot be given together", cure="choose one")
    as_json = given.pop("as_json")
    chosen = list(keys) or None
    with open_tubes(**given) as tubes:
        if retry or drop:
            count = (tubes.retry_letters if retry else tubes.drop_letters)(name, keys=chosen)
            word = "retried" if retry else "dropped"
            text = f"{count} dead letters are tried again" if retry else f"{count} dead letters are forgotten"
            show(as_json, {word: count}, text)
            return
        found = tubes.dead_letters(name, keys=chosen, most=limit)
    show(as_json, [plain(each) for each in found], letters_text(found))


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """An event that the first signal sets; the second one interrupts."""
    stop = threading.Event()

    def heed(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, heed) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _config(given: dict[str, Any]) -> Config:
    from trueup.cli.options import inline_nodes
    from trueup.config.load import load

    return load(given["config"], nodes=inline_nodes(given["inline"]))


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    from trueup.errors import ConfigError

    pairs = dict(text.partition("=")[::2] for text in texts)
    if wrong := [text for text in texts if "=" not in text]:
        raise ConfigError(f"--option {wrong[0].split('=')[0]}: this is not NAME=VALUE", cure="--option table=copy")
    return pairs


def _numbers(text: str) -> list[int]:
    from trueup.errors import ConfigError

    try:
        return [int(each) for each in text.split(",") if each.strip()]
    except ValueError:
        raise ConfigError(f"--partitions {text}: these are no numbers", cure="--partitions 0,2") from None


def _text(summary: Summary) -> str:
    rate = summary.keys / summary.seconds if summary.seconds else 0
    lines = [
        f"{summary.tube}: {summary.keys:,} keys of {summary.pods:,} pods in {summary.seconds:,.1f} s"
        f" ({rate:,.0f} keys/s): {summary.written:,} written, {summary.removed:,} removed"
    ]
    if summary.troubles:
        lines.append(f"  TROUBLE was told {summary.troubles:,} times: see above")
    if summary.dead_letters:
        lines.append(f"  {summary.dead_letters:,} dead letters: trueup tube dead-letters {summary.tube}")
    return "\n".join(lines)
