"""A switchover and applications that lock whole tables, and servers that hang: no one waits longer than the pause."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

import trueup
from support.fixtures import Databases
from support.pointer import WAITING
from support.switchover import Moving, wait_until
from trueup.config.model import Node
from trueup.db.drop_schema import drop_schema_if_empty
from trueup.db.node import connect
from trueup.db.table_lock import in_short_attempts
from trueup.errors import QueryError, TrueupError
from trueup.testing.postgres import Database
from trueup.verbs.switchover import decision, ending
from trueup.verbs.switchover import pause as pauses
from trueup.verbs.switchover.gate import GateClosed
from trueup.verbs.switchover.phases import FINAL_ROUND, GATE, OPEN, Phases
from trueup.verbs.switchover.prepare import prepare_only
from trueup.verbs.switchover.proof import Prover


@dataclass
class Seen:
    """What the applications of a test saw."""

    errors: list[BaseException] = field(default_factory=list)
    # The numbers of their last commits, and the longest wait in seconds.
    committed: dict[str, int] = field(default_factory=dict)
    longest: float = 0.0
    refused: int = 0

    def wait_for_more(self) -> None:
        """Wait until each application has committed again."""
        before = dict(self.committed)
        wait_until(lambda: bool(self.errors) or all(self.committed[name] > before[name] + 3 for name in before))
        assert not self.errors


@contextmanager
def truncating(database: Database, other: Database) -> Iterator[Seen]:
    """Run applications that truncate ten times a second, with and without the pointer, and one that inserts."""
    stop, seen = threading.Event(), Seen()

    def run(work: Callable[[int], None], every: float) -> None:
        number = 0
        try:
            while not stop.wait(every):
                number += 1
                began = time.monotonic()
                work(number)
                seen.longest = max(seen.longest, time.monotonic() - began)
        except BaseException as error:
            seen.errors.append(error)

    addresses = iter([database.uri, other.uri] * 2)
    plain = psycopg.connect(next(addresses), autocommit=True)
    followed = [trueup.connect([database.uri, other.uri]) for _ in range(2)]

    def truncate(number: int) -> None:
        # It locks the table before its guard waits for the fence.
        nonlocal plain
        try:
            rows = f"INSERT INTO places SELECT 'y', g, '{number}' FROM generate_series(1, 50) g"
            plain.execute(f"TRUNCATE places; {rows}")
            seen.committed["places"] = number
        except psycopg.errors.ReadOnlySqlTransaction:
            seen.refused += 1
            plain.close()
            plain = psycopg.connect(next(addresses), autocommit=True)

    def write_and_truncate(number: int) -> None:
        # It holds the shared lock, for which the fence waits, before it needs the table.
        with followed[0].transaction() as connection:
            connection.execute("UPDATE people SET name = %s WHERE id = 7", [f"n{number}"])
            connection.execute("TRUNCATE visits RESTART IDENTITY")
            connection.execute("INSERT INTO visits (person, price) SELECT 1, %s FROM generate_series(1, 30)", [number])
        seen.committed["visits"] = number

    def insert(number: int) -> None:
        followed[1].execute("INSERT INTO people (name) VALUES (%s)", [f"inserted {number}"])
        seen.committed["people"] = number

    works = ((truncate, 0.1), (write_and_truncate, 0.1), (insert, 0.02))
    threads = [threading.Thread(target=run, args=work) for work in works]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(seen.committed) == 3 or bool(seen.errors))
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        plain.close()
        for db in followed:
            db.close()


def test_applications_that_truncate_all_the_time(moving: Moving) -> None:
    """No session gets an error or waits longer than the pause, no row is lost, and the switchover succeeds."""
    moving.prepare()
    with truncating(moving.old, moving.new) as seen:
        for move, proof in ((moving.execute, "keys"), (moving.rollback, "digest"), (moving.execute, "digest")):
            outcome = move(proof=proof, budget=30.0)
            assert outcome.pause_ms < 30_000
            seen.wait_for_more()
    assert not seen.errors
    assert seen.longest < 30
    assert seen.refused == 3
    assert moving.accepts_writes("DELETE FROM visits") == ["new"]
    committed = seen.committed
    last = str(committed["places"])
    assert moving.new.execute("SELECT count(*), min(note), max(note) FROM places") == [(50, last, last)]
    assert moving.new.execute("SELECT count(*), min(id), max(price) FROM visits") == [(30, 1, committed["visits"])]
    count = moving.new.execute("SELECT count(*) FROM people WHERE name LIKE 'inserted%'")
    assert count == [(committed["people"],)]


def now(database: Database, statements: str) -> None:
    """Run statements as an application that cannot wait for locks."""
    with psycopg.connect(database.uri, autocommit=True, options="-c lock_timeout=2s") as connection:
        connection.execute(statements)


def test_an_application_that_prepares_transactions_all_the_time(moving: Moving) -> None:
    """The fence waits for them. A forgotten one is named, also before there are guards.

    The server ends idle transactions soon; those of trueup are not ended.
    """
    for database in (moving.old, moving.new):
        database.execute(f"ALTER DATABASE {database.name} SET idle_in_transaction_session_timeout = '5ms'")
    moving.old.execute("BEGIN; UPDATE people SET name = 'p' WHERE id = 3; PREPARE TRANSACTION 'forgotten'")
    with pytest.raises(GateClosed, match="no prepared transactions: forgotten of postgres"):
        moving.execute(budget=0.5)
    with pytest.raises(QueryError, match=r"the table is locked by a prepared transaction \(forgotten\)"):
        prepare_only(moving.request(timeout=0.5))
    moving.old.execute("COMMIT PREPARED 'forgotten'")
    stop, seen = threading.Event(), Seen()

    def prepare_all_the_time() -> None:
        number = 0
        with suppress(psycopg.errors.ReadOnlySqlTransaction):
            while not stop.is_set():
                statement = f"UPDATE people SET name = 'x{number}' WHERE id = 5"
                moving.old.execute(f"BEGIN; {statement}; PREPARE TRANSACTION 'all the time'")
                stop.wait(0.02)
                moving.old.execute("COMMIT PREPARED 'all the time'")
                seen.committed["people"] = number = number + 1

    application = threading.Thread(target=prepare_all_the_time)
    application.start()
    try:
        wait_until(lambda: bool(seen.committed))
        moving.execute()
    finally:
        stop.set()
        application.join()
    assert moving.new.execute("SELECT name FROM people WHERE id = 5") == [(f"x{seen.committed['people'] - 1}",)]
    assert moving.new.execute("SELECT name FROM people WHERE id = 3") == [("p",)]
    moving.rollback(proof="keys")
    assert moving.differences() == []


def test_a_writer_that_needs_a_table_which_is_held(moving: Moving) -> None:
    """The fence waits for the writer, and the writer for a lock of the switchover, which is released."""
    moving.prepare()
    ended: list[object] = []

    def execute() -> None:
        try:
            ended.append(moving.execute(proof="keys").target)
        except BaseException as error:
            ended.append(error)

    with psycopg.connect(moving.old.uri, options="-c deadlock_timeout=20ms") as writer:
        writer.execute("INSERT INTO places VALUES ('w', 1, '')")
        thread = threading.Thread(target=execute)
        thread.start()
        wait_until(lambda: bool(ended) or moving.old.execute(WAITING) != [])
        began = time.monotonic()
        writer.execute("TRUNCATE visits")
        assert time.monotonic() - began < 30
    thread.join()
    assert ended == ["new"]
    assert moving.differences() == []
    assert moving.new.execute("SELECT count(*) FROM visits") == [(0,)]


def test_tables_that_are_rewritten_while_all_are_compared(moving: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that the snapshot does not show any more is compared again; no lock is held after a table is read."""
    unequal = Prover.unequal

    def disturbed(self: Prover, *arguments: Any, **options: Any) -> Any:
        now(moving.old, "TRUNCATE places; INSERT INTO places VALUES ('t', 1, '')")
        now(moving.old, "VACUUM FULL people")
        now(moving.old, "ALTER TABLE visits SET UNLOGGED")
        found = unequal(self, *arguments, **options)
        now(moving.old, "ALTER TABLE visits SET LOGGED; TRUNCATE places; INSERT INTO places VALUES ('t', 2, '')")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Prover, "unequal", disturbed)
        moving.execute(proof="keys")
    assert moving.differences() == []
    # A row that differs is found in a table that was rewritten.
    moving.old.execute(f"{moving.as_sync()} UPDATE visits SET price = 17 WHERE id = 7")
    with monkeypatch.context() as patch:

        def rewritten(self: Prover, *arguments: Any, **options: Any) -> Any:
            now(moving.new, "ALTER TABLE visits SET UNLOGGED; ALTER TABLE visits SET LOGGED")
            return unequal(self, *arguments, **options)

        patch.setattr(Prover, "unequal", rewritten)
        with pytest.raises(GateClosed, match="visits: 1,000 rows in both databases, with different contents"):
            moving.rollback(proof="keys")


def test_a_table_that_is_locked_before_the_pause(moving: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the node and the session."""
    moving.prepare()
    pause = pauses.pause
    with psycopg.connect(moving.old.uri, application_name="vacuum") as other:

        def locked(*arguments: Any) -> Any:
            other.execute("LOCK TABLE places IN ACCESS EXCLUSIVE MODE")
            return pause(*arguments)

        monkeypatch.setattr(pauses, "pause", locked)
        with pytest.raises(QueryError, match=r"no lock.*vacuum") as caught:
            moving.execute(proof="digest", timeout=1.0)
        assert caught.value.node == "old"
    assert moving.accepts_writes("DELETE FROM visits") == ["old"]


@contextmanager
def frozen(database: Database) -> Iterator[Callable[[], None]]:
    """Yield a function that stops all processes of trueup's sessions with a database; the end lets them continue."""
    stopped: list[int] = []

    def freeze() -> None:
        query = "SELECT pid FROM pg_stat_activity WHERE datname = %s AND application_name LIKE 'trueup%%'"
        for (pid,) in database.execute(query, [database.name]):
            os.kill(pid, signal.SIGSTOP)
            stopped.append(pid)

    try:
        yield freeze
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


def test_a_target_that_hangs_in_the_pause(moving: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers are released when the budget ends, and the command ends soon after."""
    monkeypatch.setattr(decision, "OPEN_SECONDS", 1.0)
    moving.prepare()
    hangs = "new did not answer"
    for proof, phase, message in (
        ("keys", FINAL_ROUND, hangs),
        ("digest", GATE, hangs),
        ("keys", OPEN, "switched to new, but new could not be opened for writes: no answer within 1 s"),
    ):
        waited, frozen_at = _hang(moving, monkeypatch, phase, message, proof)
        assert waited < 20
        assert time.monotonic() - frozen_at < 30
        if phase != OPEN:
            assert moving.accepts_writes("DELETE FROM visits") == ["old"]
    assert moving.execute().remarks
    assert moving.accepts_writes("DELETE FROM visits") == ["new"]


def _hang(moving: Moving, monkeypatch: pytest.MonkeyPatch, phase: str, message: str, proof: str) -> tuple[float, float]:
    """Stop the target when a phase begins; return how long a writer waited, and when the target was stopped."""
    waits: list[float] = []
    frozen_at: list[float] = []

    def write() -> None:
        began = time.monotonic()
        with suppress(psycopg.errors.ReadOnlySqlTransaction):
            moving.old.execute("INSERT INTO places VALUES ('w', 1, '') ON CONFLICT DO NOTHING; TRUNCATE visits")
        waits.append(time.monotonic() - began)

    writer = threading.Thread(target=write)
    with frozen(moving.new) as freeze, monkeypatch.context() as patch:

        def enter(self: Phases, name: str) -> None:
            if name == phase:
                freeze()
                frozen_at.append(time.monotonic())
                writer.start()

        patch.setattr(Phases, "enter", enter)
        with pytest.raises(TrueupError, match=message):
            moving.execute(proof=proof, budget=4.0)
    writer.join()
    return waits[0], frozen_at[0]


def test_a_switchover_that_hangs_in_the_pause(moving: Moving) -> None:
    """Its process is stopped: the server ends all its locks, and it ends with a message when it continues."""
    moving.prepare()
    receive, send = multiprocessing.Pipe(duplex=False)

    def victim() -> None:
        def enter(self: Phases, name: str) -> None:
            if name == GATE:
                os.kill(os.getpid(), signal.SIGSTOP)

        Phases.enter = enter  # type: ignore[method-assign]
        try:
            moving.execute(proof="digest", budget=4.0)
        except BaseException as error:
            send.send((type(error).__name__, str(error)))
        finally:
            os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=victim)
    process.start()
    assert process.pid is not None
    os.waitpid(process.pid, os.WUNTRACED)
    began = time.monotonic()
    moving.old.execute("INSERT INTO places VALUES ('w', 1, '')")
    moving.old.execute("TRUNCATE visits")
    assert time.monotonic() - began < 30
    os.kill(process.pid, signal.SIGCONT)
    assert receive.poll(60)
    kind, text = receive.recv()
    assert (kind, "the budget of 4 s was spent in the phase 'gate'" in text) == ("BudgetSpent", True)
    assert moving.accepts_writes("DELETE FROM visits") == ["old"]


def test_a_reset_of_one_sync_does_not_block_the_writers_of_another(moving: Moving) -> None:
    """A writer of another sync holds the shared lock; others get it too, before, during and after the reset."""
    moving.prepare()
    for database in (moving.old, moving.new):
        # Another sync of the same databases has a pointer.
        copy = 'ALTER TABLE trueup.switchover ALTER named DROP EXPRESSION; INSERT INTO trueup.switchover SELECT (jsonb_populate_record(s, \'{"sync": "b"}\')).* FROM trueup.switchover s'  # noqa: E501
        database.execute(copy)
    ended, refused, taken = threading.Event(), list[psycopg.Error](), 0
    with psycopg.connect(moving.new.uri) as writer, psycopg.connect(moving.new.uri, autocommit=True) as other:
        writer.execute("LOCK TABLE trueup.switchover_lock IN ROW SHARE MODE")

        def reset() -> None:
            try:
                ending.reset(moving.request())
            finally:
                ended.set()

        thread = threading.Thread(target=reset)
        thread.start()
        other.execute("SET lock_timeout = '1s'")
        while not ended.is_set():
            try:
                other.execute("BEGIN; LOCK TABLE trueup.switchover_lock IN ROW SHARE MODE; COMMIT")
                taken += 1
            except psycopg.errors.LockNotAvailable as error:
                refused.append(error)
                other.execute("ROLLBACK")
        thread.join()
    assert (refused, taken > 1) == ([], True)
    assert moving.new.execute("SELECT sync FROM trueup.switchover") == [("b",)]


def test_whether_a_schema_is_empty_is_asked_without_a_lock(databases: Databases) -> None:
    """Of three verbs that drop the schema of trueup with the last thing in it."""
    (database,) = databases(1)
    database.execute("CREATE SCHEMA full_one; CREATE TABLE full_one.t (); CREATE SCHEMA busy; CREATE SCHEMA free;")
    database.execute("ALTER DEFAULT PRIVILEGES IN SCHEMA free GRANT SELECT ON TABLES TO pg_monitor")
    with (
        connect(Node("n1", database.uri), application="test", read_only=False) as connection,
        psycopg.connect(database.uri) as reader,
        psycopg.connect(database.uri) as creator,
    ):
        reader.execute("LOCK TABLE full_one.t IN ACCESS SHARE MODE")
        creator.execute("CREATE TYPE busy.late AS ENUM ('a')")
        connection.execute("SET lock_timeout = '20s'")
        began = time.monotonic()
        with connection.transaction():
            for schema in ("full_one", "busy", "free", "missing"):
                drop_schema_if_empty(connection, schema)
            assert connection.execute("SHOW lock_timeout").fetchone() == ("20s",)
        assert time.monotonic() - began < 10
        creator.commit()
        assert database.execute(
            "SELECT nspname FROM pg_namespace WHERE nspname IN ('full_one', 'busy', 'free') ORDER BY 1"
        ) == [("busy",), ("full_one",)]


def test_writers_pass_while_a_change_waits_for_its_lock(databases: Databases) -> None:
    """Of a repair, a sink and a validation: attempts are short, all in all they take as long as `lock_timeout`."""
    (database,) = databases(1)
    database.execute("CREATE TABLE t (id int)")
    passed, stop = 0, threading.Event()
    with (
        connect(Node("n1", database.uri), application="test", read_only=False) as connection,
        psycopg.connect(database.uri) as writer,
    ):
        writer.execute("INSERT INTO t VALUES (1)")
        connection.execute("SET lock_timeout = '2s'")
        failed: list[BaseException] = []

        def change() -> None:
            try:
                in_short_attempts(connection, lambda: connection.execute("ALTER TABLE public.t ADD n int"))
            except psycopg.errors.LockNotAvailable as error:
                failed.append(error)
            stop.set()

        thread = threading.Thread(target=change)
        thread.start()
        while not stop.is_set():
            database.execute("SET lock_timeout = '1500ms'; INSERT INTO t VALUES (2)")
            passed += 1
        thread.join()
        assert len(failed) == 1
        assert passed > 1
        writer.commit()
        in_short_attempts(connection, lambda: connection.execute("ALTER TABLE public.t ADD n int"))
        assert connection.execute("SHOW lock_timeout").fetchone() == ("2s",)
