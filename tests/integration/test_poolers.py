"""pgbouncer between trueup, or an application, and the server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

import trueup
from support.fixtures import Databases
from support.pgbouncer import Bouncer, bouncer, line_of, needs_pgbouncer
from support.switchover import ROWS, SCHEMA, Moving, begin, wait_until
from trueup.config.model import Node
from trueup.db.node import connect
from trueup.errors import CheckFailed, ConfigError
from trueup.testing.postgres import Database, find_bin
from trueup.verbs.switchover.prepare import prepare_only

pytestmark = needs_pgbouncer
ROOT = Path(__file__).parents[2]

# What trueup would leave behind in a session, and one of the settings that pgbouncer sets for each client.
STATE = "SELECT pg_backend_pid(), string_agg(name || '=' || setting, ' ' ORDER BY name) FROM pg_settings" + (
    " WHERE source = 'session' AND name NOT IN ('application_name', 'client_encoding', 'TimeZone', 'DateStyle',"
    " 'IntervalStyle', 'standard_conforming_strings', 'transaction_isolation', 'transaction_read_only')"
)


@pytest.mark.parametrize(
    ("settings", "is_refused"),
    [
        ({"pool_mode": "session"}, False),
        ({"pool_mode": "session", "server_reset_query": ""}, True),
        ({"pool_mode": "transaction", "default_pool_size": "1"}, True),
        ({"pool_mode": "transaction", "server_round_robin": "1", "min_pool_size": "3"}, True),
        ({"pool_mode": "transaction", "server_reset_query_always": "1"}, True),
        ({"pool_mode": "transaction", "server_lifetime": "0"}, True),
        ({"pool_mode": "statement", "default_pool_size": "1"}, True),
    ],
    ids=lambda value: " ".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_sessions_that_other_clients_share_are_refused(
    databases: Databases, settings: dict[str, str], is_refused: bool
) -> None:
    (database,) = databases(1)
    with bouncer({"shop": database}, **settings) as pool:
        before = pool.query(STATE)
        node = Node("n1", pool.uri())
        if is_refused:
            with pytest.raises(CheckFailed, match=r"n1.*is a pooler") as caught:
                connect(node, application="test")
            assert "session mode" in caught.value.cure
            if "default_pool_size" in settings:
                # The only server session is as it was.
                assert pool.query(STATE) == before
        else:
            with connect(node, application="test") as first, connect(node, application="test") as second:
                for session in (first, second):
                    assert session.execute("SHOW default_transaction_read_only").fetchone() == ("on",)
        # No server session has a setting of trueup.
        assert [pool.query(STATE)[0][1] for _ in range(3)] == [None] * 3


@pytest.fixture
def pooled(databases: Databases) -> Iterator[tuple[Moving, Bouncer]]:
    """A sync of two databases, and a pgbouncer in transaction mode with both of them."""
    old, new = databases(2)
    for database in (old, new):
        database.execute(SCHEMA)
    old.execute(ROWS)
    # Fewer server sessions than clients: a client gets another one in each transaction.
    with bouncer({"shop": old, "shop_new": new}, default_pool_size="2") as pool:
        yield begin(old, new), pool


class Writers:
    """Threads that insert numbered rows, until they are stopped; `errors` is what their application saw."""

    def __init__(self, insert: Callable[[int], Callable[[str], object]], count: int = 4) -> None:
        self.written: list[list[str]] = [[] for _ in range(count)]
        self.errors: list[BaseException] = []
        self._insert = insert
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(count)]

    def _work(self, number: int) -> None:
        try:
            insert = self._insert(number)
            while not self._stopped.wait(0.003):
                name = f"w{number}-{len(self.written[number])}"
                insert(name)
                self.written[number].append(name)
        except BaseException as error:
            self.errors.append(error)

    def wait_for_more(self) -> None:
        """Wait until every thread has written some more rows: enough for a driver to prepare the statement."""
        counts = [len(names) for names in self.written]
        wait_until(
            lambda: (
                bool(self.errors)
                or all(len(names) > count + 8 for names, count in zip(self.written, counts, strict=True))
            )
        )
        assert self.errors == []

    @contextmanager
    def working(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            self.wait_for_more()
            yield
            self.wait_for_more()
        finally:
            self._stopped.set()
            for thread in self._threads:
                thread.join()
        assert self.errors == []

    def check(self, database: Database) -> None:
        rows = {name for (name,) in database.execute("SELECT name FROM people WHERE name LIKE 'w%'")}
        assert rows == {name for names in self.written for name in names}


def test_an_application_in_transaction_mode(pooled: tuple[Moving, Bouncer]) -> None:
    """Under load, there and back: no error, no row lost, and never around the pooler."""
    moving, pool = pooled
    moving.prepare()
    shop, shop_new = pool.uri("shop"), pool.uri("shop_new")
    # The pointer has the address of the server: the application would leave its pooler.
    with trueup.connect(shop) as db, pytest.raises(ConfigError, match=r"is a pooler, and no address of new"):
        db.execute("SELECT 1")
    pool.admin("SET pool_mode = statement")
    with trueup.connect([shop, shop_new]) as db, pytest.raises(ConfigError, match="statement pooling") as caught:
        db.execute("SELECT 1")
    assert "transaction" in caught.value.cure
    pool.admin("SET pool_mode = transaction")
    # psycopg prepares statements; behind a pooler only if the application asks for it.
    cases: list[tuple[str, dict[str, Any], int | None]] = [
        (moving.old.uri, {}, 5),
        (shop, {}, None),
        (shop, {"prepare_threshold": 7}, 7),
    ]
    for address, asked, threshold in cases:
        with trueup.connect(address, nodes={"new": shop_new}, **asked) as db, db.transaction() as connection:
            assert connection.prepare_threshold == threshold
    ways: list[dict[str, Any]] = [
        {"pointer": shop, "nodes": {"new": shop_new}},
        {"pointer": [shop, shop_new]},
        {"pointer": shop},
    ]
    prepare_only(moving.request(second_address=f"host=127.0.0.1 port={pool.port} dbname=shop_new user=postgres"))
    applications = [trueup.connect(**way) for way in (*ways, ways[0])]

    def insert(number: int) -> Callable[[str], object]:
        return lambda name: applications[number].execute("INSERT INTO people (name) VALUES (%s)", [name])

    writers = Writers(insert)
    with writers.working():
        moving.execute(proof="keys")
        writers.wait_for_more()
        assert {db.address.partition("@")[2] for db in applications} == {f"127.0.0.1:{pool.port}/shop_new)"}
        moving.rollback(proof="keys")
        writers.wait_for_more()
        assert {db.address.partition("@")[2] for db in applications} == {f"127.0.0.1:{pool.port}/shop)"}
    for db in applications:
        db.close()
    writers.check(moving.old)
    moving.run_sync()
    assert moving.differences() == []


def test_the_recipe_with_pause_and_reload(pooled: tuple[Moving, Bouncer]) -> None:
    """Run the commands of docs/switchover.md: an application without `trueup.connect` sees a delay and no error."""
    moving, pool = pooled
    moving.prepare()
    page = (ROOT / "docs" / "switchover.md").read_text(encoding="utf-8")
    recipe = next(block for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "PAUSE shop" in block)
    there = (
        recipe.replace("bouncer -p 6432", f"127.0.0.1 -p {pool.port} -U postgres")
        .replace("host=db2 port=5432 dbname=shop", line_of(moving.new))
        .replace("/etc/pgbouncer/pgbouncer.ini", str(pool.config))
        .replace("--budget 2s", "--budget 60s")
    )
    back = there.replace("execute", "rollback").replace(line_of(moving.new), line_of(moving.old))
    assert there.count(str(pool.port)) == 1
    clients = [psycopg.connect(pool.uri(), autocommit=True, prepare_threshold=None) for _ in range(4)]
    writers = Writers(
        lambda number: lambda name: clients[number].execute(f"INSERT INTO people (name) VALUES ('{name}')")
    )
    with writers.working():
        _shell(there, moving)
        writers.wait_for_more()
        assert moving.accepts_writes("DELETE FROM visits") == ["new"]
        _shell(back, moving)
    for client in clients:
        client.close()
    writers.check(moving.old)
    # If the switchover fails, the address stays, and the application continues where it was.
    _shell(there.replace("--budget 60s", "--budget 60s --close-keys 0 --proof validated"), moving, ok=False)
    assert line_of(moving.old) in pool.config.read_text()
    pool.query("INSERT INTO people (name) VALUES ('later') RETURNING 1")


def _shell(script: str, moving: Moving, *, ok: bool = True) -> None:
    names = {"n1": moving.first.conninfo, "n2": moving.second.conninfo}
    Path("trueup.toml").write_text(
        "[nodes]\n" + "\n".join(f'{name} = "{str.__str__(address)}"' for name, address in names.items())
    )
    path = os.pathsep.join((str(Path(sys.executable).parent), str(find_bin()), os.environ["PATH"]))
    done = subprocess.run(
        ["bash", "-c", script], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert ("moved" in done.stdout, "what to do" in done.stderr) == (ok, not ok), done.stdout + done.stderr
