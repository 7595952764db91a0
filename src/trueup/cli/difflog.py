"""`trueup difflog`: the signed version log."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def _common(command: F) -> F:
    for option in reversed(
        (
            click.option("--config", metavar="FILE", help="The difflog.toml. [env: TRUEUP_DIFFLOG]"),
            click.option("--master", default="", metavar="URL", help="Spark master, such as spark://host:7077."),
            click.option("--remote", default="", metavar="URL", help="Spark Connect server, such as sc://host:15002."),
            click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object."),
            click.option("--quiet", "-q", is_flag=True, help="No progress, no summary."),
            click.option("--task-db", metavar="FILE", help="The task store. [env: TRUEUP_TASKS_DB]"),
        )
    ):
        command = option(command)
    return command


@click.group()
def difflog() -> None:
    """Patch late side logs into versioned rows, as a signed log that collapses in ClickHouse.

    \b
    Examples:
      trueup difflog init
      trueup difflog join --visits raw/visits --log conversions=raw/conversions
      trueup difflog run
      trueup difflog prove
    """


@difflog.command()
@click.argument("path", default="difflog.toml", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Write over a file that is there.")
def init(path: Path, force: bool) -> None:
    """Write a commented example of a difflog.toml to PATH.

    \b
    Examples:
      trueup difflog init
      trueup difflog init conf/difflog.toml --force
    """
    from trueup.verbs.difflog.template import write_example

    click.echo(f"wrote {write_example(path, force=force)}; describe your entity in it, then: trueup difflog run")


@difflog.command()
@click.option("--visits", multiple=True, required=True, metavar="DIR", help="Raw rows of the entity, as Parquet.")
@click.option("--log", "logs", multiple=True, metavar="NAME=DIR", help="Raw rows of a side log, as Parquet.")
@_common
def join(visits: tuple[str, ...], logs: tuple[str, ...], **options: Any) -> None:
    """Make a set of chunks from raw visits and raw side logs; every row of a side log is applied once.

    \b
    Examples:
      trueup difflog join --visits raw/visits --log conversions=raw/conversions --log money=raw/money
    """
    from trueup.api.difflog import join_logs
    from trueup.errors import ConfigError

    config, spark = _settings(options)
    sides: dict[str, list[Path]] = {}
    for text in logs:
        name, sign, place = text.partition("=")
        if not sign or name not in [log.name for log in config.logs]:
            known = ", ".join(log.name for log in config.logs)
            raise ConfigError(f"--log {text}: this is not NAME=DIR of a side log", cure=f"there are {known}")
        sides.setdefault(name, []).append(Path(place))
    name = join_logs(
        config, visits=[Path(each) for each in visits], logs=sides, spark=spark, task_db=options["task_db"]
    )
    _show(options, {"chunks": name}, f"chunk set {name} is ready; next: trueup difflog run")


@difflog.command()
@click.option("--chunks", multiple=True, metavar="NAME", help="Only these chunk sets; all that wait if not given.")
@click.option(
    "--late",
    type=click.Choice(["keep", "rejoin"]),
    default="keep",
    show_default=True,
    help="Late rows: kept aside, or joined to the newest version.",
)
@_common
def run(chunks: tuple[str, ...], late: str, **options: Any) -> None:
    """Work through the waiting chunk sets, or finish a run that was stopped.

    \b
    Examples:
      trueup difflog run
      trueup difflog run --chunks 000001 --late rejoin
    """
    from trueup.api.difflog import run_log
    from trueup.engine.progress import Shown
    from trueup.report.difflog import run_summary

    config, spark = _settings(options)
    with Shown(quiet=options["quiet"]) as progress:
        result = run_log(
            config,
            spark=spark,
            names=chunks,
            rejoin_late=late == "rejoin",
            task_db=options["task_db"],
            progress=progress,
        )
    _show(options, asdict(result), run_summary(asdict(result)))


@difflog.command()
@click.option(
    "--fast-log",
    multiple=True,
    metavar="DIR",
    help="Prove over the logs instead of ClickHouse: the fast supplier's signed rows, as Parquet.",
)
@_common
def prove(fast_log: tuple[str, ...], **options: Any) -> int:
    """Prove that every key collapses to one row, the one in the state table.

    \b
    Examples:
      trueup difflog prove
      trueup difflog prove --fast-log raw/fast --json

    Exit codes: 0 proven, 1 keys differ, 2 trouble.
    """
    from trueup.api.difflog import prove_log_table
    from trueup.report.difflog import proof_summary

    config, spark = _settings(options)
    places = [Path(each) for each in fast_log]
    proof = prove_log_table(config, fast_log=places, spark=spark, task_db=options["task_db"])
    _show(options, proof.as_json(), proof_summary(proof.as_json()))
    return proof.exit_code


def _settings(options: dict[str, Any]) -> tuple[Any, Any]:
    from trueup.config.settings import SparkSettings
    from trueup.verbs.difflog.config import load_difflog

    spark = SparkSettings(master=options["master"], remote=options["remote"]).validated()
    return load_difflog(options["config"]), spark


def _show(options: dict[str, Any], result: dict[str, Any], text: str) -> None:
    if options["as_json"]:
        click.echo(json.dumps(result))
    elif not options["quiet"]:
        click.echo(text)
