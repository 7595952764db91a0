"""What is written to one table on one node, and how."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from trueup.capture.triggers.sync_turns import SyncTurn
from trueup.config.model import Node
from trueup.db.connection import Connection
from trueup.db.foreign_keys import TableName
from trueup.db.names import display_name
from trueup.rows.spec import TableSpec
from trueup.rows.write.target import Target
from trueup.verbs.repair.layout import Layout
from trueup.verbs.repair.modes import Act
from trueup.verbs.repair.spool import Spool


@dataclass(frozen=True)
class NodeWork:
    """What is written to one table on one node, and how."""

    # The number of the table in the undo file.
    number: int
    node: Node
    layout: Layout
    spool: Spool
    silent: bool
    application: str
    # Whether triggers or rules may change what is written.
    watched: bool
    # The schemas of the search_path of triggers; None: those of a new session.
    schemas: tuple[str, ...] | None
    under_origin: bool
    lock_timeout: float
    # The ids of rows that the decisions leave as they are on this node.
    left: Set[bytes]
    # Another session of the node, which asks who holds a lock.
    watcher: Connection
    # The sync that the node is written as; None: none.
    turn: SyncTurn | None = None

    @property
    def shown(self) -> str:
        """The name of the table, for messages."""
        return display_name(self.layout.spec.schema, self.layout.spec.table)

    @property
    def table(self) -> TableName:
        """Schema and name of the table."""
        return self.layout.spec.schema, self.layout.spec.table

    @property
    def guard(self) -> TableSpec:
        """The table with the columns of the guard hash."""
        return self.layout.guard(self.node.name)

    @property
    def fires(self) -> bool:
        """Whether code of the application may run: triggers, also of tables that a foreign key writes to."""
        return self.watched or not self.silent

    @property
    def has_own(self) -> bool:
        """Whether the node has columns that not all nodes have: an inserted row has fewer columns than an update."""
        return bool(self.layout.own[self.node.name])

    def target(self, act: Act) -> Target:
        """Return the columns of a line that is inserted, or of a line that replaces a row."""
        own = self.layout.own[self.node.name] if act == "update" else ()
        columns = tuple(column.name for column in (*self.layout.inserted(self.node.name), *own))
        return Target(self.guard, columns, self.layout.fixed[self.node.name])
