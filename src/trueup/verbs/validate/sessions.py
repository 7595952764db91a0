"""The sessions of a running validation: source, target and meta database, and the stored settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg

from trueup.capture.log.slot import emit_message
from trueup.config.model import Node
from trueup.db.connection import Connection, one_value, same_server
from trueup.db.node import connect, error_from_server
from trueup.db.reader import allow, stop_all
from trueup.errors import CheckFailed
from trueup.verbs.validate.meta import Meta, Stored
from trueup.verbs.validate.settings import Settings

Log = Callable[[str], None]
# Prefix of the messages that a validation writes into the log of a node.
MARK = "trueup"


class Sessions:
    """The connections of one validation. All components share this object, so that a reconnect reaches all of them."""

    def __init__(self, name: str, nodes: tuple[Node, Node], meta: Meta, log: Log) -> None:
        self.name = name
        self.nodes = nodes
        self.meta = meta
        self.log = log
        self.application = f"trueup validate {name}"
        # The nodes as they were reached: an address may name several servers, of which only one is validated.
        self.servers = nodes
        self.stored: Stored = meta.need(name)
        self._source: Connection | None = None
        self._target: Connection | None = None

    @property
    def settings(self) -> Settings:
        """Return the settings as of the last `reload`."""
        return self.stored.settings

    @property
    def source(self) -> Connection:
        """Return the open session with the source."""
        assert self._source is not None
        return self._source

    @property
    def target(self) -> Connection:
        """Return the open session with the target."""
        assert self._target is not None
        return self._target

    def open(self) -> None:
        """Open the sessions with source and target; raise CheckFailed if the source is a standby."""
        allow(self.application, lasting=True)
        self._source = self.connect(self.nodes[0], read_only=False)
        self._target = self.connect(self.nodes[1], read_only=True)
        source, target = (
            Node(node.name, same_server(node.conninfo, session))
            for node, session in zip(self.nodes, (self._source, self._target), strict=True)
        )
        self.servers = source, target
        self.reload()
        with self.source_errors():
            if one_value(self.source.execute("SELECT pg_is_in_recovery()")):
                raise CheckFailed(
                    ["the source is a standby"], cure="validate from its primary", node=self.nodes[0].name
                )

    def connect(self, node: Node, *, read_only: bool) -> Connection:
        """Open a further session of this validation."""
        connection = connect(node, application=self.application, read_only=read_only)
        # Marks do not wait for a synchronous standby.
        connection.execute("SET statement_timeout = 0; SET synchronous_commit = local")
        return connection

    def close(self) -> None:
        """Cancel the queries of tasks and close the sessions with source and target."""
        stop_all(self.application)
        for connection in (self._source, self._target):
            if connection is not None:
                connection.close()

    def reload(self) -> Stored:
        """Read the row of the validation again."""
        self.stored = self.meta.need(self.name)
        return self.stored

    def mark(self) -> int:
        """Write a mark into the log of the source; return the position behind it.

        Everything that was visible on the source before the call was committed before this position.
        """
        with self.source_errors():
            return emit_message(self.source, MARK)

    def mark_target(self) -> int:
        """Write a mark into the log of the target; return the position behind it."""
        with self.target_errors():
            return emit_message(self.target, MARK)

    @contextmanager
    def source_errors(self) -> Iterator[None]:
        """Raise driver errors as errors of the source node."""
        with _node_errors(self.nodes[0]):
            yield

    @contextmanager
    def target_errors(self) -> Iterator[None]:
        """Raise driver errors as errors of the target node."""
        with _node_errors(self.nodes[1]):
            yield


@contextmanager
def _node_errors(node: Node) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise error_from_server(error, node) from None
