"""Printing: everything that a command writes to stdout or stderr, except log records, passes this module.

Texts come from documents, databases and other programs: control characters are written as escapes.
"""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Iterable
from typing import Any

import click

from trueup.config.visible import visible, visible_json
from trueup.errors import StoreError


def echo(text: object, *, err: bool = False, colour: str = "", coloured: int = 0) -> None:
    """Print a text; its first `coloured` characters have a colour on a terminal."""
    shown = str(visible(str(text)))
    click.echo(click.style(shown[:coloured], fg=colour) + shown[coloured:] if coloured else shown, err=err)


def echo_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    click.echo(visible_json(json.dumps(value)))


def write_json(pieces: Iterable[str]) -> None:
    """Print the pieces of a JSON document, which another program may have written."""
    sys.stdout.writelines(map(visible_json, pieces))


def show(result: Any, text: str, *, as_json: bool, quiet: bool = False, done: str = "") -> None:
    """Print a result as JSON or as text; with `quiet` only as JSON.

    If stdout cannot be written, the error says `done`: what the command has written on nodes.
    """
    if quiet and not as_json:
        return
    try:
        if as_json:
            echo_json(result)
        else:
            echo(text)
    except OSError as error:
        if error.errno == errno.EPIPE and not done:
            # The reader of stdout has seen enough.
            raise
        message = "; ".join(part for part in (f"cannot write the result to stdout: {error.strerror}", done) if part)
        raise StoreError(message, cure="see the result in the task store: trueup tasks") from None


def show_cut(shown: int, total: int | None, what: str, *, option: str) -> None:
    """Say on stderr that a list was cut, so that it is not taken for all entries; `total` None: not counted."""
    count = f"{shown:,} of {total:,} {what}" if total is not None else f"only {shown:,} {what}"
    echo(f"{count} are shown; use {option}", err=True)
