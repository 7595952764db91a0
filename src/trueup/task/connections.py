"""The connections of a run: whether the servers have enough of them, and the addresses that executors use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trueup.config.model import Node
from trueup.db.connection import Connection, address_of, one_row
from trueup.db.node import error_from_server
from trueup.db.snapshot import Control
from trueup.db.statements import load
from trueup.errors import CheckFailed


class Connected(Protocol):
    """A node and a session with it."""

    @property
    def node(self) -> Node:
        """The node."""
        ...

    @property
    def connection(self) -> Connection:
        """The session."""
        ...


def check_free(controls: Sequence[Control], slots: int) -> int:
    """Return how many more sessions every node accepts; raise if there are fewer than one per slot.

    Nodes on the same server, or with the same role, share the free connections.
    """
    servers: dict[str, list[tuple[str, int]]] = {}
    limits: list[tuple[str, int]] = []
    for control in controls:
        server, free, in_database = _free(control)
        servers.setdefault(server, []).append((control.node.name, free))
        if in_database is not None:
            limits.append((f"node {control.node.name}", in_database))
    for nodes in servers.values():
        names = ", ".join(name for name, _ in nodes)
        limits.append((f"node{'s' * (len(nodes) > 1)} {names}", min(free for _, free in nodes) // len(nodes)))
    least = max(0, min(free for _, free in limits))
    if least < slots:
        reasons = [_reason(where, max(0, free), slots) for where, free in limits if free < slots]
        limit = f"use --max-connections {least + 1}" if least else "close some, or raise max_connections on the server"
        raise CheckFailed(reasons, cure=f"{limit}, or run fewer tasks at once (--concurrency-factor, spark.slots)")
    return least


def _reason(where: str, free: int, slots: int) -> str:
    return f"{where}: {slots} parallel tasks need {slots} connections per node, but only {free} are free"


def _free(control: Control) -> tuple[str, int, int | None]:
    try:
        query = load("trueup.task", "connections.sql")["free"]
        server, free, in_database = one_row(control.connection.execute(query))
    except Exception as error:
        raise error_from_server(error, control.node) from None
    return str(server), int(free), None if in_database is None else int(in_database)


def as_connected(session: Connected) -> Node:
    """Return the node of a session with an address that works on any machine."""
    return Node(session.node.name, address_of(session.connection))
