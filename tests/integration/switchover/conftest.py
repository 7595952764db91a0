"""Fixtures for switchovers: a sync that is close, and short ways to move there and back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.fixtures import Databases
from trueup.config.model import Node
from trueup.config.settings import SparkSettings
from trueup.engine.progress import Silent
from trueup.store import TaskStore
from trueup.testing.postgres import Database
from trueup.verbs.switchover import run as execute
from trueup.verbs.switchover.outcome import Asked, Outcome
from trueup.verbs.switchover.prepare import prepare_only
from trueup.verbs.sync import run as sync
from trueup.verbs.sync.plan import Wanted
from trueup.verbs.sync.start import SyncRequest

SCHEMA = """
CREATE TABLE people (id serial PRIMARY KEY, name text UNIQUE, boss int REFERENCES people);
CREATE TABLE visits (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, person int REFERENCES people, price numeric);
CREATE TABLE places (a text, b int, note text, PRIMARY KEY (a, b));
CREATE SEQUENCE lonely INCREMENT 3;
"""
ROWS = """
INSERT INTO people (name) SELECT 'p' || g FROM generate_series(1, 200) g;
INSERT INTO visits (person, price) SELECT 1 + g % 200, g / 8.0 FROM generate_series(1, 1000) g;
INSERT INTO places SELECT 'x' || g, g, 'n' FROM generate_series(1, 100) g;
SELECT nextval('lonely');
"""
TABLES = ("people", "visits", "places")


@dataclass
class Moving:
    """Two databases with the same schema, synced from the old one to the new one."""

    old: Database
    new: Database
    first: Node
    second: Node

    def asked(self, **options: Any) -> Asked:
        return Asked("main", self.first, self.second, **{"budget": 60.0, "jobs": 2, **options})

    def execute(self, **options: Any) -> Outcome:
        return self._move(execute.EXECUTE, **options)

    def rollback(self, **options: Any) -> Outcome:
        return self._move(execute.ROLLBACK, **options)

    def _move(self, action: str, **options: Any) -> Outcome:
        with TaskStore(Path("tasks.db")) as store:
            return execute.move(self.asked(**options), action, store=store, progress=Silent())

    def prepare(self) -> None:
        """Pointers and guards beforehand, so that applications can use them from the start."""
        prepare_only(self.asked())

    def run_sync(self) -> None:
        """Rounds of the sync, as somebody may run them at any time."""
        sync.run(self._request(), sync.Until(), Silent(), lambda facts: None)

    def run_sync_back(self) -> None:
        """The same the other way, once the new database is in use."""
        request = SyncRequest(self.second, self.first, Wanted("main"), SparkSettings(engine="local"))
        sync.run(request, sync.Until(), Silent(), lambda facts: None)

    def drop_sync(self) -> None:
        """Take the sync away."""
        sync.drop(self._request())

    def _request(self) -> SyncRequest:
        return SyncRequest(self.first, self.second, Wanted("main"), SparkSettings(engine="local"))

    def both(self, statements: str) -> None:
        for database in (self.old, self.new):
            database.execute(statements)

    def differences(self, tables: Sequence[str] = TABLES) -> list[str]:
        """Tables and sequences that are not the same, by asking for all of it as text."""
        found = []
        for table in tables:
            query = f'SELECT t::text COLLATE "C" FROM {table} t ORDER BY 1'
            mine, theirs = self.old.execute(query), self.new.execute(query)
            if mine != theirs:
                found.append(f"{table}: {len(mine)} and {len(theirs)} rows")
        query = "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'S' AND relnamespace = 'public'::regnamespace"
        for (name,) in self.old.execute(query):
            values = [
                database.execute(f"SELECT last_value, is_called FROM {name}") for database in (self.old, self.new)
            ]
            if values[0] != values[1]:
                found.append(f"{name}: {values}")
        return found

    def who_takes_writes(self, statement: str) -> list[str]:
        """Which of the two databases let this be written; it is taken back at once."""
        found = []
        for name, database in (("old", self.old), ("new", self.new)):
            with suppress(psycopg.errors.ReadOnlySqlTransaction):
                database.execute(f"SET lock_timeout = '20s'; BEGIN; {statement}; ROLLBACK")
                found.append(name)
        return found


@pytest.fixture
def begin() -> Callable[..., Moving]:
    """`begin(old, new, first=uri, second=uri)`: start the sync; the roles are those of the addresses."""

    def start(old: Database, new: Database, *, first: str = "", second: str = "") -> Moving:
        moving = Moving(old, new, Node("old", first or old.uri), Node("new", second or new.uri))
        sync.start(SyncRequest(moving.first, moving.second, Wanted("main"), SparkSettings(engine="local")), Silent())
        return moving

    return start


@pytest.fixture
def moving(databases: Databases, begin: Callable[..., Moving]) -> Moving:
    """Two databases with a few tables, synced."""
    old, new = databases(2)
    for database in (old, new):
        database.execute(SCHEMA)
    old.execute(ROWS)
    return begin(old, new)


@pytest.fixture
def wait_until() -> Callable[..., None]:
    """`wait_until(condition)`: look again and again, for a minute at most."""

    def wait(condition: Callable[[], bool], seconds: float = 60) -> None:
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, "it did not come about"
            time.sleep(0.02)

    return wait
