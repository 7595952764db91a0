"""Partitions that are gone before the tube created their triggers: their rows may be in the copy already."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel

from support.copied import FORMER, PROBLEM, Copied, problem_of, unseen
from support.fixtures import Databases
from support.tube import TubeDatabase
from trueup.capture.triggers.batch import Batch
from trueup.capture.triggers.document import Mark
from trueup.capture.triggers.hold import Hold
from trueup.testing.postgres import Database
from trueup.testing.processes import wait_until
from trueup.verbs.tube import aside, reading

CREATE = "CREATE TABLE events_3 PARTITION OF events FOR VALUES FROM (100) TO (110)"
ATTACH = "ALTER TABLE events ATTACH PARTITION events_3 FOR VALUES FROM (100) TO (110)"
DETACH = "ALTER TABLE events DETACH PARTITION events_3"
FULL = f"""
CREATE TABLE events_3 (id int, day int, PRIMARY KEY (id, day)); INSERT INTO events_3 VALUES (1, 100), (2, 100); {ATTACH}
"""
NOTES = "SELECT count(*) FROM tube.passing"


def write(tube_db: TubeDatabase) -> None:
    tube_db.run(f"{CREATE}; INSERT INTO events VALUES (1, 100); INSERT INTO events VALUES (2, 100)")


def write_with_an_older_snapshot(tube_db: TubeDatabase) -> None:
    with psycopg.connect(tube_db.database.uri) as writer:
        writer.isolation_level = IsolationLevel.REPEATABLE_READ
        writer.execute("SELECT FROM items")
        tube_db.run(CREATE)
        writer.execute("INSERT INTO events VALUES (1, 100), (2, 100)")


def write_serializable(tube_db: TubeDatabase) -> None:
    """Two transactions of which none fails."""
    tube_db.run(CREATE)
    with psycopg.connect(tube_db.database.uri) as first, psycopg.connect(tube_db.database.uri) as second:
        for number, writer in enumerate((first, second), 1):
            writer.isolation_level = IsolationLevel.SERIALIZABLE
            writer.execute("INSERT INTO events VALUES (%s, 100)", [number])


def backfill(tube_db: TubeDatabase) -> None:
    tube_db.run(FULL)
    tube_db.tube.backfill("events")


def schedule_backfill(tube_db: TubeDatabase) -> None:
    tube_db.run(f"{FULL}; SELECT tube.tube_backfill_schedule('t', 'events')")


def touch(tube_db: TubeDatabase) -> None:
    tube_db.run(FULL)
    tube_db.tube.touch("events", [(1, 100), (2, 100)])


@pytest.fixture
def copied(
    tube_db: TubeDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Copied:
    """A partitioned table with a row in its copy, whose new partitions are covered when a job starts only."""
    monkeypatch.setattr(aside, "COVER_SECONDS", 3600.0)
    made = Copied(tube_db, "events", str(tmp_path / "kept.db"), getattr(request, "param", "statement"))
    tube_db.run("INSERT INTO events VALUES (9, 1)")
    assert made.run() == ""
    return made


def deliver(copied: Copied, fill: Callable[[TubeDatabase], None]) -> None:
    """Fill a new partition; its rows are delivered, and its triggers are not created."""
    copied.tube_db.run("INSERT INTO events VALUES (9, 2)")
    with copied.running():
        copied.wait_for(2)
        fill(copied.tube_db)
        copied.wait_for(4)
    assert copied.tube_db.run("SELECT 'events_3'::regclass = ANY (covered) FROM tube.sources") == [(False,)]


def check_noticed(copied: Copied) -> None:
    """A backfill is scheduled, after which the copy is complete."""
    tube_db = copied.tube_db
    assert "partition" in problem_of(tube_db, "events")
    assert copied.run() == ""
    copied.check_equal()
    assert (copied.run(), problem_of(tube_db, "events")) == ("", "")
    # Nothing is kept, so that nothing is noticed again.
    tube_db.tube.cover()
    assert tube_db.run(NOTES) == [(0,)]


@pytest.mark.parametrize("copied", ["statement", "row"], indirect=True)
@pytest.mark.parametrize(
    ("fill", "changes"),
    [
        (write, ["DROP TABLE events_3"]),
        (write, [DETACH, "DELETE FROM events_3 WHERE id = 1", ATTACH]),
        (write, [f"ALTER TABLE events_3 DISABLE TRIGGER USER; DELETE FROM events_3 WHERE id = 1; {DETACH}; {ATTACH}"]),
        (write_with_an_older_snapshot, ["DROP TABLE events_3"]),
        (write_serializable, ["DROP TABLE events_3"]),
        (backfill, ["DROP TABLE events_3"]),
        (schedule_backfill, [DETACH, "DELETE FROM events_3 WHERE id = 1", ATTACH]),
        (touch, ["DROP TABLE events_3"]),
    ],
    ids=["drop", "detach", "disable", "older snapshot", "serializable", "backfill", "scheduled backfill", "touch"],
)
def test_its_rows_are_in_the_copy(copied: Copied, fill: Callable[[TubeDatabase], None], changes: list[str]) -> None:
    deliver(copied, fill)
    for change in changes:
        copied.tube_db.run(change)
    check_noticed(copied)


def test_it_is_attached_after_the_pods_are_claimed(copied: Copied, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are read all the same."""
    tube_db, start = copied.tube_db, reading.Reading.start

    def attach_and_start(self: Any, batch: Any) -> Any:
        if tube_db.run("SELECT to_regclass('events_3') IS NULL")[0][0]:
            tube_db.run(FULL)
        return start(self, batch)

    tube_db.run("INSERT INTO events VALUES (9, 2)")
    with copied.running():
        copied.wait_for(2)
        monkeypatch.setattr(reading.Reading, "start", attach_and_start)
        tube_db.tube.touch("events", [(1, 100), (2, 100)])
        copied.wait_for(4)
    tube_db.run("DROP TABLE events_3")
    check_noticed(copied)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_job_is_killed_before_it_deletes_the_pods(copied: Copied, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*arguments: Any, **named: Any) -> int:
        raise SystemExit

    tube_db = copied.tube_db
    tube_db.run("INSERT INTO events VALUES (9, 2)")
    with copied.running():
        copied.wait_for(2)
        monkeypatch.setattr(Hold, "acknowledge", killed)
        write(tube_db)
        assert wait_until(lambda: len(copied.keys()) == 4, 60)
    monkeypatch.undo()
    monkeypatch.setattr("trueup.capture.triggers.hold.GRACE", 0.1)
    tube_db.run("DROP TABLE events_3")
    check_noticed(copied)


def test_it_is_attached_before_dead_letters_are_delivered(copied: Copied) -> None:
    """They have no pods."""
    tube_db = copied.tube_db
    tube_db.run(CREATE)
    hold = Hold(tube_db.tube.session, "t", [0])
    hold.take(wait=0, say=print)
    hold.acknowledge(Batch({1: {}}, Mark(0, datetime.now(timezone.utc))))
    hold.release()
    assert tube_db.run(NOTES) == [(1,)]


def test_it_is_dropped_after_an_upgrade(copied: Copied) -> None:
    """The former version has stored nothing about its rows."""
    deliver(copied, write)
    copied.tube_db.run(FORMER)
    copied.tube_db.install()
    copied.tube_db.run("DROP TABLE events_3")
    check_noticed(copied)


def test_its_triggers_are_disabled_after_it_was_attached_again(copied: Copied) -> None:
    """A check has stored their versions from before, while they could not be created."""
    tube_db = copied.tube_db

    def fill(tube_db: TubeDatabase) -> None:
        tube_db.run(CREATE)
        tube_db.run("SELECT tube.tube_storage_follow('t')")
        tube_db.run(DETACH)
        tube_db.run(ATTACH)
        tube_db.run("INSERT INTO events VALUES (1, 100), (2, 100)")

    deliver(copied, fill)
    tube_db.run(unseen(tube_db, "events_3", "DELETE FROM events_3 WHERE id = 1"))
    assert PROBLEM in copied.run()
    copied.check_backfill()


@pytest.mark.parametrize("copied", ["row"], indirect=True)
def test_a_partition_that_is_being_detached(copied: Copied) -> None:
    """DETACH CONCURRENTLY was interrupted. One backfill is enough, whatever is written to it."""
    tube_db = copied.tube_db
    with psycopg.connect(tube_db.database.uri) as reader:
        reader.execute("SELECT FROM events")
        with psycopg.connect(tube_db.database.uri, autocommit=True) as owner:
            owner.execute("SET lock_timeout = '100ms'; SET statement_timeout = '700ms'")
            with pytest.raises(psycopg.Error):
                owner.execute("ALTER TABLE events DETACH PARTITION events_1 CONCURRENTLY")
    assert tube_db.run("SELECT count(*) FROM pg_inherits WHERE inhdetachpending") == [(1,)]
    for number in range(3):
        tube_db.run(f"INSERT INTO events_1 VALUES ({number}, 1)")
        tube_db.tube.cover()
    assert tube_db.run("SELECT count(*) FROM tube.pods_t WHERE op = '{'") == [(1,)]
    tube_db.run("ALTER TABLE events DETACH PARTITION events_1 FINALIZE")
    assert (copied.run(), problem_of(tube_db, "events")) == ("", "")
    copied.check_equal()


def test_an_owner_without_the_rights_to_lock(databases: Databases, tmp_path: Path) -> None:
    """A table to which rows are only added: its owner may not update or delete."""
    [database] = databases(1)
    role = f"owner_of_{database.name}"
    database.execute(
        f"CREATE ROLE {role} LOGIN PASSWORD 'x'; GRANT CREATE ON SCHEMA public TO {role};"
        f"GRANT CREATE ON DATABASE {database.name} TO {role}"
    )
    address = database.server.uri(database.name, role, "x")
    tube_db = TubeDatabase(Database(database.name, address, database.server))
    try:
        tube_db.install()
        tube_db.tube.ensure()
        copied = Copied(tube_db, "events", str(tmp_path / "kept.db"))
        assert copied.run() == ""
        keep = f"REVOKE ALL ON %s FROM {role}; GRANT SELECT, INSERT, TRIGGER ON %s TO {role}"
        tube_db.run(CREATE + ";" + keep.replace("%s", "events_3") + ";" + keep.replace("%s", "items"))
        tube_db.tube.attach("items", shard=1)
        tube_db.run("INSERT INTO events VALUES (1, 100); INSERT INTO items VALUES (1, 1)")
        assert (copied.run(), problem_of(tube_db, "events")) == ("", "")
        copied.check_equal()
        # With that lock too: what was disabled before it is noticed.
        tube_db.run(f"GRANT DELETE ON events_3 TO {role}")
        changes = unseen(tube_db, "events_3", "DELETE FROM events_3").split("; ALTER")[0]
        tube_db.run(f"{changes}; REVOKE DELETE ON events_3 FROM {role}")
        tube_db.tube.attach("events")
        assert PROBLEM in copied.run()
    finally:
        tube_db.close()
        database.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")
