"""Fixtures for tubes: a database with the functions installed, and what its pods say."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.fixtures import Databases
from trueup.api.tube import Tubes
from trueup.api.tube import open as open_tubes
from trueup.capture.triggers.model import Pod
from trueup.testing.postgres import Database

# Jobs find the sink of these tests by its name, also in processes of their own.
ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)


@dataclass
class Place:
    """A database, its tubes, and short ways to ask them."""

    database: Database
    tubes: Tubes

    def run(self, statements: str) -> list[tuple[object, ...]]:
        return self.database.execute(statements)

    def pods(self, tube: str = "t", partition: int = 0) -> list[Pod]:
        return self.tubes.claim(tube, partition, most=100_000)

    def take(self, tube: str = "t", partition: int = 0) -> list[Pod]:
        """The pods that wait, which are deleted."""
        found = self.pods(tube, partition)
        assert self.tubes.delete(tube, [pod.seq for pod in found]) == len(found)
        return found

    def ids(self, tube: str = "t") -> list[int]:
        """All keys that wait, once each, in order; the pods are deleted."""
        return sorted({key for pod in self.take(tube) for key in pod.ids})

    def keys(self, tube: str = "t") -> list[str]:
        return sorted({key for pod in self.take(tube) for key in pod.keys or ()})


@pytest.fixture
def place(databases: Databases) -> Iterator[Place]:
    """A fresh database with a tube t."""
    database = databases(1)[0]
    with open_tubes(database.uri) as tubes:
        tubes.install()
        tubes.ensure("t")
        yield Place(database, tubes)
