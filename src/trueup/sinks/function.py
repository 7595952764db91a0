"""The sink `python:module:name`: a function that is called with each batch, or a class that is a sink."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from importlib import import_module
from typing import Any, ClassVar

from trueup.errors import ConfigError
from trueup.sinks.base import Document, Mark, Shards, Sink, SourceTable


class FunctionSink:
    """Calls `function(batch)` with a list of documents. It has no marks, so no document is ever older."""

    driver_only: ClassVar[bool] = False

    def __init__(self, name: str) -> None:
        self.name = name
        _find(name)

    def setup(self, tables: Sequence[SourceTable]) -> None:
        """Do nothing."""

    def write(self, batch: Sequence[Document], *, mark: Mark) -> None:
        """Call the function."""
        _find(self.name)(list(batch))

    def older(
        self,
        table: str,
        shards: Shards,
        start_seq: int,
        started_at: datetime,
        after: tuple[str, ...] | None,
        limit: int,
    ) -> Sequence[tuple[int, tuple[str, ...]]]:
        """Return nothing: a function has no documents to list."""
        return ()

    def close(self) -> None:
        """Do nothing."""


def python_sink(name: str, options: dict[str, Any]) -> Sink:
    """Return the sink of `module:name`: an instance of a class, created with the options, or a FunctionSink."""
    imported = _find(name)
    if isinstance(imported, type):
        made = imported(**options)
        if not isinstance(made, Sink):
            raise ConfigError(f"{name} is not a sink", cure="define driver_only, setup, write, older and close")
        return made
    if options:
        raise ConfigError(f"the function {name} takes no options", cure="remove --option, or use a class")
    return FunctionSink(name)


def _find(name: str) -> Any:
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ConfigError(f"'{name}' is not a function", cure="write python:module:function")
    try:
        imported = import_module(module)
        for part in attribute.split("."):
            imported = getattr(imported, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"python:{name} cannot be imported: {error}", cure="check the name and PYTHONPATH") from None
    if not callable(imported):
        raise ConfigError(
            f"python:{name} cannot be called", cure="use a function with a list of documents as its argument"
        )
    return imported
