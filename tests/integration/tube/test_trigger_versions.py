"""Triggers that their owner disables for a time: the copy may be incomplete, although all of them are enabled again."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import psycopg
import pytest

from support.copied import FORMER, PROBLEM, Copied, problem_of, unseen
from support.sqlite_sink import SqliteSink
from support.tube import TubeDatabase
from trueup.testing.processes import wait_until


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
    with psycopg.connect(tube_db.database.uri) as other:
        for statement in statements.split(";"):
            other.execute(statement.encode())
        cover.start()
        assert wait_until(lambda: waits(tube_db, "events_3"), 60)
    cover.join()
    assert problem_of(tube_db, "events").startswith(PROBLEM)
    copied.check_backfill()


def waits(tube_db: TubeDatabase, place: str) -> bool:
    """Whether a session waits for a lock on a relation."""
    return tube_db.run(f"SELECT FROM pg_locks WHERE NOT granted AND relation = '{place}'::regclass") != []


def test_triggers_are_disabled_and_enabled_again_while_only_their_state_changes(
    tube_db: TubeDatabase, tmp_path: Path
) -> None:
    """A partition that was detached has its triggers still: none is created when it is attached again."""
    copied = Copied(tube_db, "events", str(tmp_path / "kept.db"))
    tube_db.run("ALTER TABLE events DETACH PARTITION events_1")
    assert copied.run() == ""
    tube_db.run("ALTER TABLE events ATTACH PARTITION events_1 FOR VALUES FROM (0) TO (10)")
    tube_db.run("INSERT INTO events VALUES (7, 7), (8, 8); SELECT tube.tube_storage_follow('t')")
    with psycopg.connect(tube_db.database.uri) as other:
        for statement in unseen(tube_db, "events_1", "DELETE FROM events_1 WHERE id = 7").split(";"):
            other.execute(statement.encode())
        cover = threading.Thread(target=tube_db.tube.cover)
        cover.start()
        assert wait_until(lambda: waits(tube_db, "events_1"), 60)
    cover.join()
    assert problem_of(tube_db, "events").startswith(PROBLEM)
    copied.check_backfill()


def test_a_check_while_triggers_are_created(tube_db: TubeDatabase, tmp_path: Path) -> None:
    """It does not store the versions from before, which would be a problem until a backfill."""
    copied = Copied(tube_db, "events", str(tmp_path / "kept.db"))
    tube_db.run("INSERT INTO events VALUES (1, 1)")
    assert copied.run() == ""
    tube_db.run("CREATE TABLE events_3 PARTITION OF events FOR VALUES FROM (100) TO (110)")
    row = "SELECT FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
    with psycopg.connect(tube_db.database.uri) as other:
        other.execute("INSERT INTO events_3 VALUES (5, 100)")
        cover = threading.Thread(target=tube_db.tube.cover)
        cover.start()
        assert wait_until(lambda: waits(tube_db, "events_3"), 60)
        check = threading.Thread(target=tube_db.run, args=["SELECT tube.tube_storage_follow('t')"])
        check.start()
        assert wait_until(lambda: tube_db.run(row) != [], 60)
    cover.join()
    check.join()
    assert (copied.run(), problem_of(tube_db, "events")) == ("", "")
    copied.check_equal()


def test_a_job_of_another_role(tube_db: TubeDatabase, tmp_path: Path) -> None:
    """It may not read the number of the server, which the role that attached the table may."""
    copied = Copied(tube_db, "items", str(tmp_path / "kept.db"))
    tube_db.run("INSERT INTO items VALUES (1, 1), (2, 1)")
    assert copied.run() == ""
    role = f"job_of_{tube_db.database.name}"
    tube_db.run(
        f"REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC; CREATE ROLE {role};"
        f"GRANT USAGE ON SCHEMA tube TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA tube TO {role};"
        f"GRANT ALL ON ALL FUNCTIONS IN SCHEMA tube TO {role}"
    )
    try:
        check = f"SET ROLE {role}; SELECT tube.tube_storage_follow('t')"
        tube_db.run(check)
        assert problem_of(tube_db, "items") == ""
        tube_db.run(unseen(tube_db, "items", "DELETE FROM items WHERE id = 1"))
        tube_db.run(check)
        copied.check_backfill()
    finally:
        tube_db.run(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_copy_of_the_database(tube_db: TubeDatabase, tmp_path: Path) -> None:
    """As after a restore: what happened to it before the first check is not known."""
    copied = Copied(tube_db, "items", str(tmp_path / "kept.db"))
    tube_db.run("INSERT INTO items VALUES (1, 1), (2, 1)")
    assert copied.run() == ""
    tube_db.close()
    original = tube_db.database
    copy = original.server.database(f"{original.name}_copy")
    original.server.database("postgres").execute(f"CREATE DATABASE {copy.name} TEMPLATE {original.name}")
    other = copied.tube_db = TubeDatabase(copy)
    try:
        other.run(unseen(other, "items", "DELETE FROM items WHERE id = 1"))
        problem = "the copy may be incomplete (the database was restored or copied): run trueup tube backfill t "
        assert problem_of(other, "items").startswith(problem)
        assert problem in copied.run()
        assert problem in copied.run()
        other.tube.backfill("items")
        assert (copied.run(), problem_of(other, "items")) == ("", "")
        copied.check_equal()
    finally:
        other.close()
        copy.drop()


@pytest.mark.parametrize("when", ["after", "around"])
def test_triggers_are_disabled_before_the_first_check_of_a_new_version(
    tube_db: TubeDatabase, tmp_path: Path, when: str
) -> None:
    copied = Copied(tube_db, "items", str(tmp_path / "kept.db"))
    tube_db.run("INSERT INTO items VALUES (1, 1), (2, 1)")
    assert copied.run() == ""
    before, after = unseen(tube_db, "items", "@").split("@;")
    tube_db.run(FORMER)
    if when == "around":
        tube_db.run(f"{before}DELETE FROM items WHERE id = 1")
        tube_db.install()
    else:
        tube_db.install()
        tube_db.run(f"{before}DELETE FROM items WHERE id = 1")
    tube_db.run(after)
    copied.check_backfill()


def test_a_partition_is_attached_again_before_the_first_check_of_a_new_version(
    tube_db: TubeDatabase, tmp_path: Path
) -> None:
    copied = Copied(tube_db, "events", str(tmp_path / "kept.db"))
    tube_db.run("INSERT INTO events VALUES (1, 1), (2, 1)")
    assert copied.run() == ""
    tube_db.run(FORMER)
    tube_db.install()
    tube_db.run("ALTER TABLE events DETACH PARTITION events_1")
    tube_db.run(unseen(tube_db, "events_1", "DELETE FROM events_1 WHERE id = 1"))
    tube_db.run("ALTER TABLE events ATTACH PARTITION events_1 FOR VALUES FROM (0) TO (10)")
    assert "detached and attached again" in problem_of(tube_db, "events")
    assert copied.run() == ""
    copied.check_equal()


@pytest.mark.parametrize("is_covered", [True, False])
def test_a_partition_of_a_partition_before_the_first_check_of_a_new_version(
    tube_db: TubeDatabase, tmp_path: Path, is_covered: bool
) -> None:
    """The former version disabled the row trigger of the middle table, and so that of its new partitions."""
    copied = Copied(tube_db, "events", str(tmp_path / "kept.db"))
    tube_db.run("INSERT INTO events VALUES (1, 10)")
    assert copied.run() == ""
    tube_db.run(f"ALTER TABLE ONLY events_2 DISABLE TRIGGER tube_t_row; {FORMER}")
    if not is_covered:
        tube_db.run("CREATE TABLE events_2b PARTITION OF events_2 FOR VALUES IN (12)")
    tube_db.install()
    tube_db.run("CREATE TABLE events_2c PARTITION OF events_2 FOR VALUES IN (13); INSERT INTO events_2c VALUES (2, 13)")
    assert tube_db.run("SELECT count(*) FROM tube.pods_t") == [(1,)]
    problem = copied.run()
    assert PROBLEM in problem if not is_covered else problem == ""
    copied.check_equal()


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
