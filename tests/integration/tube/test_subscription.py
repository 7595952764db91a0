"""Tables that are filled by a subscription are refused, unless captured row by row."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from support.fixtures import Databases
from support.tube import TubeDatabase
from support.waiting import Pause
from trueup.errors import QueryError
from trueup.testing.postgres import Database


@pytest.fixture
def publisher(tube_db: TubeDatabase, databases: Databases) -> Iterator[Database]:
    """A database that publishes the table items to the database of `place`."""
    other = databases(1)[0]
    for database in (other, tube_db.database):
        database.execute("CREATE TABLE items (id int PRIMARY KEY, n int)")
    slot = other.name
    other.execute("CREATE PUBLICATION p FOR TABLE items")
    other.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    tube_db.run(
        f"CREATE SUBSCRIPTION s CONNECTION '{other.uri}' PUBLICATION p"
        f" WITH (create_slot = false, slot_name = '{slot}', copy_data = false)"
    )
    yield other
    tube_db.run("ALTER SUBSCRIPTION s DISABLE")
    tube_db.run("ALTER SUBSCRIPTION s SET (slot_name = NONE)")
    tube_db.run("DROP SUBSCRIPTION s")
    _wait(lambda: not other.execute(f"SELECT active FROM pg_replication_slots WHERE slot_name = '{slot}'")[0][0])
    other.execute(f"SELECT pg_drop_replication_slot('{slot}')")


def test_capture_of_rows_of_a_subscription(tube_db: TubeDatabase, publisher: Database) -> None:
    with pytest.raises(QueryError, match="filled by a subscription") as caught:
        tube_db.tube.attach("items", shard=1)
    assert "--capture row" in caught.value.cure
    tube_db.tube.attach("items", shard=1, capture="row")
    publisher.execute("INSERT INTO items VALUES (1), (2)")
    publisher.execute("UPDATE items SET id = 3 WHERE id = 1; DELETE FROM items WHERE id = 2")
    _wait(lambda: tube_db.run("SELECT id FROM items") == [(3,)])
    found = [(pod.op, sorted(pod.ids)) for pod in tube_db.take()]
    assert found == [("I", [1]), ("I", [2]), ("U", [1, 3]), ("D", [2])]


def _wait(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 60
    pause = Pause()
    while not condition():
        assert time.monotonic() < give_up
        pause()
