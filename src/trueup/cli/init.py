"""`trueup init`: a commented configuration to start from."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("path", default="trueup.toml", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Write over a file that is there.")
def init(path: Path, force: bool) -> None:
    """Write a commented trueup.toml to PATH (default: the current folder).

    \b
    Examples:
      trueup init
      trueup init ~/.config/trueup/trueup.toml

    Every setting is in it, with its default and what it does.
    """
    from trueup.config.template import write_template

    click.echo(f"wrote {write_template(path, force=force)}")
    click.echo("  next: put your nodes into it, then: trueup check TABLE")
