"""What identifies a database, also after a restart, a move or a change of its address."""

from __future__ import annotations

import psycopg

from trueup.db.connection import Connection, one_value


def identity(connection: Connection) -> str:
    """Return what identifies this database, also after a restart, a move or a change of its address.

    Some services hide the system identifier; there it is the oid and the name of the database.
    """
    try:
        with connection.transaction():
            cursor = connection.execute(
                "SELECT system_identifier::text || '/' || (SELECT oid FROM pg_database"
                " WHERE datname = current_database()) FROM pg_control_system()"
            )
    except psycopg.errors.InsufficientPrivilege:
        cursor = connection.execute(
            "SELECT oid || '/' || current_database() FROM pg_database WHERE datname = current_database()"
        )
    return str(one_value(cursor))
