"""Which server this is, and where its log is: shows that a node was replaced by a failover or a restore.

A copy of the data folder that is started without recovery has the same system identifier and timeline; only its
position shows that it went back, until its log has grown again. What must be certain needs a token in both databases:
see `capture.triggers.readers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

from trueup.db.connection import Connection, one_row
from trueup.db.statements import load


@dataclass(frozen=True)
class ServerPosition:
    """The server and its database, the timeline, and the flushed position of a primary.

    `system` is the system identifier (empty if it is hidden), `/`, and the OID of the database. A standby
    has no position here: it may go back for a moment when it is restarted.
    """

    system: str
    timeline: int
    position: int | None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ServerPosition:
        """Return what `as_json` made."""
        return cls(str(values["system"]), int(values["timeline"]), values["position"])

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"system": self.system, "timeline": self.timeline, "position": self.position}

    def why_other(self, before: ServerPosition) -> str:
        """Return why this is not the later state of the same server; "" if it may be."""
        if self.system != before.system:
            return f"is another server or database ({self.system}, before {before.system})"
        if self.timeline != before.timeline:
            return f"is on timeline {self.timeline}, before on {before.timeline}: a failover or a restore"
        if self.position is not None and before.position is not None and self.position < before.position:
            return f"went back from position {_lsn(before.position)} to {_lsn(self.position)}: it was restored"
        return ""


@dataclass(frozen=True)
class TableIdentity:
    """One table of one database: `system` as in ServerPosition, the name of the database, and the OID of the table."""

    system: str
    database: str
    table: int

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TableIdentity:
        """Return what `as_json` made."""
        return cls(str(values["system"]), str(values["database"]), int(values["table"]))

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"system": self.system, "database": self.database, "table": self.table}

    def why_other(self, before: TableIdentity) -> str:
        """Return why this is not the same table of the same database; "" if it is, also after a failover."""
        (server, oid), (server_before, oid_before) = self.system.split("/"), before.system.split("/")
        # A service may hide the system identifier from one of two roles.
        if server and server_before and server != server_before:
            return f"is another server: its system identifier is {server}, before {server_before}"
        if oid != oid_before:
            if self.database == before.database:
                return f"the database {self.database} was created again (OID {oid}, before {oid_before})"
            return f"is the database {self.database}, before {before.database}"
        if self.table != before.table:
            return f"the table was created again (OID {self.table}, before {before.table})"
        return ""


@dataclass(frozen=True)
class TableFacts:
    """What changes when the rows of a table come, go or change without being written one by one.

    `table` is its OID, 0 if it does not exist. `files` identifies the files of the table, its partitions and its
    children, `columns` their columns and types. Both are empty if a part of it is a foreign table, which may be another
    one on its server, or an unlogged table, which a crash empties: nothing says whether their rows are the same.
    """

    table: int
    files: str
    columns: str

    def why_other(self, before: TableFacts) -> str:
        """Return why rows that were read before are not those of this table any more; "" if they may be."""
        if self.table != before.table:
            return f"another table has its name (OID {self.table}, before {before.table})"
        if not self.files:
            return "nothing says whether its rows are the same: a part of it is a foreign or an unlogged table"
        if self.files != before.files:
            return "it was truncated or written again, or a partition or child was added, removed or replaced"
        return "its columns were altered" if self.columns != before.columns else ""


def table_facts(connection: Connection, schema: str, table: str) -> TableFacts:
    """Return what says whether a table is still the same one."""
    statement = load("trueup.db", "server_identity.sql")["facts"]
    return TableFacts(*one_row(connection.execute(statement, {"schema": schema, "table": table})))


def table_identity(connection: Connection, schema: str, table: str) -> TableIdentity:
    """Return the identity of a table; its OID is 0 if it does not exist."""
    statement = load("trueup.db", "server_identity.sql")["table"]
    database, oid = one_row(connection.execute(statement, {"schema": schema, "table": table}))
    return TableIdentity(server_position(connection).system, database, oid)


def server_position(connection: Connection) -> ServerPosition:
    """Return the identity and the position of the server of a session; any role may ask, unless a service hides it."""
    statements = load("trueup.db", "server_identity.sql")
    try:
        with connection.transaction():
            return ServerPosition(*one_row(connection.execute(statements["server"])))
    except psycopg.errors.InsufficientPrivilege:
        return ServerPosition(*one_row(connection.execute(statements["without_control"])))


def lsn_number(text: str) -> int:
    """Return a position such as `16/B374D848` as a number."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


def _lsn(position: int) -> str:
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"
