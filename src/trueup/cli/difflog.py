"""`trueup difflog`: the signed version log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trueup.cli.options import POSITIVE, choice, decorated, flag, log_warnings, option, repeated, shared
from trueup.cli.output import echo, show

if TYPE_CHECKING:
    from trueup.api.difflog import DiffLog

_common = decorated(
    option("--config", "FILE", "The difflog.toml. [env: TRUEUP_DIFFLOG]"),
    option("--master", "URL", "Spark master, such as spark://host:7077.", ""),
    option("--remote", "URL", "Spark Connect server, such as sc://host:15002.", ""),
    shared("json", "quiet", "task_db"),
)


@click.group()
def difflog() -> None:
    """Join late side logs to versioned rows, as a signed log that collapses in ClickHouse.

    \b
    Examples:
      trueup difflog init
      trueup difflog join --visits raw/visits --log conversions=raw/conversions
      trueup difflog run
      trueup difflog prove
      trueup difflog prune --keep 10
    """


@difflog.command()
@click.argument("path", default="difflog.toml", type=click.Path(path_type=Path))
@flag("--force", "Overwrite an existing file.")
@flag("--sample", "Also write sample data for the example: the folder raw beside PATH.")
def init(path: Path, force: bool, sample: bool) -> None:
    """Write a commented example of a difflog.toml to PATH.

    \b
    Examples:
      trueup difflog init
      trueup difflog init conf/difflog.toml --force
      trueup difflog init --sample
    """
    from trueup.verbs.difflog_ends.template import write_example

    raw = path.parent / "raw"
    write_example(path, force=force, sample=raw if sample else None)
    if not sample:
        echo(f"wrote {path}; describe your entity in it, then: trueup difflog join")
        return
    logs = " ".join(f"--log {name}={raw}/day1/{name}" for name in ("conversions", "money"))
    echo(f"wrote {path} and {raw}; next:")
    echo(f"  trueup difflog join --config {path} --visits {raw}/day1/visits {logs}")
    echo(f"  trueup difflog run --config {path}")
    # The table has no rows of the fast supplier yet.
    echo(f"  trueup difflog prove --config {path} --fast-log {raw}/day1/fast")


@difflog.command()
@click.option("--visits", multiple=True, required=True, metavar="DIR", help="Raw rows of the entity, as Parquet.")
@click.option("--log", "logs", multiple=True, metavar="NAME=DIR", help="Raw rows of a side log, as Parquet.")
@_common
def join(visits: tuple[str, ...], logs: tuple[str, ...], **options: Any) -> None:
    """Join raw visits and raw side logs into a chunk set; every row of a side log is applied once.

    \b
    Examples:
      trueup difflog join --visits raw/visits --log conversions=raw/conversions --log money=raw/money
    """
    from trueup.errors import ConfigError
    from trueup.report.difflog import join_summary

    log = _difflog(options)
    names = [side.name for side in log.config.logs]
    folders: dict[str, list[str]] = {}
    for text in logs:
        name, sign, folder = text.partition("=")
        if not sign or name not in names:
            cure = f"write NAME=DIR; the side logs are {', '.join(names)}"
            raise ConfigError(f"--log {text}: not NAME=DIR of a side log", cure=cure)
        folders.setdefault(name, []).append(folder)
    result = asdict(log.join(visits=visits, logs=folders))
    _show(options, result, join_summary(result))


@difflog.command()
@click.option("--chunks", multiple=True, metavar="NAME", help="Process only these chunk sets; default: all that wait.")
@choice("--late", ["keep", "rejoin"], "Late rows: keep them in late/, or join them to the newest version.")
@flag("--abandon", "Give up an unfinished run instead: remove its outputs, so that its chunk sets wait again.")
@shared("insecure")
@_common
def run(chunks: tuple[str, ...], late: str, abandon: bool, **options: Any) -> None:
    """Process the waiting chunk sets, or finish a run that was interrupted.

    \b
    Examples:
      trueup difflog run
      trueup difflog run --chunks 000001 --late rejoin
      trueup difflog run --abandon
    """
    from trueup.engine.progress import Shown
    from trueup.report.difflog import run_summary

    log = _difflog(options)
    if abandon:
        number = log.abandon()
        text = f"run {number} was given up; its chunk sets wait again" if number else "no run is unfinished"
        _show(options, {"abandoned": number}, text)
        return
    with Shown(quiet=options["quiet"]) as progress:
        result = asdict(log.run(chunks=chunks, rejoin_late=late == "rejoin", progress=progress))
    _show(options, result, run_summary(result))


@difflog.command()
@repeated(
    *("--fast-log", "DIR"),
    "Prove the logs instead of the ClickHouse table: the signed rows of the fast supplier, as Parquet.",
)
@option("--limit", "N", "Maximum entries to show; keys that the next run does not resolve come first.", 20, POSITIVE)
@option(
    *("--to", "FILE", "Write every key with a problem to this file, one JSON object per line."),
    kind=click.Path(path_type=Path),
)
@flag("--no-recompute", "Do not compute the states again from the chunk sets, which takes most of the time.")
@shared("insecure")
@_common
def prove(fast_log: tuple[str, ...], limit: int, to: Path | None, no_recompute: bool, **options: Any) -> int:
    """Prove that every key collapses to one row, the one in the state table and the one that the chunk sets imply.

    \b
    Examples:
      trueup difflog prove
      trueup difflog prove --limit 5 --to problems.jsonl
      trueup difflog prove --fast-log raw/fast --json

    Exit codes: 0 proven, 1 keys differ, 2 error or incomplete.
    """
    from trueup.report.difflog import proof_summary

    proof = _difflog(options).prove(fast_log=fast_log, limit=limit, to=to, recompute=not no_recompute)
    _show(options, proof.as_json(), proof_summary(proof.as_json(), to))
    return proof.exit_code


@difflog.command()
@option("--config", "FILE", "The difflog.toml. [env: TRUEUP_DIFFLOG]")
@shared("json", "quiet")
def status(**options: Any) -> None:
    """Show the last run, what waits for the next one, and the size of the state table.

    \b
    Examples:
      trueup difflog status
      trueup difflog status --json
    """
    from trueup.report.difflog import status_summary
    from trueup.verbs.difflog.config import load_difflog
    from trueup.verbs.difflog_ends.status import status as read_status

    facts = asdict(read_status(load_difflog(options["config"])))
    _show(options, facts, status_summary(facts))


@difflog.command()
@flag("--execute", "Write. Without this option nothing is changed.")
@shared("insecure")
@_common
def migrate(execute: bool, **options: Any) -> None:
    """Change the log to settings that were changed in difflog.toml. A dry run unless --execute.

    \b
    Examples:
      trueup difflog migrate
      trueup difflog migrate --execute
    """
    from trueup.report.difflog import migration_summary

    result = asdict(_difflog(options).migrate(execute=execute))
    _show(options, result, migration_summary(result))


@difflog.command()
@option("--keep", "N", "Keep the outputs and chunk sets of the last N runs.", 10, POSITIVE)
@flag("--execute", "Write. Without this option nothing is changed.")
@_common
def prune(keep: int, execute: bool, **options: Any) -> None:
    """Remove outputs and chunk sets of old runs, and unused files of the state. A dry run unless --execute.

    \b
    Examples:
      trueup difflog prune --keep 10
      trueup difflog prune --keep 10 --execute
    """
    from trueup.report.difflog import prune_summary

    result = asdict(_difflog(options).prune(keep=keep, execute=execute))
    _show(options, result, prune_summary(result))


def _difflog(options: Mapping[str, Any]) -> DiffLog:
    from trueup.api.difflog import DiffLog

    log = DiffLog(
        options["config"],
        master=options["master"],
        remote=options["remote"],
        task_db=options["task_db"],
        insecure=options.get("insecure", False),
    )
    if not options["quiet"]:
        log_warnings(log.config)
    return log


def _show(options: Mapping[str, Any], result: Mapping[str, Any], text: str) -> None:
    show(result, text, as_json=options["as_json"], quiet=options["quiet"])
