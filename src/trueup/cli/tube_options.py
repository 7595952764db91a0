"""What the commands of `trueup tube` share: options, the node they mean, and how results are shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trueup.cli.options import inline_nodes, verbose_option

if TYPE_CHECKING:
    from trueup.api.tube import Tubes

F = TypeVar("F", bound=Callable[..., Any])

_CONFIG = click.option("--config", metavar="FILE", help="The configuration file. [env: TRUEUP_CONFIG]")
_INLINE = click.option(
    "--node", "inline", multiple=True, metavar="NAME=URI", help="A node by address, ${VAR} in it filled in."
)
ON = click.option("--on", "node", metavar="NAME", help="The node; not needed where there is only one.")
_SCHEMA = click.option(
    "--schema", default="tube", show_default=True, metavar="NAME", help="The schema that the tubes are installed in."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON value.")
FORCE = click.option("--force", is_flag=True, help="Also if pods wait, which are lost then.")
PATIENCE = click.option(
    "--patience",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="S",
    help="Seconds to try for the locks on a table in use; every attempt is short.",
)
SHARD = click.option("--shard", type=int, metavar="N", help="The shard; without it, that of the table.")


def options(*more: Callable[[Any], Any]) -> Callable[[F], F]:
    """Options of a command, and those that all commands of tubes have."""

    def give(command: F) -> F:
        for option in reversed((*more, _CONFIG, _INLINE, _SCHEMA, _JSON, verbose_option)):
            command = option(command)
        return command

    return give


def open_tubes(*, node: str | None, config: str | None, inline: tuple[str, ...], schema: str) -> Tubes:
    """The tubes of the node that is meant."""
    from trueup.api.tube import open as opened

    return opened(node, schema=schema, addresses=inline_nodes(inline), config=config)


def show(as_json: bool, result: Any, text: str) -> None:
    """A result on stdout, for people or for programs."""
    click.echo(json.dumps(result) if as_json else text)
