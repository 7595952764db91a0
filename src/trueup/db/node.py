"""Open a session with a node, with fixed settings for the text form of values, and convert errors of the driver."""

from __future__ import annotations

import logging
import re
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import conninfo

from trueup.config.address import POSTGRESQL
from trueup.config.model import Node
from trueup.config.secrets import mask, secrets_of
from trueup.db import alive
from trueup.db.connection import Connection, NodeConnection, same_server
from trueup.db.durable import FOR_SESSION
from trueup.db.pooler import check_own_session
from trueup.errors import ConfigError, NodeError, QueryError, TrueupError

if TYPE_CHECKING:
    from typing_extensions import LiteralString

# Seconds that a session waits for a lock.
LOCK_TIMEOUT = 15.0
# Settings that change how a value is printed, compared or hidden. With `row_security = off`, a policy that would hide
# rows is an error; `search_path` excludes operators of other schemas.
PINNED: tuple[LiteralString, ...] = (
    "SET TimeZone = 'UTC'",
    "SET DateStyle = 'ISO, YMD'",
    "SET IntervalStyle = 'postgres'",
    "SET extra_float_digits = 3",
    "SET bytea_output = 'hex'",
    "SET xmlbinary = 'base64'",
    "SET xmloption = 'content'",
    "SET standard_conforming_strings = on",
    "SET quote_all_identifiers = off",
    # How literals are parsed: NULL in an array, and `= NULL` in a filter.
    "SET array_nulls = on",
    "SET transform_null_equals = off",
    "SET search_path = pg_catalog",
    "SET row_security = off",
    "SET client_encoding = 'UTF8'",
    "SET synchronize_seqscans = off",
    # Such a scan shows what an index has, instead of what rows a table has: an index may lack some.
    "SET enable_indexonlyscan = off",
    # Transactions that need another level name it. Tasks in the level SERIALIZABLE would refuse one another.
    "SET default_transaction_isolation = 'read committed'",
    "SET default_transaction_deferrable = off",
    # A session that waits to drop or alter the table blocks new readers: fail instead of waiting.
    f"SET lock_timeout = '{LOCK_TIMEOUT:.0f}s'",
)
# Settings that some services do not allow; probes compare what they change.
OPTIONAL: tuple[LiteralString, ...] = (
    "SET lc_monetary = 'C'",
    # Names of months in to_char, and abbreviations of time zones in literals.
    "SET lc_time = 'C'",
    "SET timezone_abbreviations = 'Default'",
    "SET jit = off",
    # The server ends a query soon after its client was killed (PostgreSQL 14 and newer).
    "SET client_connection_check_interval = '2s'",
    # The session that holds the snapshot is idle during the run (the first: PostgreSQL 17), and others are idle in a
    # transaction while this machine works. A session whose locks others wait for sets a limit of its own.
    "SET transaction_timeout = 0",
    "SET idle_session_timeout = 0",
    "SET idle_in_transaction_session_timeout = 0",
    # A view runs functions of its owner with the rights of this session, and the owner of a table can replace it by a
    # view of the same name at any time (PostgreSQL 17, and 14.13, 15.8, 16.4 and newer).
    "SET restrict_nonsystem_relation_kind = 'view'",
)
# The first version that has a setting. An older server refuses it, and all that is sent with it.
_SINCE: dict[LiteralString, int] = {"SET transaction_timeout = 0": 170000}
# For a session that reads a view that the user named.
ALLOW_VIEWS: LiteralString = "SET restrict_nonsystem_relation_kind = ''"

_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    # Milliseconds: for a server that is gone while a request is on its way. Keepalives are for idle connections.
    "tcp_user_timeout": "60000",
}

_log = logging.getLogger(__name__)

# Tables of the catalog that are private for a good reason.
_WITH_SECRETS = re.compile(r"\bpg_(authid|shadow|subscription|user_mapping|statistic|largeobject)\b")

_CURES = {
    "28P01": "check the password (the address, PGPASSWORD, or ~/.pgpass)",
    "28000": "check the user name, and pg_hba.conf of the server",
    "3D000": "check the database name in the address",
    "53300": "lower --max-connections or --concurrency-factor, or raise max_connections of the server",
    "55P03": "find the session that holds or waits for a lock on the table (pg_locks), and retry when it has ended",
    "42501": "grant the privilege that the message names",
    "57P03": "retry when the server has started",
    "22021": "write texts in the encoding of the database; if that is SQL_ASCII, its texts must be UTF-8",
    "22P05": "use characters that the encoding of the database has, or a database with the encoding UTF8",
    "22P02": "write the value as the type of its column requires",
    "42601": "check the SQL expression",
    "42703": "check the names of columns",
    "42P01": "check the name of the table",
    "53100": "free disk space on the server",
    "57014": "retry, or raise the timeout of the statement",
}


def connect(node: Node, *, application: str, read_only: bool = True) -> Connection:
    """Open a session with fixed settings, with `application` as its name in `pg_stat_activity`.

    Raises CheckFailed, and leaves the server session as it was, if a pooler may give it to other clients.
    """
    if node.kind != POSTGRESQL:
        raise ConfigError(
            f"this command needs a PostgreSQL database, and the node is of the kind {node.kind}",
            cure="name a PostgreSQL node; other kinds of nodes are for trueup diff and trueup check of one table",
            node=node.name,
        )
    began = time.monotonic()
    try:
        _log.debug("connecting to %s as %s", node.describe(), application, extra={"node": node.name})
        connection = _open(node.conninfo, application)
    except psycopg.Error as error:
        raise error_from_server(error, node) from None
    connection.node = node
    alive.watch(connection)
    try:
        open_another = partial(_open, same_server(node.conninfo, connection), application)
        check_own_session(connection, node, began, open_another)
        pin(connection, read_only=read_only)
    except BaseException as error:
        connection.close()
        if isinstance(error, psycopg.Error):
            raise error_from_server(error, node) from None
        raise
    return connection


def _open(address: str, application: str) -> NodeConnection:
    parameters = conninfo.conninfo_to_dict(address)
    defaults: dict[str, Any] = {key: value for key, value in _DEFAULTS.items() if key not in parameters}
    return NodeConnection.connect(
        address,
        autocommit=True,
        # Each statement runs once with its own literals: prepared plans would only use memory.
        prepare_threshold=None,
        application_name=application[:63],
        client_encoding="UTF8",
        **defaults,
    )


def pin(connection: Connection, *, read_only: bool) -> None:
    """Set all settings that results depend on; a session cannot write (`read_only`), or its commits are durable."""
    required: tuple[LiteralString, ...] = (*PINNED, "SET default_transaction_read_only = on")
    if not read_only:
        required = (*PINNED, "SET default_transaction_read_only = off", FOR_SESSION)
    optional = [setting for setting in OPTIONAL if connection.info.server_version >= _SINCE.get(setting, 0)]
    try:
        # One round trip: an error takes all of them back.
        connection.execute("; ".join((*required, *optional)))
        return
    except psycopg.Error as error:
        if is_lost(error):
            raise
    connection.execute("; ".join(required))
    for setting in optional:
        try:
            connection.execute(setting)
        except psycopg.Error as error:
            if is_lost(error):
                raise


def is_lost(error: BaseException) -> bool:
    """Return whether the connection is lost, as opposed to an error that the server returned."""
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
    """Return an error of the driver as a TrueupError with node, cause and cure, without passwords."""
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
    """Return the message of a server or driver as a TrueupError; `state` is the SQLSTATE, or empty."""
    text = mask(_shortened(" ".join(text.split())), *secrets_of(node))
    if lost or state[:2] == "28" or state in ("3D000", "53300"):
        cure = _CURES.get(state) or f"check that the server is running and reachable: {node.describe()}"
        return NodeError(text, cure=_connect_cure(text) or cure, node=node.name, table=table, block=block)
    cure = _CURES.get(state, "")
    if state == "42501" and _WITH_SECRETS.search(text):
        cure = (
            "use a role with more rights; do not grant SELECT on this table, because it has passwords or rows of others"
        )
    return QueryError(text, sqlstate=state, cure=cure, node=node.name, table=table, block=block)


def _shortened(text: str) -> str:
    """Return the text of libpq for a lost connection without its guess at the cause, which the cure covers."""
    guess = " This probably means the server terminated abnormally before or while processing the request."
    return text.removeprefix("consuming input failed: ").replace(guess, "")


def _connect_cure(text: str) -> str:
    """Return the cure for the text of an error while connecting, for which libpq has no SQLSTATE."""
    for part, code in (
        ("password authentication failed", "28P01"),
        ("no password supplied", "28P01"),
        ("does not exist", "3D000"),
        ("pg_hba.conf", "28000"),
        ("too many clients", "53300"),
        ("conversion between UTF8 and", "22P05"),
    ):
        if part in text:
            return _CURES[code]
    return ""
