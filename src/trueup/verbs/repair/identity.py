"""Which database and which table a repair wrote: an undo file is for these, and for no others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trueup.db.connection import Connection
from trueup.db.names import display_name
from trueup.db.node import error_from_server
from trueup.db.server_identity import TableIdentity, table_identity
from trueup.db.snapshot import Control
from trueup.errors import CheckFailed
from trueup.rows.spec import TableSpec

if TYPE_CHECKING:
    from trueup.verbs.repair.layout import Layout


def identity_on(control: Control, schema: str, table: str) -> TableIdentity:
    """Return the identity of a table on a node."""
    try:
        return table_identity(control.connection, schema, table)
    except Exception as error:
        raise error_from_server(error, control.node) from None


def check_same_databases(file: Sequence[Mapping[str, Any]], tables: Sequence[Mapping[str, Layout]]) -> None:
    """Raise CheckFailed unless the nodes have the databases and the tables of an undo file.

    `file` is the tables in the head of the file, `tables` their layouts by node. A standby that was promoted since is
    the same database.
    """
    reasons = [
        f"node {node}: {display_name(head['schema'], head['table'])}: {reason}"
        for head, layouts in zip(file, tables, strict=True)
        for node, layout in layouts.items()
        if (reason := _why_other(node, layout.identities[node], head["databases"]))
    ]
    if reasons:
        raise CheckFailed(
            reasons,
            cure="check the addresses of the nodes; if the database was restored from a dump or upgraded since, give"
            " --other-database: each row is still compared with the row that was written",
        )


def _why_other(node: str, identity: TableIdentity, file: Mapping[str, Mapping[str, Any]]) -> str:
    before = {name: TableIdentity.from_json(values) for name, values in file.items()}
    reason = identity.why_other(before[node])
    others = [name for name in before if not identity.why_other(before[name])]
    return f"{reason}; it is the database that the undo file has as {others[0]}" if reason and others else reason


def check_same_table(connection: Connection, before: TableIdentity, spec: TableSpec) -> None:
    """Raise CheckFailed if a session that has written to the table, and so locks it, is not in the same database."""
    reason = table_identity(connection, spec.schema, spec.table).why_other(before)
    if reason:
        raise CheckFailed([f"{reason}: not where the rows were read"], cure="run the command again")
