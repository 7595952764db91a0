"""Random rows of three tables with foreign keys are repaired in one go on each node, and an undo restores them."""

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
from trueup.report.repairs import run_text
from trueup.testing.postgres import Database, Server

Nodes = list[tuple[Database, Connection]]
Rows = dict[str, list[tuple[Any, ...]]]

TABLES = """
    CREATE TABLE c_top (id int PRIMARY KEY, up int REFERENCES c_top, v int);
    CREATE TABLE b_middle (id int PRIMARY KEY, top int NOT NULL REFERENCES c_top ON DELETE CASCADE, v int);
    CREATE TABLE a_bottom (id int PRIMARY KEY, middle int REFERENCES b_middle ON DELETE SET NULL,
                           top int REFERENCES c_top, v int)
"""
NAMES = ("c_top", "b_middle", "a_bottom")
ids = st.integers(1, 6)


@st.composite
def databases(draw: st.DrawFn) -> Rows:
    """Draw rows whose foreign keys hold."""

    def some(parents: list[int], *, required: bool) -> int | None:
        return draw(st.sampled_from(parents) if required else st.sampled_from([None, *parents]))

    tops = sorted(draw(st.sets(ids)))
    top = [(id_, some(tops, required=False), draw(ids)) for id_ in tops]
    middle = [(id_, some(tops, required=True), draw(ids)) for id_ in sorted(draw(st.sets(ids)))] if tops else []
    middles = [row[0] for row in middle]
    bottom = [
        (id_, some(middles, required=False), some(tops, required=False), draw(ids))
        for id_ in sorted(draw(st.sets(ids)))
    ]
    return {"c_top": top, "b_middle": middle, "a_bottom": bottom}


@pytest.fixture(scope="module")
def nodes(server: Server) -> Iterator[Nodes]:
    """Create two databases with a session for each."""
    created = [server.create_database(f"runs_{os.getpid()}_{number}") for number in (1, 2)]
    sessions = [psycopg.connect(database.uri, autocommit=True) for database in created]
    for session in sessions:
        session.execute(TABLES)
    yield list(zip(created, sessions, strict=True))
    for database, session in zip(created, sessions, strict=True):
        session.close()
        database.drop()


def rows_of(session: Connection) -> Rows:
    return {name: session.execute(f"SELECT * FROM {name} ORDER BY 1").fetchall() for name in NAMES}


def fill(session: Connection, rows: Rows) -> None:
    session.execute("TRUNCATE c_top, b_middle, a_bottom")
    for name in NAMES:
        with session.cursor().copy(f"COPY {name} FROM STDIN") as copy:
            for row in rows[name]:
                copy.write_row(row)


@settings(derandomize=True, deadline=None, database=None, max_examples=3, suppress_health_check=[HealthCheck.too_slow])
@given(first=databases(), second=databases(), fire=st.booleans(), truth=st.sampled_from(["n1", "n2"]))
def test_random_rows_of_three_tables(nodes: Nodes, first: Rows, second: Rows, fire: bool, truth: str) -> None:
    sessions = [session for _, session in nodes]
    for session, rows in zip(sessions, (first, second), strict=True):
        fill(session, rows)
    addresses = {f"n{number}": database.uri for number, (database, _) in enumerate(nodes, 1)}
    options: dict[str, Any] = {"nodes": addresses, "engine": "local", "recheck": 0}
    run = trueup.diff_many(schemas=["public"], **options)
    done = trueup.repair_many(run.report, source_of_truth=truth, fire_triggers=fire, execute=True, **options)
    assert done.exit_code == 0, run_text(done)
    wanted = {"n1": first, "n2": second}[truth]
    assert [rows_of(session) for session in sessions] == [wanted, wanted]
    if done.undo:
        assert trueup.undo_many(done.undo, nodes=addresses, fire_triggers=fire, execute=True).verdict == "UNDONE"
    assert [rows_of(session) for session in sessions] == [first, second]
