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
