"""Tables that are filled by a subscription are refused, unless captured row by row."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.fixtures import Databases
from support.sqlite_sink import SqliteSink
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


def test_a_table_that_a_subscription_fills_for_a_time(
    tube_db: TubeDatabase, publisher: Database, tmp_path: Path
) -> None:
    for database in (publisher, tube_db.database):
        database.execute("CREATE TABLE later (id int PRIMARY KEY)")
    tube_db.tube.attach("later", shard=1)

    def run() -> str:
        return "".join(tube_db.tube.run(SqliteSink(str(tmp_path / "kept.db")), until_empty=True).problems)

    def publish(change: str) -> None:
        publisher.execute(f"ALTER PUBLICATION p {change} TABLE later")
        tube_db.run("ALTER SUBSCRIPTION s REFRESH PUBLICATION WITH (copy_data = false)")

    assert run() == ""
    publish("ADD")
    publisher.execute("INSERT INTO later VALUES (1)")
    _wait(lambda: tube_db.run("SELECT id FROM later") == [(1,)])
    assert "it is filled by a subscription" in run()
    publish("DROP")
    assert "the copy may be incomplete (it was filled by a subscription)" in run()


def _wait(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 60
    pause = Pause()
    while not condition():
        assert time.monotonic() < give_up
        pause()
