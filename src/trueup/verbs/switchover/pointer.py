"""The pointer: a row in each of the two databases that says which of them is in use.

The rows say opposite things. During an attempt the old database is still in use. The decision is one commit there;
after it the old database refuses writes, and its row shows the token that opens the new database. So there is no moment
in which both accept writes, whatever process is killed when.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from psycopg import sql
from psycopg.rows import dict_row

from trueup.capture.log.publications import refuse_all_tables
from trueup.config.address import join, parse
from trueup.db.connection import Connection, one_value
from trueup.db.locks import APPLICATION, FAMILY
from trueup.db.statements import load
from trueup.errors import CheckFailed, ConfigError, TrueupError

if TYPE_CHECKING:
    from typing_extensions import LiteralString

IDLE = "idle"
IN_PROGRESS = "in_progress"
USE_NEXT = "use_next"


@dataclass(frozen=True)
class Pointer:
    """The pointer of one of the two databases."""

    sync: str
    sync_id: str
    state: str
    # Whether the sync was started from this database.
    is_first: bool
    name: str
    next_name: str
    next_address: str
    epoch: int
    attempt: str
    phase: str
    token: str | None
    changed_at: str | None
    decided_at: str | None
    opened_at: str | None
    report: dict[str, Any] | None
    expects_token: bool

    @property
    def is_in_use(self) -> bool:
        """Whether applications write to this database."""
        return self.state != USE_NEXT

    def as_json(self) -> dict[str, Any]:
        """Return the pointer as plain values, without the token."""
        hidden = ("token", "expects_token", "report")
        return {name: value for name, value in asdict(self).items() if name not in hidden}


def statement(name: str) -> LiteralString:
    """Return a statement of pointer.sql."""
    return load("trueup.verbs.switchover", "pointer.sql")[name]


def install(connection: Connection) -> None:
    """Create the table and the functions; a second call changes nothing."""
    text = statement("install").replace("@family@", str(FAMILY)).replace("@application@", str(APPLICATION))
    with connection.transaction():
        # Two concurrent installations would fail on the catalog.
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('trueup switchover install', 0))")
        refuse_all_tables(connection, "trueup.switchover")
        connection.execute("SET LOCAL client_min_messages = warning")
        connection.execute(text)


def is_installed(connection: Connection) -> bool:
    """Return whether this database has the table of pointers."""
    return bool(one_value(connection.execute("SELECT to_regclass('trueup.switchover') IS NOT NULL")))


def create(
    connection: Connection, sync: str, sync_id: str, *, names: tuple[str, str], address: str, is_first: bool
) -> None:
    """Create the pointer of this database, or update its names and address; the state of an existing one stays.

    Raise if the pointer with this name belongs to another sync.
    """
    cursor = connection.execute(
        statement("create"),
        {
            "sync": sync,
            "id": sync_id,
            "state": IDLE if is_first else USE_NEXT,
            "is_first": is_first,
            "name": names[0],
            "next_name": names[1],
            "next_address": address,
        },
    )
    if cursor.rowcount != 1:
        raise CheckFailed(
            [f"the pointer {sync} of {names[0]} belongs to a switchover with another database"],
            cure="end that switchover (trueup switchover finish), or start the sync with another name: --name",
        )


def read(connection: Connection, sync: str) -> Pointer | None:
    """Return the pointer, or None if there is none."""
    if not is_installed(connection):
        return None
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(statement("read"), {"sync": sync}).fetchone()
    return Pointer(**row) if row else None


def closed_since(connection: Connection, sync: str) -> datetime:
    """Return since when only the sync can write to this database, which is not in use."""
    row = connection.execute(statement("closed_since"), {"sync": sync}).fetchone()
    if row is None:
        raise TrueupError("the pointer says that this database is in use", cure="see trueup switchover status")
    since: datetime = row[0]
    return since


def address_of(connection: Connection) -> str:
    """Return the address of a connection for applications: host, port and database, without user and password."""
    info = connection.info
    return join({"host": info.host, "port": str(info.port), "dbname": info.dbname})


def application_address(text: str) -> str:
    """Return a checked address that the user gave for applications; every role of the database can read it."""
    if not text:
        return ""
    keywords, problem = parse(text)
    if not problem and "password" in keywords:
        problem = "it contains a password, and all roles can read the pointer"
    if problem:
        raise ConfigError(f"the address for applications is not valid: {problem}", cure='write "host=db2 dbname=shop"')
    return join(keywords)


def begin_attempt(connection: Connection, sync: str, attempt: str) -> None:
    """Record the begin of an attempt; the database stays in use."""
    _change(connection, "begin_attempt", "this database is not in use", sync=sync, attempt=attempt)


def expect_token(connection: Connection, sync: str, token: str) -> None:
    """Store the hash of the token that will open this database."""
    _change(connection, "expect_token", "this database is in use", sync=sync, token=token)


def end_attempt(connection: Connection, sync: str, attempt: str, phase: str) -> bool:
    """Record the end of an attempt without a decision; return whether it was still in progress."""
    values = {"sync": sync, "attempt": attempt, "phase": phase}
    return connection.execute(statement("end_attempt"), values).rowcount == 1


def decide(connection: Connection, sync: str, attempt: str, token: str) -> None:
    """Write the decision in the current transaction; its commit makes it effective."""
    _change(connection, "decide", "another process ended this attempt", sync=sync, attempt=attempt, token=token)


def open_database(connection: Connection, sync: str, token: str) -> bool:
    """Open this database for writes; return whether it is open, also if an application opened it earlier."""
    # The commit need not wait for the disk: after a crash the token still opens the database.
    query = sql.SQL("BEGIN; SET LOCAL synchronous_commit = off; SELECT trueup.switchover_open({}, {}); COMMIT")
    cursor = connection.execute(query.format(sql.Literal(sync), sql.Literal(token)))
    while cursor.description is None and cursor.nextset():
        pass
    row = cursor.fetchone()
    if row and row[0]:
        return True
    pointer = read(connection, sync)
    return pointer is not None and pointer.is_in_use


def keep_report(connection: Connection, sync: str, report: str, phase: str) -> None:
    """Store the report of the last attempt in the pointer."""
    connection.execute(statement("keep_report"), {"sync": sync, "report": report, "phase": phase})


def remove(connection: Connection) -> None:
    """Remove the pointer from a database, and the schema `trueup` if it is empty."""
    with connection.transaction():
        connection.execute("SET LOCAL client_min_messages = warning")
        connection.execute(statement("remove"))
        if one_value(connection.execute(statement("schema_is_empty"))):
            connection.execute("DROP SCHEMA trueup")


def check_both(first: Pointer | None, second: Pointer | None, sync: str) -> tuple[Pointer, Pointer]:
    """Return both pointers; raise if one is missing, or both say that their database is in use."""
    if first is None or second is None:
        raise CheckFailed([f"no switchover of the sync {sync} is prepared"], cure="run trueup switchover prepare")
    if first.is_in_use and second.is_in_use:
        # This code never writes that; the tables were changed by hand.
        raise CheckFailed(
            [f"the pointers of {first.name} and {second.name} both say that their database is in use"],
            cure="find out which database has the newer rows (trueup diff), and set trueup.switchover.state of the"
            " other one to use_next",
        )
    return first, second


def _change(connection: Connection, name: str, refusal: str, **values: str) -> None:
    values.setdefault("phase", "preparing")
    if connection.execute(statement(name), values).rowcount != 1:
        raise TrueupError(f"the switchover cannot continue: {refusal}", cure="see trueup switchover status")
