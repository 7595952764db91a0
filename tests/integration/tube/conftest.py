"""Fixtures for tubes: a database with installed functions and a tube."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fixtures import Databases
from support.tube import Place

# Jobs in other processes import the sink of these tests by name.
ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)


@pytest.fixture
def place(databases: Databases) -> Iterator[Place]:
    """A new database with a tube t."""
    place = Place(databases(1)[0])
    try:
        place.install()
        place.tube.ensure()
        yield place
    finally:
        place.close()
