"""Drops a schema of trueup when nothing is left in it."""

from __future__ import annotations

import psycopg
from psycopg import sql

from trueup.db.connection import Connection, one_value

# What is in the schema is asked of the catalog: DROP SCHEMA ... RESTRICT locks every table in it, against readers too,
# before it refuses, and all writers would wait behind it for the pointer of a switchover. An entry of default
# privileges is dropped with the schema.
_DROPPABLE = """
SELECT EXISTS (SELECT FROM pg_namespace n
                WHERE n.nspname = %s AND pg_has_role(n.nspowner, 'USAGE')
                  AND NOT EXISTS (SELECT FROM pg_depend d
                                   WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = n.oid
                                     AND d.deptype <> 'a'))"""
# If a session creates something in it meanwhile.
_ATTEMPT = "100ms"


def drop_schema_if_empty(connection: Connection, schema: str) -> None:
    """Drop a schema if it contains nothing and the role owns it; otherwise leave it."""
    if not one_value(connection.execute(_DROPPABLE, [schema])):
        return
    try:
        with connection.transaction():
            before = one_value(connection.execute("SELECT current_setting('lock_timeout')"))
            connection.execute("SELECT set_config('lock_timeout', %s, true)", [_ATTEMPT])
            connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} RESTRICT").format(sql.Identifier(schema)))
            connection.execute("SELECT set_config('lock_timeout', %s, true)", [before])
    except (
        psycopg.errors.DependentObjectsStillExist,
        psycopg.errors.InsufficientPrivilege,
        psycopg.errors.LockNotAvailable,
    ):
        return
