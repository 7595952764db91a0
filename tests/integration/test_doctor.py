"""The doctor on real servers: problems are found with a cure, and healthy nodes have no finding."""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any, cast

import psycopg
import pytest

import trueup
from support.fixtures import OnAll
from trueup.db.connection import Connection
from trueup.testing.postgres import Database, Server
from trueup.testing.processes import wait_until
from trueup.verbs.doctor import nodes as doctor_nodes
from trueup.verbs.doctor.model import Diagnosis, Finding

ITEMS = """
    CREATE TABLE items (id int PRIMARY KEY, name text);
    INSERT INTO items SELECT i, 'item ' || i FROM generate_series(1, 50) i;
"""
EMPTY = "DROP SCHEMA IF EXISTS app, public CASCADE; CREATE SCHEMA public; GRANT USAGE ON SCHEMA public TO PUBLIC;"
_numbers = itertools.count(1)

Examine = Callable[..., Diagnosis]
AsRole = Callable[..., list[Database]]


@pytest.fixture
def examine() -> Examine:
    """`examine(databases, "items", …)`: return the diagnosis of nodes n1, n2, …, without Spark."""

    def run(nodes: list[Database], *tables: str, **options: Any) -> Diagnosis:
        addresses = {f"n{number}": node.uri for number, node in enumerate(nodes, 1)}
        return trueup.doctor(*tables, nodes=addresses, **{"engine": "local", **options})

    return run


@pytest.fixture
def role(server: Server) -> Iterator[AsRole]:
    """`role(nodes, grants, options)`: the nodes with addresses of a new role; {role} in `grants` is its name."""
    made: list[tuple[str, list[Database]]] = []

    def make(nodes: list[Database], grants: str = "", options: str = "") -> list[Database]:
        name = f"patient_{os.getpid()}_{next(_numbers)}"
        server.database("postgres").execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw' {options}")
        made.append((name, nodes))
        for node in nodes:
            node.execute(grants.format(role=name) or "SELECT 1")
        return [Database(node.name, server.uri(node.name, user=name, password="pw"), server) for node in nodes]

    yield make
    for name, nodes in made:
        for node in nodes:
            node.execute(f"DROP OWNED BY {name}")
        server.database("postgres").execute(f"DROP ROLE {name}")


@pytest.fixture(scope="module")
def pair(server: Server) -> Iterator[list[Database]]:
    """Two databases for all tests, because creating new ones takes most of the time."""
    made = [server.create_database(f"doctor_{os.getpid()}_{number}") for number in (1, 2)]
    yield made
    for database in made:
        database.drop()


@pytest.fixture
def two(pair: list[Database], on_all: OnAll) -> list[Database]:
    """Two nodes with the same small table."""
    on_all(pair, EMPTY + ITEMS)
    # In a separate transaction: rows inserted in the same transaction would count as changed later.
    on_all(pair, "ANALYZE items")
    return pair


def of(diagnosis: Diagnosis, check: str, where: str = "") -> Finding:
    """Return the only finding of a check, on a node."""
    found = [finding for finding in diagnosis.findings if finding.check == check and where in finding.where]
    assert len(found) == 1, diagnosis.findings
    return found[0]


def levels(diagnosis: Diagnosis, level: str) -> list[str]:
    # The servers of the tests have fsync = off.
    findings = [each for each in diagnosis.findings if each.level == level and each.check != "durability"]
    return [f"{each.check}: {each.message}" for each in findings]


def test_slots_without_a_limit(examine: Examine, two: list[Database]) -> None:
    """The log that a slot keeps for a process that was killed fills the disk, unless the server has a limit."""
    server = two[0].server.database("postgres")
    assert not [each for each in examine(two, "items").findings if each.check == "slots"]
    server.execute("SELECT pg_create_logical_replication_slot('left_behind', 'pgoutput')")
    try:
        found = of(examine(two, "items"), "slots", "n1")
        assert found.level == "WARN"
        assert found.message.startswith("the log that slots keep can fill the disk; no process reads left_behind (")
        assert "set max_slot_wal_keep_size" in found.cure
        for setting in ("max_slot_wal_keep_size = '2GB'", "idle_replication_slot_timeout = '1d'"):
            name = setting.partition(" ")[0]
            if not server.execute("SELECT FROM pg_settings WHERE name = %s", [name]):
                continue
            server.execute(f"ALTER SYSTEM SET {setting}")
            server.execute("SELECT pg_reload_conf()")
            try:
                # New sessions have the setting a moment later.
                limit = f"limited by {name} = "
                assert wait_until(lambda limit=limit: limit in of(examine(two), "slots", "n1").message, 30)  # type: ignore[misc]
            finally:
                server.execute(f"ALTER SYSTEM RESET {name}")
                server.execute("SELECT pg_reload_conf()")
    finally:
        server.execute("SELECT pg_drop_replication_slot('left_behind')")


def test_healthy_nodes(examine: Examine, two: list[Database]) -> None:
    found = examine(two, "items")
    assert (levels(found, "FAIL"), levels(found, "WARN"), found.exit_code) == ([], [], 0)
    checks = [finding.check for finding in found.findings]
    durability = of(found, "durability", "n1")
    assert (durability.level, "fsync = off" in durability.message) == ("WARN", True)
    for check in ("connection", "version", "session", "connections", "timeouts", "replication", "clock"):
        assert checks.count(check) == 2, check
    for check in ("configuration", "python", "packages", "tasks", "encoding", "collation", "row hash", "key"):
        assert checks.count(check) == 1, check
    assert of(found, "key").message == "(id) on n1, n2; 2 columns are compared"
    assert "readable and lockable" in of(found, "privileges", "n2 public.items").message
    assert "about 50 rows" in of(found, "statistics", "n1 public.items").message
    assert "native digest" in of(found, "row hash").message
    assert "wal_level logical, 0 of 10 slots used" in of(found, "replication", "n1").message


def test_a_server_that_is_down(examine: Examine, two: list[Database]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        gone = Database("gone", f"postgresql://app:s3cr3t-word@127.0.0.1:{taken.getsockname()[1]}/shop", two[0].server)
        found = examine([two[0], gone, two[1]], "items")
    assert found.exit_code == 2
    failure = of(found, "connection", "n2")
    assert failure.level == "FAIL"
    assert "refused" in failure.message
    assert "check that the server is running" in failure.cure
    assert "s3cr3t" not in json.dumps(found.as_json())
    # The other nodes are checked, and skipped checks are reported.
    assert of(found, "connection", "n3").level == "OK"
    assert of(found, "row hash").level == "OK"
    assert "not checked on n2" in of(found, "table").message
    assert of(found, "key").message.startswith("(id) on n1, n3")


def test_a_server_that_never_answers(examine: Examine, two: list[Database]) -> None:
    """The server accepts connections and never answers: the doctor waits for all nodes at once, until the timeout."""
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(1) as pool, ExitStack() as accepted:
        silent.settimeout(60)

        def first_is_open_when_the_second_arrives() -> bool:
            first, _ = (accepted.enter_context(silent.accept()[0]) for _ in range(2))
            first.setblocking(False)
            with suppress(BlockingIOError):
                while first.recv(1000):
                    pass
                return False
            return True

        is_open = pool.submit(first_is_open_when_the_second_arrives)
        uri = f"postgresql://app@127.0.0.1:{silent.getsockname()[1]}/shop?connect_timeout=2"
        found = examine([Database("x", uri, two[0].server), two[0], Database("y", uri, two[0].server)])
        assert is_open.result(60)
    assert [of(found, "connection", name).level for name in ("n1", "n2", "n3")] == ["FAIL", "OK", "FAIL"]
    assert of(found, "nodes", "all nodes").level == "FAIL"


def test_a_wrong_password(examine: Examine, two: list[Database], role: AsRole) -> None:
    reader = role(two)[0]
    wrong = Database(reader.name, reader.uri.replace(":pw@", ":not-the-word@"), reader.server)
    found = examine([two[0], wrong])
    assert "password authentication failed" in of(found, "connection", "n2").message
    assert "check the password" in of(found, "connection", "n2").cure
    assert "not-the-word" not in json.dumps(found.as_json())


@pytest.mark.parametrize(
    ("grants", "level", "message", "cure"),
    [
        ("GRANT SELECT ON items TO {role}", "OK", "readable and lockable", ""),
        ("", "FAIL", "cannot SELECT all columns", "GRANT SELECT ON public.items"),
        ("GRANT SELECT (id) ON items TO {role}", "FAIL", "cannot SELECT column name", "GRANT SELECT"),
        ("GRANT SELECT (id, name) ON items TO {role}", "WARN", "but not lockable", "as a whole"),
        (
            "GRANT SELECT ON items TO {role}; ALTER TABLE items ENABLE ROW LEVEL SECURITY",
            "FAIL",
            "row security hides rows",
            "BYPASSRLS",
        ),
    ],
)
def test_privileges(
    examine: Examine, two: list[Database], role: AsRole, grants: str, level: str, message: str, cure: str
) -> None:
    found = examine([two[0], role([two[1]], grants)[0]], "items")
    finding = of(found, "privileges", "n2 public.items")
    assert (finding.level, message in finding.message, cure in finding.cure) == (level, True, True), finding
    assert of(found, "privileges", "n1 public.items").level == "OK"
    # A table that cannot be read is OK in no other check.
    assert (of(found, "key").level == "FAIL") == (level == "FAIL")
    assert (of(found, "statistics", "n2").level == "FAIL") == (level == "FAIL")


def test_a_schema_without_usage(examine: Examine, two: list[Database], role: AsRole) -> None:
    two[1].execute("CREATE SCHEMA app; ALTER TABLE items SET SCHEMA app")
    two[0].execute("CREATE SCHEMA app; ALTER TABLE items SET SCHEMA app")
    found = examine([two[0], role([two[1]], "GRANT SELECT ON app.items TO {role}")[0]], "app.items")
    assert "no USAGE privilege on the schema" in of(found, "privileges", "n2").message
    assert "GRANT USAGE ON SCHEMA app" in of(found, "privileges", "n2").cure


def test_tables_that_cannot_be_compared(examine: Examine, two: list[Database], on_all: OnAll) -> None:
    on_all(two, "CREATE VIEW seen AS SELECT * FROM items")
    two[1].execute("ALTER TABLE items ADD COLUMN more int")
    found = examine(two, "itmes", "seen", "items")
    assert "did you mean public.items?" in of(found, "table", "n1 itmes").message
    assert "view" in of(found, "table", "n2 public.seen").message
    assert "column more of public.items is not on n1" in of(found, "table", "items").message
    assert found.exit_code == 2


def test_an_invalid_table_name(examine: Examine, two: list[Database]) -> None:
    found = examine(two, 'a"b', "items")
    assert "is not a valid name" in of(found, "table", 'a"b').message
    assert of(found, "key", "items").level == "OK"


def test_keys(examine: Examine, two: list[Database], on_all: OnAll) -> None:
    on_all(
        two,
        "CREATE TABLE bare (a int); CREATE TABLE uneven (a int NOT NULL UNIQUE, b int NOT NULL); ANALYZE bare, uneven",
    )
    two[1].execute("ALTER TABLE uneven DROP CONSTRAINT uneven_a_key, ADD UNIQUE (b)")
    found = examine(two, "bare", "uneven")
    bare = of(found, "key", "public.bare")
    assert (bare.level, "multiset" in bare.message, "--key" in bare.cure) == ("WARN", True, True)
    assert "the keys of public.uneven differ" in of(found, "table", "uneven").message
    assert found.exit_code == 2


def test_statistics(examine: Examine, two: list[Database], on_all: OnAll) -> None:
    on_all(
        two,
        """CREATE TABLE fresh (a int PRIMARY KEY);
           INSERT INTO fresh SELECT generate_series(1, 100);
           INSERT INTO items SELECT i, 'x' FROM generate_series(100, 5000) i""",
    )
    changed = "SELECT n_mod_since_analyze FROM pg_stat_user_tables WHERE relname = 'items'"
    assert wait_until(lambda: all(node.execute(changed)[0][0] > 4000 for node in two), 60)
    found = examine(two, "fresh", "items")
    never, many = of(found, "statistics", "n1 public.fresh"), of(found, "statistics", "n2 public.items")
    assert (never.level, "never analyzed" in never.message, never.cure) == ("WARN", True, "ANALYZE public.fresh")
    # The statistics of the rows that the table had before may arrive late, and count too.
    assert many.level == "WARN"
    assert re.search(r"\b[45],\d{3} rows changed since", many.message), many.message
    assert found.exit_code == 0
    on_all(two, "ANALYZE fresh; ANALYZE items; DELETE FROM items WHERE id = 1")
    assert wait_until(lambda: all(node.execute(changed)[0][0] == 1 for node in two), 60)
    assert levels(examine(two, "fresh", "items"), "WARN") == []
    # One row was changed, and the maximum age is zero.
    assert of(examine(two, "items", stats_days=0), "statistics", "n1").level == "WARN"


def test_rows_of_partitions_are_added_up(examine: Examine, two: list[Database], on_all: OnAll) -> None:
    on_all(
        two,
        """CREATE TABLE parts (a int PRIMARY KEY) PARTITION BY RANGE (a);
           CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (1000);
           INSERT INTO parts SELECT generate_series(1, 100); ANALYZE parts""",
    )
    found = of(examine(two, "parts"), "statistics", "n1")
    assert (found.level, "about 100 rows" in found.message) == ("OK", True), found


def test_a_lock_of_another_session(examine: Examine, two: list[Database]) -> None:
    with psycopg.connect(two[0].uri) as other:
        other.execute("LOCK TABLE items IN ACCESS EXCLUSIVE MODE")
        found = examine(two, "items")
    assert "locked by another session" in of(found, "privileges", "n1").message
    assert "not checked, because another session" in of(found, "statistics", "n1").message
    assert of(found, "statistics", "n2").level == "OK"
    assert found.exit_code == 0


def test_connections(examine: Examine, two: list[Database], role: AsRole) -> None:
    narrow = role(two, "GRANT SELECT ON items TO {role}", "CONNECTION LIMIT 2")

    def connections(**options: Any) -> Finding:
        # The server ends sessions a moment after they are closed.
        left = "SELECT FROM pg_stat_activity WHERE usename LIKE 'patient%'"
        assert wait_until(lambda: two[0].execute(left) == [], 60)
        return of(examine([narrow[0]], **options), "connections", "n1")

    found = connections(concurrency_factor=0.0)
    assert (found.level, "has 2 free" in found.message) == ("OK", True), found
    found = connections(concurrency_factor=4.0)
    assert (found.level, "lower --max-connections" in found.cure) == ("FAIL", True)
    assert connections(concurrency_factor=4.0, max_connections=2).level == "OK"
    assert "(n1, n2 are on one server)" in of(examine(two), "connections", "n1").message


def test_timeouts_of_the_role_are_reported(examine: Examine, two: list[Database], role: AsRole) -> None:
    hasty = role(two, "ALTER ROLE {role} SET statement_timeout = '30s'")
    found = of(examine(hasty), "timeouts", "n1")
    assert (found.level, "statement_timeout 30 s" in found.message) == ("OK", True)


@pytest.mark.parametrize("shift", [-5.0, 5.0])
def test_a_clock_that_is_off(
    examine: Examine, two: list[Database], monkeypatch: pytest.MonkeyPatch, shift: float
) -> None:
    assert of(examine([two[0]]), "clock").level == "OK"
    monkeypatch.setattr(doctor_nodes, "now", lambda: time.time() + shift)
    found = of(examine([two[0]]), "clock")
    assert found.level == "WARN"
    assert f"{'behind' if shift > 0 else 'ahead of'} this machine" in found.message
    # The answer may take a while.
    assert 3 < float(found.message.split()[0]) < 7


def test_latency_is_not_clock_skew() -> None:
    """After a round trip of four seconds, a clock difference of two seconds is not reported."""
    moments = iter([100.0, 104.0] * 5)

    class Line:
        def execute(self, query: str) -> Line:
            return self

        def fetchone(self) -> tuple[float]:
            return (103.5,)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor_nodes, "now", lambda: next(moments))
        assert doctor_nodes.clock_skew(cast("Connection", Line())) == (1.5, 2.0)


def test_encodings_and_collations(examine: Examine, server: Server, two: list[Database]) -> None:
    name = f"latin_{os.getpid()}"
    options = "ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    server.database("postgres").execute(f"CREATE DATABASE {name} {options}")
    other = server.database(name)
    try:
        found = examine([two[0], other])
        assert "encodings differ: UTF8 on n1, LATIN1 on n2" in of(found, "encoding").message
        assert of(found, "encoding").level == "FAIL"
        assert of(found, "collation", "all nodes").level == "WARN"
    finally:
        other.drop()


def test_one_database_under_two_names(examine: Examine, two: list[Database]) -> None:
    found = of(examine([two[0], two[0]]), "identity")
    assert (found.level, "one and the same database" in found.message) == ("WARN", True)


def test_a_standby(examine: Examine, fresh_server: Callable[..., Server]) -> None:
    server = fresh_server()
    server.database("postgres").execute("CREATE TABLE items (id int PRIMARY KEY); ANALYZE items")
    server.stop()
    (server.data_dir / "standby.signal").touch()
    os.chmod(server.data_dir / "standby.signal", 0o644)
    server.restart()
    found = examine([server.database("postgres")], "items")
    finding = of(found, "standby", "n1")
    assert (finding.level, "cancelled after 30s" in finding.message) == ("WARN", True)
    assert "hot_standby_feedback" in finding.cure
    assert found.exit_code == 0


def test_the_doctor_changes_nothing(examine: Examine, two: list[Database], server: Server) -> None:
    """A write would take a transaction id: the doctor takes none, and leaves no session."""
    newest = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text"
    # Autovacuum may take a transaction id meanwhile, but not each time.
    for _ in range(5):
        before = two[0].execute(newest)
        examine(two, "items")
        if two[0].execute(newest) == before:
            break
    else:
        pytest.fail("transactions that write were begun")
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'trueup doctor'"
    assert wait_until(lambda: server.database("postgres").execute(sessions)[0][0] == 0, 60)
