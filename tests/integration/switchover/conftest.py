"""Fixtures for tests of switchovers."""

from __future__ import annotations

import pytest

from support.fixtures import Databases
from support.switchover import ROWS, SCHEMA, Moving, begin


@pytest.fixture
def moving(databases: Databases) -> Moving:
    """Two databases with a few tables, synced."""
    old, new = databases(2)
    for database in (old, new):
        database.execute(SCHEMA)
    old.execute(ROWS)
    return begin(old, new)
