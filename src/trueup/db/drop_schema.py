"""Drops a schema of trueup when nothing is left in it."""

from __future__ import annotations

import psycopg
from psycopg import sql

from trueup.db.connection import Connection


def drop_schema_if_empty(connection: Connection, schema: str) -> None:
    """Drop a schema if it contains nothing and the role owns it; otherwise leave it."""
    try:
        with connection.transaction():
            connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} RESTRICT").format(sql.Identifier(schema)))
    except (psycopg.errors.DependentObjectsStillExist, psycopg.errors.InsufficientPrivilege):
        return
