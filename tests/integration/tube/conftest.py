"""Fixtures for tubes: a database with installed functions and a tube."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fixtures import Databases
from support.tube import TubeDatabase
from trueup.config.settings import SparkSettings

# Jobs in other processes import the sink of these tests by name.
ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)


@pytest.fixture(autouse=True)
def _on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no job start Spark that does not name its engine."""
    monkeypatch.setenv("TRUEUP__SPARK__ENGINE", "local")


@pytest.fixture
def tube_db(request: pytest.FixtureRequest, databases: Databases) -> Iterator[TubeDatabase]:
    """A new database with a tube t; jobs run on the engine of the test."""
    tube_db = TubeDatabase(databases(1)[0])
    if "engine" in request.fixturenames:
        tube_db.spark = SparkSettings(engine=request.getfixturevalue("engine"))
    try:
        tube_db.install()
        tube_db.tube.ensure()
        yield tube_db
    finally:
        tube_db.close()
