"""Printing of results: as JSON, or as text unless --quiet."""

from __future__ import annotations

import errno
import json
from typing import Any

import click

from trueup.errors import StoreError


def show(result: Any, text: str, *, as_json: bool, quiet: bool = False, done: str = "") -> None:
    """Print a result as JSON or as text; with `quiet` only as JSON.

    If stdout cannot be written, the error says `done`: what the command has written on nodes.
    """
    if quiet and not as_json:
        return
    try:
        click.echo(json.dumps(result) if as_json else text)
    except OSError as error:
        if error.errno == errno.EPIPE and not done:
            # The reader of stdout has seen enough.
            raise
        message = "; ".join(part for part in (f"cannot write the result to stdout: {error.strerror}", done) if part)
        raise StoreError(message, cure="see the result in the task store: trueup tasks") from None


def show_cut(shown: int, total: int | None, what: str, *, option: str) -> None:
    """Say on stderr that a list was cut, so that it is not taken for all entries; `total` None: not counted."""
    count = f"{shown:,} of {total:,} {what}" if total is not None else f"only {shown:,} {what}"
    click.echo(f"{count} are shown; use {option}", err=True)
