"""Hold a snapshot open for reads with `spark.read.format("trueup")`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from trueup.api.parameters import configuration
from trueup.config.address import parse
from trueup.config.model import Config, Node
from trueup.db.snapshot import Control, Position
from trueup.errors import ConfigError
from trueup.spark.nodes import ADDRESS


@dataclass(frozen=True)
class HeldSnapshot:
    """A snapshot that this process holds open; `id` is the value of the option `snapshot`."""

    id: str
    node: str
    position: Position


@contextmanager
def snapshot(*, node: str = "", address: str = "", config: Config | str | None = None) -> Iterator[HeldSnapshot]:
    """Hold a snapshot of a node: `with trueup.snapshot(node="shop") as held: …option("snapshot", held.id)…`.

    All reads with its id see the same state of the database, in any number of partitions and tasks. Run the last action
    on the DataFrame inside the block: after it the snapshot no longer exists, and reads fail.
    """
    control = Control(_node(node, address, config), application="trueup snapshot")
    try:
        position = control.begin(export=True)
        yield HeldSnapshot(position.snapshot, control.node.name, position)
    finally:
        control.close()


def _node(name: str, address: str, config: Config | str | None) -> Node:
    if bool(name) == bool(address):
        raise ConfigError(
            "address and node are both set or both missing",
            cure="set exactly one of them: address (a libpq URI) or node (a name)",
        )
    if address:
        if error := parse(address)[1]:
            raise ConfigError(
                f"address: libpq cannot parse it: {error}", cure="write it as postgresql://USER@HOST:PORT/DATABASE"
            )
        return Node(ADDRESS, address)
    return configuration(config).select(names=[name], at_least=1)[0]
