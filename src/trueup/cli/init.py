"""`trueup init`: write a commented configuration file."""

from __future__ import annotations

from pathlib import Path

import click

from trueup.cli.output import echo


@click.command()
@click.argument("path", default="trueup.toml", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def init(path: Path, force: bool) -> None:
    """Write a commented trueup.toml to PATH (default: the current folder).

    \b
    Examples:
      trueup init
      trueup init ~/.config/trueup/trueup.toml

    The file has every setting, with its default and a description.
    """
    from trueup.config.template import write_template

    echo(f"wrote {write_template(path, force=force)}")
    echo("  next: add your nodes to it, then: trueup check TABLE")
