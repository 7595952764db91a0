"""`trueup demo`: demos of the verbs on throw-away servers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import click
from click.core import ParameterSource

from trueup.cli.options import SECONDS, choice, flag, option
from trueup.cli.output import echo
from trueup.config.wording import counted


@click.command()
@click.argument(
    "what",
    type=click.Choice(["diff", "difflog", "lake", "proof", "serve", "switchover", "tube", "validate"]),
    default="diff",
)
@option(
    *("--rows", "N"),
    "Rows of the table, or visits of the log."
    " [default: 1000000; difflog 50000, lake 200000, proof 20000, serve 20000, switchover 300000, tube 500000,"
    " validate 20000]",
    kind=click.IntRange(min=100),
)
@flag("--keep", "Keep the nodes running, with a trueup.toml for them.")
@flag("--stop", "Stop and remove nodes that an earlier demo kept running.")
@option(
    "--seconds",
    "S",
    "For proof, tube and validate: minimum time during which the table is written; for serve: end after it.",
    30.0,
    SECONDS,
)
@choice("--engine", ["spark", "local"], "Where the diff runs; local starts faster.")
@option(
    *("--folder", "DIR"),
    "Folder of kept nodes and their trueup.toml, for --keep and --stop; for difflog, of all its files.",
    *(Path("trueup-demo"), click.Path(path_type=Path)),
)
def demo(what: str, rows: int | None, keep: bool, stop: bool, seconds: float, engine: str, folder: Path) -> int:
    """Run a demo on throw-away servers: a diff, a version log, a lake, a proof, a switchover, a tube, or a validation.

    \b
    Examples:
      trueup demo
      trueup demo --rows 20000 --keep
      trueup demo --stop
      trueup demo difflog
      trueup demo lake
      trueup demo proof
      trueup demo serve
      trueup demo switchover
      trueup demo tube
      trueup demo validate

    diff starts three PostgreSQL servers, loads the same table on each, changes some rows, and finds every difference.
    difflog joins three late side logs to the visits of a fast supplier, and proves that the table collapses.
    lake compares a PostgreSQL table with a Delta copy from which it has drifted.
    proof proves at any time that a replica is equal, and finds a row that was changed there by hand.
    serve shows a validation, a tube and diffs of two servers on a live page, until Ctrl-C or for --seconds.
    switchover moves an application that keeps writing to another server and back, and checks every write.
    tube keeps a copy up to date while the table is written, and proves that it is equal.
    validate checks every change that PostgreSQL replicates, and finds rows that were changed on the replica.
    Requires the extra demo, and serve for that demo: pip install 'trueup[demo,serve]'.
    """
    if what == "difflog":
        return _difflog(rows or 50_000, keep, folder)
    if what == "lake":
        return _lake(rows or 200_000)
    if what == "proof":
        return _proof(rows or 20_000, seconds)
    if what == "serve":
        return _serve(rows or 20_000, seconds)
    if what == "switchover":
        return _switchover(rows or 300_000)
    if what == "validate":
        return _validate(rows or 20_000, seconds)
    if what == "tube":
        return _tube(rows or 500_000, seconds)
    return _diff(rows or 1_000_000, keep, stop, engine, folder)


def _diff(rows: int, keep: bool, stop: bool, engine: str, folder: Path) -> int:
    from trueup.demo import run as demo_run
    from trueup.engine.progress import Shown
    from trueup.report.text import summary

    if stop:
        stopped = demo_run.stop(folder)
        echo(
            f"stopped {counted(stopped, 'node')} in {folder}" if stopped else f"{folder} contains no nodes of a demo",
            err=not stopped,
        )
        return 0
    if keep:
        folder.mkdir(parents=True, exist_ok=True)
    with Shown(quiet=False) as progress:
        result = demo_run.run(rows=rows, keep=keep, folder=folder.absolute(), engine=engine, progress=progress)
    echo(summary(result))
    if keep:
        echo(f"  the nodes are running: cd {folder} && trueup diff {demo_run.TABLE} --cluster demo")
        echo(f"  stop them with: trueup demo --stop --folder {folder}")
    # The demo creates differences: it succeeds if they are found.
    return 0 if result.verdict == "DIFFER" else result.exit_code or 2


def _difflog(visits: int, keep: bool, folder: Path) -> int:
    from tempfile import TemporaryDirectory

    from trueup.demo import difflog
    from trueup.engine.progress import Shown
    from trueup.report.difflog import proof_summary, run_summary

    with TemporaryDirectory(prefix="trueup-demo-") as temporary:
        target = folder.absolute() if keep else Path(temporary) / "log"
        with Shown(quiet=False) as progress:
            shown = difflog.run(visits=visits, folder=target, progress=progress)
    for result in shown.runs:
        echo(run_summary(asdict(result)).rpartition("\n  next:")[0])
    echo(f"the table has {shown.signed_rows:,} signed rows; five visits after collapsing:")
    for row in shown.sample:
        echo("  " + "  ".join(str(value) for value in row))
    echo(proof_summary(shown.proof.as_json()))
    if keep:
        echo(f"  all files are in {folder}: cd {folder} && trueup difflog prove")
    return shown.proof.exit_code


def _lake(rows: int) -> int:
    from trueup.demo import lake
    from trueup.engine.progress import Shown
    from trueup.report.text import summary

    with Shown(quiet=False) as progress:
        result = lake.run(rows=rows, say=echo, progress=progress)
    echo(summary(result))
    # The demo succeeds if exactly the rows that it changed are found.
    return 0 if result.pairs["pg/lake"].total == lake.CHANGES else result.exit_code or 2


def _serve(rows: int, seconds: float) -> int:
    import threading

    from trueup.cli.serve import need_extra

    need_extra()
    from trueup.demo import serve

    context, stop = click.get_current_context(), threading.Event()
    root = context.find_root().command
    assert isinstance(root, click.Group)
    if context.get_parameter_source("seconds") is not ParameterSource.DEFAULT:
        threading.Timer(seconds, stop.set).start()
    with suppress(KeyboardInterrupt):
        serve.run(rows=rows, port=0, verbs=tuple(root.list_commands(context)), stop=stop, say=echo)
    return 0


def _tube(rows: int, seconds: float) -> int:
    from statistics import median

    from trueup.demo import tube
    from trueup.engine.progress import Shown

    with Shown(quiet=False) as progress:
        shown = tube.run(rows=rows, seconds=seconds, say=echo, progress=progress)
    done = shown.summary
    echo(
        f"the job delivered {counted(done.keys, 'key')}: {done.written:,} written, {done.removed:,} removed,"
        f" while the application ran {shown.statements:,} statements"
    )
    if shown.latencies:
        late = sorted(shown.latencies)
        echo(f"a change was in the copy after {median(late):.2f} s (the slowest of {len(late)}: {late[-1]:.2f} s)")
    result = shown.result
    echo(f"{result.verdict}: the hashes of all {counted(result.rows['n1'], 'row')} of source and copy were compared")
    # The demo succeeds if source and copy are equal and no row was given up.
    return result.exit_code or (2 if done.dead_letters else 0)


def _switchover(rows: int) -> int:
    from trueup.demo import switchover
    from trueup.engine.progress import Shown

    with Shown(quiet=False) as progress:
        moved = switchover.run(rows=rows, progress=progress)
    echo(switchover.moved_text(moved))
    return 0 if moved.is_good else 2


def _proof(rows: int, seconds: float) -> int:
    from trueup.demo import proof

    verdicts = [shown.verdict for shown in proof.run(rows=rows, seconds=seconds, say=echo)]
    # The demo changes a row of the replica: it succeeds if that is found, and the replica is equal at the end.
    return 0 if "DIFFER" in verdicts and verdicts[-1] == "MATCH" else 2


def _validate(rows: int, seconds: float) -> int:
    from trueup.demo import validate
    from trueup.verbs.validate.status import status_text

    shown = validate.run(rows=rows, seconds=seconds, say=echo)
    echo(status_text(shown.status))
    echo(f"fence: validated through {shown.fence.position} after {shown.fence.seconds:.1f} s")
    # The demo changes rows of the replica: it succeeds if they are found and repaired.
    return shown.fence.exit_code
