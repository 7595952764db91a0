"""`trueup demo`: see it work on three nodes of its own."""

from __future__ import annotations

from pathlib import Path

import click

from trueup.cli.options import verbose_option


@click.command()
@click.option(
    "--rows", default=1_000_000, show_default=True, type=click.IntRange(min=10), metavar="N", help="Rows on each node."
)
@click.option("--keep", is_flag=True, help="Leave the nodes up, with a trueup.toml to play with.")
@click.option("--stop", is_flag=True, help="Stop nodes that were left up, and remove them.")
@click.option(
    "--engine",
    type=click.Choice(["spark", "local"]),
    default="spark",
    show_default=True,
    help="Where the diff runs: local starts quicker.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path("trueup-demo"),
    show_default=True,
    metavar="DIR",
    help="Where kept nodes and their trueup.toml are, for --keep and --stop.",
)
@verbose_option
def demo(rows: int, keep: bool, stop: bool, engine: str, folder: Path) -> int:
    """See it work: three nodes that drift, and a diff.

    Starts three PostgreSQL servers, loads the same table on each, changes some rows, and finds every difference.
    Needs the extra: pip install 'trueup[demo]'.
    """
    from trueup.demo import run as demo_run
    from trueup.engine.progress import Shown
    from trueup.report.text import summary

    if stop:
        stopped = demo_run.stop(folder)
        click.echo(
            f"stopped {stopped} nodes in {folder}" if stopped else f"no nodes of a demo in {folder}", err=not stopped
        )
        return 0
    if keep:
        folder.mkdir(parents=True, exist_ok=True)
    with Shown(quiet=False) as progress:
        result = demo_run.run(rows=rows, keep=keep, folder=folder.absolute(), engine=engine, progress=progress)
    click.echo(summary(result))
    if keep:
        click.echo(f"  the nodes are up: cd {folder} && trueup diff {demo_run.TABLE} --cluster demo")
        click.echo(f"  stop them with: trueup demo --stop --folder {folder}")
    # The demo shows differences on purpose: finding them is its success.
    return 0 if result.verdict == "DIFFER" else result.exit_code or 2
