"""The change log on the source: a tube that records which keys of the synced tables were touched.

It has a schema of its own, so dropping that schema removes all of it. docs/design/tubes.md describes what the triggers
see and what they do when they fail: a write of an application never fails because of the change log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from psycopg import sql

from trueup.capture.triggers import tubes
from trueup.capture.triggers.install import VERSION, installed_version
from trueup.capture.triggers.install import install as install_functions
from trueup.capture.triggers.session import Session
from trueup.config.model import Node
from trueup.db.connection import Connection, one_value
from trueup.db.trust import check_schema
from trueup.errors import CheckFailed
from trueup.verbs.sync.model import LOG_SCHEMA, Problem, SyncTable

_OTHER_KEY = "its key or its columns were changed"


def open_log(node: Node) -> Session:
    """Open a session with the schema of the change log on a node."""
    return Session(node, LOG_SCHEMA)


@dataclass(frozen=True)
class Owner:
    """The sync that a change log belongs to, and the identity of the database at its other end."""

    id: str
    peer: str


def owner(log: Session, name: str) -> Owner | None:
    """Return the owner of the change log `name`; None if it does not exist or belongs to no sync yet."""
    version = installed_version(log)
    if version is None:
        return None
    if version < VERSION:
        raise CheckFailed(
            ["the change logs of this database were created by an earlier version of trueup"],
            cure="run trueup sync drop with that version, then trueup sync start with this one",
            node=log.node.name,
        )
    query = sql.SQL("SELECT sync, peer FROM {} WHERE tube = %s AND sync IS NOT NULL").format(log.name("tubes"))
    rows = log.rows(query, [name])
    return Owner(*rows[0]) if rows else None


def check_free(log: Session, name: str) -> None:
    """Raise if a change log `name` exists: two syncs that share one would take each other's entries."""
    if owner(log, name) is not None:
        raise CheckFailed(
            [f"the name {name} is used by another sync from this database, or by its way back"],
            cure="choose another name: --name; if that sync is not needed any more: trueup sync drop",
            node=log.node.name,
        )


def check_owner(log: Session, name: str, sync_id: str) -> None:
    """Raise if the change log `name` belongs to another sync."""
    current = owner(log, name)
    if current is not None and current.id != sync_id:
        raise CheckFailed(
            [f"the change log {name} belongs to another sync: this one would take its entries"],
            cure="drop one of the two syncs, and start it with another name: --name",
            node=log.node.name,
        )


def install(
    log: Session, name: str, owner: Owner, tables: Iterable[SyncTable], *, timeout: float, is_claimed: bool = False
) -> tuple[SyncTable, ...]:
    """Create the change log and attach all tables; return the tables with their numbers in it.

    Every later change of these tables is recorded, except changes by the sync itself in the other direction. Each
    attempt to lock a table is short and is retried, so that writers never queue behind it for long. `is_claimed`: the
    caller has just created the log with `claim`.
    """
    if not is_claimed:
        claim(log, name, owner)
    check_owner(log, name, owner.id)
    return tuple(attach(log, name, tables, timeout=timeout))


def claim(log: Session, name: str, owner: Owner) -> None:
    """Create the change log without tables; it belongs to `owner` if it belongs to no other sync."""
    install_functions(log)
    tubes.ensure(log, name)
    query = sql.SQL("UPDATE {} SET sync = %s, peer = %s WHERE tube = %s AND sync IS NULL").format(log.name("tubes"))
    log.rows(query, [owner.id, owner.peer, name])


def attach(log: Session, name: str, tables: Iterable[SyncTable], *, timeout: float) -> list[SyncTable]:
    """Attach tables to an existing change log; return them with their numbers in it."""
    attached = []
    for table in tables:
        quoted = sql.Identifier(*table.name).as_string(log.connection)
        number = log.call(
            "tube_table_ensure_attached", name, quoted, 0, None, None, "statement", timedelta(seconds=timeout),
            table.row_id,
        )  # fmt: skip
        attached.append(replace(table, number=number))
    return attached


def detach(log: Session, name: str, oids: Iterable[int], *, timeout: float) -> None:
    """Detach tables, which may not exist any more: their changes are not recorded any more."""
    for oid in oids:
        log.call("tube_table_ensure_detached", name, str(oid), timedelta(seconds=timeout))


def forget_detached(log: Session, name: str) -> None:
    """Delete the entries of tables that are not attached any more."""
    query = sql.SQL("DELETE FROM {} p USING {} s WHERE s.source = p.source AND s.detached_at IS NOT NULL").format(
        log.name(f"pods_{name}"), log.name("sources")
    )
    log.rows(query)


def numbers(source: Connection, name: str, oids: Iterable[int]) -> list[int]:
    """Return the numbers of attached tables in the change log."""
    query = sql.SQL('SELECT source FROM {} WHERE tube = %s AND detached_at IS NULL AND "table"::oid = ANY(%s::oid[])')
    rows = source.execute(query.format(sql.Identifier(LOG_SCHEMA, "sources")), [name, list(oids)]).fetchall()
    return [number for (number,) in rows]


def recorded(source: Connection, name: str) -> set[int]:
    """Return the oids of the tables whose changes are recorded."""
    query = sql.SQL('SELECT "table"::oid::bigint FROM {} WHERE tube = %s AND detached_at IS NULL')
    rows = source.execute(query.format(sql.Identifier(LOG_SCHEMA, "sources")), [name]).fetchall()
    return {oid for (oid,) in rows}


def set_limit(log: Session, name: str, max_bytes: int) -> None:
    """Set the maximum size of the change log in bytes; 0: no limit. At the limit, changes are not recorded any more."""
    log.call("tube_limit", name, max_bytes or None)


def limit(log: Session, name: str) -> int | None:
    """Return the maximum size of the change log in bytes, or None if there is no limit."""
    query = sql.SQL("SELECT max_bytes FROM {} WHERE tube = %s").format(log.name("tubes"))
    rows = log.rows(query, [name])
    return rows[0][0] if rows else None


def full(name: str, since: datetime, node: str) -> CheckFailed:
    """Return the error for a change log that has reached its maximum size."""
    return CheckFailed(
        [
            f"the change log {name} reached its maximum size at {since:%Y-%m-%d %H:%M:%S} UTC: changes since then were"
            " not recorded, and this direction is closed"
        ],
        cure="if applications were moved to this node, there is no way back: trueup switchover finish. For a new copy,"
        " drop the sync and start one: trueup sync drop, trueup sync start",
        node=node,
    )


def wait_for_older_transactions(log: Session, *, timeout: float) -> None:
    """Wait until all transactions that began earlier have ended, prepared ones too; an error names the blockers."""
    log.call("tube_backfill_step2", timedelta(seconds=timeout))


def is_installed(log: Session, name: str) -> bool:
    """Return whether the change log `name` exists."""
    return tubes.find(log, name) is not None


def attached(log: Session, name: str, tables: Sequence[SyncTable]) -> tuple[list[SyncTable], list[Problem]]:
    """Return the tables with their numbers in the change log, and the problems of those that may lack changes.

    Partitions that were created since get their triggers first, and tables that were rewritten are copied again by the
    next round.
    """
    errors = tubes.cover_each(log, name, patience=tubes.PATIENCE)
    log.call("tube_reload_follow", name)
    query = sql.SQL(
        'SELECT "table"::oid::bigint, source, {}(source), row_id FROM {} WHERE tube = %s AND detached_at IS NULL'
    ).format(log.name("tube_table_problem"), log.name("sources"))
    # Numbers that were recorded with another expression would find no rows.
    expected = {table.oid: table.row_id for table in tables}
    sources = {
        oid: (number, errors.get(number) or problem or ("" if row_id == expected.get(oid) else _OTHER_KEY))
        for oid, number, problem, row_id in log.rows(query, [name])
    }
    recorded: list[SyncTable] = []
    problems: list[Problem] = []
    for table in tables:
        number, problem = sources.get(table.oid, (0, "it is not in the change log"))
        if problem:
            # The cure of a tube is none for a sync, which copies the table again.
            what = f"changes may not have been recorded: {problem.partition(': run trueup tube ')[0]}"
            problems.append(Problem(str(table), what, f"copy the table again: trueup sync add {table}"))
        else:
            recorded.append(replace(table, number=number))
    return recorded, problems


def reload(log: Session, name: str, oid: int, reason: str) -> None:
    """Let the next round copy all rows of a table, given by its oid: it may be renamed at any time.

    A table that is not in the change log is set aside until it is added, and copied then.
    """
    if numbers(log.connection, name, [oid]):
        log.call("tube_backfill_schedule", name, str(oid), reason=reason)


def drop(log: Session, name: str, sync_id: str, *, timeout: float) -> bool:
    """Drop the change log of a sync, its triggers first, and the schema with the last one; return whether it existed.

    A log of another sync with this name stays.
    """
    current = owner(log, name)
    if current is not None and current.id != sync_id:
        return False
    return tubes.drop_with_schema(log, name, patience=timeout)


def holder(connection: Connection, name: str) -> str | None:
    """Return the session that runs the sync from this database, or None if no session does."""
    if not _has_log(connection, name):
        return None
    text = one_value(connection.execute(sql.SQL("SELECT {}(%s, 0)").format(_function("tube_holder")), [name]))
    return None if text is None else str(text)


class AlreadyRunning(CheckFailed):
    """Another session holds the lock of the sync."""


@contextmanager
def sync_lock(connection: Connection, node: Node, name: str) -> Iterator[None]:
    """Hold the lock of a sync, which is that of its change log; if another session holds it, the error names it.

    A sync that has no change log yet has no lock either.
    """
    if _has_log(connection, name) and not one_value(
        connection.execute(sql.SQL("SELECT {}(%s, 0)").format(_function("tube_hold")), [name])
    ):
        raise AlreadyRunning(
            [
                f"the sync {name} is already running on this database"
                f" ({holder(connection, name) or 'it has just ended'})"
            ],
            cure="wait until it ends, or stop it: trueup sync stop",
            node=node.name,
        )
    try:
        yield
    finally:
        # The end of the session releases the lock too, but a moment later.
        with suppress(Exception):
            if connection.info.transaction_status != 0:
                connection.execute("ROLLBACK")
            connection.execute(sql.SQL("SELECT {}(%s, 0)").format(_function("tube_release")), [name])


def _function(name: str) -> sql.Identifier:
    return sql.Identifier(LOG_SCHEMA, name)


def _has_log(connection: Connection, name: str) -> bool:
    """Return whether this database has the change log `name`, of a version with the functions of the lock."""
    if not check_schema(connection, LOG_SCHEMA):
        return False
    function = f"{LOG_SCHEMA}.tube_holder(text, integer)"
    if one_value(connection.execute("SELECT to_regprocedure(%s) IS NULL", [function])):
        return False
    query = sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE tube = %s)").format(sql.Identifier(LOG_SCHEMA, "tubes"))
    return bool(one_value(connection.execute(query, [name])))
