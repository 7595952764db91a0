"""Fixtures for tests of the task store: a store, and queries on its file with sqlite3."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from trueup.store import TaskStore

Query = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


@pytest.fixture
def store(path: Path) -> Iterator[TaskStore]:
    with TaskStore(path) as opened:
        yield opened


@pytest.fixture
def query(path: Path) -> Query:
    """Return a function that runs SQL on the file with sqlite3, and commits."""

    def run(text: str, *values: object) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(path)) as connection, connection:
            return connection.execute(text, values).fetchall()

    return run
