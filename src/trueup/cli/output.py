"""Printing of results: as JSON, or as text unless --quiet."""

from __future__ import annotations

import json
from typing import Any

import click


def show(result: Any, text: str, *, as_json: bool, quiet: bool = False) -> None:
    """Print a result as JSON or as text; with `quiet` only as JSON."""
    if as_json:
        click.echo(json.dumps(result))
    elif not quiet:
        click.echo(text)


def show_cut(shown: int, total: int | None, what: str, *, option: str) -> None:
    """Say on stderr that a list was cut, so that it is not taken for all entries; `total` None: not counted."""
    count = f"{shown:,} of {total:,} {what}" if total is not None else f"only {shown:,} {what}"
    click.echo(f"{count} are shown; use {option}", err=True)
