"""Guards: triggers that make every writer take the shared lock, and refuse writes to a database that is not in use."""

from __future__ import annotations

import time
from collections.abc import Iterable

import psycopg
from psycopg import sql

from trueup.db.connection import Connection
from trueup.db.foreign_keys import TableName
from trueup.db.names import display_name
from trueup.errors import QueryError
from trueup.verbs.switchover.pointer import statement

TRIGGER = "trueup_guard"
# All writers of a table queue behind a waiting request for its lock: so every attempt is short.
_ATTEMPT = "200ms"
_BETWEEN = 0.1


def unguarded(connection: Connection, tables: Iterable[TableName]) -> list[TableName]:
    """Return the tables and partitions without a guard that always fires."""
    relations: list[TableName] = []
    for schema, table in tables:
        rows = connection.execute(statement("relations"), {"schema": schema, "table": table}).fetchall()
        relations += [(row[0], row[1]) for row in rows if row[2] != "A"]
    return relations


def install(connection: Connection, tables: Iterable[TableName], sync: str, *, timeout: float) -> int:
    """Create guards on the tables and partitions that have none; return how many. Waits for their writers."""
    names = unguarded(connection, tables)
    for name in names:
        create = sql.SQL(
            "CREATE OR REPLACE TRIGGER {trigger} BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {table}"
            " FOR EACH STATEMENT EXECUTE FUNCTION trueup.switchover_guard({sync});"
            " ALTER TABLE ONLY {table} ENABLE ALWAYS TRIGGER {trigger}"
        ).format(trigger=sql.Identifier(TRIGGER), table=sql.Identifier(*name), sync=sql.Literal(sync))
        _with_retries(connection, name, create, timeout)
    if names:
        connection.execute(statement("guarded_now"), {"sync": sync})
    return len(names)


def remove(connection: Connection, *, timeout: float) -> int:
    """Remove all guards of a database; return how many."""
    guarded = connection.execute(statement("guarded")).fetchall()
    for schema, table in guarded:
        drop = sql.SQL("DROP TRIGGER IF EXISTS {} ON {}").format(sql.Identifier(TRIGGER), sql.Identifier(schema, table))
        _with_retries(connection, (schema, table), drop, timeout)
    return len(guarded)


def _with_retries(connection: Connection, name: TableName, command: sql.Composed, timeout: float) -> None:
    """Run a command in its own transaction; retry while other sessions lock the table."""
    until = time.monotonic() + timeout
    while True:
        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = '{_ATTEMPT}'; SET LOCAL client_min_messages = warning")
                connection.execute(command)
            return
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            if time.monotonic() > until:
                raise QueryError(
                    f"no lock for the guard within {timeout:g} s: other sessions use the table",
                    cure="find the holder of the lock in pg_locks and try again when it has ended, or wait longer:"
                    " --timeout",
                    sqlstate=error.sqlstate or "",
                    table=display_name(*name),
                ) from None
            time.sleep(_BETWEEN)
