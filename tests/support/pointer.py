"""Helpers for tests of pointers, guards and fences on plain tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from trueup.config.model import Node
from trueup.db.connection import Connection
from trueup.db.node import connect as pinned
from trueup.testing.postgres import Database
from trueup.verbs.switchover import guard, pointer
from trueup.verbs.switchover.fence import Fence
from trueup.verbs.switchover.phases import Budget

TABLES = """
CREATE TABLE public.t (id int PRIMARY KEY, v int);
CREATE TABLE public.p (id int, part int, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
CREATE TABLE public.p1 PARTITION OF public.p FOR VALUES IN (1);
INSERT INTO public.t VALUES (1, 1), (2, 2);
"""
NAMES = [("public", "t"), ("public", "p")]
TOKEN = "a token"
# The identity of the sync, and what its transactions set.
SYNC = "0f" * 16
AS_SYNC = f"SET trueup.sync = '{SYNC}';"

WAITING = "SELECT 1 FROM pg_locks WHERE relation = to_regclass('trueup.switchover_lock') AND NOT granted"


def create_pointers(first: Connection, second: Connection, sync: str) -> None:
    """Create the pointers of both databases; the first is in use."""
    pair = pointer.pair_of(first, second)
    address = pointer.address_of
    pointer.create(first, sync, SYNC, pair=pair, names=("old", "new"), address=address(second), is_first=True)
    pointer.create(second, sync, SYNC, pair=pair, names=("new", "old"), address=address(first), is_first=False)


@contextmanager
def admin(database: Database) -> Iterator[Any]:
    with pinned(Node("n", database.uri), application="test", read_only=False) as connection:
        yield connection


@contextmanager
def fenced(database: Database, seconds: float = 30, *, sync: str = "main") -> Iterator[Fence]:
    """Hold the fence of an attempt with the number `one`."""
    fence = Fence(Node("n", database.uri))
    try:
        fence.claim(sync)
        pointer.begin_attempt(fence.connection, sync, "one")
        fence.acquire(Budget(seconds))
        yield fence
    finally:
        fence.close()


def move(old: Database, new: Database, *, sync: str = "main") -> None:
    """Decide and open, without any rows."""
    with admin(new) as connection:
        pointer.expect_token(connection, sync, TOKEN)
    with fenced(old, sync=sync) as fence:
        pointer.decide(fence.connection, sync, "one", TOKEN)
        fence.connection.execute("COMMIT")
    with admin(new) as connection:
        assert pointer.open_database(connection, sync, TOKEN)


def prepare(
    old: Database, new: Database, *, sync: str = "main", tables: Sequence[tuple[str, str]] = tuple(NAMES)
) -> None:
    """Create pointers and guards in both databases; the first is in use."""
    with admin(old) as first, admin(new) as second:
        for connection in (first, second):
            pointer.install(connection)
        create_pointers(first, second, sync)
        for connection in (first, second):
            guard.install(connection, tables, sync, timeout=10)
