"""The sink `python:module:function`: any function that takes a batch, or a class that is a sink by itself."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from importlib import import_module
from typing import Any, ClassVar

from trueup.errors import ConfigError
from trueup.sinks.base import Document, Mark, Shards, Sink, SourceTable


class FunctionSink:
    """Calls `function(batch)` with a list of documents. It keeps nothing, so nothing of it is ever too old."""

    driver_only: ClassVar[bool] = False

    def __init__(self, name: str) -> None:
        self.name = name
        _find(name)

    def setup(self, tables: Sequence[SourceTable]) -> None:
        """Nothing to make."""

    def write(self, batch: Sequence[Document], *, mark: Mark) -> None:
        """Hand the batch over."""
        _find(self.name)(list(batch))

    def older(
        self,
        table: str,
        shards: Shards,
        start_seq: int,
        started_at: datetime,
        after: tuple[str, ...] | None,
        most: int,
    ) -> Sequence[tuple[int, tuple[str, ...]]]:
        """A function has no documents that could be asked for."""
        return ()

    def close(self) -> None:
        """Nothing to end."""


def python_sink(name: str, options: dict[str, Any]) -> Sink:
    """The sink that `module:name` means: a class is made with the options, a function is called with each batch."""
    found = _find(name)
    if isinstance(found, type):
        made = found(**options)
        if not isinstance(made, Sink):
            raise ConfigError(f"{name} is no sink", cure="it wants driver_only, setup, write, older and close")
        return made
    if options:
        raise ConfigError(f"the function {name} takes no options", cure="leave out --option, or name a class")
    return FunctionSink(name)


def _find(name: str) -> Any:
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ConfigError(f"'{name}' names no function", cure="python:module:function")
    try:
        found = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"python:{name} cannot be found: {error}", cure="check the name, and PYTHONPATH") from None
    if not callable(found):
        raise ConfigError(f"python:{name} cannot be called", cure="name a function that takes a list of documents")
    return found
