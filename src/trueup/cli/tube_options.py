"""Shared by the commands of `trueup tube`: options, and the choice of the node."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trueup.cli.options import SHARED, F, decorated, flag, inline_nodes, option, timeout_option

if TYPE_CHECKING:
    from trueup.api.tube import Tube
    from trueup.capture.triggers.session import Session

ON = option("--on", "NAME", "The node; not needed if there is only one.", key="node")
_SCHEMA = option("--schema", "NAME", "The schema of the tubes.", "tube")
FORCE = flag("--force", "Drop waiting pods as well.")
LOCK_TIMEOUT = timeout_option(30.0)
SHARD = option("--shard", "N", "The shard. [default: the shard of the table]", kind=int)
FILTER = option(
    "--filter",
    "SQL",
    "Only rows that meet this condition before or after the change; '' removes the condition.",
    key="predicate",
)


def tube_options(*more: Callable[[Any], Any]) -> Callable[[F], F]:
    """Add options to a command, and those that all commands of tubes have."""
    return decorated(*more, SHARED["config"], SHARED["node"], _SCHEMA, SHARED["json"])


def open_tube(name: str, options: dict[str, Any]) -> Tube:
    """Return a tube of the node that the options choose, and remove these options."""
    from trueup.api.tube import Tube

    return Tube(name, **_node(options))


def open_node(options: dict[str, Any]) -> Session:
    """Return a session with the tubes of the node that the options choose, and remove these options."""
    from trueup.api.tube import open_session

    return open_session(**_node(options))


def _node(options: dict[str, Any]) -> dict[str, Any]:
    nodes = inline_nodes(options.pop("inline"))
    return {"nodes": nodes, **{name: options.pop(name) for name in ("node", "schema", "config")}}
