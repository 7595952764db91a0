"""The change log of the source: a tube that records which keys of the synced tables were touched.

It lives in a schema of its own, so that taking it away takes all of it away. What triggers see, and what they do when
they fail, is written in docs/design/tubes.md; a write of the application never fails because of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from psycopg import sql

from trueup.capture.triggers import tubes
from trueup.capture.triggers.install import install as install_functions
from trueup.capture.triggers.session import Session
from trueup.db.connection import Connection
from trueup.db.locks import SYNC, holders, try_lock, unlock
from trueup.errors import CheckFailed, TrueupError
from trueup.verbs.sync.model import LOG_SCHEMA, SyncTable

if TYPE_CHECKING:
    from trueup.config.model import Node


def open_log(node: Node) -> Session:
    """Open a session with the schema of the change log on a node."""
    return Session(node, LOG_SCHEMA)


def install(log: Session, name: str, tables: Iterable[SyncTable], *, patience: float) -> tuple[SyncTable, ...]:
    """Make the log, and attach all tables: from here on, no change of them goes unseen. Gives them with their numbers.

    Each attempt to lock a table is short and tried again, so writers never queue behind us for long.
    """
    install_functions(log)
    tubes.ensure(log, name)
    attached = []
    for table in tables:
        quoted = sql.Identifier(*table.name).as_string(log.connection)
        number = log.call(
            "tube_table_ensure_attached", name, quoted, 0, None, None, "statement", timedelta(seconds=patience)
        )
        attached.append(replace(table, number=number))
    return tuple(attached)


def barrier(log: Session, *, timeout: float) -> None:
    """Wait until all transactions are finished that began before, prepared ones too; an error names who blocks."""
    log.call("tube_backfill_step2", timedelta(seconds=timeout))


def is_installed(log: Session, name: str) -> bool:
    """Whether there is a log of this name."""
    return tubes.find(log, name) is not None


def attached(log: Session, name: str, tables: Sequence[SyncTable]) -> tuple[SyncTable, ...]:
    """The tables with their numbers in the log; one that is not attached, or not well, is an error."""
    query = sql.SQL(
        'SELECT "table"::oid::bigint, source, {}(source) FROM {} WHERE tube = %s AND detached_at IS NULL'
    ).format(log.name("tube_table_problem"), log.name("sources"))
    found = {oid: (number, problem) for oid, number, problem in log.rows(query, [name])}
    wrong = [f"{table}: it is not in the change log" for table in tables if table.oid not in found]
    wrong += [
        f"{table}: changes of it may have gone unseen: {found[table.oid][1]}"
        for table in tables
        if table.oid in found and found[table.oid][1]
    ]
    if wrong:
        cure = "trueup sync drop, and start again: what was not captured can be anything"
        raise CheckFailed(wrong, cure=cure, node=log.node.name)
    return tuple(replace(table, number=found[table.oid][0]) for table in tables)


def drop(log: Session, name: str, *, patience: float) -> bool:
    """Take the log away, its triggers first; and its schema with the last one. Whether there was one."""
    return tubes.drop_with_schema(log, name, patience=patience)


def let_go(connection: Connection) -> None:
    """Give the lock back at once: the end of the session would do it a moment later."""
    with suppress(Exception):
        if connection.info.transaction_status != 0:
            connection.execute("ROLLBACK")
        unlock(connection, SYNC)


def take(connection: Connection, node: Node) -> None:
    """Be the one who carries changes over, as long as the session lives; an error names who is it already."""
    if not try_lock(connection, SYNC):
        others: list[str] = []
        with suppress(TrueupError):
            others = [str(holder) for holder in holders(connection, SYNC)]
        raise CheckFailed(
            [f"somebody carries changes over from this database already: {', '.join(others) or 'it just ended'}"],
            cure="wait for it, or end it with: trueup sync stop",
            node=node.name,
        )
