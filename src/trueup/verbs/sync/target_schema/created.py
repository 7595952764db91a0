"""The objects that --create-schema created on the target: `drop` removes them if the copy was not finished.

Their tables would be in the way of another start: they have some of the rows, and no keys.
"""

from __future__ import annotations

import psycopg
from psycopg import sql

from trueup.db.connection import Connection, one_value
from trueup.db.statements import load
from trueup.verbs.sync.state import State

# How PostgreSQL names a kind of objects -> what DROP is followed by.
_KINDS = {
    "table": sql.SQL("TABLE"),
    "view": sql.SQL("VIEW"),
    "materialized view": sql.SQL("MATERIALIZED VIEW"),
    "sequence": sql.SQL("SEQUENCE"),
    "foreign table": sql.SQL("FOREIGN TABLE"),
    "composite type": sql.SQL("TYPE"),
    "type": sql.SQL("TYPE"),
    "function": sql.SQL("FUNCTION"),
    "procedure": sql.SQL("PROCEDURE"),
    "aggregate": sql.SQL("AGGREGATE"),
    "operator": sql.SQL("OPERATOR"),
    "operator family": sql.SQL("OPERATOR FAMILY"),
    "cast": sql.SQL("CAST"),
    "collation": sql.SQL("COLLATION"),
    "text search configuration": sql.SQL("TEXT SEARCH CONFIGURATION"),
    "text search dictionary": sql.SQL("TEXT SEARCH DICTIONARY"),
    "server": sql.SQL("SERVER"),
    "foreign-data wrapper": sql.SQL("FOREIGN DATA WRAPPER"),
    "schema": sql.SQL("SCHEMA"),
}


def record_created(target: Connection, sync: str) -> None:
    """Record the objects that the open transaction created."""
    target.execute(load("trueup.verbs.sync.target_schema", "created.sql")["record"], {"sync": sync})


def drop_created(target: Connection, stored: State) -> bool:
    """Drop what --create-schema created for a sync whose copy was not finished; return whether there was anything.

    A schema that contains other objects stays. Roles, extensions and settings of the database stay too.
    """
    if not stored.made_schema or stored.phase == "running":
        return False
    statements = load("trueup.verbs.sync.target_schema", "created.sql")
    target.execute(statements["unlink"], {"sync": stored.sync})
    rows = target.execute(statements["created"], {"sync": stored.sync}).fetchall()
    for kind, identity in rows:
        # It may have been dropped with another object.
        values = {"sync": stored.sync, "type": kind, "identity": identity}
        if kind not in _KINDS or not one_value(target.execute(statements["exists"], values)):
            continue
        # The server has quoted the identity.
        name = sql.SQL(identity)
        try:
            target.execute(
                sql.SQL("DROP {} {}{}").format(_KINDS[kind], name, sql.SQL("" if kind == "schema" else " CASCADE"))
            )
        except psycopg.errors.DependentObjectsStillExist:
            if kind != "schema":
                raise
    return bool(rows)
