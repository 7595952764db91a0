"""Errors of trueup inside Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trueup.errors import TrueupError


@contextmanager
def errors_for_spark(table: str | None = None) -> Iterator[None]:
    """Append the cure of an error to its message, because Spark shows only the message."""
    try:
        yield
    except TrueupError as error:
        error.table = error.table or table
        if error.cure:
            error.message, error.cure = f"{error.message} ({error.cure})", ""
        raise error from None
