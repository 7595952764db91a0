"""Random drift, repaired: the nodes match, whatever differs; and taken back, they are as they were."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trueup
from trueup.testing.postgres import Server

TABLE = "CREATE TABLE items (k0 text, k1 numeric, u int UNIQUE, a text, n numeric, PRIMARY KEY (k0, k1))"
# Few keys and few unique values: rows meet, swap and collide.
keys = st.tuples(st.sampled_from(["", "a", "A\t", "\\N", "é'"]), st.sampled_from(["0", "1.5", "-1", "1e30"]))
rows = st.tuples(st.sampled_from(["", "x", "\\", "a\tb\n", None]), st.sampled_from(["1", "1.0", "NaN", None]))
tables = st.dictionaries(keys, rows, max_size=12)


@pytest.fixture(scope="module")
def nodes(server: Server) -> Iterator[list[Any]]:
    """Three databases, and a session with each."""
    databases = [server.create_database(f"mend_{os.getpid()}_{number}") for number in (1, 2, 3)]
    sessions = [psycopg.connect(database.uri, autocommit=True) for database in databases]
    for session in sessions:
        session.execute(TABLE)
    yield list(zip(databases, sessions, strict=True))
    for database, session in zip(databases, sessions, strict=True):
        session.close()
        database.drop()


def _all(session: Any) -> list[Any]:
    found: list[Any] = session.execute("SELECT k0, k1::text, u, a, n::text FROM items ORDER BY 1, 2").fetchall()
    return found


@settings(derandomize=True, deadline=None, database=None, max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_random_drift_is_repaired_and_taken_back(nodes: list[Any], data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 3), "nodes")
    for _, session in nodes[:count]:
        mine = data.draw(tables, "rows")
        places = data.draw(st.permutations(range(12)), "unique values")
        session.execute("TRUNCATE items")
        with session.cursor().copy("COPY items FROM STDIN") as copy:
            for place, ((k0, k1), (a, n)) in zip(places, mine.items(), strict=False):
                copy.write_row((k0, k1, place, a, n))
    given_nodes = {f"n{number}": database.uri for number, (database, _) in enumerate(nodes[:count], 1)}
    options: dict[str, Any] = {"nodes": given_nodes, "engine": "local", "recheck": 0}
    report = trueup.diff("items", **options)
    before = [_all(session) for _, session in nodes[:count]]
    truth = data.draw(st.sampled_from(list(given_nodes)), "truth")
    dry = trueup.repair(report.report, source_of_truth=truth, **options)
    assert [_all(session) for _, session in nodes[:count]] == before
    done = trueup.repair(report.report, source_of_truth=truth, execute=True, **options)
    assert done.verdict == "REPAIRED"
    assert {node: counts for node, counts in dry.planned.items() if any(counts.values())} == done.written
    assert trueup.diff("items", **options).verdict == "MATCH"
    assert _all(nodes[list(given_nodes).index(truth)][1]) == before[list(given_nodes).index(truth)]
    if done.undo:
        assert trueup.undo(done.undo, nodes=given_nodes, execute=True).verdict == "UNDONE"
    assert [_all(session) for _, session in nodes[:count]] == before
