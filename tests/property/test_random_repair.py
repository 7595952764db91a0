"""Random differences are repaired so that the nodes match, and an undo restores the rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trueup
from trueup.db.connection import Connection
from trueup.testing.postgres import Database, Server

Nodes = list[tuple[Database, Connection]]

# Unique values of all kinds: a constraint, an index over an expression, an exclusion, a deferrable constraint.
TABLE = """
CREATE TABLE items (k0 text, k1 numeric, u int NOT NULL UNIQUE, a text, n numeric, e text NOT NULL, s int4range,
    d int UNIQUE DEFERRABLE, EXCLUDE USING gist (s WITH &&), PRIMARY KEY (k0, k1));
CREATE UNIQUE INDEX ON items (lower(e));
"""
# Few keys and few unique values: rows meet, swap and collide.
keys = st.tuples(st.sampled_from(["", "a", "A\t", "\\N", "é'"]), st.sampled_from(["0", "1.5", "-1", "1e30"]))
rows = st.tuples(st.sampled_from(["", "x", "\\", "a\tb\n", None]), st.sampled_from(["1", "1.0", "NaN", None]))
tables = st.dictionaries(keys, rows, max_size=12)


@pytest.fixture(scope="module")
def nodes(server: Server) -> Iterator[Nodes]:
    """Create three databases with a session for each."""
    databases = [server.create_database(f"repair_{os.getpid()}_{number}") for number in (1, 2, 3)]
    sessions = [psycopg.connect(database.uri, autocommit=True) for database in databases]
    for session in sessions:
        session.execute(TABLE)
    yield list(zip(databases, sessions, strict=True))
    for database, session in zip(databases, sessions, strict=True):
        session.close()
        database.drop()


def all_rows(session: Connection) -> list[tuple[Any, ...]]:
    return session.execute("SELECT k0, k1::text, u, a, n::text, e, s::text, d FROM items ORDER BY 1, 2").fetchall()


@settings(derandomize=True, deadline=None, database=None, max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_random_differences_are_repaired_and_undone(nodes: Nodes, data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 3), "nodes")
    for _, session in nodes[:count]:
        drawn = data.draw(tables, "rows")
        places, labels, spans, late = (data.draw(st.permutations(range(12)), "unique values") for _ in range(4))
        session.execute("TRUNCATE items")
        with session.cursor().copy("COPY items FROM STDIN") as copy:
            for ((k0, k1), (a, n)), u, e, start, d in zip(drawn.items(), places, labels, spans, late, strict=False):
                # Different texts, equal for the index.
                label = f"{'x' if u % 2 else 'X'}{e}"
                copy.write_row((k0, k1, u, a, n, label, f"[{start},{start + 1})", d))
    addresses = {f"n{number}": database.uri for number, (database, _) in enumerate(nodes[:count], 1)}
    options: dict[str, Any] = {"nodes": addresses, "engine": "local", "recheck": 0}
    report = trueup.diff("items", **options)
    before = [all_rows(session) for _, session in nodes[:count]]
    truth = data.draw(st.sampled_from(list(addresses)), "truth")
    dry = trueup.repair(report.report, source_of_truth=truth, **options)
    assert [all_rows(session) for _, session in nodes[:count]] == before
    done = trueup.repair(report.report, source_of_truth=truth, execute=True, **options)
    assert done.verdict == "REPAIRED"
    assert {node: counts for node, counts in dry.planned.items() if any(counts.values())} == done.written
    assert trueup.diff("items", **options).verdict == "MATCH"
    assert all_rows(nodes[list(addresses).index(truth)][1]) == before[list(addresses).index(truth)]
    if done.undo:
        assert trueup.undo(done.undo, nodes=addresses, execute=True).verdict == "UNDONE"
    assert [all_rows(session) for _, session in nodes[:count]] == before
