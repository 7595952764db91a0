"""Fixtures for tests of switchovers."""

from __future__ import annotations

import pytest

from support.fixtures import Databases
from support.pointer import NAMES, TABLES, admin, create_pointers
from support.switchover import ROWS, SCHEMA, Moving, begin
from trueup.testing.postgres import Database
from trueup.verbs.switchover import guard, pointer


@pytest.fixture
def moving(databases: Databases) -> Moving:
    """Two databases with a few tables, synced."""
    old, new = databases(2)
    for database in (old, new):
        database.execute(SCHEMA)
    old.execute(ROWS)
    return begin(old, new)


@pytest.fixture
def pair(databases: Databases) -> tuple[Database, Database]:
    """Two databases with the same tables, pointers and guards; the first is in use."""
    old, new = databases(2)
    with admin(old) as first, admin(new) as second:
        for connection in (first, second):
            connection.execute(TABLES)
            pointer.install(connection)
        create_pointers(first, second, "main")
        for connection in (first, second):
            assert guard.install(connection, NAMES, "main", timeout=10) == 3
            assert guard.install(connection, NAMES, "main", timeout=10) == 0
    return old, new
