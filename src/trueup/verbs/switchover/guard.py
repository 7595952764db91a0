"""Guards: triggers that make every writer take the shared lock, and refuse writes to a database that is not in use.

A trigger per statement is not inherited by partitions that are created later, a trigger per row is. So the partitioned
tables of a closed database have both. The database in use has no trigger per row, because each row would pay for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial

import psycopg
from psycopg import sql

from trueup.db.connection import Connection, node_of
from trueup.db.foreign_keys import TableName
from trueup.db.lock_holders import holders_of
from trueup.db.names import display_name
from trueup.errors import QueryError
from trueup.verbs.switchover import pointer
from trueup.verbs.switchover.pointer import statement

# All writers of a table queue behind a waiting request for its lock: so every attempt is short.
_ATTEMPT = "200ms"
_BETWEEN = 0.1


def trigger(sync: str) -> str:
    """Return the name of the guards of a sync: a table of several syncs has a guard of each."""
    return f"trueup_guard_{sync}"


def row_trigger(sync: str) -> str:
    """Return the name of the triggers per row of a sync."""
    return f"trueup_rows_{sync}"


def unguarded(connection: Connection, tables: Iterable[TableName], sync: str) -> list[TableName]:
    """Return the tables and partitions without a guard of the sync that fires for every statement."""
    relations: list[TableName] = []
    for schema, table in tables:
        values = {"schema": schema, "table": table, "trigger": trigger(sync), "sync": sync}
        rows = connection.execute(statement("relations"), values).fetchall()
        relations += [(row[0], row[1]) for row in rows if row[2] != "A"]
    return relations


def install(connection: Connection, tables: Iterable[TableName], sync: str, *, timeout: float) -> int:
    """Create guards on the tables and partitions that have none; return how many. Waits for their writers."""
    names = unguarded(connection, tables, sync)
    for name in names:
        create = sql.SQL(
            "CREATE OR REPLACE TRIGGER {trigger} BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {table}"
            " FOR EACH STATEMENT EXECUTE FUNCTION trueup.switchover_guard({sync});"
            " ALTER TABLE ONLY {table} ENABLE ALWAYS TRIGGER {trigger}"
        ).format(trigger=sql.Identifier(trigger(sync)), table=sql.Identifier(*name), sync=sql.Literal(sync))
        _with_retries(connection, name, timeout, partial(connection.execute, create))
    values = {"sync": sync, "trigger": trigger(sync), "is_new": bool(names)}
    connection.execute(statement("guarded_now"), values)
    return len(names)


def close(connection: Connection, sync: str, *, timeout: float) -> None:
    """Guard each row of the partitioned tables, and so of later partitions, if this database is closed."""
    values = {"sync": sync, "trigger": row_trigger(sync)}
    for schema, table, sync_id, owner in connection.execute(statement("without_row_guard"), values).fetchall():
        # The sync writes without a call per row. Any role can set the setting: see the function.
        create = sql.SQL(
            "CREATE OR REPLACE TRIGGER {trigger} AFTER INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW"
            " WHEN (pg_catalog.current_setting('trueup.sync', true) IS DISTINCT FROM {id}"
            " OR NOT pg_catalog.pg_has_role(session_user, {owner}::pg_catalog.name, 'MEMBER'))"
            " EXECUTE FUNCTION trueup.switchover_guard({sync}); ALTER TABLE {table} ENABLE ALWAYS TRIGGER {trigger}"
        ).format(
            trigger=sql.Identifier(row_trigger(sync)),
            table=sql.Identifier(schema, table),
            id=sql.Literal(sync_id),
            owner=sql.Literal(owner),
            sync=sql.Literal(sync),
        )
        _with_retries(connection, (schema, table), timeout, partial(connection.execute, create))


def lift(connection: Connection, sync: str, *, timeout: float) -> None:
    """Remove the triggers per row, from a database that is to be opened; that of a partition goes with its table's."""
    found = connection.execute(statement("row_guards"), {"trigger": row_trigger(sync)}).fetchall()
    _drop(connection, row_trigger(sync), [(schema, table) for schema, table in found], timeout)


def count(connection: Connection, sync: str) -> int:
    """Return the number of guards of a sync."""
    return len(connection.execute(statement("guarded"), {"trigger": trigger(sync)}).fetchall())


def remove(connection: Connection, sync: str, *, timeout: float) -> int:
    """Remove all guards of a sync; return how many."""
    lift(connection, sync, timeout=timeout)
    guarded = connection.execute(statement("guarded"), {"trigger": trigger(sync)}).fetchall()
    _drop(connection, trigger(sync), [(schema, table) for schema, table in guarded], timeout)
    return len(guarded)


def _drop(connection: Connection, name: str, tables: Iterable[TableName], timeout: float) -> None:
    for table in tables:
        drop = sql.SQL("DROP TRIGGER IF EXISTS {} ON {}").format(sql.Identifier(name), sql.Identifier(*table))
        _with_retries(connection, table, timeout, partial(connection.execute, drop))


def remove_pointer(connection: Connection, sync: str, *, timeout: float) -> None:
    """Remove the pointer of a sync, which applications read in all their transactions."""
    _with_retries(connection, ("trueup", "switchover"), timeout, lambda: pointer.remove(connection, sync))


def _with_retries(connection: Connection, table: TableName, timeout: float, action: Callable[[], object]) -> None:
    """Run an action in its own transaction; retry while other sessions lock the table."""
    until = time.monotonic() + timeout
    while True:
        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = '{_ATTEMPT}'; SET LOCAL client_min_messages = warning")
                action()
            return
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            if time.monotonic() > until:
                node = node_of(error)
                holders = "; ".join(map(str, holders_of(connection, *table))) or "a session that has ended meanwhile"
                raise QueryError(
                    f"no lock for the guard within {timeout:g} s: the table is locked by {holders}",
                    cure="run the command again when that has ended, or wait longer: --timeout",
                    sqlstate=error.sqlstate or "",
                    node=node.name if node else None,
                    table=display_name(*table),
                ) from None
            time.sleep(_BETWEEN)
