"""The search_path for code of the application that runs in a session of trueup, such as triggers."""

from __future__ import annotations

from dataclasses import dataclass

from trueup.db.connection import Connection, one_value
from trueup.db.statements import load
from trueup.db.trust import check_schema
from trueup.errors import CheckFailed


@dataclass(frozen=True)
class OwnPath:
    """The schemas of the path; None: what a new session of the role has in this database."""

    schemas: tuple[str, ...] | None = None
    # Why schemas of the role's own path are left out.
    left_out: tuple[str, ...] = ()


def own_path(connection: Connection) -> OwnPath:
    """Return the path that a new session of the role has.

    For a superuser, schemas that another role can create objects in are left out: a function in such a schema could
    take the place of one that a trigger calls, and would run with superuser rights.
    """
    if not one_value(connection.execute(load("trueup.db", "foreign_code.sql")["is_superuser"])):
        return OwnPath()
    with connection.transaction():
        connection.execute("SET LOCAL search_path TO DEFAULT")
        schemas = one_value(connection.execute("SELECT pg_catalog.current_schemas(false)"))
        connection.execute("SET LOCAL search_path TO pg_catalog")
    kept, left_out = [], []
    for schema in schemas:
        try:
            if schema == "pg_catalog" or check_schema(connection, schema):
                kept.append(schema)
        except CheckFailed as error:
            left_out.append(error.reasons[0])
    return OwnPath(tuple(kept), tuple(left_out))
