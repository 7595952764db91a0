"""The connections of a run: whether the servers have enough free, and how executors reach them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trueup.config.address import join
from trueup.config.model import Node
from trueup.db.node import error_from_server
from trueup.db.snapshot import Control
from trueup.db.statements import load
from trueup.errors import CheckFailed

# What libpq has looked up already, in files that an executor may not have.
_LOOKED_UP = ("service", "servicefile", "passfile")


def check_free(controls: Sequence[Control], slots: int) -> int:
    """How many sessions each node can still take; refuses if that is less than one for each slot.

    Nodes that are databases of one server, or that log in as one role, share what is free.
    """
    servers: dict[str, list[tuple[str, int]]] = {}
    room: list[tuple[str, int]] = []
    for control in controls:
        server, free, in_database = _free(control)
        servers.setdefault(server, []).append((control.node.name, free))
        if in_database is not None:
            room.append((f"node {control.node.name}", in_database))
    for nodes in servers.values():
        names = ", ".join(name for name, _ in nodes)
        room.append((f"node{'s' * (len(nodes) > 1)} {names}", min(free for _, free in nodes) // len(nodes)))
    least = max(0, min(free for _, free in room))
    if least < slots:
        reasons = [_reason(where, max(0, free), slots) for where, free in room if free < slots]
        most = f"--max-connections {least + 1}" if least else "end some, or raise the server's max_connections"
        raise CheckFailed(reasons, cure=f"{most}, or fewer tasks at once (--concurrency-factor, spark.slots)")
    return least


def _reason(where: str, free: int, slots: int) -> str:
    return f"{where}: {slots} tasks at once want as many connections each, and {free} are free"


def _free(control: Control) -> tuple[str, int, int | None]:
    try:
        row: Any = control.connection.execute(load("trueup.task", "connections.sql")["free"]).fetchone()
    except Exception as error:
        raise error_from_server(error, control.node) from None
    return str(row[0]), int(row[1]), None if row[2] is None else int(row[2])


def as_connected(control: Control) -> Node:
    """The node with an address that leads there from any machine.

    The driver's PG* variables, password file and services are unknown to an executor; what libpq found in them is
    in the address then.
    """
    info = control.connection.info
    found = {key: str(value) for key, value in info.get_parameters().items() if key not in _LOOKED_UP}
    if info.password:
        found["password"] = info.password
    return Node(control.node.name, join(found))
