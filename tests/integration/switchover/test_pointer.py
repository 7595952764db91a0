"""The pointer, the guards and the fence on plain tables: never both databases take writes, and nobody is left out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

import trueup
from support.fixtures import Databases
from trueup.config.model import Node
from trueup.db.node import connect as pinned
from trueup.errors import ConfigError, QueryError
from trueup.testing.postgres import Database
from trueup.verbs.switchover import guard, pointer
from trueup.verbs.switchover.fence import Fence
from trueup.verbs.switchover.phases import Budget, BudgetSpent

TABLES = """
CREATE TABLE public.t (id int PRIMARY KEY, v int);
CREATE TABLE public.p (id int, part int, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
CREATE TABLE public.p1 PARTITION OF public.p FOR VALUES IN (1);
INSERT INTO public.t VALUES (1, 1), (2, 2);
"""
NAMES = [("public", "t"), ("public", "p")]
TOKEN = "a token"

WAITING = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


@pytest.fixture
def pair(databases: Databases) -> tuple[Database, Database]:
    """Two databases with the same tables, pointers and guards; the first is in use."""
    old, new = databases(2)
    with admin(old) as first, admin(new) as second:
        for connection in (first, second):
            connection.execute(TABLES)
            pointer.install(connection)
        pointer.take(first, "main", names=("old", "new"), address=pointer.address_of(second), is_first=True)
        pointer.take(second, "main", names=("new", "old"), address=pointer.address_of(first), is_first=False)
        for connection in (first, second):
            assert guard.put_on(connection, NAMES, "main", patience=10) == 3
            assert guard.put_on(connection, NAMES, "main", patience=10) == 0
    return old, new


@contextmanager
def admin(database: Database) -> Iterator[Any]:
    with pinned(Node("n", database.uri), application="test", read_only=False) as connection:
        yield connection


@contextmanager
def fenced(database: Database, seconds: float = 30) -> Iterator[Fence]:
    fence = Fence(Node("n", database.uri))
    try:
        pointer.begin(fence.connection, "main", "one")
        fence.raise_it(Budget(seconds))
        yield fence
    finally:
        fence.close()


def move(old: Database, new: Database) -> None:
    """The decision and the opening, without any rows."""
    with admin(new) as connection:
        pointer.expect(connection, "main", TOKEN)
    with fenced(old) as fence:
        pointer.decide(fence.connection, "main", "one", TOKEN)
        fence.connection.execute("COMMIT")
    with admin(new) as connection:
        assert pointer.open_next(connection, "main", TOKEN)


def refused(database: Database, statement: str) -> str:
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction) as caught:
        database.execute(statement)
    return str(caught.value)


WRITES = [
    "INSERT INTO public.t VALUES (7, 7)",
    "UPDATE public.t SET v = 9 WHERE id = 1",
    "DELETE FROM public.t WHERE id = 1",
    "TRUNCATE public.t",
    "INSERT INTO public.p1 VALUES (1, 1)",
    "MERGE INTO public.t USING (SELECT 1 AS i) s ON t.id = s.i WHEN MATCHED THEN DELETE",
    "SET session_replication_role = replica; DELETE FROM public.t",
    "WITH gone AS (DELETE FROM public.t RETURNING *) SELECT * FROM gone",
]


def test_only_one_of_the_two_takes_writes(pair: tuple[Database, Database]) -> None:
    old, new = pair
    for statement in WRITES:
        assert "old is in use" in refused(new, statement)
    old.execute("BEGIN; DELETE FROM public.t WHERE id = 2; ROLLBACK")
    move(old, new)
    for statement in WRITES:
        message = refused(old, statement)
        assert "takes no writes: new is in use" in message
        assert f"dbname={new.name}" in message
    with (
        psycopg.connect(old.uri) as connection,
        pytest.raises(psycopg.errors.ReadOnlySqlTransaction),
        connection.cursor().copy("COPY public.t FROM STDIN") as copy,
    ):
        copy.write("5\t5\n")
    for statement in WRITES:
        new.execute(f"BEGIN; {statement}; ROLLBACK")
    # Rows of a sync go only where no application writes.
    assert "must not be written" in refused(new, "SET application_name = 'trueup sync main'; DELETE FROM public.t")
    old.execute("SET application_name = 'trueup sync main'; DELETE FROM public.t WHERE id = 2")


def test_an_old_view_does_not_write_after_the_decision(pair: tuple[Database, Database]) -> None:
    old, new = pair
    with psycopg.connect(old.uri) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT * FROM public.t")
        move(old, new)
        with pytest.raises(psycopg.errors.SerializationFailure, match="decided after"):
            connection.execute("UPDATE public.t SET v = 3 WHERE id = 1")
    # With no decision in between, such a transaction writes.
    with psycopg.connect(new.uri) as connection:
        connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        connection.execute("UPDATE public.t SET v = 3 WHERE id = 1")


def test_the_fence_waits_for_writers_and_names_them(pair: tuple[Database, Database]) -> None:
    """Who has written goes on, also to tables it has not touched yet; who has not waits; who stays is named."""
    old, _ = pair
    with psycopg.connect(old.uri, application_name="slowcoach") as writer:
        writer.execute("INSERT INTO public.t VALUES (10, 1)")
        with pytest.raises(BudgetSpent, match="slowcoach"), fenced(old, 0.3):
            pass
        old.execute("INSERT INTO public.t VALUES (11, 1)")  # all is released
        up = threading.Event()
        done: list[int] = []

        def hold() -> None:
            with fenced(old):
                up.set()
                done.extend(old.execute("SELECT id FROM public.t WHERE id = 10")[0])
                _wait(lambda: old.execute(WAITING) != [])
                done.extend(old.execute("SELECT count(*) FROM public.t WHERE id = 12")[0])

        thread = threading.Thread(target=hold)
        thread.start()
        _wait(lambda: old.execute(WAITING) != [])
        writer.execute("INSERT INTO public.p1 VALUES (1, 1); UPDATE public.t SET v = 0 WHERE id = 10")
        assert not up.is_set()
        writer.commit()
        assert up.wait(60)
        old.execute("INSERT INTO public.t VALUES (12, 1)")  # waits, and then goes in
        thread.join()
    assert done == [10, 0]
    old.execute("BEGIN; INSERT INTO public.t VALUES (13, 1); PREPARE TRANSACTION 'left_behind'")
    with pytest.raises(BudgetSpent, match="left_behind"), fenced(old, 0.3):
        pass
    old.execute("ROLLBACK PREPARED 'left_behind'")


def test_a_guard_that_finds_no_gap_says_so(pair: tuple[Database, Database]) -> None:
    old, _ = pair
    with psycopg.connect(old.uri) as reader, admin(old) as connection:
        assert guard.take_off(connection, patience=10) == 3
        reader.execute("UPDATE public.t SET v = 1")
        with pytest.raises(QueryError, match="in use by others"):
            guard.put_on(connection, NAMES, "main", patience=0.3)
        reader.rollback()
        connection.execute("ALTER TABLE public.p DISABLE TRIGGER USER")
        assert guard.put_on(connection, NAMES, "main", patience=10) >= 1
        assert guard.lacking(connection, NAMES) == []


def test_applications_follow_the_pointer(pair: tuple[Database, Database]) -> None:
    """Clients that write all the time see a wait, and no write is lost, there and back."""
    old, new = pair
    stop = threading.Event()
    written: list[list[tuple[int, str]]] = [[], [], []]
    errors: list[BaseException] = []

    def work(number: int) -> None:
        at = number * 1_000_000
        try:
            with trueup.connect(old.uri) as db:
                while not stop.is_set():
                    at += 1
                    with db.transaction() as connection:
                        connection.execute("INSERT INTO public.t VALUES (%s, 0)", (at,))
                    written[number - 1].append((at, db.address.rpartition("/")[2].rstrip(")")))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for first, second in ((old, new), (new, old)):
        count = [len(each) for each in written]
        _wait(lambda count=count: bool(errors) or all(len(w) > c + 20 for w, c in zip(written, count, strict=True)))  # type: ignore[misc]
        move(first, second)
    count = [len(each) for each in written]
    _wait(lambda: bool(errors) or all(len(w) > c + 20 for w, c in zip(written, count, strict=True)))
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors
    for database in (old, new):
        told = {at for each in written for at, where in each if where == database.name}
        assert told
        assert {row[0] for row in database.execute("SELECT id FROM public.t WHERE id > 1000000")} == told


def test_an_application_opens_what_a_dead_switchover_left_closed(pair: tuple[Database, Database]) -> None:
    old, new = pair
    with admin(new) as connection:
        pointer.expect(connection, "main", TOKEN)
        assert not pointer.open_next(connection, "main", "a guess")
    with fenced(old) as fence:
        pointer.decide(fence.connection, "main", "one", TOKEN)
        fence.connection.execute("COMMIT")
    # Nobody opened it; neither takes writes of those who do not follow the pointer.
    assert "is in use" in refused(old, WRITES[0])
    assert "is in use" in refused(new, WRITES[0])
    with trueup.connect([old.uri, new.uri]) as db:
        db.execute("INSERT INTO public.t VALUES (%s, 1)", (21,))
        assert new.name in db.address
    assert new.execute("SELECT count(*) FROM public.t WHERE id = 21") == [(1,)]
    new.execute(WRITES[0])
    # The token is of no use twice.
    move(new, old)
    with admin(new) as connection:
        assert not pointer.open_next(connection, "main", TOKEN)


def test_connect_tells_what_is_missing(pair: tuple[Database, Database], databases: Databases) -> None:
    old, new = pair
    with admin(old) as connection:
        assert guard.take_off(connection, patience=5) == 3
        pointer.remove(connection)
        assert connection.execute("SELECT to_regnamespace('trueup')").fetchone() == (None,)
    with trueup.connect(old.uri) as db, pytest.raises(ConfigError, match="has no pointer"):
        db.execute("SELECT 1")
    # A row that sends everybody back and forth ends in an error, after the wait.
    with trueup.connect(new.uri, wait=0.2, nodes={"old": new.uri}) as db, pytest.raises(trueup.NodeError):
        db.execute("SELECT 1")


def _wait(condition: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.01)
