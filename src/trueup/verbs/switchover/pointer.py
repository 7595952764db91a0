"""The pointer: a row in each of the two databases that says which of them is in use, and the one commit that decides.

The rows say opposite things. While an attempt is under way the old database is still the one in use; the decision is
one commit there, after which it refuses writes. Only then does its row tell the token that opens the new database. So
there is no moment in which both take writes, whatever process is killed when.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from psycopg import sql
from psycopg.rows import dict_row

from trueup.capture.log.publications import refuse_all_tables
from trueup.config.address import join, parse
from trueup.db.connection import Connection
from trueup.db.locks import APPLICATION, FAMILY
from trueup.db.statements import load
from trueup.errors import CheckFailed, ConfigError, TrueupError

if TYPE_CHECKING:
    from datetime import datetime

    from typing_extensions import LiteralString

    Connection = Connection

IDLE = "idle"
IN_PROGRESS = "in_progress"
USE_NEXT = "use_next"


@dataclass(frozen=True)
class Pointer:
    """What one of the two databases says."""

    sync: str
    state: str
    # Whether this is the database that the sync began with.
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
        """Whether applications write here."""
        return self.state != USE_NEXT

    def as_json(self) -> dict[str, Any]:
        """As plain values, without what only opens doors."""
        hidden = ("token", "expects_token", "report")
        return {name: value for name, value in asdict(self).items() if name not in hidden}


def block(name: str) -> LiteralString:
    """A statement of the pointer."""
    return load("trueup.verbs.switchover", "pointer.sql")[name]


def install(connection: Connection) -> None:
    """The table and the functions; a second call changes nothing."""
    text = block("install").replace("@family@", str(FAMILY)).replace("@application@", str(APPLICATION))
    with connection.transaction():
        # Two who install at once would fail each other on the catalog.
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('trueup switchover install', 0))")
        refuse_all_tables(connection, "trueup.switchover")
        connection.execute("SET LOCAL client_min_messages = warning")
        connection.execute(text)


def is_installed(connection: Connection) -> bool:
    """Whether there is a pointer table in this database."""
    row = connection.execute("SELECT to_regclass('trueup.switchover') IS NOT NULL").fetchone()
    return bool(row and row[0])


def take(connection: Connection, sync: str, *, names: tuple[str, str], address: str, is_first: bool) -> None:
    """Make the row of this side, or bring names and address up to date; the state of a row that is there stays."""
    connection.execute(
        block("take"),
        {
            "sync": sync,
            "state": IDLE if is_first else USE_NEXT,
            "is_first": is_first,
            "name": names[0],
            "next_name": names[1],
            "next_address": address,
        },
    )


def read(connection: Connection, sync: str) -> Pointer | None:
    """The row, or None where there is none."""
    if not is_installed(connection):
        return None
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(block("read"), {"sync": sync}).fetchone()
    return Pointer(**row) if row else None


def closed_since(connection: Connection, sync: str) -> datetime:
    """Since when this database, which is not in use, takes no writes but those of the sync."""
    row = connection.execute(block("closed_since"), {"sync": sync}).fetchone()
    if row is None:
        raise TrueupError("the pointer says that this database is in use", cure="see trueup switchover status")
    found: datetime = row[0]
    return found


def address_of(connection: Connection) -> str:
    """Where a connection leads, for applications: host, port and database, never a user or a password."""
    info = connection.info
    return join({"host": info.host, "port": str(info.port), "dbname": info.dbname})


def told_address(text: str) -> str:
    """An address for applications that was given by hand; every role of the database will be able to read it."""
    if not text:
        return ""
    keywords, wrong = parse(text)
    if not wrong and "password" in keywords:
        wrong = "it holds a password, and all roles can read the pointer"
    if wrong:
        raise ConfigError(f"the address for applications is wrong: {wrong}", cure='write "host=db2 dbname=shop"')
    return join(keywords)


def begin(connection: Connection, sync: str, attempt: str) -> None:
    """An attempt begins: the database stays in use."""
    _change(connection, "begin", "the pointer does not say that this database is in use", sync=sync, attempt=attempt)


def expect(connection: Connection, sync: str, token: str) -> None:
    """Tell the database that is to be opened what will open it."""
    _change(connection, "expect", "the pointer says that this database is in use already", sync=sync, token=token)


def say(connection: Connection, sync: str, phase: str) -> None:
    """Write down where an attempt is."""
    connection.execute(block("phase"), {"sync": sync, "phase": phase})


def release(connection: Connection, sync: str, attempt: str, phase: str) -> bool:
    """An attempt is over without a decision; whether it was still under way."""
    values = {"sync": sync, "attempt": attempt, "phase": phase}
    return connection.execute(block("release"), values).rowcount == 1


def decide(connection: Connection, sync: str, attempt: str, token: str) -> None:
    """The decision, as part of the transaction at hand: it counts from its commit on."""
    _change(connection, "decide", "somebody else ended this attempt", sync=sync, attempt=attempt, token=token)


def open_next(connection: Connection, sync: str, token: str) -> bool:
    """Open the database behind this connection; whether it is open now. An application may have been quicker."""
    # Needs not wait for the disk: should a crash take it back, the token still opens it.
    statement = sql.SQL("BEGIN; SET LOCAL synchronous_commit = off; SELECT trueup.switchover_open({}, {}); COMMIT")
    cursor = connection.execute(statement.format(sql.Literal(sync), sql.Literal(token)))
    while cursor.description is None and cursor.nextset():
        pass
    row = cursor.fetchone()
    if row and row[0]:
        return True
    found = read(connection, sync)
    return found is not None and found.is_in_use


def keep_report(connection: Connection, sync: str, report: str, phase: str) -> None:
    """Keep the report of the last attempt with the row."""
    connection.execute(block("keep"), {"sync": sync, "report": report, "phase": phase})


def remove(connection: Connection) -> None:
    """Take the pointer out of a database, and the schema with it if nothing else is in it."""
    with connection.transaction():
        connection.execute("SET LOCAL client_min_messages = warning")
        connection.execute(block("remove"))
        row = connection.execute(block("schema_is_empty")).fetchone()
        if row and row[0]:
            connection.execute("DROP SCHEMA trueup")


def both(first: Pointer | None, second: Pointer | None, sync: str) -> tuple[Pointer, Pointer]:
    """Both rows, if they fit together."""
    if first is None or second is None:
        raise CheckFailed([f"there is no switchover of the sync {sync} here"], cure="begin: trueup switchover prepare")
    if first.is_in_use and second.is_in_use:
        # Cannot come about by what is in this file; somebody wrote to the tables by hand.
        raise CheckFailed(
            [f"the pointers of {first.name} and {second.name} both say that they are in use"],
            cure="find out which one has the newer rows (trueup diff), and set trueup.switchover.state of the other"
            " one to use_next",
        )
    return first, second


def _change(connection: Connection, name: str, refusal: str, **values: str) -> None:
    values.setdefault("phase", "preparing")
    if connection.execute(block(name), values).rowcount != 1:
        raise TrueupError(f"the switchover cannot go on: {refusal}", cure="see trueup switchover status")
