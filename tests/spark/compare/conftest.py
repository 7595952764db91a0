"""Fixtures of comparisons across kinds of nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support import mariadb
from support.fixtures import Databases, Spark
from support.kinds import AllKinds


@pytest.fixture(scope="session")
def maria(tmp_path_factory: pytest.TempPathFactory) -> Iterator[mariadb.MariaDb]:
    """A MariaDB server."""
    if not mariadb.is_installed():
        pytest.skip("MariaDB is not installed")
    with mariadb.started(tmp_path_factory.mktemp("maria")) as server:
        yield server


@pytest.fixture
def kinds(databases: Databases, maria: mariadb.MariaDb, tmp_path: Path, spark: Spark) -> AllKinds:
    """Nodes of all kinds."""
    return AllKinds(databases(1)[0], maria, tmp_path, spark)
