"""A crash of a server whose sessions commit asynchronously loses nothing that was acknowledged on another server."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import psycopg
import pytest

from support.cut import CuttingProxy
from support.fixtures import Databases
from support.servers import Backup, fail_over
from support.sync import make_pair
from support.validate import PG_BIN, Copy
from trueup.api.tube import Tube
from trueup.config.model import Node
from trueup.db import commit
from trueup.db.commit import CommitUnknown, confirmed_transaction
from trueup.db.node import connect
from trueup.testing.postgres import Database, Server
from trueup.testing.processes import wait_until

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def careless() -> Iterator[Server]:
    """A server whose databases have asynchronous commits, which reach the disk much later."""
    settings = {"synchronous_commit": "off", "wal_writer_delay": "10s", "autovacuum": "off"}
    with Server.start(name="careless", bin_dir=PG_BIN, settings=settings) as server:
        yield server


@pytest.fixture
def target(careless: Server) -> Database:
    """A new database of that server; its own setting overrides that of the server."""
    database = careless.create_database(f"careless_{next(_numbers)}")
    careless.database("postgres").execute(f"ALTER DATABASE {database.name} SET synchronous_commit = off")
    # The server writes everything to the disk now, and nothing of it later by itself.
    careless.database("postgres").execute("CHECKPOINT")
    return database


def _crash(server: Server) -> None:
    server.kill()
    server.restart()


@pytest.mark.parametrize("order", ["", "REFERENCES t (id)"], ids=["small", "ordered"])
def test_rows_of_a_sync_survive_a_crash_of_the_target(databases: Databases, target: Database, order: str) -> None:
    pair = make_pair(databases(1)[0], target)
    pair.both(f"CREATE TABLE t (id int PRIMARY KEY, other int {order})")
    pair.source.execute("INSERT INTO t SELECT i FROM generate_series(1, 10) i")
    pair.start()
    _crash(target.server)
    pair.check_equal(["t"])
    pair.source.execute("INSERT INTO t SELECT i FROM generate_series(11, 20) i")
    pair.run(once=True)
    assert pair.source.execute("SELECT count(*) FROM trueup_log.pods_main") == [(0,)]
    _crash(target.server)
    pair.check_equal(["t"])


def test_rows_of_a_tube_survive_a_crash_of_the_target(databases: Databases, target: Database) -> None:
    source = databases(1)[0]
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    # A trigger of the target changes the setting of the session.
    target.execute(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE FUNCTION hurry() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN PERFORM set_config('synchronous_commit', 'off', false); RETURN NEW; END$$;"
        "CREATE TRIGGER hurry BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION hurry()"
    )
    Tube.install(source.uri)
    with Tube("t", source.uri) as tube:
        tube.ensure()
        tube.attach("public.t", shard=1)
        source.execute("INSERT INTO t SELECT i FROM generate_series(1, 10) i")
        tube.run(target.uri, until_empty=True)
    assert source.execute("SELECT count(*) FROM tube.pods_t") == [(0,)]
    _crash(target.server)
    assert target.execute("SELECT count(*) FROM t") == [(10,)]


def test_an_error_of_a_validation_survives_a_crash_of_the_meta_database(databases: Databases, target: Database) -> None:
    copy = Copy(databases(1)[0], target)
    copy.both("CREATE TABLE t (id int PRIMARY KEY)")
    copy.start("public.t", changes="changelog", syncer="lag:0.1")
    copy.up.execute("INSERT INTO t VALUES (1)")
    copy.until(copy.errors)
    copy.until(lambda: copy.up.execute("SELECT sum(live_pods) FROM trueup_changes.tube_stats()") == [(0,)])
    _crash(target.server)
    copy.stop()
    assert [list(error.key) for error in copy.errors()] == [["1"]]


def test_a_session_does_not_inherit_an_isolation_level(target: Database) -> None:
    """Tasks that write one table at the same time would refuse one another, and a round would never end."""
    target.execute(f"ALTER DATABASE {target.name} SET default_transaction_isolation = serializable")
    for read_only in (True, False):
        with connect(Node("n1", target.uri), application="test", read_only=read_only) as connection:
            assert connection.execute("SHOW transaction_isolation").fetchone() == ("read committed",)


def test_a_session_keeps_a_stricter_setting(target: Database) -> None:
    for setting, expected in (("off", "on"), ("local", "on"), ("remote_write", "remote_write"), ("remote_apply",) * 2):
        target.execute(f"ALTER DATABASE {target.name} SET synchronous_commit = {setting}")
        with connect(Node("n1", target.uri), application="test", read_only=False) as connection:
            assert connection.execute("SHOW synchronous_commit").fetchone() == (expected,)


@pytest.fixture
def is_committing(target: Database, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], bool]:
    """An empty table, and how to recognize the COMMIT of `_insert`."""
    monkeypatch.setattr(commit, "ASK_SECONDS", 0.5)
    target.execute("CREATE TABLE t (id int)")
    target.execute("CHECKPOINT")
    return lambda data: b"COMMIT\x00" in data


def _insert(target: Database, proxy: CuttingProxy) -> None:
    node = Node("n", proxy.address(target.uri))
    with closing(connect(node, application="t", read_only=False)) as connection, confirmed_transaction(connection):
        connection.execute("INSERT INTO public.t VALUES (1)")


def test_a_crash_before_the_commit(target: Database, is_committing: Callable[[bytes], bool]) -> None:
    """The transaction is known to be rolled back, also if its id is assigned again."""
    with (
        closing(CuttingProxy(target.server.port, when=is_committing, during=lambda: _crash(target.server))) as proxy,
        pytest.raises(psycopg.OperationalError),
    ):
        _insert(target, proxy)
    assert target.execute("SELECT FROM t") == []


def test_a_crash_after_the_commit(target: Database, is_committing: Callable[[bytes], bool]) -> None:
    """The id of the transaction may have been assigned again, so it is not known that this one was committed."""

    def crash() -> None:
        assert wait_until(lambda: target.execute("SELECT FROM t") != [], 60)
        _crash(target.server)

    with (
        closing(CuttingProxy(target.server.port, way="unanswered", when=is_committing, during=crash)) as proxy,
        pytest.raises(CommitUnknown, match="the server was restarted"),
    ):
        _insert(target, proxy)
    assert target.execute("SELECT FROM t") == [()]


def test_a_failover_during_the_commit(target: Database, is_committing: Callable[[bytes], bool]) -> None:
    """The standby does not have the transaction, and assigns its id to another one."""
    backup = Backup(target.server)
    with closing(CuttingProxy(target.server.port, way="unanswered", when=is_committing)) as proxy, ExitStack() as stack:
        stack.callback(backup.remove)
        standby = stack.enter_context(backup.standby())
        stack.callback(target.server.restart)
        standby.stop()
        copy = standby.database(target.name)

        def promote() -> None:
            assert wait_until(lambda: target.execute("SELECT FROM t") != [], 60)
            fail_over(target.server, standby)
            for _ in range(3):
                copy.execute("CREATE TABLE other (); DROP TABLE other")
            proxy.to = standby.port

        proxy.during = promote
        with pytest.raises(CommitUnknown, match="is on timeline 2, before on 1"):
            _insert(target, proxy)
        assert copy.execute("SELECT FROM t") == []
