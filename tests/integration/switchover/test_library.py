"""`trueup.Sync` and `trueup.Switchover`, with public names only."""

from __future__ import annotations

from typing import Any

import pytest

import trueup
from support.fixtures import Databases
from support.switchover import ROWS, SCHEMA, TABLES
from trueup.testing.postgres import Database


def _rows(database: Database) -> list[Any]:
    return [database.execute(f"SELECT * FROM {table} ORDER BY 1, 2") for table in TABLES]


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
