"""Partitioned tables: writes to the parent, to a level between, to a partition, and to later partitions."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import psycopg
import pytest

from support.sqlite_sink import SqliteSink
from support.tube import TubeDatabase
from trueup.errors import QueryError
from trueup.testing.processes import wait_until

TABLE = """
CREATE TABLE events (id int, day int, note text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM (0) TO (10);
CREATE TABLE events_2 PARTITION OF events FOR VALUES FROM (10) TO (100) PARTITION BY LIST (day);
CREATE TABLE events_2a (note text, day int NOT NULL, id int NOT NULL);
ALTER TABLE events_2 ATTACH PARTITION events_2a FOR VALUES IN (10, 11);
CREATE TABLE events_2b PARTITION OF events_2 DEFAULT;
"""


def stopped_after(seconds: float) -> threading.Event:
    """Return an event that is set after a time, so that a job which never ends fails its test."""
    stop = threading.Event()
    timer = threading.Timer(seconds, stop.set)
    timer.daemon = True
    timer.start()
    return stop


@pytest.fixture
def events(tube_db: TubeDatabase) -> TubeDatabase:
    tube_db.run(TABLE)
    tube_db.tube.attach("events", shard=1)
    return tube_db


@pytest.mark.parametrize("capture", ["statement", "row"])
def test_all_levels(tube_db: TubeDatabase, capture: str) -> None:
    tube_db.run(TABLE)
    tube_db.tube.attach("events", shard=1, capture=capture)
    tube_db.run("""INSERT INTO events VALUES (1, 1), (2, 10), (3, 50); INSERT INTO events_1 VALUES (4, 2);
                 INSERT INTO events_2 VALUES (5, 11); INSERT INTO events_2a (id, day) VALUES (6, 10)""")
    assert tube_db.keys() == [f'["{a}", "{b}"]' for a, b in ((1, 1), (2, 10), (3, 50), (4, 2), (5, 11), (6, 10))]
    for table in ("events", "events_2", "events_2a"):
        tube_db.run(f"UPDATE {table} SET note = 'x' WHERE id = 2")
        assert tube_db.keys() == ['["2", "10"]']
    tube_db.run("UPDATE events SET day = 60 WHERE id = 1; UPDATE events_2 SET day = 70 WHERE id = 2")
    assert tube_db.keys() == ['["1", "1"]', '["1", "60"]', '["2", "10"]', '["2", "70"]']
    tube_db.run("""MERGE INTO events e USING (VALUES (4, 2), (9, 9)) v(id, day) ON e.id = v.id AND e.day = v.day
                 WHEN MATCHED THEN UPDATE SET note = 'm' WHEN NOT MATCHED THEN INSERT VALUES (v.id, v.day)""")
    assert tube_db.keys() == ['["4", "2"]', '["9", "9"]']
    tube_db.run("DELETE FROM events WHERE id IN (1, 9); DELETE FROM events_2b WHERE id = 2")
    assert tube_db.keys() == ['["1", "60"]', '["2", "70"]', '["9", "9"]']
    tube_db.run("TRUNCATE events_2")
    assert {pod.op for pod in tube_db.take()} == {"X"}


@pytest.mark.parametrize("capture", ["statement", "row"])
@pytest.mark.parametrize("more", ["", " WHEN NOT MATCHED THEN INSERT VALUES (v.id, v.day)"])
def test_rows_that_a_merge_moves(tube_db: TubeDatabase, capture: str, more: str) -> None:
    """PostgreSQL hides such rows from statement triggers."""
    tube_db.run(TABLE + "INSERT INTO events VALUES (4, 2), (5, 5)")
    tube_db.tube.attach("events", shard=1, capture=capture)
    tube_db.run(f"""MERGE INTO events e USING (VALUES (4, 2, 12), (5, 5, 6), (9, 9, 9)) v(id, day, d)
                  ON e.id = v.id AND e.day = v.day WHEN MATCHED THEN UPDATE SET day = d{more}""")
    assert tube_db.keys() == sorted(
        ['["4", "12"]', '["4", "2"]', '["5", "5"]', '["5", "6"]', *(['["9", "9"]'] if more else [])]
    )
    tube_db.run("INSERT INTO events SELECT g, 3 FROM generate_series(100, 120) g")
    assert len(tube_db.take()) == (1 if capture == "statement" else 21)


@pytest.mark.parametrize("value", ["-1", "0", "no number", "", None])
def test_no_setting_of_the_writer_hides_rows_that_a_merge_moves(events: TubeDatabase, value: str | None) -> None:
    """The setting that the triggers use belongs to the session; `None`: an expression of the MERGE empties it."""
    events.run("""INSERT INTO events VALUES (1, 1), (2, 2);
        CREATE FUNCTION hide(day int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN
            PERFORM set_config('tube.moving', '', false); RETURN day; END $$""")
    events.take()
    first = f"SET tube.moving = '{value}';" if value is not None else ""
    new_day = "50 + v.id" if value is not None else "hide(50 + v.id)"
    events.run(f"""{first} MERGE INTO events e USING (VALUES (1), (2)) v(id) ON e.id = v.id
                   WHEN MATCHED THEN UPDATE SET day = {new_day}""")
    assert events.keys() == ['["1", "1"]', '["1", "51"]', '["2", "2"]', '["2", "52"]']


def test_nested_updates_that_move_rows(events: TubeDatabase) -> None:
    """An update within an update, and one that fails: later changes are captured."""
    events.run("""INSERT INTO events VALUES (1, 1), (2, 2), (3, 3);
        CREATE FUNCTION nest() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            UPDATE events SET note = 'nested' WHERE id = 3 AND NEW.id = 1; RETURN NEW; END $$;
        CREATE TRIGGER nest BEFORE UPDATE ON events_1 FOR EACH ROW WHEN (NEW.id < 3) EXECUTE FUNCTION nest()""")
    events.take()
    events.run("""MERGE INTO events e USING (VALUES (1), (2)) v(id) ON e.id = v.id
                  WHEN MATCHED THEN UPDATE SET day = 50 + v.id""")
    assert events.keys() == ['["1", "1"]', '["1", "51"]', '["2", "2"]', '["2", "52"]', '["3", "3"]']
    events.run("""BEGIN; UPDATE events SET note = 'y' WHERE id = 3;
                  INSERT INTO events SELECT g, 1 FROM generate_series(30, 40) g; COMMIT""")
    assert [len(pod.keys or ()) for pod in events.take()] == [1, 11]
    events.run("""BEGIN; SAVEPOINT a; UPDATE events SET day = day; ROLLBACK TO a;
                  INSERT INTO events SELECT g, 1 FROM generate_series(10, 20) g; COMMIT""")
    assert [len(pod.keys or ()) for pod in events.take()] == [11]


def test_statements_are_touched_once(events: TubeDatabase) -> None:
    events.run(
        "INSERT INTO events SELECT g, g % 40 FROM generate_series(1, 600) g;"
        " INSERT INTO events_2a VALUES ('a', 10, 1000)"
    )
    assert [len(pod.keys or ()) for pod in events.take()] == [250, 250, 100, 1]


def test_partitions_that_are_added_later(events: TubeDatabase) -> None:
    """Their rows are captured row by row at first, and by statement after the next refresh."""
    events.run("""CREATE TABLE events_3 PARTITION OF events FOR VALUES FROM (100) TO (110);
                  INSERT INTO events_3 SELECT g, 100 FROM generate_series(1, 3) g""")
    assert [len(pod.keys or ()) for pod in events.take()] == [1, 1, 1]
    assert "a partition is new" in (events.tubes()[0].tables[0].problem or "")
    assert events.tube.cover() == 1
    assert events.tube.cover() == 0
    assert [(pod.op, len(pod.keys or ())) for pod in events.take()] == [("T", 3)]
    events.run("INSERT INTO events_3 SELECT g, 101 FROM generate_series(1, 3) g")
    assert [len(pod.keys or ()) for pod in events.take()] == [3]
    assert events.tubes()[0].tables[0].problem is None


@pytest.mark.parametrize("capture", ["statement", "row"])
def test_a_new_partition_of_a_partition(tube_db: TubeDatabase, capture: str) -> None:
    """Statements on it alone fire no trigger of the table or of the partition."""
    tube_db.run(TABLE)
    tube_db.tube.attach("events", shard=1, capture=capture)
    tube_db.run(
        "CREATE TABLE events_2c PARTITION OF events_2 FOR VALUES IN (12, 13) PARTITION BY RANGE (day);"
        "CREATE TABLE events_2d PARTITION OF events_2c FOR VALUES FROM (12) TO (14)"
    )
    for number, place in enumerate(("events_2d", "events_2c", "events_2d")):
        for statement, keys in (
            (f"INSERT INTO {place} VALUES (1, 12), (2, 12)", [[1, 12], [2, 12]]),
            (f"UPDATE {place} SET day = 13 WHERE id = 1", [[1, 12], [1, 13]]),
            (f"DELETE FROM {place}", [[1, 13], [2, 12]]),
        ):
            tube_db.run(statement)
            assert [list(map(int, json.loads(key))) for key in sorted(tube_db.keys())] == keys, (number, statement)
        tube_db.tube.cover()
        assert tube_db.tubes()[0].tables[0].problem is None


def test_a_table_that_is_in_use_does_not_keep_others_waiting(tube_db: TubeDatabase) -> None:
    """The new partition of one table is in a transaction: those of the other one are covered, and not locked."""
    tube_db.run(TABLE + TABLE.replace("events", "visits"))
    for table in ("events", "visits"):
        tube_db.tube.attach(table, shard=1)
        tube_db.run(f"CREATE TABLE {table}_3 PARTITION OF {table} FOR VALUES FROM (100) TO (110)")
    with psycopg.connect(tube_db.database.uri) as writer:
        writer.execute("INSERT INTO visits VALUES (1, 100)")
        with pytest.raises(QueryError, match=f"process {writer.info.backend_pid}"):
            tube_db.tube.cover(timeout=0.5)
        problems = {each.table: each.problem for each in tube_db.tubes()[0].tables}
        assert problems["public.events"] is None
        assert "a partition is new" in (problems["public.visits"] or "")
    assert tube_db.tube.cover() == 1


def test_a_partition_is_detached_while_another_table_is_waited_for(tube_db: TubeDatabase) -> None:
    """FINALIZE waits for the end of all older snapshots: none is kept while a lock is waited for."""
    tube_db.run(TABLE + TABLE.replace("events", "visits"))
    for table in ("events", "visits"):
        tube_db.tube.attach(table, shard=1)
    uri = tube_db.database.uri
    with psycopg.connect(uri) as reader, psycopg.connect(uri, autocommit=True) as owner:
        reader.execute("SELECT FROM events")
        owner.execute("SET lock_timeout = '100ms'; SET statement_timeout = '60s'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            owner.execute("ALTER TABLE events DETACH PARTITION events_1 CONCURRENTLY")
    tube_db.tube.cover()
    tube_db.run("CREATE TABLE visits_3 PARTITION OF visits FOR VALUES FROM (100) TO (110)")
    with psycopg.connect(uri) as writer:
        writer.execute("INSERT INTO visits VALUES (1, 100)")
        cover = threading.Thread(target=tube_db.tube.cover)
        cover.start()
        waits = "SELECT FROM pg_locks WHERE NOT granted"
        assert wait_until(lambda: bool(tube_db.run(waits)), 60)
        tube_db.run("SET statement_timeout = '20s'; ALTER TABLE events DETACH PARTITION events_1 FINALIZE")
        assert cover.is_alive()
    cover.join()
    assert tube_db.run("SELECT to_regclass('events_1') IS NOT NULL") == [(True,)]


def test_a_table_with_rows_is_attached_as_a_partition_and_detached(events: TubeDatabase) -> None:
    events.run("""CREATE TABLE other (LIKE events INCLUDING ALL);
                  INSERT INTO other SELECT g, 200 FROM generate_series(1, 5) g;
                  ALTER TABLE events ATTACH PARTITION other FOR VALUES FROM (200) TO (300)""")
    events.run("UPDATE other SET note = 'x' WHERE id = 1")
    assert events.keys() == ['["1", "200"]']
    events.tube.attach("events", shard=1)
    assert events.keys() == [f'["{n}", "200"]' for n in range(1, 6)]
    events.run("ALTER TABLE events DETACH PARTITION other")
    assert "dropped or detached" in (events.tubes()[0].tables[0].problem or "")
    events.tube.cover()
    assert events.tubes()[0].tables[0].problem is None
    (scheduled,) = events.take()
    assert (scheduled.message["table"], scheduled.message["reason"]) == ("public.events", "a partition is gone")
    assert events.tube.detach("events")
    assert events.run("SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal") == [(0,)]


@pytest.mark.parametrize(
    ("parent", "place", "capture", "was_stored"),
    [
        ("events", "events_1", "statement", False),
        ("events", "events_1", "row", True),
        ("events", "events_2", "statement", True),
        ("events_2", "events_2a", "statement", False),
        ("events_2", "events_2a", "row", True),
    ],
)
def test_a_partition_that_is_changed_while_it_is_detached(
    tube_db: TubeDatabase, tmp_path: Path, capture: str, parent: str, place: str, was_stored: bool
) -> None:
    """The table has the same partitions before and after, and no trigger for each row has seen the change."""
    tube_db.run(TABLE)
    tube_db.tube.attach("events", shard=1, capture=capture)
    sink = str(tmp_path / "kept.db")
    tube_db.run("INSERT INTO events VALUES (1, 1), (2, 10), (3, 11), (4, 50)")
    tube_db.tube.run(SqliteSink(sink), until_empty=True)
    bound = tube_db.run(f"SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE oid = '{place}'::regclass")[0][0]
    tube_db.run(f"ALTER TABLE {parent} DETACH PARTITION {place}")
    if was_stored:
        # What a check stores that has listed the partitions just before.
        tube_db.run('UPDATE tube.sources SET storage = tube.tube_storage("table")')
    tube_db.run(f"ALTER TABLE {place} ALTER note TYPE text USING 'changed ' || id")
    tube_db.run(f"DELETE FROM {place} WHERE id = 3; ALTER TABLE {parent} ATTACH PARTITION {place} {bound}")
    # A job calls it between two checks of the partitions.
    tube_db.run("SELECT tube.tube_storage_follow('t')")
    assert "detached and attached again" in (tube_db.tubes()[0].tables[0].problem or "")
    assert not tube_db.tube.run(SqliteSink(sink), until_empty=True).problems
    rows = SqliteSink(sink).rows("public.events")
    expected = tube_db.run("SELECT id, note FROM events ORDER BY id")
    assert sorted((int(key[1][0]), row["note"]) for key, row in rows.items()) == expected
    assert tube_db.tube.cover() == 0


def test_a_large_partition_is_backfilled_and_a_truncated_one_is_noticed(events: TubeDatabase) -> None:
    events.run("""CREATE TABLE large (LIKE events INCLUDING ALL); TRUNCATE large;
                  INSERT INTO large SELECT g, 200 FROM generate_series(1, 10001) g;
                  ALTER TABLE events ATTACH PARTITION large FOR VALUES FROM (200) TO (300)""")
    events.tube.cover()
    (scheduled,) = events.take()
    assert (scheduled.op, scheduled.message["table"]) == ("{", "public.large")
    events.run("CREATE TABLE later PARTITION OF events FOR VALUES FROM (300) TO (400)")
    events.run("INSERT INTO later VALUES (1, 300)")
    assert events.keys() == ['["1", "300"]']
    events.run("TRUNCATE later")
    events.tube.cover()
    (scheduled,) = events.take()
    assert (scheduled.message["table"], scheduled.message["reason"]) == ("public.events", "a partition is gone")
    events.run("TRUNCATE later")
    assert [pod.op for pod in events.take()] == ["X"]


def test_the_sink_loses_the_rows_of_a_dropped_partition(events: TubeDatabase, tmp_path: Path) -> None:
    sink = str(tmp_path / "kept.db")
    events.run("INSERT INTO events VALUES (1, 1), (2, 10), (3, 50)")
    events.tube.run(SqliteSink(sink), until_empty=True)
    assert len(SqliteSink(sink).rows("public.events")) == 3
    events.run("DROP TABLE events_1")
    events.tube.run(SqliteSink(sink), until_empty=True)
    assert [key[1][0] for key in sorted(SqliteSink(sink).rows("public.events"))] == ["2", "3"]
    # A backfill that was interrupted before is no substitute for the one that removes the rows; that of a partition
    # which is gone does not block it.
    for table in ("events", "events_2a"):
        start = events.tube.session.call("tube_backfill_step1")
        events.tube.session.call("tube_backfill_step2")
        events.tube.session.call("tube_backfill_step3", json.dumps(start), "t", f"public.{table}", "day", None, 1)
        # A run until the tube is empty waits for a backfill that made progress a moment ago.
        events.run(f"UPDATE {events.tube.session.schema}.backfills SET updated_at = updated_at - interval '1 hour'")
        events.run("INSERT INTO events VALUES (4, 11)")
        events.tube.run(SqliteSink(sink), until_empty=True)
        events.run("ALTER TABLE events_2 DETACH PARTITION events_2a; TRUNCATE events_2a")
        events.tube.run(SqliteSink(sink), until_empty=True, stop=stopped_after(30))
        assert [key[1][0] for key in sorted(SqliteSink(sink).rows("public.events"))] == ["3"], table
        events.run(
            "ALTER TABLE events_2 ATTACH PARTITION events_2a FOR VALUES IN (10, 11); INSERT INTO events VALUES (2, 10)"
        )
        events.tube.cover()


def test_cascades_onto_partitions(tube_db: TubeDatabase) -> None:
    tube_db.run(
        TABLE
        + """CREATE TABLE days (day int PRIMARY KEY); INSERT INTO days VALUES (1), (10), (50);
        ALTER TABLE events ADD FOREIGN KEY (day) REFERENCES days ON DELETE CASCADE ON UPDATE CASCADE;
        INSERT INTO events VALUES (1, 1), (2, 10), (3, 50)"""
    )
    tube_db.tube.attach("events", shard=1)
    tube_db.run("DELETE FROM days WHERE day = 1; UPDATE days SET day = 5 WHERE day = 10")
    assert tube_db.keys() == ['["1", "1"]', '["2", "10"]', '["2", "5"]']


def test_a_partition_alone_is_refused_unless_row_by_row(tube_db: TubeDatabase) -> None:
    tube_db.run(TABLE)
    with pytest.raises(QueryError, match="it is a partition"):
        tube_db.tube.attach("events_1")
    tube_db.tube.attach("events_1", capture="row")
    tube_db.run("INSERT INTO events VALUES (1, 1), (2, 50)")
    assert tube_db.keys() == ['["1", "1"]']


def test_bulk_backfill_of_a_partitioned_table(events: TubeDatabase) -> None:
    events.run("INSERT INTO events SELECT g, g % 40 FROM generate_series(1, 600) g")
    events.take()
    assert events.tube.backfill("events", order_col="day").keys == 600
    days = [int(key.split('"')[3]) for pod in events.take() for key in pod.keys or ()]
    assert days == sorted(days)
    assert len(days) == 600
