"""Helpers for tests of switchovers: two synced databases, and methods to move between them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from support.waiting import Pause
from trueup.config.model import Node
from trueup.config.settings import SparkSettings
from trueup.engine.progress import Silent
from trueup.store import TaskStore
from trueup.testing.postgres import Database
from trueup.verbs.switchover import run as switchover
from trueup.verbs.switchover.outcome import Outcome
from trueup.verbs.switchover.phases import Phases
from trueup.verbs.switchover.prepare import prepare_only
from trueup.verbs.switchover.request import EXECUTE, REHEARSE, ROLLBACK, SwitchoverRequest
from trueup.verbs.sync import ending
from trueup.verbs.sync import run as sync
from trueup.verbs.sync.request import Scope, SyncRequest
from trueup.verbs.sync.totals import Until

SCHEMA = """
CREATE TABLE people (id serial PRIMARY KEY, name text UNIQUE, boss int REFERENCES people);
CREATE TABLE visits (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, person int REFERENCES people, price numeric);
CREATE TABLE places (a text, b int, note text, PRIMARY KEY (a, b));
CREATE TABLE notes (at timestamptz, person int REFERENCES people, note text);
CREATE SEQUENCE lonely INCREMENT 3;
"""
ROWS = """
INSERT INTO people (name) SELECT 'p' || g FROM generate_series(1, 200) g;
INSERT INTO visits (person, price) SELECT 1 + g % 200, g / 8.0 FROM generate_series(1, 1000) g;
INSERT INTO places SELECT 'x' || g, g, 'n' FROM generate_series(1, 100) g;
INSERT INTO notes SELECT '2026-01-01', 1 + g / 3, 'n' FROM generate_series(1, 300) g;
SELECT nextval('lonely');
"""
TABLES = ("people", "visits", "places", "notes")


@dataclass
class Moving:
    """Two databases with the same schema, synced from the old one to the new one."""

    old: Database
    new: Database
    first: Node
    second: Node

    def request(self, **options: Any) -> SwitchoverRequest:
        return SwitchoverRequest("main", self.first, self.second, **{"budget": 60.0, "jobs": 2, **options})

    def execute(self, **options: Any) -> Outcome:
        return self._move(EXECUTE, **options)

    def rollback(self, **options: Any) -> Outcome:
        return self._move(ROLLBACK, **options)

    def rehearse(self, **options: Any) -> Outcome:
        return self._move(REHEARSE, **options)

    def _move(self, action: str, **options: Any) -> Outcome:
        with TaskStore(Path("tasks.db")) as store:
            return switchover.move(self.request(**options), action, store=store, progress=Silent())

    def prepare(self) -> None:
        """Create pointers and guards, so that applications can use them."""
        prepare_only(self.request())

    def run_sync(self) -> None:
        """Run rounds of the sync until few changes are left."""
        sync.run(self._sync(), Until(), Silent(), lambda facts: None)

    def follow(self) -> None:
        """Run rounds until the sync is stopped."""
        sync.run(self._sync(), Until(follow=True, interval=0.05, sequences=0.1), Silent(), lambda facts: None)

    def stop_sync(self) -> bool:
        """Stop the sync that follows; return whether one was running."""
        return ending.stop(self._sync(), timeout=60)

    def run_sync_back(self) -> None:
        """Run rounds in the other direction, when the new database is in use."""
        request = SyncRequest(self.second, self.first, Scope("main"), SparkSettings(engine="local"))
        sync.run(request, Until(), Silent(), lambda facts: None)

    def drop_sync(self) -> None:
        """Drop the sync."""
        ending.drop(self._sync(), timeout=30)

    def _sync(self) -> SyncRequest:
        return SyncRequest(self.first, self.second, Scope("main"), SparkSettings(engine="local"))

    def as_sync(self) -> str:
        """Return the statement that makes a session of trueup's role a session of the sync."""
        ((sync_id,),) = self.new.execute("SELECT id FROM trueup.syncs")
        return f"SET trueup.sync = '{sync_id}';"

    def both(self, statements: str) -> None:
        for database in (self.old, self.new):
            database.execute(statements)

    def differences(self, tables: Sequence[str] = TABLES) -> list[str]:
        """Return the tables and sequences that differ, compared as text without trueup."""
        found = []
        for table in tables:
            query = f'SELECT t::text COLLATE "C" FROM {table} t ORDER BY 1'
            on_old, on_new = self.old.execute(query), self.new.execute(query)
            if on_old != on_new:
                found.append(f"{table}: {len(on_old)} and {len(on_new)} rows")
        query = "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'S' AND relnamespace = 'public'::regnamespace"
        for (name,) in self.old.execute(query):
            values = [
                database.execute(f"SELECT last_value, is_called FROM {name}") for database in (self.old, self.new)
            ]
            if values[0] != values[1]:
                found.append(f"{name}: {values}")
        return found

    def accepts_writes(self, statement: str) -> list[str]:
        """Return which of the two databases accept this statement; it is rolled back."""
        found = []
        for name, database in (("old", self.old), ("new", self.new)):
            with suppress(psycopg.errors.ReadOnlySqlTransaction):
                database.execute(f"SET lock_timeout = '20s'; BEGIN; {statement}; ROLLBACK")
                found.append(name)
        return found


def begin(old: Database, new: Database, *, first: str = "", second: str = "") -> Moving:
    """Start the sync from the old database to the new one; the roles are those of the addresses."""
    moving = Moving(old, new, Node("old", first or old.uri), Node("new", second or new.uri))
    request = SyncRequest(moving.first, moving.second, Scope("main"), SparkSettings(engine="local"))
    sync.start(request, Silent())
    return moving


@contextmanager
def repeating(database: Database, statements: str) -> Iterator[list[str]]:
    """Run statements ten times a second, as an application without the pointer; yield the SQLSTATE that ended it."""
    stop = threading.Event()
    ended: list[str] = []

    def run() -> None:
        with psycopg.connect(database.uri, autocommit=True) as connection:
            try:
                while not stop.wait(0.1):
                    connection.execute(statements)
            except psycopg.Error as error:
                ended.append(error.sqlstate or str(error))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield ended
    finally:
        stop.set()
        thread.join()


def killed(action: Callable[..., object], phase: str) -> None:
    """Call `action` in a process that is killed when this phase begins."""

    def victim() -> None:
        def enter(self: Phases, name: str) -> None:
            if name == phase:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            Phases.enter = enter  # type: ignore[method-assign]
            action()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(3)

    process = multiprocessing.get_context("fork").Process(target=victim)
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> None:
    """Wait until the condition holds; fail after `seconds`."""
    until = time.monotonic() + seconds
    pause = Pause()
    while not condition():
        assert time.monotonic() < until, f"the condition did not hold within {seconds:g} s"
        pause()
