"""Triggers that their owner disables for a time: the copy may be incomplete, although all of them are enabled again."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import psycopg
import pytest

from support.sqlite_sink import SqliteSink
from support.tube import TubeDatabase
from trueup.testing.processes import wait_until

TABLE = """
CREATE TABLE items (id int, day int, PRIMARY KEY (id, day));
CREATE TABLE events (id int, day int, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM (0) TO (10);
CREATE TABLE events_2 PARTITION OF events FOR VALUES FROM (10) TO (100) PARTITION BY LIST (day);
CREATE TABLE events_2a PARTITION OF events_2 FOR VALUES IN (10, 11);
"""
PROBLEM = (
    "the copy may be incomplete (its triggers were missing, disabled or replaced): run trueup tube backfill t public."
)


def unseen(tube_db: TubeDatabase, place: str, changes: str) -> str:
    """Return statements that change rows while all triggers of a relation are disabled."""
    triggers = tube_db.run(
        f"SELECT tgname, tgenabled FROM pg_trigger WHERE tgrelid = '{place}'::regclass AND NOT tgisinternal"
    )
    how = {"A": "ENABLE ALWAYS", "D": "DISABLE"}
    enabled = "".join(f"ALTER TABLE ONLY {place} {how[state]} TRIGGER {name};" for name, state in triggers)
    return f"ALTER TABLE ONLY {place} DISABLE TRIGGER ALL; {changes}; {enabled}"


def problem_of(tube_db: TubeDatabase, table: str) -> str:
    tables = {each.table: each.problem for each in tube_db.tubes()[0].tables}
    return tables[f"public.{table}"] or ""


class Copied:
    """A table of a tube and its copy."""

    def __init__(self, tube_db: TubeDatabase, table: str, path: str, capture: str = "statement") -> None:
        self.tube_db, self.table, self.path = tube_db, table, path
        tube_db.run(TABLE)
        tube_db.tube.attach(table, shard=1, capture=capture)

    def run(self) -> str:
        return "".join(self.tube_db.tube.run(SqliteSink(self.path), until_empty=True).problems)

    def check_equal(self) -> None:
        rows = SqliteSink(self.path).rows(f"public.{self.table}")
        keys = sorted((int(key[0]), int(key[1])) for _, key in rows)
        assert keys == self.tube_db.run(f"SELECT id, day FROM {self.table} ORDER BY id, day")

    def check_backfill(self) -> None:
        """The problem stays until a backfill: another check and `attach` do not remove it."""
        self.tube_db.tube.attach(self.table)
        assert PROBLEM in self.run()
        self.tube_db.tube.backfill(self.table)
        assert (self.run(), problem_of(self.tube_db, self.table)) == ("", "")
        self.check_equal()


@pytest.mark.parametrize("capture", ["statement", "row"])
@pytest.mark.parametrize(
    ("table", "place"), [("items", "items"), ("events", "events"), ("events", "events_1"), ("events", "events_2a")]
)
def test_triggers_are_disabled_and_enabled_again(
    tube_db: TubeDatabase, tmp_path: Path, table: str, place: str, capture: str
) -> None:
    copied = Copied(tube_db, table, str(tmp_path / "kept.db"), capture)
    tube_db.run(f"INSERT INTO {table} VALUES (1, 1), (2, 10), (3, 11)")
    assert copied.run() == ""
    tube_db.run(unseen(tube_db, place, f"DELETE FROM {place} WHERE id IN (1, 2)"))
    assert problem_of(tube_db, table).startswith(PROBLEM)
    assert PROBLEM in copied.run()
    # A backfill that began before the triggers were disabled again does not bring what is missing now.
    start = json.dumps(tube_db.tube.session.call("tube_backfill_step1"))
    tube_db.tube.session.call("tube_backfill_step2")
    tube_db.tube.session.call("tube_backfill_step3", start, "t", f"public.{table}", None, None, 1)
    tube_db.run(unseen(tube_db, place, f"INSERT INTO {place} VALUES (0, 10)" if place == "events_2a" else "SELECT"))
    tube_db.tube.session.call("tube_backfill_step3", start, "t", f"public.{table}", None, None, None)
    assert problem_of(tube_db, table).startswith(PROBLEM)
    copied.check_backfill()


def test_a_trigger_is_created_again(tube_db: TubeDatabase, tmp_path: Path) -> None:
    copied = Copied(tube_db, "items", str(tmp_path / "kept.db"))
    tube_db.run("INSERT INTO items VALUES (1, 1)")
    assert copied.run() == ""
    [(definition,)] = tube_db.run("SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgname = 'tube_t_delete'")
    tube_db.run("DROP TRIGGER tube_t_delete ON items; DELETE FROM items")
    tube_db.run(f"{definition}; ALTER TABLE items ENABLE ALWAYS TRIGGER tube_t_delete")
    # Not seen before the backfill began, which brings all changes.
    tube_db.tube.backfill("items")
    assert (copied.run(), problem_of(tube_db, "items")) == ("", "")
    copied.check_equal()


@pytest.mark.parametrize("capture", ["statement", "row"])
def test_triggers_of_a_new_partition_are_disabled_and_enabled_again(
    tube_db: TubeDatabase, tmp_path: Path, capture: str
) -> None:
    """Its first rows were delivered before its triggers were checked for the first time."""
    copied = Copied(tube_db, "events", str(tmp_path / "kept.db"), capture)
    assert copied.run() == ""
    tube_db.run("CREATE TABLE events_3 PARTITION OF events FOR VALUES FROM (100) TO (110)")
    tube_db.run("INSERT INTO events VALUES (1, 100), (2, 100)")
    stop = threading.Event()
    job = threading.Thread(target=tube_db.tube.run, args=[SqliteSink(copied.path)], kwargs={"stop": stop})
    tube_db.run(unseen(tube_db, "events_3", "DELETE FROM events_3 WHERE id = 1"))
    assert problem_of(tube_db, "events")
    job.start()
    try:
        assert wait_until(lambda: problem_of(tube_db, "events").startswith(PROBLEM), 60)
    finally:
        stop.set()
        job.join()
    copied.check_backfill()


def test_triggers_are_disabled_and_enabled_again_while_others_are_created(
    tube_db: TubeDatabase, tmp_path: Path
) -> None:
    """The triggers of a new partition wait for a transaction that disables those which it has already."""
    copied = Copied(tube_db, "events", str(tmp_path / "kept.db"))
    tube_db.run("CREATE TABLE events_3 PARTITION OF events FOR VALUES FROM (100) TO (110)")
    tube_db.run("INSERT INTO events VALUES (1, 100), (2, 100)")
    assert copied.run() == ""
    # It was not attached when its triggers were stored, and its statement triggers are missing.
    tube_db.run(
        "DROP TRIGGER tube_t_delete ON events_3; UPDATE tube.sources SET covered = array_remove(covered, 'events_3')"
    )
    tube_db.run("UPDATE tube.sources SET triggers = tube.tube_triggers(source)")
    assert "a partition is new" in problem_of(tube_db, "events")
    statements = unseen(tube_db, "events_3", "DELETE FROM events_3 WHERE id = 1")
    cover = threading.Thread(target=tube_db.tube.cover)
    waits = "SELECT FROM pg_locks WHERE NOT granted AND relation = 'events_3'::regclass"
    with psycopg.connect(tube_db.database.uri) as other:
        for statement in statements.split(";"):
            other.execute(statement.encode())
        cover.start()
        assert wait_until(lambda: tube_db.run(waits) != [], 60)
    cover.join()
    assert problem_of(tube_db, "events").startswith(PROBLEM)
    copied.check_backfill()


def test_other_changes_of_triggers_are_no_problem(tube_db: TubeDatabase, tmp_path: Path) -> None:
    copied = Copied(tube_db, "events", str(tmp_path / "kept.db"))
    tube_db.run("CREATE TABLE other (id int, day int, PRIMARY KEY (id, day))")
    # The name of another tube begins with the name of this one.
    for tube, table in [("t", "other"), ("t_2", "events"), ("t_2", "other")]:
        tube_db.of(tube).ensure()
        tube_db.of(tube).attach(table, shard=1)
    tube_db.run("INSERT INTO events VALUES (1, 1), (2, 10)")
    assert copied.run() == ""
    tree = """CREATE TABLE tree (id int, day int, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
              CREATE TABLE tree_1 PARTITION OF tree FOR VALUES FROM (200) TO (210); INSERT INTO tree VALUES (3, 200)"""
    changes = [
        "CREATE TABLE events_3 PARTITION OF events FOR VALUES FROM (100) TO (110)",
        tree,
        "ALTER TABLE events ATTACH PARTITION tree FOR VALUES FROM (200) TO (300)",
        "CREATE TABLE tree_2 PARTITION OF tree FOR VALUES FROM (210) TO (220); INSERT INTO tree VALUES (4, 211)",
        "ALTER TABLE events DETACH PARTITION events_1",
        "ALTER TABLE events ATTACH PARTITION events_1 FOR VALUES FROM (0) TO (10)",
        "ALTER TABLE tree DETACH PARTITION tree_1;"
        "ALTER TABLE tree ATTACH PARTITION tree_1 FOR VALUES FROM (200) TO (210)",
        "DROP TABLE tree_2; ALTER TABLE events_2 RENAME TO events_two",
        "ALTER TABLE events ADD note text; CREATE INDEX ON events (day); ALTER TABLE events ADD CHECK (id > 0)",
        "CREATE TRIGGER own AFTER INSERT ON events FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();"
        "ALTER TABLE events DISABLE TRIGGER own; DROP TRIGGER own ON events",
        "CREATE SCHEMA other_schema; ALTER TABLE events_two SET SCHEMA other_schema",
        "VACUUM FULL pg_trigger",
        "VACUUM (FULL, FREEZE) pg_inherits",
        # Installed by an older version.
        "UPDATE tube.sources SET triggers = NULL",
        # A table of another server that was restored here.
        """UPDATE tube.sources SET storage = jsonb_set(storage, '{place}', '"other"'),
             triggers = jsonb_build_object("table"::oid, jsonb_build_object('tube_t_insert', '1 1'))""",
    ]
    for change in changes:
        tube_db.run(change)
        assert "triggers were" not in problem_of(tube_db, "events"), change
        assert "triggers" not in copied.run(), change
        assert "triggers" not in problem_of(tube_db, "events"), change
    tube_db.of("t_2").detach("events")
    tube_db.tube.detach("other")
    tube_db.tube.attach("other", shard=1)
    tube_db.tube.ensure(pod_size=100)
    tube_db.install()
    assert "triggers" not in copied.run()
    assert "triggers" not in problem_of(tube_db, "other")
    for table in ("events", "other"):
        tube_db.tube.backfill(table)
    assert copied.run() == ""
    copied.check_equal()
    # What is stored now is compared.
    tube_db.run(unseen(tube_db, "events_1", "DELETE FROM events_1"))
    assert PROBLEM in copied.run()
