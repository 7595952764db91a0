"""Applications that write the rows of a running repair or undo see nothing but a short wait."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg
import pytest

from support.repair import Nodes, NodesWith
from trueup.db.connection import one_value
from trueup.rows.write.references import check_references
from trueup.testing.postgres import Database
from trueup.verbs.repair import write_table

# Rows 1 to 40 are changed, 41 to 60 are equal, 61 to 70 are missing, 71 to 80 are extra; 31 to 40 swap a unique value.
TABLES = """
CREATE TABLE items (id int PRIMARY KEY, name text, hits int NOT NULL DEFAULT 0, place int UNIQUE);
CREATE TABLE child (item int NOT NULL REFERENCES items);
CREATE INDEX ON child (item);
"""
TRUTH = "INSERT INTO items SELECT i, 'name ' || i, 0, i FROM generate_series(1, 70) i"
DRIFT = """
INSERT INTO items SELECT i, CASE WHEN i <= 40 THEN 'other' ELSE 'name ' || i END, 0,
    CASE WHEN i BETWEEN 31 AND 40 THEN 71 - i ELSE i END FROM generate_series(1, 60) i;
INSERT INTO items SELECT i, 'extra', 0, i FROM generate_series(71, 80) i
"""
# Rows that an application updates: all but those that come or go. Rows that refer to a row which gets another unique
# value wait until the commit.
USED = [*range(1, 61)]
REFERRED = [*range(1, 31), *range(41, 61)]


class Applications:
    """Two applications that write a database until they are stopped."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._stopped = threading.Event()
        self.increments: Counter[int] = Counter()
        self.children = 0
        self.errors: list[str] = []
        # The process numbers of their sessions.
        self.pids: list[int] = []

    @contextmanager
    def running(self) -> Iterator[Applications]:
        work = ((self._count, USED), (self._refer, REFERRED))
        threads = [threading.Thread(target=self._run, args=each) for each in work]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._stopped.set()
            for thread in threads:
                thread.join()

    def _run(self, work: Callable[[psycopg.Cursor[Any], int], None], items: list[int]) -> None:
        with psycopg.connect(self._database.uri, autocommit=True) as connection, connection.cursor() as cursor:
            self.pids.append(connection.info.backend_pid)
            try:
                while not self._stopped.is_set():
                    for item in items:
                        work(cursor, item)
            except psycopg.Error as error:
                self.errors.append(str(error))

    def _count(self, cursor: psycopg.Cursor[Any], item: int) -> None:
        cursor.execute("UPDATE items SET hits = hits + 1 WHERE id = %s", [item])
        if cursor.rowcount != 1:
            self.errors.append(f"the update of row {item} found no row")
        self.increments[item] += 1
        # A row that changes between each look at it and the write would be left by every repair.
        self._stopped.wait(0.02)

    def _refer(self, cursor: psycopg.Cursor[Any], item: int) -> None:
        cursor.execute("INSERT INTO child VALUES (%s)", [item])
        self.children += 1

    def wait_until_one_waits(self) -> None:
        """Return when the first application waits for the lock of a row; the second one continues meanwhile."""
        query = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY (%s) AND wait_event_type = 'Lock'"
        children, waiting = self.children, 0
        with psycopg.connect(self._database.uri, autocommit=True) as connection:
            while waiting == 0 or (waiting == 1 and self.children < children + len(REFERRED)):
                waiting = one_value(connection.execute(query, [self.pids]))
        assert waiting == 1


@pytest.fixture
def nodes(nodes_with: NodesWith) -> Nodes:
    return nodes_with(TABLES, TRUTH, DRIFT)


def test_applications_see_nothing_but_a_short_wait(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """No error, no UPDATE of no row, no lost increment; the undo keeps the same promise."""
    report = nodes.diff(exclude_columns=["hits"])
    applications = Applications(nodes[2])
    waits = 0

    def check_when_an_application_waits(*args: Any) -> None:
        nonlocal waits
        check_references(*args)
        if waits < 2:
            applications.wait_until_one_waits()
        waits += 1

    def repair_until_none_is_left() -> None:
        while nodes.repair(report, source_of_truth="n1", execute=True, stale="apply").left:
            assert applications.errors == []

    monkeypatch.setattr(write_table, "check_references", check_when_an_application_waits)
    with applications.running():
        # Rows that an application changed between reading and writing are left for the next repair.
        done = nodes.repair(report, source_of_truth="n1", execute=True)
        repair_until_none_is_left()
        undone = nodes.undo(done, execute=True)
        repair_until_none_is_left()
    assert applications.errors == []
    assert done.written["n2"]["insert"] == done.written["n2"]["delete"] == 10
    assert not undone.failed
    assert waits > 2
    expected = [(item, f"name {item}", applications.increments[item], item) for item in range(1, 71)]
    assert nodes[2].execute("SELECT * FROM items ORDER BY id") == expected
    assert nodes[2].execute("SELECT count(*) FROM child") == [(applications.children,)]


def test_rows_that_swap_unique_values_are_updated_in_place(
    nodes_with: NodesWith, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the values may be NULL: an update that waits for such a row finds it."""
    table = "CREATE TABLE items (id int PRIMARY KEY, a int NOT NULL, place int, n int DEFAULT 0, UNIQUE (a, place))"
    rows = "INSERT INTO items VALUES (1, 1, {}), (2, 1, {}), (3, 1, {})"
    nodes = nodes_with(table, rows.format(1, 2, 3), rows.format(2, 3, 1))
    report, found = nodes.diff(), list[int]()

    def update_and_wait() -> None:
        with psycopg.connect(nodes[2].uri, application_name="trueup repair, an application") as connection:
            found.append(connection.execute("UPDATE items SET n = n + 1").rowcount)

    application = threading.Thread(target=update_and_wait)

    def check_when_it_waits(*args: Any) -> None:
        check_references(*args)
        application.start()
        _wait_until_a_repair_waits(nodes[2])

    monkeypatch.setattr(write_table, "check_references", check_when_it_waits)
    done = nodes.repair(report, source_of_truth="n1", execute=True)
    application.join()
    assert done.written["n2"] == {"insert": 0, "update": 3, "delete": 0}
    assert found == [3]
    assert nodes.rows()[1] == [(1, 1, 1, 1), (2, 1, 2, 1), (3, 1, 3, 1)]


def _wait_until_a_repair_waits(database: Database) -> None:
    query = "SELECT FROM pg_stat_activity WHERE application_name ~ '^trueup repair' AND wait_event_type = 'Lock'"
    until = time.monotonic() + 60
    with psycopg.connect(database.uri, autocommit=True) as connection:
        while not connection.execute(query).fetchall():
            assert time.monotonic() < until, "the repair does not wait"


def test_rows_whose_unique_values_a_changed_row_has_are_left_too(
    nodes_with: NodesWith, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows 1 and 2 swap, 3 to 5 rotate; 6 is extra with the value of the missing 7; 8 arrives while 9 is inserted."""
    table = "CREATE TABLE items (id int PRIMARY KEY, place int UNIQUE, v int)"
    start = "INSERT INTO items VALUES (1, {}, 0), (2, {}, 0), (3, {}, 0), (4, {}, 0), (5, {}, 0), "
    nodes = nodes_with(
        table,
        start.format(1, 2, 3, 4, 5) + "(7, 6, 0), (8, 8, 0), (9, 9, 0)",
        start.format(2, 1, 4, 5, 3) + "(6, 6, 0)",
    )
    report = nodes.diff()
    nodes[2].execute("UPDATE items SET v = 1 WHERE id IN (1, 6)")
    done = nodes.repair(report, source_of_truth="n1", execute=True)
    assert done.left_counts == {
        "the row changed since the report was written": 2,
        "a row that was left has a unique value that this row would get": 2,
    }
    assert (done.verdict, done.failed) == ("REMAINS", {})
    repaired = [(1, 2, 1), (2, 1, 0), (3, 3, 0), (4, 4, 0), (5, 5, 0), (6, 6, 1), (8, 8, 0), (9, 9, 0)]
    assert nodes.rows()[1] == repaired
    # An undo does the same, and both leave a row that is inserted at the same moment.
    nodes[2].execute("UPDATE items SET v = 2 WHERE id = 4")
    undone = nodes.undo(done, execute=True)
    assert sorted(each.key["id"] for each in undone.left) == ["3", "4", "5"]
    assert not undone.failed

    def insert_then_see_none(*_: object) -> set[bytes]:
        nodes[2].execute("INSERT INTO items VALUES (8, 80)")
        return set()

    monkeypatch.setattr(write_table, "existing", insert_then_see_none)
    done = nodes.repair(nodes.diff(), source_of_truth="n1", execute=True)
    assert [each.key for each in done.left] == [{"id": "8"}]
    assert nodes[2].execute("SELECT id, place FROM items ORDER BY id") == [
        (number, 80 if number == 8 else 6 if number == 7 else number) for number in (1, 2, 3, 4, 5, 7, 8, 9)
    ]


@contextmanager
def _repair_that_waits(nodes: Nodes, database: Database, statement: str) -> Iterator[psycopg.Connection[Any]]:
    """Run the block in a transaction after a statement, while a repair waits for that transaction."""
    report, results = nodes.diff(exclude_columns=["hits"] if nodes.table == "items" else []), list[Any]()
    with psycopg.connect(database.uri) as application:
        application.execute(statement)
        repair = threading.Thread(
            target=lambda: results.append(nodes.repair(report, source_of_truth="n1", execute=True))
        )
        repair.start()
        try:
            _wait_until_a_repair_waits(database)
            yield application
            application.commit()
        finally:
            application.rollback()
            repair.join()
    assert results[0].failed == {}
    assert results[0].left_counts == {"the row changed while the repair ran": 1}


@pytest.mark.parametrize("item", [1, 71])
def test_no_deadlock_with_a_session_that_refers_to_a_row_and_updates_it(
    nodes: Nodes, caplog: pytest.LogCaptureFixture, item: int
) -> None:
    """Row 1 gets another unique value, row 71 is deleted: both need the stronger lock from the start."""
    nodes[2].execute("UPDATE items SET place = 100 WHERE id = 1")
    with _repair_that_waits(nodes, nodes[2], f"INSERT INTO child VALUES ({item})") as application:
        application.execute(f"UPDATE items SET hits = 1 WHERE id = {item}")
    assert "deadlock" not in caplog.text
    assert nodes[2].execute(f"SELECT hits, (SELECT count(*) FROM child) FROM items WHERE id = {item}") == [(1, 1)]


def test_a_row_that_keeps_its_parent_does_not_wait_for_it(nodes_with: NodesWith) -> None:
    """As the server does it: an application locks a parent first, and then writes the rows that refer to it."""
    tables = """
    CREATE TABLE parent (id int PRIMARY KEY);
    CREATE TABLE items (id int PRIMARY KEY, parent int REFERENCES parent, v int)
    """
    parents = "INSERT INTO parent VALUES (1), (2), (3); INSERT INTO items VALUES "
    nodes = nodes_with(tables, f"{parents} (1, 1, 1), (2, 2, 2)", f"{parents} (1, 1, 0), (2, 3, 2)")
    with psycopg.connect(nodes[2].uri) as application:
        application.execute("SELECT FROM parent WHERE id IN (1, 3) FOR UPDATE")
        result = nodes.repair(nodes.diff(), source_of_truth="n1", execute=True, lock_timeout=1)
    assert result.verdict == "REPAIRED"
    assert nodes.rows()[1] == [(1, 1, 1), (2, 2, 2)]


def test_a_row_that_is_moved_to_another_partition_is_left(
    nodes_with: NodesWith, caplog: pytest.LogCaptureFixture
) -> None:
    """The server ends the transaction that waits for such a row; the node is written with another one."""
    tables = """
    CREATE TABLE parts (id int, part int, v int) PARTITION BY LIST (part);
    CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1);
    CREATE TABLE parts_2 PARTITION OF parts FOR VALUES IN (2)
    """
    rows = "INSERT INTO parts SELECT i, 1, {} FROM generate_series(1, 9) i"
    nodes = nodes_with(tables, rows.format("i"), rows.format("0"), name="parts")
    nodes.diff = partial(nodes.diff, key=["id"])  # type: ignore[method-assign]
    with _repair_that_waits(nodes, nodes[2], "UPDATE parts SET part = 2 WHERE id = 5"):
        pass
    assert "trying again" in caplog.text
    expected = [(number, 2 if number == 5 else 1, 0 if number == 5 else number) for number in range(1, 10)]
    assert nodes.rows()[1] == expected
