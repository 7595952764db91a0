"""Guards: a trigger on every table, so that every writer takes the lock, and a database not in use takes no writes."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from trueup.db.connection import Connection
from trueup.db.names import display_name
from trueup.errors import QueryError
from trueup.verbs.switchover.pointer import block

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql

    from trueup.db.foreign_keys import TableName

    Connection = Connection

TRIGGER = "trueup_guard"
# While a request for a lock waits, all writers of the table wait behind it: so every attempt is short.
_ATTEMPT = "200ms"
_BETWEEN = 0.1


def lacking(connection: Connection, tables: Iterable[TableName]) -> list[TableName]:
    """Tables and partitions without a guard that always fires."""
    found: list[TableName] = []
    for schema, table in tables:
        rows = connection.execute(block("relations"), {"schema": schema, "table": table}).fetchall()
        found += [(row[0], row[1]) for row in rows if row[2] != "A"]
    return found


def put_on(connection: Connection, tables: Iterable[TableName], sync: str, *, patience: float) -> int:
    """Guard these tables and their partitions; gives how many had none. Waits for their writers, a little at a time."""
    bare = lacking(connection, tables)
    for name in bare:
        _patiently(
            connection,
            name,
            sql.SQL(
                "CREATE OR REPLACE TRIGGER {trigger} BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {table}"
                " FOR EACH STATEMENT EXECUTE FUNCTION trueup.switchover_guard({sync});"
                " ALTER TABLE ONLY {table} ENABLE ALWAYS TRIGGER {trigger}"
            ).format(trigger=sql.Identifier(TRIGGER), table=sql.Identifier(*name), sync=sql.Literal(sync)),
            patience,
        )
    if bare:
        connection.execute(block("guarded_now"), {"sync": sync})
    return len(bare)


def take_off(connection: Connection, *, patience: float) -> int:
    """Remove all guards of a database."""
    found = connection.execute(block("guarded")).fetchall()
    for schema, table in found:
        statement = sql.SQL("DROP TRIGGER IF EXISTS {} ON {}").format(
            sql.Identifier(TRIGGER), sql.Identifier(schema, table)
        )
        _patiently(connection, (schema, table), statement, patience)
    return len(found)


def _patiently(connection: Connection, name: TableName, statement: sql.Composed, patience: float) -> None:
    """In a transaction of its own, tried again while somebody holds the table."""
    until = time.monotonic() + patience
    while True:
        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = '{_ATTEMPT}'; SET LOCAL client_min_messages = warning")
                connection.execute(statement)
            return
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            if time.monotonic() > until:
                raise QueryError(
                    f"the table is in use by others for longer than {patience:g} s: no lock for its trigger",
                    cure="find who holds it (pg_locks), and try again when it is done; --patience waits longer",
                    sqlstate=error.sqlstate or "",
                    table=display_name(*name),
                ) from None
            time.sleep(_BETWEEN)
