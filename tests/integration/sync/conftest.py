"""Fixtures for tests of syncs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from support.fixtures import Databases
from support.sync import Pair, make_pair
from trueup.testing.postgres import Server

DEBIAN = Path("/usr/lib/postgresql/15/bin")


@pytest.fixture
def pair(databases: Databases) -> Pair:
    """Two new databases, and the request of a sync from the first to the second."""
    return make_pair(*databases(2))


@pytest.fixture
def versions(pair: Pair, fresh_server: Callable[..., Server]) -> Pair:
    """A sync from PostgreSQL 15, if it is installed, to 18."""
    if not DEBIAN.exists():
        return pair
    old = fresh_server(name="old", bin_dir=DEBIAN).create_database(f"old_{os.getpid()}")
    return make_pair(old, pair.target)
