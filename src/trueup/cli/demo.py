"""`trueup demo`: see it work on three nodes of its own."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--rows", default=1_000_000, show_default=True, type=click.IntRange(min=10), metavar="N", help="Rows a node."
)
@click.option("--keep", is_flag=True, help="Leave the nodes up, with a trueup.toml to play with.")
@click.option("--stop", is_flag=True, help="Stop nodes that were left up, and remove them.")
@click.option("--engine", type=click.Choice(["spark", "local"]), default="spark", show_default=True)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path("trueup-demo"),
    show_default=True,
    metavar="DIR",
    help="Where kept nodes and their trueup.toml are.",
)
def demo(rows: int, keep: bool, stop: bool, engine: str, folder: Path) -> int:
    """Start three PostgreSQL nodes, let them drift, and find every difference.

    Needs the extra: pip install 'trueup[demo]'.
    """
    from trueup.demo import run as demo_run
    from trueup.engine.progress import Shown
    from trueup.report.text import summary

    if stop:
        click.echo(f"stopped {demo_run.stop(folder)} nodes")
        return 0
    if keep:
        folder.mkdir(parents=True, exist_ok=True)
    with Shown(quiet=False) as progress:
        result = demo_run.run(rows=rows, keep=keep, folder=folder.absolute(), engine=engine, progress=progress)
    click.echo(summary(result))
    if keep:
        click.echo(f"  the nodes are up: cd {folder} && trueup diff {demo_run.TABLE} --cluster demo")
        click.echo("  stop them with: trueup demo --stop")
    # The demo shows differences on purpose: finding them is its success.
    return 0 if result.verdict == "DIFFER" else result.exit_code or 2
