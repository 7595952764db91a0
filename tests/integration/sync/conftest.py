"""Fixtures for tests of syncs."""

from __future__ import annotations

import pytest

from support.fixtures import Databases
from support.sync import Pair, make_pair


@pytest.fixture
def pair(databases: Databases) -> Pair:
    """Two new databases, and the request of a sync from the first to the second."""
    return make_pair(*databases(2))
