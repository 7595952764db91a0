"""Shared by the commands of `trueup tube`: options, the choice of the node, and the output of results."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from trueup.cli.options import SHARED, F, decorated, inline_nodes, timeout_option

if TYPE_CHECKING:
    from trueup.api.tube import Tube
    from trueup.capture.triggers.session import Session

ON = click.option("--on", "node", metavar="NAME", help="The node; not needed if there is only one.")
_SCHEMA = click.option("--schema", default="tube", show_default=True, metavar="NAME", help="The schema of the tubes.")
FORCE = click.option("--force", is_flag=True, help="Drop waiting pods as well.")
LOCK_TIMEOUT = timeout_option(30.0)
SHARD = click.option("--shard", type=int, metavar="N", help="The shard. [default: the shard of the table]")
FILTER = click.option(
    "--filter",
    "predicate",
    default="",
    metavar="SQL",
    help="Only rows that meet this condition before or after the change.",
)


def options(*more: Callable[[Any], Any]) -> Callable[[F], F]:
    """Add options to a command, and those that all commands of tubes have."""

    return decorated(*more, SHARED["config"], SHARED["node"], _SCHEMA, SHARED["json"])


def open_tube(name: str, *, node: str | None, config: str | None, inline: tuple[str, ...], schema: str) -> Tube:
    """Return a tube of the chosen node."""
    from trueup.api.tube import Tube

    return Tube(name, node, schema=schema, nodes=inline_nodes(inline), config=config)


def open_node(*, node: str | None, config: str | None, inline: tuple[str, ...], schema: str) -> Session:
    """Return a session with the tubes of the chosen node."""
    from trueup.api.tube import open_session

    return open_session(node, schema=schema, nodes=inline_nodes(inline), config=config)


def show(as_json: bool, result: Any, text: str) -> None:
    """Print a result as JSON or as text."""
    click.echo(json.dumps(result) if as_json else text)
