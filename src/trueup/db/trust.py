"""Refuses schemas and tables of trueup that another role could have prepared: its code would run with our rights.

A role is trusted if it is a superuser, the current role, or a member of the current role, which has its rights anyway.
For a role without superuser rights, the owner of the database and the roles it is a member of are trusted too.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from psycopg import sql

from trueup.db.connection import Connection, one_value
from trueup.db.statements import load
from trueup.errors import CheckFailed

# What a session has checked. A schema of trusted roles stays one: other roles cannot create anything in it.
_checked: WeakKeyDictionary[Connection, set[str]] = WeakKeyDictionary()


def check_schema(connection: Connection, schema: str, *, node: str | None = None) -> bool:
    """Return whether the schema exists. Raise CheckFailed if a role that is not trusted owns it or something in it.

    Call this before a statement uses the schema: a view, a trigger or a function in it may be a trap.
    """
    checked = _checked.setdefault(connection, set())
    if schema in checked:
        return True
    # Planning the query takes twenty times as long as this one, and most databases do not have the schema.
    if not one_value(connection.execute("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %s)", [schema])):
        return False
    rows = connection.execute(load("trueup.db", "trust.sql")["schema"], {"schema": schema}).fetchall()
    if not rows:
        return False
    problems = [str(problem) for (problem,) in rows if problem is not None]
    if problems:
        raise CheckFailed(
            [f"the schema {schema} is not safe to use: {problem}" for problem in problems],
            cure=f"use the role that owns the schema, or drop what trueup has not created there (DROP SCHEMA {schema}"
            " CASCADE), or change owners and privileges",
            node=node or getattr(getattr(connection, "node", None), "name", None),
        )
    checked.add(schema)
    return True


def create_schema(connection: Connection, schema: str) -> None:
    """Create the schema if it does not exist, else check it. Call it in a transaction."""
    if not check_schema(connection, schema):
        # Without IF NOT EXISTS: a schema that another role created since the check is an error.
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
