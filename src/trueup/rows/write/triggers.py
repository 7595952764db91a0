"""Silence the triggers of the target."""

from __future__ import annotations

import psycopg

from trueup.db.connection import Connection


def silence_triggers(connection: Connection) -> bool:
    """Stop ordinary triggers and foreign keys from firing until the current transaction ends.

    Returns False where the role may not set `session_replication_role`; the transaction stays usable then. Triggers
    that are ENABLE ALWAYS or ENABLE REPLICA still fire.
    """
    try:
        with connection.transaction():
            connection.execute("SET LOCAL session_replication_role = replica")
    except psycopg.errors.InsufficientPrivilege:
        return False
    return True
