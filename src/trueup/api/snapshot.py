"""A snapshot that is held for reads with `spark.read.format("trueup")`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from trueup.config.address import parse
from trueup.config.load import load
from trueup.config.model import Config, Node
from trueup.db.snapshot import Control, Position
from trueup.errors import ConfigError
from trueup.spark.nodes import ADDRESS


@dataclass(frozen=True)
class HeldSnapshot:
    """A snapshot that this process holds open; `id` is what the option `snapshot` takes."""

    id: str
    node: str
    position: Position


@contextmanager
def snapshot(*, node: str = "", address: str = "", config: Config | str | None = None) -> Iterator[HeldSnapshot]:
    """Hold one consistent view of a node: `with trueup.snapshot(node="shop") as held: …option("snapshot", held.id)…`.

    All reads with its id see the database as it was at this moment, in any number of partitions and tasks. Stay inside
    of the block until the last action on the DataFrame is done: afterwards the snapshot is gone, and reads fail.
    """
    control = Control(_node(node, address, config), application="trueup snapshot")
    try:
        position = control.begin(export=True)
        yield HeldSnapshot(position.snapshot, control.node.name, position)
    finally:
        control.close()


def _node(name: str, address: str, config: Config | str | None) -> Node:
    if bool(name) == bool(address):
        raise ConfigError("which node?", cure="give one of address (a libpq URI) and node (a name)")
    if address:
        if wrong := parse(address)[1]:
            raise ConfigError(f"address: this is not an address that libpq can read: {wrong}")
        return Node(ADDRESS, address)
    if not isinstance(config, Config):
        config = load(config)
    return config.select(names=[name], at_least=1)[0]
