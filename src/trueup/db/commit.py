"""A transaction whose outcome is known, also if the session is lost during COMMIT.

The server may have committed when the session is lost before its answer arrives. The transaction id, read before the
commit, shows the outcome to a new session with the same server.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from trueup.config.model import Node
from trueup.db.connection import Connection, NodeConnection, one_row, one_value
from trueup.db.durable import commit_durably
from trueup.db.node import connect, error_from_server, is_lost
from trueup.db.server_identity import ServerPosition, server_position
from trueup.errors import NodeError, TrueupError

if TYPE_CHECKING:
    from typing_extensions import LiteralString

# How long to ask for the outcome: a server that restarts after a crash needs some time, and a backend whose client is
# gone may still be in its COMMIT.
ASK_SECONDS = 15.0
_PAUSE_SECONDS = 0.2
# The statistics are reset after a crash, also if the postmaster survives it.
_LIFETIME: LiteralString = (
    "SELECT concat_ws(' ', pg_postmaster_start_time(), (SELECT stats_reset FROM pg_stat_bgwriter))"
)

_log = logging.getLogger(__name__)


class CommitUnknown(NodeError):
    """A session was lost during COMMIT, and it is not known whether the transaction was committed."""


@dataclass(frozen=True)
class _Witness:
    """What shows the outcome: the id of the transaction and the server that assigned it."""

    transaction: str
    server: ServerPosition
    application: str
    # Changes when the server is started, or recovers from a crash: it may then have lost the id, and assign it again.
    lifetime: str


@contextmanager
def confirmed_transaction(connection: Connection) -> Iterator[None]:
    """Run the block in one durable transaction. When this returns, it is committed; an error means: rolled back.

    Raises CommitUnknown if the session was lost during COMMIT and the outcome is not known.
    """
    node = connection.node if isinstance(connection, NodeConnection) else None
    witness: _Witness | None = None
    try:
        with connection.transaction():
            yield
            commit_durably(connection)
            witness = _witness(connection)
    except psycopg.Error as error:
        if node is None or witness is None or not is_lost(error):
            raise
        if not witness.transaction:
            # Nothing was written: committed and rolled back are the same.
            return
        if not _is_committed(node, witness, error_from_server(error, node)):
            raise
        _log.warning(
            "node %s: the session was lost during COMMIT; the server confirms that the transaction was committed",
            node.name,
            extra={"node": node.name},
        )


def _witness(connection: Connection) -> _Witness:
    server = server_position(connection)
    transaction = one_value(connection.execute("SELECT pg_current_xact_id_if_assigned()::text"))
    application = connection.info.parameter_status("application_name") or "trueup"
    return _Witness(transaction or "", server, application, one_value(connection.execute(_LIFETIME)))


def _is_committed(node: Node, witness: _Witness, loss: TrueupError) -> bool:
    """Ask the server with new sessions; raise CommitUnknown if the outcome is not known in time."""
    deadline = time.monotonic() + ASK_SECONDS
    while True:
        reason = ""
        try:
            status = _status(node, witness)
            if status in ("committed", "aborted"):
                return status == "committed"
            reason = status
        except (TrueupError, psycopg.Error) as error:
            reason = error_from_server(error, node).message
        if time.monotonic() > deadline:
            raise CommitUnknown(
                f"the session was lost during COMMIT ({loss.message}), and it is unknown whether the transaction was"
                f" committed: {reason}",
                cure="run the command again when the server can be reached: rows that were written already agree",
                node=node.name,
            )
        time.sleep(_PAUSE_SECONDS)


def _status(node: Node, witness: _Witness) -> str:
    """Return `committed` or `aborted`, or why that is not known."""
    connection = connect(node, application=witness.application)
    try:
        (in_recovery,) = one_row(connection.execute("SELECT pg_is_in_recovery()"))
        if in_recovery:
            return "the server is a standby or in recovery"
        if reason := server_position(connection).why_other(witness.server):
            # Another server has given the same id to another transaction.
            return f"the server {reason}"
        try:
            status = one_value(connection.execute("SELECT pg_xact_status(%s::xid8)", (witness.transaction,)))
        except psycopg.errors.InvalidParameterValue:
            # The id is in the future: a crash took it back, and with it the transaction. A commit would be on the disk.
            return "aborted"
        if status == "committed" and one_value(connection.execute(_LIFETIME)) != witness.lifetime:
            return "the server was restarted, and may have assigned the transaction id again"
        return str(status or "the server has no record of the transaction")
    finally:
        connection.close()
