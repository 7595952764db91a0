"""Create objects of trueup in a database so that only their owner may use them, whatever the default privileges are."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import psycopg

from trueup.db.connection import Connection
from trueup.db.statements import load
from trueup.db.trust import create_schema

if TYPE_CHECKING:
    from typing_extensions import LiteralString

# Two sessions that create the same objects at the same time: the second one finds them when it tries again.
_CONFLICTS = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DuplicateSchema,
    psycopg.errors.DuplicateTable,
    psycopg.errors.DuplicateObject,
    psycopg.errors.DuplicateFunction,
)
# Of an internal error, which has no code of its own and is not translated: `updated` or `deleted`.
_CONCURRENT = "tuple concurrently "
# Seconds. Of the sessions that wait for each other, one succeeds at a time.
_PATIENCE = 60.0


def install_privately(connection: Connection, schema: str, install: Callable[[], None]) -> None:
    """Call `install` in one transaction, and revoke what ALTER DEFAULT PRIVILEGES granted on the objects it created.

    The schema is created, or checked to be one of trusted roles (see `trust`) before anything in it is used.
    Objects that exist keep their privileges. A lock that excludes a concurrent installation is not needed: if the other
    session was faster, `install` is called again.
    """

    def create() -> None:
        known = set(_rows(connection, "objects", schema))
        create_schema(connection, schema)
        install()
        rows = _rows(connection, "granted", schema)
        # In one round trip.
        if revokes := [revoke for catalog, oid, revoke in rows if (catalog, oid) not in known]:
            connection.execute("; ".join(revokes))

    repeat_after_conflicts(connection, create)


def repeat_after_conflicts(connection: Connection, change: Callable[[], object]) -> None:
    """Call `change` in one transaction, and again if another session changed the same objects meanwhile."""
    give_up = time.monotonic() + _PATIENCE
    while True:
        try:
            with connection.transaction():
                change()
            return
        except psycopg.Error as error:
            if not _is_conflict(error) or time.monotonic() > give_up:
                raise
            time.sleep(random.uniform(0.01, 0.1))


def _is_conflict(error: psycopg.Error) -> bool:
    is_internal = isinstance(error, psycopg.errors.InternalError_)
    return isinstance(error, _CONFLICTS) or (is_internal and (error.diag.message_primary or "").startswith(_CONCURRENT))


def _rows(connection: Connection, statement: str, schema: str) -> list[tuple[LiteralString, ...]]:
    return connection.execute(load("trueup.db", "private.sql")[statement], {"schema": schema}).fetchall()
