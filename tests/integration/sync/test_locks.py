"""A sync never holds up an application that truncates, rewrites or drops tables, and misses none of its rows."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import psutil
import psycopg
import pytest

from support.fixtures import Databases, FreshServer
from support.sync import Pair, make_pair
from trueup.config.model import Node
from trueup.db import alive, node, reader
from trueup.db.connection import Connection
from trueup.db.node import connect
from trueup.engine.failures import error_of
from trueup.engine.progress import Silent
from trueup.errors import NodeError
from trueup.testing.postgres import Database
from trueup.testing.processes import wait_until, with_children
from trueup.verbs.switchover import guard
from trueup.verbs.switchover.prepare import prepare_only
from trueup.verbs.switchover.request import SwitchoverRequest
from trueup.verbs.sync import copy, round, snapshot_copy
from trueup.verbs.sync.copy import Copied, Part
from trueup.verbs.sync.identity import naming
from trueup.verbs.sync.link import Link, open_link
from trueup.verbs.sync.model import SyncTable
from trueup.verbs.sync.round import Changes
from trueup.verbs.sync.runner import Runner
from trueup.verbs.sync.target_schema import plan_keys

IN_TRANSACTION = """
SELECT application_name, query FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'
"""
# The sessions that tasks of the copy have used; sessions of the driver have other last statements.
END_IDLE = """
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle'
   AND application_name = 'trueup sync main' AND query IN ('COMMIT', 'ROLLBACK')
"""


def now(database: Database, statements: str) -> None:
    """Run statements as an application that cannot wait for locks."""
    with psycopg.connect(database.uri, autocommit=True) as connection:
        connection.execute("SET lock_timeout = '2s'")
        connection.execute(statements)


def test_readers_end_with_their_round(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.both("CREATE TABLE a (id int PRIMARY KEY, n int); CREATE TABLE b (id int PRIMARY KEY)")
    pair.source.execute("INSERT INTO a SELECT g FROM generate_series(1, 500) g; INSERT INTO b SELECT 1")
    pair.start()
    with (
        open_link(pair.request.source, pair.request.target, "main") as link,
        Runner(link, pair.request, Silent()) as runner,
    ):
        for small_bytes, is_large in ((round.SMALL_RELOAD_BYTES, False), (0, True)):
            monkeypatch.setattr(round, "SMALL_RELOAD_BYTES", small_bytes)
            now(pair.source, "TRUNCATE a; INSERT INTO a SELECT g, 1 FROM generate_series(1, 700) g; DELETE FROM b")
            last = runner.round()
            assert ("public.a" in last.reloaded, last.large) == (True, is_large)
            assert pair.source.execute(IN_TRANSACTION) == []
            now(pair.source, "TRUNCATE a, b; INSERT INTO b VALUES (7)")
        runner.round()
        monkeypatch.setattr(round, "SMALL", 3)
        now(pair.source, "INSERT INTO a SELECT g, 1 FROM generate_series(1, 700) g")
        last = runner.round()
        assert (last.keys, last.reloaded, last.large) == (700, (), True)
        assert pair.source.execute(IN_TRANSACTION) == []

        # Another TRUNCATE comes when the round has read the change log: the round has the rows after it.
        read, again = round.read_log, iter(["TRUNCATE a; INSERT INTO a VALUES (1, 2)"])

        def disturb(
            link: Link, limit: int | None, texts: bool, locked: Sequence[int], *, held: bool = False
        ) -> Changes:
            changes = read(link, limit, texts, locked, held=held)
            if not locked:
                now(pair.source, next(again, "SELECT"))
            return changes

        monkeypatch.setattr(round, "read_log", disturb)
        now(pair.source, "TRUNCATE a; INSERT INTO a VALUES (1, 1)")
        runner.round()
        pair.check_equal(["a"])

        # The target of a small round may hang: no lock is held while it writes.
        apply = round.apply_rows

        def hang(link: Link, *arguments: Any) -> tuple[int, bool]:
            now(pair.source, "ALTER TABLE a SET UNLOGGED; ALTER TABLE a SET LOGGED")
            return apply(link, *arguments)

        monkeypatch.setattr(round, "apply_rows", hang)
        monkeypatch.setattr(round, "SMALL_RELOAD_BYTES", 1 << 20)
        now(pair.source, "TRUNCATE a; INSERT INTO a VALUES (1, 1)")
        assert not runner.round().large
        pair.check_equal(["a"])
    pair.run()
    pair.check_equal(["a", "b"])


class Application:
    """An application that waits for a lock, in a thread."""

    def __init__(self, database: Database, statements: str, waits_for: str) -> None:
        self.errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(database, statements))
        self._thread.start()
        waiting = f"SELECT 1 FROM pg_locks WHERE NOT granted AND relation = '{waits_for}'::regclass"
        assert wait_until(lambda: bool(database.execute(waiting)), 30)

    def _run(self, database: Database, statements: str) -> None:
        try:
            # Less than the time for which trueup tries to get a lock.
            database.execute(f"SET lock_timeout = '30s'; {statements}")
        except BaseException as error:
            self.errors.append(error)

    def check(self) -> None:
        """Check that it got its lock."""
        self._thread.join()
        assert self.errors == []


@pytest.mark.parametrize("is_ordered", [False, True])
def test_an_application_waits_for_a_table_that_is_copied(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, is_ordered: bool
) -> None:
    """A session of the copy has locked the table. Others cannot lock it any more, because the application waits."""
    if is_ordered:
        monkeypatch.setattr(plan_keys, "silence_triggers", lambda target: False)
    pair.both("CREATE TABLE a (id int PRIMARY KEY, n int)")
    pair.source.execute("INSERT INTO a SELECT g FROM generate_series(1, 500) g")
    hold = copy.hold_snapshot
    applications: list[Application] = []

    @contextmanager
    def disturb(source: Connection, node: Node, locked: Sequence[SyncTable]) -> Iterator[str]:
        with hold(source, node, locked) as snapshot:
            if locked:
                applications.append(Application(pair.source, "TRUNCATE a; INSERT INTO a VALUES (9, 9)", "a"))
            else:
                now(pair.source, "TRUNCATE a; INSERT INTO a SELECT g, 1 FROM generate_series(1, 70) g")
            yield snapshot

    monkeypatch.setattr(snapshot_copy, "hold_snapshot", disturb)
    pair.start()
    (application,) = applications
    application.check()
    pair.run()
    pair.check_equal(["a"])


@pytest.mark.parametrize("is_large", [False, True])
def test_an_application_waits_for_a_table_that_a_round_has_locked(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    """And holds a lock on another one that the round reads: the round is repeated."""
    pair.both("CREATE TABLE a (id int PRIMARY KEY, n int); CREATE TABLE b (n int); CREATE TABLE c (id int PRIMARY KEY)")
    pair.start()
    if is_large:
        monkeypatch.setattr(round, "SMALL_RELOAD_BYTES", 0)
    read = round.read_log
    statements = iter(["TRUNCATE b, a; INSERT INTO a VALUES (7, 7)", "BEGIN; LOCK c; TRUNCATE b; COMMIT"])
    applications: list[Application] = []

    def disturb(link: Link, limit: int | None, texts: bool, locked: Sequence[int], *, held: bool = False) -> Changes:
        changes = read(link, limit, texts, locked, held=held)
        if locked and (statement := next(statements, None)):
            applications.append(Application(pair.source, statement, "b"))
        return changes

    monkeypatch.setattr(round, "read_log", disturb)
    for _ in range(2):
        pair.source.execute("TRUNCATE a, b; INSERT INTO b VALUES (1), (1); INSERT INTO a VALUES (1); DELETE FROM c")
        pair.source.execute("INSERT INTO c VALUES (1)")
        pair.run(once=True)
        applications.pop().check()
    pair.run()
    pair.check_equal(["a", "b", "c"])


@pytest.mark.parametrize("kind", ["small", "large", "ordered"])
def test_a_table_that_is_rewritten_during_a_round(pair: Pair, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """The snapshot of the round shows an empty table: its keys must not be deleted on the target."""
    if kind == "ordered":
        monkeypatch.setattr(plan_keys, "silence_triggers", lambda target: False)
    pair.both("CREATE TABLE a (id int PRIMARY KEY, n int)")
    pair.source.execute("INSERT INTO a SELECT g FROM generate_series(1, 50) g")
    pair.start()
    if kind == "large":
        monkeypatch.setattr(round, "SMALL", 3)
    begin, again = round.begin, iter(["ALTER TABLE a SET UNLOGGED; ALTER TABLE a SET LOGGED"] * 2)

    def disturb(link: Link, changes: Changes) -> Changes:
        now(pair.source, next(again, "SELECT"))
        return begin(link, changes)

    monkeypatch.setattr(round, "begin", disturb)
    pair.source.execute("UPDATE a SET n = 1")
    pair.run()
    pair.check_equal(["a"])
    assert pair.source.execute("SELECT count(*) FROM a WHERE n = 1") == [(50,)]


def test_tables_that_are_rewritten_during_the_copy(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each statement runs when the snapshot exists, and before its table is copied or in the middle of its copy."""
    pair.both("""
        CREATE TABLE big (id int PRIMARY KEY, filler text);
        CREATE TABLE half (id int PRIMARY KEY, filler text);
        CREATE TABLE emptied (id int PRIMARY KEY, n int);
        CREATE TABLE vacuumed (id int PRIMARY KEY, n int);
        CREATE TABLE altered (id int PRIMARY KEY, n int);
        CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id);
        CREATE TABLE p1 PARTITION OF parts FOR VALUES FROM (0) TO (100);
        CREATE TABLE p2 PARTITION OF parts FOR VALUES FROM (100) TO (200);
        CREATE TABLE p3 PARTITION OF parts FOR VALUES FROM (200) TO (300)""")
    pair.source.execute("""
        INSERT INTO big SELECT g, repeat('x', 200) FROM generate_series(1, 20000) g;
        INSERT INTO half SELECT g, repeat('x', 200) FROM generate_series(1, 10000) g;
        INSERT INTO emptied SELECT g FROM generate_series(1, 100) g;
        INSERT INTO vacuumed SELECT g FROM generate_series(1, 100) g; DELETE FROM vacuumed WHERE id < 40;
        INSERT INTO altered SELECT g FROM generate_series(1, 100) g;
        INSERT INTO parts SELECT g FROM generate_series(0, 299) g""")
    monkeypatch.setattr(copy, "LEAST_BYTES", 1 << 17)
    lock = threading.Lock()
    began: list[Part] = []
    halfway: list[Part] = []
    parts: list[Part] = []
    opened: list[str] = []
    once, connect = copy.copy_once, node.connect

    def counted(place: Node, *, application: str, read_only: bool = True) -> Connection:
        opened.append(place.name)
        return connect(place, application=application, read_only=read_only)

    def disturb(part: Part) -> Copied:
        with lock:
            parts.append(part)
            if not began:
                began.append(part)
                now(pair.source, "TRUNCATE emptied; INSERT INTO emptied SELECT g, 1 FROM generate_series(50, 80) g")
                now(pair.source, "VACUUM FULL vacuumed")
                now(pair.source, "ALTER TABLE altered SET UNLOGGED; ALTER TABLE altered SET LOGGED")
                now(pair.source, "DROP TABLE p1; ALTER TABLE parts DETACH PARTITION p2; DROP TABLE p2; TRUNCATE p3")
            if part.relation[1] == "half" and part.first and not halfway:
                halfway.append(part)
                # The last rows are in the first pages then.
                now(pair.source, "DELETE FROM half WHERE id < 5000")
                now(pair.source, "VACUUM FULL half")
                # Lost sessions are replaced.
                assert (True,) in pair.source.execute(END_IDLE) + pair.target.execute(END_IDLE)
        return once(part)

    monkeypatch.setattr(copy, "copy_once", disturb)
    monkeypatch.setattr(reader, "connect", counted)
    pair.start()
    assert began
    assert halfway
    # Tasks use the sessions of earlier tasks.
    assert len(opened) < len(parts) / 2
    pair.run()
    pair.check_equal(["big", "half", "emptied", "vacuumed", "altered", "parts"])
    assert pair.source.execute(IN_TRANSACTION) == []


def test_a_target_that_is_frozen(
    databases: Databases, fresh_server: FreshServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine acknowledges what is sent, and no process answers: each command ends, and names the node."""
    (source,), server = databases(1), fresh_server(name="frozen")
    target = server.create_database("copy")
    pair = make_pair(source, target)
    pair.both("CREATE TABLE a (id int PRIMARY KEY)")
    pair.start()
    assert server.pid is not None
    monkeypatch.setattr(alive, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(alive, "ANSWER_SECONDS", 2)
    # A statement that takes long is no reason.
    with connect(pair.request.target, application="slow") as slow:
        slow.execute("SELECT pg_sleep(1.5)")
    switching = SwitchoverRequest("main", pair.request.source, pair.request.target)
    steps: list[tuple[Any, str, Callable[[], object]]] = [
        (round, "apply_rows", pair.run),
        (guard, "install", partial(prepare_only, switching)),
        (naming, "identity", partial(naming.find_name, pair.request.target, pair.request.source, "main")),
    ]
    for module, name, command in steps:
        source.execute("INSERT INTO a SELECT count(*) FROM a")
        original, processes = getattr(module, name), []  # type: Any, list[psutil.Process]

        def freeze(
            *arguments: Any, original: Any = original, processes: list[psutil.Process] = processes, **named: Any
        ) -> Any:
            processes += with_children(server.pid or 0)
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.suspend()
            return original(*arguments, **named)

        with monkeypatch.context() as patch:
            patch.setattr(module, name, freeze)
            try:
                with pytest.raises((NodeError, psycopg.Error)) as caught:
                    command()
            finally:
                for process in processes:
                    with suppress(psutil.NoSuchProcess):
                        process.resume()
        # As the command line shows it.
        shown = error_of(caught.value)
        assert shown.node == "n2"
        assert re.search(r"no answer for \d+ s, and none on a new connection", str(shown))
    pair.run()
    pair.check_equal(["a"])
