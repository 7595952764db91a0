"""Partitioned tables of another role than the one that attached them: their owners create partitions as before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest
from psycopg import IsolationLevel

from support.fixtures import Databases
from support.tube import TubeDatabase, restore

TABLE = """
CREATE TABLE events (id int, day int, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM (0) TO (10);
CREATE TABLE events_2 PARTITION OF events FOR VALUES FROM (10) TO (100) PARTITION BY LIST (day);
"""


@dataclass
class Application:
    """A role that owns the partitioned table, and has no rights on the tube."""

    tube_db: TubeDatabase
    name: str

    def run(self, *statements: str, name: str = "") -> None:
        address = self.tube_db.database.server.uri(self.tube_db.database.name, name or self.name, "x")
        with psycopg.connect(address, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())


@pytest.fixture
def application(tube_db: TubeDatabase) -> Iterator[Application]:
    names = [f"{name}_{tube_db.database.name}" for name in ("app", "other")]
    for name in names:
        tube_db.run(f"CREATE ROLE {name} LOGIN PASSWORD 'x'; GRANT CREATE ON SCHEMA public TO {name}")
    made = Application(tube_db, names[0])
    made.run(TABLE)
    yield made
    for name in names:
        tube_db.run(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")


@pytest.mark.parametrize("capture", ["statement", "row"])
def test_owners_create_partitions(application: Application, capture: str) -> None:
    tube_db = application.tube_db
    tube_db.tube.attach("events", shard=1, capture=capture)
    application.run(
        "CREATE TABLE events_3 PARTITION OF events FOR VALUES FROM (100) TO (110)",
        "CREATE TABLE events_2a PARTITION OF events_2 FOR VALUES IN (10)",
        "CREATE TABLE events_4 (id int NOT NULL, day int NOT NULL)",
        "ALTER TABLE events ATTACH PARTITION events_4 FOR VALUES FROM (200) TO (210)",
        "INSERT INTO events VALUES (1, 1), (2, 10), (3, 100), (4, 200)",
    )
    assert tube_db.keys() == ['["1", "1"]', '["2", "10"]', '["3", "100"]', '["4", "200"]']
    other = application.name.replace("app_", "other_")
    # At once, before a job runs.
    tube_db.run(f"ALTER TABLE events_2 OWNER TO {other}")
    application.run("CREATE TABLE events_2b PARTITION OF events_2 FOR VALUES IN (11)", name=other)
    # A new installation takes no rights away.
    tube_db.install()
    application.run(
        "CREATE TABLE events_2c PARTITION OF events_2 FOR VALUES IN (12)",
        "CREATE TABLE events_5 (id int NOT NULL, day int NOT NULL) PARTITION BY LIST (day)",
        name=other,
    )
    tube_db.run("ALTER TABLE events ATTACH PARTITION events_5 FOR VALUES FROM (300) TO (310)")
    application.run("CREATE TABLE events_5a PARTITION OF events_5 FOR VALUES IN (300)", name=other)
    application.run("INSERT INTO events VALUES (5, 11), (6, 12), (7, 300)")
    assert tube_db.keys() == ['["5", "11"]', '["6", "12"]', '["7", "300"]']


def test_owners_create_partitions_where_functions_are_private(databases: Databases) -> None:
    """ALTER DEFAULT PRIVILEGES of the role that installs the tubes."""
    [database] = databases(1)
    tube_db, name = TubeDatabase(database), f"app_{database.name}"
    application = Application(tube_db, name)
    try:
        tube_db.run(
            f"CREATE ROLE {name} LOGIN PASSWORD 'x'; GRANT CREATE ON SCHEMA public TO {name};"
            "ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC"
        )
        tube_db.install()
        tube_db.tube.ensure()
        application.run(TABLE)
        tube_db.tube.attach("events", shard=1)
        application.run(
            "CREATE TABLE events_2a PARTITION OF events_2 FOR VALUES IN (10)",
            "INSERT INTO events VALUES (1, 10)",
            "UPDATE events SET day = 1",
        )
        assert tube_db.keys() == ['["1", "1"]', '["1", "10"]']
    finally:
        tube_db.close()
        tube_db.run(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")


def test_the_functions_refuse_other_tables(application: Application) -> None:
    """They run with the rights of the owner of the tube, and a table may have a type whose functions are hostile."""
    tube_db = application.tube_db
    tube_db.tube.attach("events", shard=1)
    name = application.name
    create = (
        "CREATE TABLE hostile (id int, day int)",
        "CREATE TRIGGER records AFTER INSERT ON hostile FOR EACH ROW EXECUTE FUNCTION tube.touch_1_row()",
    )
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        application.run(*create)
    tube_db.run(f"DROP TABLE hostile; GRANT USAGE ON SCHEMA tube TO {name}")
    application.run(*create, "INSERT INTO hostile VALUES (1, 1)")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        application.run(create[1].replace("_row()", "()").replace("records", "more").replace("ROW", "STATEMENT"))
    # On a partition too: at another time there are no rows, or others than those that are written.
    application.run(
        "CREATE TRIGGER before BEFORE INSERT ON events_1 FOR EACH STATEMENT EXECUTE FUNCTION tube.touch_1_row()",
        "CREATE TRIGGER after AFTER INSERT ON events_1 FOR EACH STATEMENT EXECUTE FUNCTION tube.touch_1_row()",
        "INSERT INTO events_1 VALUES (1, 1)",
    )
    assert tube_db.keys() == ['["1", "1"]']
    application.run(
        "CREATE TRIGGER first BEFORE INSERT ON events_1 FOR EACH ROW EXECUTE FUNCTION tube.touch_1_row()",
        "INSERT INTO events_1 VALUES (7, 55)",
    )
    assert tube_db.keys() == []


def test_a_restored_table_is_captured_before_a_job_runs(databases: Databases) -> None:
    old, new = databases(2)
    tube_db, restored = TubeDatabase(old), TubeDatabase(new)
    try:
        tube_db.install()
        tube_db.tube.ensure()
        # Numbers of tables are others in the restored database.
        tube_db.run(f"CREATE TABLE former (id int); {TABLE}")
        tube_db.tube.attach("events", shard=1, capture="row")
        tube_db.run("DROP TABLE former")
        restore(old, new)
        numbers = "SELECT 'events'::regclass::oid::text"
        assert old.execute(numbers) != new.execute(numbers)
        new.execute("INSERT INTO events VALUES (1, 1); UPDATE events SET id = 2")
        assert restored.keys() == ['["1", "1"]', '["2", "1"]']
    finally:
        tube_db.close()
        restored.close()


def test_a_snapshot_from_before_the_table_was_attached(application: Application) -> None:
    tube_db = application.tube_db
    with psycopg.connect(tube_db.database.uri) as writer:
        writer.isolation_level = IsolationLevel.REPEATABLE_READ
        writer.execute("SELECT FROM pg_class")
        tube_db.tube.attach("events", shard=1, capture="row")
        writer.execute("INSERT INTO events VALUES (1, 1)")
    assert tube_db.keys() == ['["1", "1"]']
