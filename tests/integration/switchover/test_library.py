"""`trueup.Sync` and `trueup.Switchover`, with public names only."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

import trueup
from support.fixtures import Databases
from support.switchover import ROWS, SCHEMA, TABLES
from trueup.testing.postgres import Database


def _rows(database: Database) -> list[Any]:
    return [database.execute(f"SELECT * FROM {table} ORDER BY 1, 2") for table in TABLES]


def _lost(database: Database, action: Callable[[], object]) -> str | None:
    """Call a method whose session is ended while it waits for a lock; return the node that the error names."""
    ended = threading.Event()

    def end() -> None:
        while not ended.wait(0.02):
            if database.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                " AND application_name = 'trueup switchover' AND wait_event_type = 'Lock'"
            ):
                return

    thread = threading.Thread(target=end)
    with psycopg.connect(database.uri) as connection:
        # No session can create or drop a guard.
        connection.execute("LOCK TABLE people IN ACCESS EXCLUSIVE MODE")
        thread.start()
        try:
            with pytest.raises(trueup.TrueupError) as lost:
                action()
        finally:
            ended.set()
            thread.join()
    return lost.value.node


def test_copy_rounds_switchover_and_rollback(databases: Databases) -> None:
    old, new = databases(2)
    for database in (old, new):
        database.execute(SCHEMA)
    old.execute(ROWS)
    nodes = {"n1": old.uri, "n2": new.uri}
    sync = trueup.Sync("n1", "n2", nodes=nodes, engine="local")
    switchover = trueup.Switchover("n1", "n2", nodes=nodes)
    assert not sync.plan().problems
    assert len(sync.start().tables) == len(TABLES)
    old.execute("INSERT INTO people (name) VALUES ('late'); UPDATE places SET note = 'm'")
    assert sync.run().keys == 101
    assert sync.status().waiting == (0, 0, 0.0)
    assert _rows(new) == _rows(old)
    # Changes that were not recorded, and a table without a key that differs: both have one cure, which works.
    old.execute("ALTER TABLE places DISABLE TRIGGER USER; UPDATE places SET note = 'unseen'")
    (aside,) = sync.run().aside
    assert aside.what == "changes may not have been recorded: triggers are missing, disabled or replaced"
    assert aside.cure == "copy the table again: trueup sync add public.places"
    sync.add(["public.places"])
    new.execute("DELETE FROM notes WHERE ctid = (SELECT max(ctid) FROM notes)")
    assert _lost(old, switchover.prepare) == "n1"
    with pytest.raises(trueup.TrueupError, match=r"notes: 300 rows on n1, 299 rows on n2 \(it has no key: copy it"):
        switchover.rehearse(budget="60s")
    sync.add(["public.notes"])
    assert _rows(new) == _rows(old)
    assert _lost(old, switchover.reset) == "n1"
    assert switchover.prepare()[0] == "n1"
    old.execute("DELETE FROM visits WHERE id <= 10")
    moved = switchover.execute(proof="keys", budget="60s")
    assert (moved.source, moved.target, moved.proof) == ("n1", "n2", "keys")
    assert switchover.status().in_use == "n2"
    with pytest.raises(Exception, match="n2"):
        old.execute("DELETE FROM visits")
    new.execute("INSERT INTO people (name) VALUES ('on the new one')")
    assert switchover.rollback(budget=60.0).target == "n1"
    assert _rows(new) == _rows(old)
    assert switchover.finish().in_use == "n1"
    assert old.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'trueup%'") == []


def test_the_nodes_must_be_known_and_different() -> None:
    with pytest.raises(trueup.ConfigError, match="same node"):
        trueup.Sync("n1", "n1", nodes={"n1": "postgresql://nowhere/a", "n2": "postgresql://nowhere/b"})
    with pytest.raises(trueup.ConfigError, match="n3"):
        trueup.Sync("n1", "n3", nodes={"n1": "postgresql://nowhere/a", "n2": "postgresql://nowhere/b"})
