"""Guards: several syncs of one database, transactions with old snapshots, and roles without privileges."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from support.fixtures import Databases, FreshServer
from support.pointer import TABLES, TOKEN, fenced, move, prepare
from support.switchover import ROWS, SCHEMA, Moving, begin
from trueup.config.model import Node
from trueup.config.settings import SparkSettings
from trueup.engine.progress import Silent
from trueup.errors import CheckFailed, TrueupError
from trueup.store import TaskStore
from trueup.testing.postgres import Database, Server
from trueup.verbs.switchover import ending, pointer
from trueup.verbs.switchover import run as switchover
from trueup.verbs.switchover.finish import Finish, finish
from trueup.verbs.switchover.prepare import prepare_only
from trueup.verbs.switchover.request import EXECUTE, SwitchoverRequest
from trueup.verbs.switchover.status import status, status_text
from trueup.verbs.sync import run as sync
from trueup.verbs.sync.link import open_link
from trueup.verbs.sync.request import Scope, SyncRequest

WRITE = "UPDATE public.t SET v = v + 1 WHERE id = 1"
LEVELS = (psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE)


def accepts(database: Database, statement: str) -> bool:
    """Return whether the database accepts a statement; it is rolled back."""
    with suppress(psycopg.errors.ReadOnlySqlTransaction):
        database.execute(f"BEGIN; {statement}; ROLLBACK")
        return True
    return False


def test_the_end_of_one_sync_leaves_the_others(databases: Databases) -> None:
    """Two syncs of one database, over different tables and over the same table, are guarded separately."""
    old, new, third = databases(3)
    for database in (old, new, third):
        database.execute(SCHEMA)
    old.execute(ROWS)
    first, second, other = (Node(name, at.uri) for name, at in (("old", old), ("new", new), ("third", third)))
    main = SwitchoverRequest("main", first, second, budget=60.0, jobs=1)
    side = SwitchoverRequest("side", first, other, budget=60.0, jobs=1)
    both = ("public.people", "public.visits", "public.notes")
    for request, tables in ((main, both), (side, (*both, "public.places"))):
        scope = Scope(request.sync, tables)
        sync.start(SyncRequest(request.first, request.second, scope, SparkSettings(engine="local")), Silent())
        prepare_only(request)
    # Both syncs can run at the same time, each of them once.
    with (
        open_link(first, second, "main"),
        open_link(first, other, "side"),
        pytest.raises(CheckFailed, match="the sync side is already running"),
        open_link(first, other, "side"),
    ):
        pass
    with TaskStore(Path("tasks.db")) as store:
        switchover.move(main, EXECUTE, store=store, progress=Silent())
    assert (accepts(old, "DELETE FROM visits"), accepts(old, "DELETE FROM places")) == (False, True)
    assert not accepts(old, "UPDATE people SET name = name || '!'")
    assert status(side).in_use == "old"
    _is_refused_on_a_closed_database(side)
    # Nodes of another sync with the same name are refused.
    for action in (ending.abort, ending.reset, finish):
        with pytest.raises(CheckFailed, match="is another one: its switchover is with new"):
            action(SwitchoverRequest("main", first, other))
    ending.abort(side)
    ending.reset(side)
    assert status(side).phase == "not prepared"
    prepare_only(side)
    # The same table stays closed until both let it go; the databases that are not in use stay closed too.
    finish(side, Finish(reopen_old=True))
    assert [accepts(at, "UPDATE people SET name = name || '!'") for at in (old, new, third)] == [False, True, True]
    assert accepts(old, "DELETE FROM places")
    assert status(main).in_use == "new"
    finish(main, Finish(reopen_old=True))
    assert accepts(old, "UPDATE people SET name = name || '!'")
    for database in (old, new, third):
        assert database.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'trueup%'") == []


def _is_refused_on_a_closed_database(side: SwitchoverRequest) -> None:
    """Another switchover has moved the tables: their rows here are old, and a third database would be in use too."""
    for early in (True, False):
        with pytest.MonkeyPatch.context() as patch, TaskStore(Path("tasks.db")) as store:
            if not early:
                patch.setattr(pointer, "check_not_closed", lambda *arguments: None)
            expected = "tables of this sync are in use on new" if early else "another switchover closed this database"
            with pytest.raises(TrueupError, match=expected):
                switchover.move(side, EXECUTE, store=store, progress=Silent())
    assert status(side).in_use == "old"


class Snapshots:
    """Sessions with an open transaction and an old snapshot."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def begin(self, database: Database) -> list[psycopg.Connection]:
        """Begin a transaction in each of the isolation levels that keep their snapshot, and read."""
        connections = [self._stack.enter_context(psycopg.connect(database.uri)) for _ in LEVELS]
        for connection, level in zip(connections, LEVELS, strict=True):
            connection.isolation_level = level
            connection.execute("SELECT * FROM public.t")
        return connections

    def write(self, connections: list[psycopg.Connection]) -> None:
        """Write in each transaction, and roll back."""
        for connection in connections:
            connection.execute(WRITE)
            connection.rollback()

    def refused(self, connections: list[psycopg.Connection]) -> None:
        """Check that each transaction has to be retried."""
        for connection in connections:
            with pytest.raises(psycopg.errors.SerializationFailure, match="decided after"):
                connection.execute(WRITE)
            connection.rollback()


def test_an_old_snapshot_is_refused_only_after_a_change(databases: Databases) -> None:
    """A transaction that keeps its snapshot writes to the database in use at any time, and never to a closed one."""
    old, new = databases(2)
    for database in (old, new):
        database.execute(TABLES)
    with ExitStack() as stack:
        snapshots = Snapshots(stack)
        # Older than the pointers: the database in use accepts the write, the closed one does not.
        oldest, older, closed = snapshots.begin(old), snapshots.begin(old), snapshots.begin(new)
        prepare(old, new)
        snapshots.write(older)
        snapshots.refused(closed)
        # A second preparation, an attempt without a decision, and a decision that is not committed.
        during = snapshots.begin(old)
        prepare(old, new)
        with fenced(old) as fence:
            fence.release()
            assert pointer.end_attempt(fence.connection, "main", "one", "")
        snapshots.write(during)
        with fenced(old) as fence:
            pointer.decide(fence.connection, "main", "one", TOKEN)
            fence.connection.execute("ROLLBACK")
        snapshots.write(snapshots.begin(old))
        before, before_opening = snapshots.begin(old), snapshots.begin(new)
        move(old, new)
        for connections in (oldest, before, before_opening):
            snapshots.refused(connections)
        snapshots.write(snapshots.begin(new))
        assert not accepts(old, WRITE)
        # A later decision of another sync does not hide the first one, and refuses nothing of this one.
        prepare(new, old, sync="side", tables=[("public", "p")])
        later = snapshots.begin(new)
        move(new, old, sync="side")
        snapshots.write(later)
        assert (accepts(old, WRITE), accepts(new, "DELETE FROM public.p")) == (False, False)
        # A dump that was restored on another server has a number that no transaction has there.
        new.execute("SELECT setval('trueup.switchover_changed_main', 1000000000000)")
        snapshots.write(snapshots.begin(new))


def test_old_snapshots_after_a_crash(fresh_server: FreshServer) -> None:
    """After a crash the number of the last decision is exactly as before: nothing is refused."""
    server = fresh_server(name="crash")
    old, new = server.create_database("old"), server.create_database("new")
    for database in (old, new):
        database.execute(TABLES)
    prepare(old, new)
    move(old, new)
    with fenced(new) as fence:
        pointer.decide(fence.connection, "main", "one", TOKEN)
        server.kill()
    server.restart()
    with psycopg.connect(new.uri) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute(WRITE)
    assert not accepts(old, WRITE)


@pytest.fixture
def stranger(server: Server) -> Iterator[str]:
    """A role that can connect to every database, and has no privileges."""
    role, admin_database = f"stranger_{os.getpid()}", server.database("postgres")
    name = sql.Identifier(role)
    admin_database.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'x'").format(name))
    yield role
    admin_database.execute(sql.SQL("DROP ROLE {}").format(name))


def test_a_role_without_privileges_stops_no_one(server: Server, moving: Moving, stranger: str) -> None:
    """It takes every lock that it can, and writers and a switchover do not wait for it."""
    old, new = moving.old, moving.new
    # What ALTER DEFAULT PRIVILEGES grants on new objects is taken away again.
    for database in (old, new):
        for kind in ("TABLES", "SEQUENCES", "FUNCTIONS", "SCHEMAS"):
            database.execute(f"ALTER DEFAULT PRIVILEGES GRANT ALL ON {kind} TO PUBLIC, {stranger}")
        database.execute("GRANT CREATE ON SCHEMA public TO PUBLIC")
    moving.prepare()
    try:
        with ExitStack() as stack:
            writer = stack.enter_context(psycopg.connect(old.uri))
            writer.execute("UPDATE visits SET price = 2 WHERE id = 2")
            for database in (old, new):
                connection = stack.enter_context(psycopg.connect(server.uri(database.name, stranger, "x")))
                assert not any(
                    connection.execute(f"SELECT trueup_app.switchover_open('main', '{guess}')").fetchone() != (False,)
                    for guess in ("", "a guess")
                )
                assert connection.execute("SELECT state FROM trueup_app.switchover_enter('main')").fetchone()
                assert _forbidden(connection) == []
                held = "SELECT mode FROM pg_locks WHERE relation = 'trueup.switchover_lock'::regclass AND pid = %s"
                assert database.execute(held, [connection.info.backend_pid]) == []
            writer.commit()
            moving.old.execute("UPDATE visits SET price = 1 WHERE id = 1")
            moving.execute(budget=30.0)
            moving.rollback(budget=30.0)
    finally:
        for database in (old, new):
            database.execute(f"DROP OWNED BY {stranger}")


def _forbidden(connection: psycopg.Connection) -> list[str]:
    """Return what the role may do and should not."""
    done = []
    # A request for a lock that waits for a writer would stop all later writers, even if it is refused in the end.
    connection.execute("SET lock_timeout = '1s'")
    connection.commit()
    for statement in (
        "CREATE RULE r AS ON INSERT TO trueup.switchover_lock DO NOTHING",
        "CREATE RULE r AS ON INSERT TO trueup.switchover DO NOTHING",
        "LOCK TABLE trueup.switchover_lock IN ACCESS SHARE MODE",
        "LOCK TABLE trueup.switchover_lock IN EXCLUSIVE MODE",
        "SELECT FROM trueup.switchover_lock FOR KEY SHARE",
        "SELECT * FROM trueup.switchover",
        "UPDATE trueup.switchover SET state = 'idle'",
        "SELECT last_value FROM trueup.switchover_changed_main",
        "SELECT setval('trueup.switchover_changed_main', 1)",
        "SELECT trueup.switchover_changed('main')",
        "SELECT * FROM trueup.syncs",
        "CREATE TABLE trueup.mine ()",
        "CREATE TABLE public.mine (); CREATE TRIGGER g BEFORE INSERT ON public.mine"
        " EXECUTE FUNCTION trueup.switchover_guard('main')",
    ):
        with suppress(psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedTable):
            with connection.transaction():
                connection.execute(statement.encode())
            done.append(statement)
    return done


def test_partitions_that_are_created_later_are_closed_too(databases: Databases) -> None:
    """Of a loader that still runs on the closed database, without an event trigger; and the way back works."""
    old, new = databases(2)
    for database in (old, new):
        database.execute(
            "CREATE TABLE q (id int PRIMARY KEY); CREATE TABLE p (a int, b int, v int, PRIMARY KEY (a, b))"
            " PARTITION BY LIST (a);"
            "CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);"
            "CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2) PARTITION BY LIST (b);"
        )
    old.execute("INSERT INTO p SELECT 1, i FROM generate_series(1, 50) i")
    moving = begin(old, new)
    moving.prepare()
    assert "it accepts writes, and trueup switchover status names it" in str(moving.execute().unchecked)
    old.execute("CREATE TABLE p3 PARTITION OF p FOR VALUES IN (3); CREATE TABLE p21 PARTITION OF p2 FOR VALUES IN (1)")
    old.execute("CREATE TABLE p4 (LIKE p INCLUDING ALL); ALTER TABLE p ATTACH PARTITION p4 FOR VALUES IN (4)")
    writes = ["INSERT INTO p VALUES (3, 1, 0)", "INSERT INTO p3 VALUES (3, 2, 0)", "INSERT INTO p21 VALUES (2, 1, 0)"]
    writes += ["INSERT INTO p4 VALUES (4, 1, 0)", "COPY p3 FROM PROGRAM 'echo 3,1,1' (FORMAT csv)"]
    # A session of another role that claims to be the sync is none.
    claims = f"{moving.as_sync()} SET session_replication_role = replica;"
    old.execute("CREATE ROLE loader_28; GRANT INSERT ON p3 TO loader_28")
    try:
        with psycopg.connect(old.uri) as loader:
            loader.execute(claims.encode())
            loader.execute("SET SESSION AUTHORIZATION loader_28")
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="new is in use"):
                loader.execute("INSERT INTO p3 VALUES (3, 7, 0)")
    finally:
        old.execute("DROP OWNED BY loader_28; DROP ROLE loader_28")
    for write in writes:
        assert not accepts(old, write), write
    seen = status(moving.request())
    added = ("public.p21", "public.p3", "public.p4")
    assert seen.first.added == tuple((name, False) for name in added)
    assert "    public.p3 was created on old after it was closed\n" in status_text(seen)
    assert not seen.second.added
    # What is not closed is named: a table that is created again, and one whose trigger per row was disabled.
    old.execute("ALTER TABLE q RENAME TO q_old; CREATE TABLE q (LIKE q_old INCLUDING ALL)")
    assert "public.q was created on old after it was closed, and accepts writes" in status_text(
        status(moving.request())
    )
    old.execute("DROP TABLE q; ALTER TABLE q_old RENAME TO q")
    old.execute("ALTER TABLE p3 DISABLE TRIGGER trueup_rows_main")
    assert ("public.p3", True) in status(moving.request()).first.added
    old.execute("ALTER TABLE p3 ENABLE ALWAYS TRIGGER trueup_rows_main")
    new.execute("INSERT INTO p VALUES (1, 100, 1); UPDATE p SET v = 2 WHERE b < 5; DELETE FROM p WHERE b = 7")
    # A rehearsal of the way back leaves the closed database closed.
    old.execute("DROP TABLE p3, p4, p21")
    moving.run_sync_back()
    moving.rehearse(rollback=True)
    old.execute("CREATE TABLE p3 PARTITION OF p FOR VALUES IN (3)")
    assert not accepts(old, writes[0])
    old.execute("DROP TABLE p3")
    moving.rollback()
    assert moving.differences(["p"]) == []
    for database in (old, new):
        database.execute("CREATE TABLE p3 PARTITION OF p FOR VALUES IN (3)")
        assert accepts(database, writes[0]) == (database is old)
    row_guards = "SELECT tgrelid::regclass::text FROM pg_trigger WHERE tgname = 'trueup_rows_main' AND tgparentid = 0"
    assert (old.execute(row_guards), new.execute(row_guards)) == ([], [("p",)])
    ending.reset(moving.request())
    for database in (old, new):
        assert accepts(database, writes[0])
        assert database.execute("SELECT 1 FROM pg_trigger WHERE tgname ~ '^trueup_(rows|guard)_'") == []
