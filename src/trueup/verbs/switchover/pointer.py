"""The pointer: a row in each of the two databases that says which of them is in use.

The rows say opposite things. During an attempt the old database is still in use. The decision is one commit there;
after it the old database refuses writes, and its row shows the token that opens the new database. So there is no moment
in which both accept writes, whatever process is killed when.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from psycopg import sql
from psycopg.rows import dict_row

from trueup.capture.log.publications import ensure_identities, refuse_all_tables
from trueup.config.address import join, parse
from trueup.db.connection import Connection, Cursor, one_value
from trueup.db.drop_schema import drop_schema_if_empty
from trueup.db.private import install_privately, repeat_after_conflicts
from trueup.db.statements import load
from trueup.db.trust import check_schema
from trueup.errors import CheckFailed, ConfigError, TrueupError
from trueup.verbs.sync import state
from trueup.verbs.sync.model import FUNCTIONS_SCHEMA
from trueup.verbs.sync.state import identity

if TYPE_CHECKING:
    from typing_extensions import LiteralString

IDLE = "idle"
IN_PROGRESS = "in_progress"
USE_NEXT = "use_next"

# Seconds to wait for a session of an earlier call, which may be about to end.
_CLAIM_SECONDS = 1.0


@dataclass(frozen=True)
class Holder:
    """A session that executes, resets or finishes a switchover."""

    pid: int
    application: str
    role: str

    def __str__(self) -> str:
        return f"process {self.pid} ({', '.join(part for part in (self.role, self.application) if part)})"


@dataclass(frozen=True)
class Pointer:
    """The pointer of one of the two databases."""

    sync: str
    sync_id: str
    # The identities of the two databases.
    pair: str
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
    finished_at: str | None
    report: dict[str, Any] | None
    expects_token: bool

    @property
    def is_in_use(self) -> bool:
        """Whether applications write to this database."""
        return self.state != USE_NEXT

    @property
    def is_alone(self) -> bool:
        """Whether the switchover is finished, and this database is in use without the other one."""
        return self.finished_at is not None and self.is_in_use

    @property
    def is_closed(self) -> bool:
        """Whether the switchover is finished, and this database stays closed to writes."""
        return self.finished_at is not None and not self.is_in_use

    def as_json(self) -> dict[str, Any]:
        """Return the pointer as plain values, without the token."""
        hidden = ("token", "expects_token", "report", "pair")
        return {name: value for name, value in asdict(self).items() if name not in hidden}


def statement(name: str) -> LiteralString:
    """Return a statement of pointer.sql."""
    return load("trueup.verbs.switchover", "pointer.sql")[name]


def install(connection: Connection) -> None:
    """Create the tables and the functions; a second call changes nothing."""
    if is_installed(connection) and not one_value(connection.execute(statement("is_current"))):
        raise CheckFailed(
            ["the pointers of this database were created by an earlier version of trueup"],
            cure="remove them with that version: trueup switchover reset, or trueup switchover finish",
        )

    def create_objects() -> None:
        refuse_all_tables(connection, "trueup.switchover")
        connection.execute("SET LOCAL client_min_messages = warning")
        connection.execute(statement("install"))
        ensure_identities(connection, "trueup")

    def create_functions() -> None:
        connection.execute(statement("install_functions"))

    install_privately(connection, "trueup", create_objects)
    install_privately(connection, FUNCTIONS_SCHEMA, create_functions)
    repeat_after_conflicts(connection, lambda: connection.execute(statement("grant")))


def is_installed(connection: Connection) -> bool:
    """Return whether this database has the table of pointers."""
    return check_schema(connection, "trueup") and bool(
        one_value(connection.execute("SELECT to_regclass('trueup.switchover') IS NOT NULL"))
    )


def create(
    connection: Connection,
    sync: str,
    sync_id: str,
    *,
    pair: str,
    names: tuple[str, str],
    address: str,
    is_first: bool,
    given: bool = False,
) -> None:
    """Create the pointer of this database, or update its names and address; the state of an existing one stays.

    `given`: the address is one for applications, which a later call without one keeps.
    Raise if the pointer with this name belongs to another sync.
    """
    values = {
        "sync": sync,
        "id": sync_id,
        "pair": pair,
        "state": IDLE if is_first else USE_NEXT,
        "is_first": is_first,
        "name": names[0],
        "next_name": names[1],
        "next_address": address,
        "next_given": given,
    }

    def create_row() -> None:
        connection.execute("SET LOCAL client_min_messages = warning")
        connection.execute(sql.SQL("CREATE SEQUENCE IF NOT EXISTS {}").format(_sequence(sync)))
        connection.execute(statement("remove_finished"), values)
        if connection.execute(statement("create"), values).rowcount:
            if not is_first:
                # A transaction with an older snapshot does not see that this database is closed.
                connection.execute(statement("changed"), values)
            return
        check_pair(read(connection, sync), pair, names[0])
        if connection.execute(statement("rename"), values).rowcount != 1:
            raise CheckFailed(
                [f"the pointer {sync} of {names[0]} belongs to another sync"],
                cure="end that switchover (trueup switchover finish), or start the sync with another name: --name",
            )

    install_privately(connection, "trueup", create_row)


def _sequence(sync: str) -> sql.Identifier:
    """Return the sequence that contains the transaction of the last decision or opening."""
    return sql.Identifier("trueup", f"switchover_changed_{sync}")


def pair_of(first: Connection, second: Connection) -> str:
    """Return the identities of the two databases of a switchover."""
    return f"{identity(first)} {identity(second)}"


def check_pair(stored: Pointer | None, pair: str, node: str) -> None:
    """Raise if the pointer belongs to a sync of the same name between other databases."""
    if stored is not None and stored.pair != pair:
        raise other_switchover(stored, node)


def other_switchover(stored: Pointer, node: str) -> CheckFailed:
    """Return the error for a pointer that belongs to a sync of the same name between other databases."""
    cure = "name both nodes of the sync (--from, --to); two syncs of a database need different names (--name)"
    if stored.is_closed:
        cure += f"; or open this database: trueup switchover finish --reopen-old, with {stored.next_name}"
    return CheckFailed(
        [f"the sync {stored.sync} of this database is another one: its switchover is with {stored.next_name}"],
        cure=cure,
        node=node,
    )


def claim(connection: Connection, sync: str, node: str) -> None:
    """Become the only session that changes the switchover; if another one is running, the error names it."""
    until = time.monotonic() + _CLAIM_SECONDS
    while is_installed(connection) and connection.execute(statement("claim"), {"sync": sync}).rowcount == 0:
        others = holders(connection, sync)
        if read(connection, sync) is None:
            return
        if time.monotonic() > until:
            raise CheckFailed(
                [f"another switchover is running ({', '.join(map(str, others)) or 'it has just ended'})"],
                cure="wait until it ends, or end it: trueup switchover abort",
                node=node,
            )
        time.sleep(0.02)


def unclaim(connection: Connection, sync: str) -> None:
    """End the claim of this session; the end of the session ends it too."""
    if is_installed(connection):
        connection.execute(statement("unclaim"), {"sync": sync})


def holders(connection: Connection, sync: str) -> list[Holder]:
    """Return the session that executes, resets or finishes the switchover, if one is running."""
    if not is_installed(connection):
        return []
    return [Holder(*row) for row in connection.execute(statement("holders"), {"sync": sync}).fetchall()]


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


def check_not_closed(connection: Connection, sync: str, tables: Iterable[int], node: str) -> None:
    """Raise if this database refuses writes to one of the tables (OIDs), because another switchover moved it.

    The database of that switchover has the newer rows, and would be in use together with the one of this switchover.
    """
    rows = connection.execute(statement("closed_by"), {"sync": sync, "oids": list(tables)}).fetchall()
    if rows:
        raise CheckFailed(
            [f"tables of this sync are in use on {name}: see the switchover of {other}" for other, name in rows],
            cure="move them to this node first (trueup switchover execute, or rollback, of that sync), or finish it",
            node=node,
        )


def check_not_copied(connection: Connection, sync_id: str, tables: Iterable[int], node: str) -> None:
    """Raise if another sync writes one of the tables (OIDs), and no switchover has moved them to this database.

    Its applications are still on the database that it copies from, and would stay in use there.
    """
    if not one_value(connection.execute(state.statement("may_read"))):
        return
    values = {"id": sync_id, "oids": list(tables)}
    found = connection.execute(statement("written_by"), values).fetchall()
    others = [name for name, other in found if (known := read(connection, name)) is None or known.sync_id != other]
    if others:
        raise CheckFailed(
            [
                f"tables of this sync are copied to {node} by the sync {name}, and are in use elsewhere"
                for name in others
            ],
            cure=f"move them to {node} first (trueup switchover execute of that sync), or end that sync: trueup sync"
            " drop",
            node=node,
        )


def begin_attempt(connection: Connection, sync: str, attempt: str) -> None:
    """Record the begin of an attempt; the database stays in use."""
    _change(connection, "begin_attempt", "this database is not in use", sync=sync, attempt=attempt)


def expect_token(connection: Connection, sync: str, token: str) -> Cursor:
    """Store the hash of the token that will open this database, in a pipeline too: see `check_expected`."""
    return connection.execute(statement("expect_token"), {"sync": sync, "token": token})


def check_expected(cursor: Cursor) -> None:
    """Raise if the hash of the token was not stored."""
    _check_changed(cursor, "this database is in use")


def end_attempt(connection: Connection, sync: str, attempt: str, phase: str) -> bool:
    """Record the end of an attempt without a decision; return whether it was still in progress."""
    values = {"sync": sync, "attempt": attempt, "phase": phase}
    return connection.execute(statement("end_attempt"), values).rowcount == 1


def decide(connection: Connection, sync: str, attempt: str, token: str) -> None:
    """Write the decision in the current transaction; its commit makes it effective."""
    refusal = "another process ended this attempt, or another switchover closed this database"
    _change(connection, "decide", refusal, sync=sync, attempt=attempt, token=token)


def open_database(connection: Connection, sync: str, token: str) -> bool:
    """Open this database for writes; return whether it is open, also if an application opened it earlier."""
    check_schema(connection, FUNCTIONS_SCHEMA)
    # The commit need not wait for the disk: after a crash the token still opens the database.
    query = sql.SQL("BEGIN; SET LOCAL synchronous_commit = off; SELECT trueup_app.switchover_open({}, {}); COMMIT")
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


def remove(connection: Connection, sync: str) -> None:
    """Remove the pointer of a sync; with the last one the tables, the functions, and an empty schema `trueup`."""
    connection.execute("SET LOCAL client_min_messages = warning")
    # A pointer of another sync that is created now waits, and is counted or finds no table.
    connection.execute("LOCK TABLE trueup.switchover IN EXCLUSIVE MODE")
    connection.execute(statement("remove_one"), {"sync": sync})
    connection.execute(sql.SQL("DROP SEQUENCE IF EXISTS {}").format(_sequence(sync)))
    if one_value(connection.execute(statement("is_last"))):
        connection.execute(statement("remove"))
        drop_schema_if_empty(connection, FUNCTIONS_SCHEMA)
    drop_schema_if_empty(connection, "trueup")


def check_both(first: Pointer | None, second: Pointer | None, sync: str) -> tuple[Pointer, Pointer]:
    """Return both pointers; raise if one is missing, or both say that their database is in use."""
    if first is None or second is None:
        raise CheckFailed([f"no switchover of the sync {sync} is prepared"], cure="run trueup switchover prepare")
    refuse_split(first, second)
    for closed, in_use in ((first, second), (second, first)):
        if closed.finished_at is not None:
            raise finished(sync, closed.name, in_use.name)
    return first, second


def undecided(closed: Pointer, other: Pointer) -> bool:
    """Return whether not the first of two closed databases made the last decision, but the other one."""
    if closed.token is None or other.token is None:
        return closed.token is None
    # Both are texts of UTC.
    return (closed.decided_at or "") < (other.decided_at or "")


def refuse_split(first: Pointer | None, second: Pointer | None) -> None:
    """Raise if both pointers of a switchover say that their database is in use."""
    if first is not None and second is not None and first.is_in_use and second.is_in_use:
        for alone, other in ((first, second), (second, first)):
            if alone.is_alone and not other.is_alone:
                raise CheckFailed(
                    [
                        f"{alone.name} and {other.name} both accept writes: the switchover was finished without"
                        f" {other.name}, which is back"
                    ],
                    cure=f"close {other.name}: trueup switchover finish; then compare: trueup diff",
                )
        # This code never writes that: a failover or a restore took back a decision, or the tables were changed by hand.
        raise CheckFailed(
            [f"the pointers of {first.name} and {second.name} both say that their database is in use"],
            cure="find out which database has the newer rows (trueup diff), and set trueup.switchover.state of the"
            " other one to use_next",
        )


def finished(sync: str, closed: str, in_use: str) -> CheckFailed:
    """Return the error for a switchover that is finished: there is no way back."""
    return CheckFailed(
        [f"the switchover of the sync {sync} is finished: {in_use} is in use, and {closed} is closed"],
        cure=f"for a new copy, open {closed} (trueup switchover finish --reopen-old), and start a sync from {in_use}",
    )


def finish(connection: Connection, sync: str) -> None:
    """Record that this database, which is not in use, stays closed to writes."""
    connection.execute(statement("finish"), {"sync": sync})


def change_fenced(connection: Connection, sync: str, sync_id: str, name: str, *, timeout: float) -> None:
    """Close this database (`close`) or put it into use without the other one (`stay_alone`), while no session writes.

    Wait at most `timeout` seconds for writers. The sync writes nothing more afterwards.
    """
    with connection.transaction():
        connection.execute(f"SET LOCAL lock_timeout = {max(1, int(timeout * 1000))}")
        connection.execute("LOCK TABLE trueup.switchover_lock IN EXCLUSIVE MODE")
        connection.execute(statement(name), {"sync": sync})
        if one_value(connection.execute("SELECT to_regclass('trueup.syncs') IS NOT NULL")):
            connection.execute(statement("end_epoch"), {"id": sync_id})


def _change(connection: Connection, name: str, refusal: str, **values: str) -> None:
    values.setdefault("phase", "preparing")
    _check_changed(connection.execute(statement(name), values), refusal)


def _check_changed(cursor: Cursor, refusal: str) -> None:
    if cursor.rowcount != 1:
        raise TrueupError(f"the switchover cannot continue: {refusal}", cure="see trueup switchover status")
