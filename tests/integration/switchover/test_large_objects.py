"""Large objects are copied, kept up to date, and compared before the switch: writes to them fire no trigger."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import psycopg
import pytest

from support.fixtures import Databases
from support.switchover import begin
from support.sync import Pair, make_pair
from trueup.db.connection import Connection
from trueup.errors import CheckFailed
from trueup.rows.write import large_objects
from trueup.testing.postgres import Database
from trueup.verbs.switchover import pause as pauses
from trueup.verbs.switchover.gate import GateClosed
from trueup.verbs.sync.ending import drop
from trueup.verbs.sync.request import Scope

SCHEMA = "CREATE TABLE files (id int PRIMARY KEY, content oid)"
ROWS = """
INSERT INTO files VALUES (1, lo_from_bytea(50001, 'one')), (2, lo_from_bytea(50002, ''));
INSERT INTO files
 SELECT 3, lo_from_bytea(50003, string_agg(sha512(g::text::bytea), '')) FROM generate_series(1, 40000) g;
GRANT SELECT ON LARGE OBJECT 50001 TO PUBLIC; SELECT lo_create(50004);
"""
CHANGES = """
SELECT lo_put(50001, 1, 'X'), lo_put(50003, 2000000, 'changed'); REVOKE ALL ON LARGE OBJECT 50001 FROM PUBLIC;
SELECT lo_truncate(lo_open(50003, 131072), 2100000);
"""
CONTENT = """
SELECT m.oid::int, m.lomowner::regrole::text, md5(lo_get(m.oid)),
       ARRAY(SELECT a::text FROM unnest(coalesce(m.lomacl, acldefault('L', m.lomowner))) a ORDER BY 1)
  FROM pg_largeobject_metadata m
 WHERE m.oid IN (SELECT content FROM files) ORDER BY 1
"""


@pytest.fixture
def role(databases: Databases) -> Iterator[str]:
    """The name of a role, which is dropped from the shared server with what it owns."""
    name = f"files_{os.getpid()}"
    yield name
    (database,) = databases(1)
    for (found,) in database.execute("SELECT datname FROM pg_database WHERE datname LIKE 'test\\_%'"):
        database.execute(f"ALTER DATABASE {found} OWNER TO postgres")
        database.server.database(found).execute(f"DROP OWNED BY {name}, {name}_owner CASCADE")
    database.execute(f"DROP ROLE {name}, {name}_owner")


def test_a_role_that_is_no_superuser(databases: Databases, role: str) -> None:
    """The owner is created with the schema; a start that is killed between large objects continues, or is dropped."""
    old, new = databases(2)
    owner = f"{role}_owner"
    old.execute(
        f"CREATE ROLE {role} LOGIN CREATEROLE PASSWORD 'x'; CREATE ROLE {owner}; {SCHEMA};"
        f"{ROWS}; ALTER TABLE files OWNER TO {owner}; GRANT CREATE ON SCHEMA public TO {owner};"
        f"SELECT count(*) FROM (SELECT lo_from_bytea(50000 + g, 'x') FROM generate_series(5, 9) g) x;"
    )
    for oid in range(50001, 50010):
        old.execute(f"ALTER LARGE OBJECT {oid} OWNER TO {owner}")
    for database in (old, new):
        database.execute(f"ALTER DATABASE {database.name} OWNER TO {role}")
    uris = [database.server.uri(database.name, role, "x") for database in (old, new)]
    pair = make_pair(old, new, source_uri=uris[0], target_uri=uris[1]).with_scope(Scope("main", create_schema=True))
    reasons = {problem.where: problem.what for problem in pair.plan().problems}
    assert reasons["large objects"] == f"the role on the source is not a member of their owner {owner}"
    old.execute(f"GRANT {owner} TO {role}")
    for then in (lambda: drop(pair.request, timeout=30), lambda: None):
        kill_at(50003, pair)
        assert new.execute("SELECT oid::int FROM pg_largeobject_metadata ORDER BY 1") == [(50001,), (50002,)]
        then()
    pair.start()
    assert old.execute(CONTENT) == new.execute(CONTENT)
    assert new.execute("SELECT count(*) FROM trueup.sync_large_objects") == [(0,)]
    # One that is removed after it was listed is left out.
    old.execute("SELECT lo_from_bytea(50010, 'short')")

    @contextmanager
    def writing() -> Iterator[None]:
        old.execute("SELECT lo_unlink(50010)")
        with target.transaction():
            yield

    with psycopg.connect(old.uri, autocommit=True) as source, psycopg.connect(new.uri, autocommit=True) as target:
        assert large_objects.make_equal(source, target, writing) == 1
    assert new.execute("SELECT count(*) FROM pg_largeobject_metadata WHERE oid = 50010") == [(0,)]


def kill_at(number: int, pair: Pair) -> None:
    """Start the sync in a process that commits each large object, and is killed when it has created this one."""
    make_equal = large_objects.make_equal

    def copy(source: Connection, target: Connection, writing: Any, created: Callable[[int], object]) -> int:
        def kill(oid: int) -> None:
            created(oid)
            if oid == number:
                os.kill(os.getpid(), signal.SIGKILL)

        return make_equal(source, target, writing, kill)

    def start() -> None:
        large_objects.TOGETHER = 1
        large_objects.make_equal = copy  # type: ignore[assignment]
        pair.start()

    process = multiprocessing.get_context("fork").Process(target=start)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


def test_large_objects_are_moved_and_moved_back(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = databases(2)
    for database in (old, new):
        database.execute(SCHEMA)
    old.execute(ROWS)
    # A number that is in use on the target is refused, and its object stays.
    new.execute("SELECT lo_from_bytea(50001, 'mine')")
    with pytest.raises(CheckFailed, match="large objects: these numbers are used on the target already: 50001"):
        begin(old, new)
    check_content(new, 50001, b"mine")
    new.execute("SELECT lo_unlink(50001), lo_from_bytea(777, 'stays')")
    moving = begin(old, new)
    assert old.execute(CONTENT) == new.execute(CONTENT)
    assert new.execute("SELECT lo_get(50004), lo_get(777)") == [(b"", b"stays")]
    # Written in place, without a touch of a row; shorter; with other rights.
    old.execute(CHANGES)
    moving.run_sync()
    assert old.execute(CONTENT) == new.execute(CONTENT)

    # Just before the pause: copied inside of it. After that: the gate is closed.
    pause, make_equal, numbers = pauses.pause, large_objects.make_equal, count(1)

    def paused(*arguments: Any) -> Any:
        old.execute("SELECT lo_put(50002, 0, 'late')")
        return pause(*arguments)

    def spoiled(*arguments: Any) -> int:
        written = make_equal(*arguments)
        old.execute(f"SELECT lo_put(50001, 0, 'rogue {next(numbers)}')")
        return written

    monkeypatch.setattr(pauses, "pause", paused)
    with monkeypatch.context() as patch:
        patch.setattr(large_objects, "make_equal", spoiled)
        with pytest.raises(GateClosed, match="large objects equal: large objects differ: 50001"):
            moving.execute()
    assert moving.accepts_writes("DELETE FROM files") == ["old"]
    outcome = moving.execute()
    assert {condition.name: condition.detail for condition in outcome.conditions}["large objects equal"] == "4"
    check_content(new, 50002, b"late")
    check_content(new, 50001, b"rogue 2")
    monkeypatch.setattr(pauses, "pause", pause)
    new.execute("UPDATE files SET content = lo_from_bytea(60000, 'new') WHERE id = 1; SELECT lo_put(50002, 4, '!')")
    moving.rollback(proof="digest")
    check_content(old, 50002, b"late!")
    check_content(old, 60000, b"new")


# Two contents with the same md5 (Wang and others, 2004), which they keep if the same is appended to both.
TWIN = (
    "d131dd02c5e6eec4693d9a0698aff95c2fcab58712467eab4004583eb8fb7f8955ad340609f4b30283e488832571415a085125e8f7cdc99f"
    "d91dbdf280373c5bd8823e3156348f5bae6dacd436c919c6dd53e2b487da03fd02396306d248cda0e99f33420f577ee8ce54b67080a80d1e"
    "c69821bcb6a8839396f9652b6ff72a70"
)
# The bytes that differ have another highest bit.
_TURNED = (19, 45, 59, 83, 109, 123)


def test_contents_that_were_made_to_have_the_same_hash_differ(databases: Databases) -> None:
    twin = bytes.fromhex(TWIN)
    other = bytes(byte ^ 0x80 if place in _TURNED else byte for place, byte in enumerate(twin))
    assert hashlib.md5(twin).digest() == hashlib.md5(other).digest()
    pair = databases(2)
    for database, content in zip(pair, (twin, other), strict=True):
        database.execute("SELECT lo_from_bytea(70001, %s), lo_from_bytea(70002, 'same')", [content])
    with psycopg.connect(pair[0].uri) as source, psycopg.connect(pair[1].uri) as target:
        assert large_objects.unequal(source, target) == ["large objects differ: 70001"]


def check_content(database: Database, oid: int, content: bytes) -> None:
    assert database.execute(f"SELECT lo_get({oid})") == [(content,)]
