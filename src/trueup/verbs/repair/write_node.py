"""Write one node in one transaction: all rows of all tables, or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import psycopg

from trueup.capture.triggers.sync_turns import begin_as_sync
from trueup.db.commit import confirmed_transaction
from trueup.db.connection import Connection
from trueup.db.foreign_code import lock_checked
from trueup.db.foreign_keys import ForeignKey
from trueup.db.lock_holders import limit_lock_waits, named_lock_holders
from trueup.db.node import connect, error_from_server
from trueup.engine.failures import error_of
from trueup.engine.progress import Progress
from trueup.errors import Interrupted, TrueupError
from trueup.rows.keys import KeyValues
from trueup.rows.write.copy_text import key_of
from trueup.rows.write.origin import origin_transaction
from trueup.rows.write.triggers import require_silent_triggers
from trueup.verbs.repair.identity import check_same_table
from trueup.verbs.repair.modes import Act
from trueup.verbs.repair.node_work import NodeWork
from trueup.verbs.repair.order import keys_among
from trueup.verbs.repair.undo_file import UndoFile
from trueup.verbs.repair.write_table import TableWriter

NOTHING_HERE = "nothing was written on this node"


@dataclass
class Written:
    """What was written to a table, and keys of rows that were left.

    `changed`: those that changed after they were read; `blocked`: those whose new unique value such a row has.
    """

    node: str
    counts: Counter[Act] = field(default_factory=Counter)
    changed: list[KeyValues] = field(default_factory=list)
    blocked: list[KeyValues] = field(default_factory=list)


def write_node(
    works: Sequence[NodeWork],
    undo: UndoFile,
    progress: Progress,
    opened: list[Connection],
    is_stopped: Callable[[], bool],
) -> list[Written]:
    """Write all tables of a node and commit; an error leaves the node as it was, except CommitUnknown.

    Where triggers fire, parents come before the tables that refer to them. The session is added to `opened`, so that
    another thread can cancel it; `is_stopped` is asked before the commit.
    """
    first = works[0]
    connection = connect(first.node, application=first.application, read_only=False)
    opened.append(connection)
    tables = [TableWriter(connection, work, progress) for work in works]
    try:
        connection.execute("SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0")
        with _lock_waits(connection, tables), _transaction(connection, first):
            if first.turn is not None:
                begin_as_sync(connection, first.turn)
            _write(connection, tables, undo)
            undo.check_kept()
            if is_stopped():
                raise Interrupted("stopped by the user")
    except TrueupError as error:
        error.node = error.node or first.node.name
        raise
    except psycopg.Error as error:
        raise error_from_server(error, first.node) from None
    except Exception as error:
        raise error_of(error) from error
    finally:
        connection.close()
    return [_written(table) for table in tables]


def _write(connection: Connection, tables: Sequence[TableWriter], undo: UndoFile) -> None:
    silent = tables[0].work.silent
    if silent:
        require_silent_triggers(connection)
    else:
        # Inside a cycle, rows are written before the rows that they refer to.
        connection.execute("SET CONSTRAINTS ALL DEFERRED")
    keys = [] if silent else keys_among(connection, [table.work.table for table in tables])
    for table in tables:
        with table.errors():
            lock_checked(connection, *table.work.table, silenced=silent)
            table.lock()
    # First, because another row may get a unique value of a row that is deleted.
    waiting = [table for table in reversed(tables) if not _delete(table, keys)]
    for table in tables:
        with table.errors():
            table.upsert()
    # Rows that referred to these were updated by now, or are deleted in one of the next passes.
    while waiting:
        rest = [table for table in waiting if not _delete(table, keys)]
        if len(rest) == len(waiting):
            # It raises the error that says what is in the way.
            with rest[0].errors():
                rest.pop(0).delete_referenced(keys)
        waiting = rest
    for table in tables:
        with table.errors():
            table.fire_deferred()
            table.check()
    for table in tables:
        with table.errors():
            table.note(undo)
            check_same_table(connection, table.work.layout.identities[table.work.node.name], table.work.layout.spec)


def _delete(table: TableWriter, keys: Sequence[ForeignKey]) -> bool:
    with table.errors():
        return table.delete_if_unreferenced(keys)


def _written(table: TableWriter) -> Written:
    changed, blocked = sorted(table.changed - table.blocked), sorted(table.blocked)
    return Written(table.work.node.name, table.counts, list(map(key_of, changed)), list(map(key_of, blocked)))


@contextmanager
def _lock_waits(connection: Connection, tables: Sequence[TableWriter]) -> Iterator[None]:
    work = tables[0].work
    connection.execute(limit_lock_waits(work.lock_timeout))
    with named_lock_holders(
        work.node,
        connection,
        lambda: next((table.work.shown for table in tables if table.is_active), work.shown),
        seconds=work.lock_timeout,
        effect=NOTHING_HERE,
        option="--lock-timeout",
        watcher=work.watcher,
    ):
        yield


def _transaction(connection: Connection, work: NodeWork) -> AbstractContextManager[None]:
    return origin_transaction(connection) if work.under_origin else confirmed_transaction(connection)
