"""One session with one node: connect, pin the settings that change how values look, and name errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import conninfo

from trueup.config.secrets import mask, secrets_of
from trueup.db.connection import Connection
from trueup.errors import NodeError, QueryError, TrueupError

if TYPE_CHECKING:
    from typing_extensions import LiteralString

    from trueup.config.model import Node

# Everything that may change how a value is printed, compared or hidden. `row_security = off` makes a policy
# that would hide rows an error instead of a silent gap; `search_path` keeps other people's operators out.
PINNED: tuple[LiteralString, ...] = (
    "SET TimeZone = 'UTC'",
    "SET DateStyle = 'ISO, YMD'",
    "SET IntervalStyle = 'postgres'",
    "SET extra_float_digits = 3",
    "SET bytea_output = 'hex'",
    "SET xmlbinary = 'base64'",
    "SET standard_conforming_strings = on",
    "SET quote_all_identifiers = off",
    # How literals are read: NULL in an array of a key, and `= NULL` in a filter.
    "SET array_nulls = on",
    "SET transform_null_equals = off",
    "SET search_path = pg_catalog",
    "SET row_security = off",
    "SET client_encoding = 'UTF8'",
    "SET synchronize_seqscans = off",
    # Somebody who waits to drop or alter the table stands before our new sessions in the queue: say so, do not hang.
    "SET lock_timeout = '15s'",
)
# Not every service lets its users set these; the checks compare what they change.
WISHED: tuple[LiteralString, ...] = (
    "SET lc_monetary = 'C'",
    "SET jit = off",
    # A query whose client was killed ends soon (PostgreSQL 14 and newer).
    "SET client_connection_check_interval = '2s'",
    # The session that holds the snapshot must outlive the run, and may be idle (PostgreSQL 17, 14 and newer).
    "SET transaction_timeout = 0",
    "SET idle_session_timeout = 0",
)

_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
}

_CURES = {
    "28P01": "check the password (the address, PGPASSWORD, or ~/.pgpass)",
    "28000": "check the user's name and the server's pg_hba.conf",
    "3D000": "check the database's name in the address",
    "53300": "the server has no connections left: lower --max-connections or --concurrency-factor",
    "55P03": "another session holds or waits for a lock on the table (see pg_locks): try again when it is done",
    "42501": "grant the right that is named",
    "57P03": "the server is starting up or shutting down: try again in a moment",
}


def connect(node: Node, *, application: str, read_only: bool = True) -> Connection:
    """Open a pinned session that shows itself as `application` in `pg_stat_activity`."""
    try:
        given = conninfo.conninfo_to_dict(node.conninfo)
        defaults: dict[str, Any] = {key: value for key, value in _DEFAULTS.items() if key not in given}
        connection = psycopg.connect(
            node.conninfo,
            autocommit=True,
            application_name=application[:63],
            client_encoding="UTF8",
            **defaults,
        )
    except psycopg.Error as error:
        raise error_from_server(error, node) from None
    try:
        pin(connection, read_only=read_only)
    except psycopg.Error as error:
        connection.close()
        raise error_from_server(error, node) from None
    return connection


def pin(connection: Connection, *, read_only: bool) -> None:
    """Set what the answers depend on; a reading verb gets a session that cannot write."""
    mode = "on" if read_only else "off"
    connection.execute("; ".join((*PINNED, f"SET default_transaction_read_only = {mode}")))
    for wish in WISHED:
        try:
            connection.execute(wish)
        except psycopg.Error:
            continue
    # Our statements are each run once with their own literals: a prepared plan would only cost memory.
    connection.prepare_threshold = None


def is_lost(error: BaseException) -> bool:
    """Whether the connection is gone (as opposed to: the server answered with an error)."""
    if isinstance(error, NodeError):
        return True
    if not isinstance(error, psycopg.Error):
        return isinstance(error, OSError)
    state = error.sqlstate
    if state is None:
        return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    return state[:2] == "08" or state in ("57P01", "57P02", "57P03", "57P05", "25P03", "25P04")


def error_from_server(
    error: BaseException, node: Node, *, table: str | None = None, block: str | None = None
) -> TrueupError:
    """A driver's error as one of ours: which node, what happened, what to do, and no password."""
    if isinstance(error, TrueupError):
        return error
    state = getattr(error, "sqlstate", None) or ""
    text = str(error).strip() or type(error).__name__
    if isinstance(error, psycopg.Error) and error.diag.message_primary:
        text = error.diag.message_primary
    return error_from_text(text, state, node, lost=is_lost(error), table=table, block=block)


def error_from_text(
    text: str, state: str, node: Node, *, lost: bool, table: str | None = None, block: str | None = None
) -> TrueupError:
    """What a server or a driver said, as one of our errors; `state` is the SQLSTATE, if one is known."""
    text = mask(" ".join(text.split()), *secrets_of(node))
    if lost or state[:2] == "28" or state in ("3D000", "53300"):
        cure = _CURES.get(state) or f"check that the server runs and can be reached: {node.describe()}"
        return NodeError(text, cure=_connect_cure(text) or cure, node=node.name, table=table, block=block)
    return QueryError(text, sqlstate=state, cure=_CURES.get(state, ""), node=node.name, table=table, block=block)


def _connect_cure(text: str) -> str:
    """libpq gives no error code while it connects, only text."""
    for part, code in (
        ("password authentication failed", "28P01"),
        ("no password supplied", "28P01"),
        ("does not exist", "3D000"),
        ("pg_hba.conf", "28000"),
        ("too many clients", "53300"),
    ):
        if part in text:
            return _CURES[code]
    return ""
