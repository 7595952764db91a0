"""Sinks of tubes: where the rows of touched keys go.

Reading order: `base` (what a sink is), `function` (a Python function of your own). A sink is named by an address.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trueup.errors import ConfigError

if TYPE_CHECKING:
    from trueup.tube.sinks.base import Sink

__all__ = ["open_sink"]


def open_sink(address: str, options: Mapping[str, Any] | None = None) -> Sink:
    """The sink that an address means; it connects when it is set up."""
    kind, _, rest = address.partition(":")
    if kind == "python":
        from trueup.tube.sinks.function import python_sink

        return python_sink(rest, dict(options or {}))
    # The address may hold a password: only its kind is shown.
    raise ConfigError(f"there is no sink of the kind '{kind[:20]}:'", cure="python:module:function")
