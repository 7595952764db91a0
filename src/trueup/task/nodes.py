"""Open the driver's sessions with the nodes of a run, one per node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from trueup.config.model import Node
from trueup.db import reader
from trueup.db.snapshot import Control
from trueup.errors import CheckFailed, TrueupError
from trueup.task.together import together


@contextmanager
def open_nodes(nodes: Sequence[Node], application: str) -> Iterator[list[Control]]:
    """Connect to all nodes; at the end, stop the readers that tasks of this application use, and disconnect."""
    reader.allow(application)
    controls = connect_all(nodes, application)
    try:
        yield controls
    finally:
        reader.stop_all(application)
        for control in controls:
            control.close()


def connect_all(nodes: Sequence[Node], application: str) -> list[Control]:
    """Return a session per node; raise one error with all reasons if some nodes cannot be reached."""

    def connect(node: Node) -> Control | TrueupError:
        try:
            return Control(node, application=application)
        except TrueupError as error:
            return error

    results = together(nodes, connect)
    controls = [result for result in results if isinstance(result, Control)]
    errors = [result for result in results if isinstance(result, TrueupError)]
    if errors:
        for control in controls:
            control.close()
        if len(errors) == 1:
            raise errors[0]
        raise CheckFailed([f"{error} ({error.cure})" for error in errors], cure="check the addresses and the servers")
    return controls
