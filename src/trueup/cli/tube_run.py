"""`trueup tube run` and `trueup tube dead-letters`: keep a sink in step, and the keys that could not be delivered."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from trueup.cli.metrics import PORT, serving_metrics
from trueup.cli.options import POSITIVE, SECONDS, SHARED, flag, inline_nodes, option, repeated, shared
from trueup.cli.output import show, show_cut
from trueup.cli.tube_options import ON, open_tube, tube_options
from trueup.config.visible import as_lines
from trueup.config.wording import counted

if TYPE_CHECKING:
    from trueup.config.settings import SparkSettings
    from trueup.verbs.tube.model import Summary


_SINK = (
    click.option(
        *("--to", "sink"),
        metavar="SINK",
        help="Address of the sink, or name of a node; ${VAR} is replaced. [default: to in [tube.NAME] of trueup.toml]",
    ),
    repeated("--option", "NAME=VALUE", "An option of the sink; can be repeated.", key="sink_options"),
    repeated(
        *("--map", "FROM=TO"),
        "Map names of the source to names of the target: columns of a PostgreSQL sink; others are not written.",
        key="mapping",
    ),
    shared("insecure"),
)


@click.command("run")
@click.argument("name", metavar="TUBE")
@tube_options(
    *_SINK,
    option("--partitions", "0,2,…", "Process only these partitions. [default: all]", ""),
    flag("--until-empty", "Stop when the tube is empty and all backfills are finished."),
    option("--wait", "S", "Seconds to wait for a partition that another worker holds.", 0.0, SECONDS),
    option("--batch-keys", "N", "Maximum keys per batch. [default: 10000]", kind=POSITIVE),
    option("--attempts", "N", "Attempts to deliver a refused row before it is parked.", 5, POSITIVE),
    shared("engine", "master", "remote", "quiet", "task_db"),
    PORT,
    ON,
)
def run(name: str, sink: str | None, until_empty: bool, quiet: bool, as_json: bool, **options: Any) -> int:
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
    from dataclasses import asdict

    from trueup.config.values import interpolate
    from trueup.engine.progress import Shown
    from trueup.errors import TrueupError

    extra, spark = _sink_options(options), _spark_settings(options)
    port = options.pop("metrics_port")
    with (
        open_tube(name, options) as chosen,
        serving_metrics(port, chosen.config, options["task_db"]),
        Shown(quiet=quiet) as progress,
        _stopping() as stop,
    ):
        summary = chosen.run(
            interpolate(sink, os.environ, "--to") if sink else None,
            sink_options=extra,
            partitions=_numbers(options.pop("partitions")),
            until_empty=until_empty,
            max_keys=options.pop("batch_keys") or 0,
            spark=spark,
            progress=progress,
            stop=stop,
            **options,
        )
    show(asdict(summary), _text(summary), as_json=as_json, quiet=quiet)
    if summary.problems:
        found = summary.problems if len(summary.problems) == 1 else ("these tables have problems:", *summary.problems)
        raise TrueupError("\n  - ".join(found), cure=f"fix these tables, then run trueup tube run {name} again")
    return 2 if until_empty and summary.dead_letters else 0


@click.command("prove")
@click.argument("name", metavar="TUBE")
@tube_options(
    *_SINK,
    shared("max_diff_rows", "recheck", "recheck_wait", "report_dir"),
    shared("engine", "master", "remote", "quiet", "task_db"),
    ON,
)
def prove(name: str, sink: str | None, quiet: bool, as_json: bool, **options: Any) -> int:
    """Compare the tables of TUBE with SINK: rows that are missing, changed, or should not be there.

    Without --to and [tube.NAME], SINK is the one of the last `trueup tube run` that the task store has.

    Tables of PostgreSQL, ClickHouse, Delta and Parquet sinks are compared by digests, documents of Redis and search
    indexes are read in batches. Keys that are still in the tube are in flight. Nothing is written. Exit codes: 0 equal,
    1 different, 2 incomplete or error.

    \b
    Examples:
      trueup tube prove search
      trueup tube prove search --to https://search:9200/orders
      trueup tube prove copies --to n2 --option table=copy.orders --map id=order_id --map total=amount
      trueup tube prove lake --to delta:/lake --json
    """
    import os
    from dataclasses import asdict

    from trueup.config.values import interpolate
    from trueup.engine.progress import Shown

    extra, spark = _sink_options(options), _spark_settings(options)
    with open_tube(name, options) as chosen, Shown(quiet=quiet) as progress:
        proof = chosen.prove(
            interpolate(sink, os.environ, "--to") if sink else None,
            sink_options=extra,
            spark=spark,
            progress=progress,
            **options,
        )
    show(asdict(proof), proof.as_text(), as_json=as_json, quiet=quiet)
    return proof.exit_code


@click.command("dead-letters")
@click.argument("name", metavar="TUBE")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@tube_options(
    flag("--retry", "Let the worker of the tube deliver them again."),
    flag("--drop", "Delete them; their documents in the sink stay as they are."),
    SHARED["limit"],
    ON,
)
def dead_letters(
    name: str, keys: tuple[str, ...], retry: bool, drop: bool, limit: int, as_json: bool, **options: Any
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
    with open_tube(name, options) as tube:
        if retry:
            count = tube.retry_letters(keys=chosen)
            show({"retried": count}, f"{counted(count, 'dead letter')} will be retried", as_json=as_json)
        elif drop:
            count = tube.drop_letters(keys=chosen)
            show({"dropped": count}, f"{counted(count, 'dead letter')} deleted", as_json=as_json)
        else:
            letters = tube.dead_letters(keys=chosen, limit=limit + 1)
            has_more, letters = len(letters) > limit, letters[:limit]
            show([plain(letter) for letter in letters], letters_text(letters), as_json=as_json)
            if has_more:
                show_cut(limit, None, "dead letters", option=f"--limit {limit * 10}, or name keys")


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


def _sink_options(options: dict[str, Any]) -> dict[str, str]:
    """Remove the options of the sink from those of a command, and return them."""
    extra = _pairs(options.pop("sink_options"))
    if options.pop("insecure"):
        extra["insecure"] = "yes"
    if mapping := options.pop("mapping"):
        extra["map"] = ",".join(mapping)
    return extra


def _spark_settings(options: dict[str, Any]) -> SparkSettings:
    """Remove the options of Spark from those of a command; return the settings."""
    from dataclasses import replace

    from trueup.config.load import load

    changes = {key: value for key in ("engine", "master", "remote") if (value := options.pop(key))}
    return replace(load(options["config"], nodes=inline_nodes(options["inline"])).spark, **changes).validated()


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
        f"{summary.tube}: {counted(summary.keys, 'key')} of {counted(summary.pods, 'pod')} in {summary.seconds:,.1f} s"
        f" ({rate:,.0f} keys/s): {summary.written:,} written, {summary.removed:,} removed"
    ]
    if summary.troubles:
        lines.append(f"  {summary.troubles:,} capture problems were reported (see above)")
    if summary.dead_letters:
        lines.append(f"  {counted(summary.dead_letters, 'dead letter')}: see trueup tube dead-letters {summary.tube}")
    return as_lines(lines)
