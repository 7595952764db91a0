"""`trueup tube run` and `trueup tube dead-letters`: keep a sink in step, and the keys that could not be delivered."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from trueup.cli.options import SHARED
from trueup.cli.tube_options import ON, open_tube, options, show

if TYPE_CHECKING:
    from trueup.verbs.tube.model import Summary


@click.command("run")
@click.argument("name", metavar="TUBE")
@options(
    click.option(
        "--to",
        "sink",
        required=True,
        metavar="SINK",
        help="Address of the sink, or name of a node; ${VAR} is replaced.",
    ),
    click.option(
        "--option", "sink_options", multiple=True, metavar="NAME=VALUE", help="An option of the sink; can be repeated."
    ),
    click.option(
        "--map",
        "mapping",
        multiple=True,
        metavar="FROM=TO",
        help="Map names of the source to names of the target: columns of a PostgreSQL sink; others are not written.",
    ),
    click.option("--partitions", default="", metavar="0,2,…", help="Process only these partitions. [default: all]"),
    click.option("--until-empty", is_flag=True, help="Stop when the tube is empty and all backfills are finished."),
    click.option(
        "--wait",
        type=click.FloatRange(min=0),
        default=0.0,
        show_default=True,
        metavar="S",
        help="Seconds to wait for a partition that another worker holds.",
    ),
    click.option(
        "--batch-keys", type=click.IntRange(min=1), metavar="N", help="Maximum keys per batch. [default: 10000]"
    ),
    click.option(
        "--attempts",
        type=click.IntRange(min=1),
        default=5,
        show_default=True,
        metavar="N",
        help="Attempts to deliver a refused row before it is parked.",
    ),
    SHARED["engine"],
    SHARED["master"],
    SHARED["remote"],
    SHARED["quiet"],
    SHARED["task_db"],
    ON,
)
def run(
    name: str,
    sink: str,
    sink_options: tuple[str, ...],
    mapping: tuple[str, ...],
    partitions: str,
    until_empty: bool,
    wait: float,
    batch_keys: int | None,
    attempts: int,
    engine: str | None,
    master: str | None,
    remote: str | None,
    quiet: bool,
    task_db: str | None,
    as_json: bool,
    **where: Any,
) -> int:
    """Keep SINK in step with the tables of TUBE: read the current rows of touched keys, write them, acknowledge.

    It runs until it is stopped. After Ctrl-C or SIGTERM it finishes the batch and exits with code 0; a second signal
    stops at once, and nothing is lost. If a sink or node is down, the job waits for it.

    \b
    Examples:
      trueup tube run search --to 'postgresql://app:${PW}@db2/copies'
      trueup tube run search --to n2 --option table=copy.orders --map id=order_id --map total=amount
      trueup tube run search --to redis://cache:6379/0 --partitions 0,2
      trueup tube run search --to python:mypackage.sinks:write --until-empty
    """
    import os
    from dataclasses import asdict, replace

    from trueup.cli.options import inline_nodes
    from trueup.config.load import load
    from trueup.config.values import interpolate
    from trueup.engine.progress import Shown

    extra = _pairs(sink_options)
    if mapping:
        extra["map"] = ",".join(mapping)
    spark = load(where["config"], nodes=inline_nodes(where["inline"])).spark
    spark = replace(
        spark, engine=engine or spark.engine, master=master or spark.master, remote=remote or spark.remote
    ).validated()
    with open_tube(name, **where) as chosen, Shown(quiet=quiet) as progress, _stopping() as stop:
        summary = chosen.run(
            interpolate(sink, os.environ, "--to"),
            sink_options=extra,
            partitions=_numbers(partitions),
            until_empty=until_empty,
            wait=wait,
            max_keys=batch_keys or 0,
            attempts=attempts,
            spark=spark,
            progress=progress,
            stop=stop,
            task_db=task_db,
        )
    if as_json or not quiet:
        show(as_json, asdict(summary), _text(summary))
    return 2 if until_empty and summary.dead_letters else 0


@click.command("dead-letters")
@click.argument("name", metavar="TUBE")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@options(
    click.option("--retry", is_flag=True, help="Let the worker of the tube deliver them again."),
    click.option("--drop", is_flag=True, help="Delete them; their documents in the sink stay as they are."),
    click.option(
        "--limit",
        type=click.IntRange(min=1),
        default=100,
        show_default=True,
        metavar="N",
        help="Maximum entries to show.",
    ),
    ON,
)
def dead_letters(
    name: str, keys: tuple[str, ...], retry: bool, drop: bool, limit: int, as_json: bool, **where: Any
) -> None:
    """Show the keys of TUBE that could not be delivered, and why: all, or only each KEY.

    A later successful touch of a key removes its entry.

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
        raise ConfigError("--retry and --drop cannot be combined", cure="choose one")
    chosen = list(keys) or None
    with open_tube(name, **where) as tube:
        if retry:
            count = tube.retry_letters(keys=chosen)
            show(as_json, {"retried": count}, f"{count} dead letters will be retried")
        elif drop:
            count = tube.drop_letters(keys=chosen)
            show(as_json, {"dropped": count}, f"{count} dead letters deleted")
        else:
            found = tube.dead_letters(keys=chosen, limit=limit)
            show(as_json, [plain(letter) for letter in found], letters_text(found))


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """Yield an event that the first signal sets; the second signal raises KeyboardInterrupt."""
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    from trueup.errors import ConfigError

    if invalid := [text for text in texts if "=" not in text]:
        raise ConfigError(f"--option {invalid[0]}: expected NAME=VALUE", cure="write it as --option table=copy")
    return dict(text.partition("=")[::2] for text in texts)


def _numbers(text: str) -> list[int]:
    from trueup.errors import ConfigError

    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ConfigError(f"--partitions {text}: expected numbers", cure="write it as --partitions 0,2") from None


def _text(summary: Summary) -> str:
    rate = summary.keys / summary.seconds if summary.seconds else 0
    lines = [
        f"{summary.tube}: {summary.keys:,} keys of {summary.pods:,} pods in {summary.seconds:,.1f} s"
        f" ({rate:,.0f} keys/s): {summary.written:,} written, {summary.removed:,} removed"
    ]
    if summary.troubles:
        lines.append(f"  {summary.troubles:,} capture problems were reported (see above)")
    if summary.dead_letters:
        lines.append(f"  {summary.dead_letters:,} dead letters: see trueup tube dead-letters {summary.tube}")
    return "\n".join(lines)
