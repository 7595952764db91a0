"""Backfills: three steps, a barrier that names its holders, order, resuming, priority, the end."""

from __future__ import annotations

import json
from collections.abc import Callable

import psycopg
import pytest

from support.tube import TubeDatabase
from trueup.errors import CheckFailed, QueryError

ITEMS = """CREATE TABLE items (id int PRIMARY KEY, at timestamptz, n int);
INSERT INTO items SELECT g, CASE WHEN g % 7 > 0 THEN timestamptz '2026-01-01' - g / 3 * interval '1.5 s' END, g % 5
  FROM generate_series(1, 900) g;"""
ORDERED = "SELECT id FROM items WHERE {} ORDER BY at, id"


@pytest.fixture
def items(tube_db: TubeDatabase) -> TubeDatabase:
    tube_db.run(ITEMS)
    tube_db.tube.attach("items", shard=4)
    return tube_db


def test_backfill_keys_come_in_order_after_live_keys(items: TubeDatabase) -> None:
    done = items.tube.backfill("items", order_col="at")
    items.run("UPDATE items SET n = 9 WHERE id = 5")
    live, *pods = items.pods()
    assert (live.op, live.ids) == ("U", (5,))
    assert [(pod.op, pod.shard, len(pod.ids)) for pod in pods] == [("B", 4, 250)] * 3 + [("B", 4, 150)]
    assert [key for pod in pods for key in pod.ids] == [row[0] for row in items.run(ORDERED.format("true"))]
    assert (done.keys, done.pods, done.shard) == (900, 4, 4)
    # The end is sent when all pods before it are processed.
    items.tube.delete([pod.seq for pod in pods[:3]])
    assert [pod.op for pod in items.pods()] == ["U", "B"]
    items.tube.delete([pods[3].seq])
    end, _ = items.pods()
    assert (end.op, end.ids, end.message["type"]) == ("}", (), "backfill_end")
    assert (end.message["start_seq"], end.message["shards"]) == (done.start_seq, 4)
    assert done.start_seq < pods[0].seq


@pytest.mark.parametrize("order_col", ["", "at", "n", "late"])
def test_a_backfill_in_parts_has_the_same_keys(items: TubeDatabase, order_col: str) -> None:
    if order_col == "late":
        items.run("ALTER TABLE items ADD late int; UPDATE items SET late = id WHERE id % 7 <> 0")
        if items.run("SELECT current_setting('server_version_num')::int >= 180000") == [(True,)]:
            # It says nothing about the rows.
            items.run("ALTER TABLE items ADD CONSTRAINT given NOT NULL late NOT VALID")
        items.take()
    items.tube.backfill("items", order_col=order_col, part_keys=70)
    parts = [key for pod in items.take() for key in pod.ids]
    items.tube.backfill("items", order_col=order_col)
    assert parts == [key for pod in items.take() for key in pod.ids]
    assert sorted(parts) == list(range(1, 901))


def test_predicates_and_composite_keys(tube_db: TubeDatabase) -> None:
    tube_db.run("CREATE TABLE pairs (a text, b int, n int, PRIMARY KEY (a, b))")
    tube_db.run("INSERT INTO pairs SELECT chr(97 + g % 5), g, g % 4 FROM generate_series(1, 200) g")
    tube_db.tube.attach("pairs", shard=1, predicate="n = 1")
    tube_db.tube.backfill("pairs", order_col="n", part_keys=7)
    found = [tuple(json.loads(key)) for pod in tube_db.take() for key in pod.keys or ()]
    expected = tube_db.run("SELECT a, b::text FROM pairs WHERE n = 1 ORDER BY a, pairs.b")
    assert found == expected


def test_routing(tube_db: TubeDatabase) -> None:
    tube_db.of("r").ensure(partitions=2)
    tube_db.run(ITEMS)
    tube_db.of("r").attach("items", routing="n")
    tube_db.of("r").backfill("items")
    for partition in (0, 1):
        pods = tube_db.take("r", partition)
        assert {pod.shard for pod in pods if pod.op == "B"} == {n for n in range(5) if n % 2 == partition}
        (end,) = tube_db.take("r", partition)
        assert (end.op, end.message["shards"]) == ("}", "all")
    assert tube_db.of("r").backfill("items", shard=3).keys == 180
    assert {pod.shard for pod in tube_db.take("r", 1)} == {3}


def test_a_stopped_backfill_continues(items: TubeDatabase) -> None:
    step1 = items.tube.session.call("tube_backfill_step1")
    items.tube.session.call("tube_backfill_step2")
    part = items.tube.session.call("tube_backfill_step3", json.dumps(step1), "t", "public.items", "at", None, 200)
    assert (part["keys"], part["finished_at"]) == (200, None)
    again = items.tube.session.call("tube_backfill_step1")
    items.tube.session.call("tube_backfill_step2")
    with pytest.raises(QueryError, match="is not finished"):
        items.tube.session.call("tube_backfill_step3", json.dumps(again), "t", "public.items", "at")
    items.run("UPDATE items SET at = '1999-01-01' WHERE id = 900; DELETE FROM items WHERE id = 450")
    done = items.tube.backfill("items")
    assert (done.start_seq, done.order_col, done.finished_at is not None) == (step1["start_seq"], "at", True)
    touched = items.ids()
    assert touched == list(range(1, 901))
    assert sum(pod.op == "}" for pod in items.take()) == 1


def test_a_restarted_backfill(items: TubeDatabase) -> None:
    step1 = items.tube.session.call("tube_backfill_step1")
    items.tube.session.call("tube_backfill_step2")
    items.tube.session.call("tube_backfill_step3", json.dumps(step1), "t", "public.items", "at", None, 200)
    items.take()
    done = items.tube.backfill("items", restart=True)
    assert (done.start_seq > step1["start_seq"], done.keys, done.order_col) == (True, 900, "id")


def test_only_one_backfill_runs_at_a_time(items: TubeDatabase) -> None:
    step1 = json.dumps(items.tube.session.call("tube_backfill_step1"))
    items.tube.session.call("tube_backfill_step2")
    call = "SELECT tube.tube_backfill_step3(%s, 't', 'public.items', NULL, NULL, 10)"
    with psycopg.connect(items.database.uri) as other:
        other.execute(call, [step1])
        # The second one waits for the lock.
        items.tube.session.connection.execute("SET lock_timeout = '200ms'")
        with pytest.raises(QueryError, match="another backfill of"):
            items.tube.session.call("tube_backfill_step3", step1, "t", "public.items", None, None, 10)


def test_steps_require_separate_transactions(items: TubeDatabase) -> None:
    with psycopg.connect(items.database.uri) as one:
        step1 = one.execute("SELECT tube.tube_backfill_step1()").fetchone()
        with pytest.raises(psycopg.errors.ActiveSqlTransaction):
            one.execute("SELECT tube.tube_backfill_step2()")
    assert step1 is not None
    with psycopg.connect(items.database.uri) as holder:
        holder.execute("SELECT pg_current_xact_id()")
        later = items.tube.session.call("tube_backfill_step1")
        with pytest.raises(QueryError, match="still open"):
            items.tube.session.call("tube_backfill_step3", json.dumps(later), "t", "public.items")


def test_an_open_writer_holds_the_barrier_and_is_named(items: TubeDatabase) -> None:
    with psycopg.connect(items.database.uri, application_name="slow writer") as writer:
        writer.execute("INSERT INTO items VALUES (5000)")
        with pytest.raises(
            QueryError, match=rf"process {writer.info.backend_pid} \(postgres in database .*slow writer"
        ):
            items.tube.backfill("items", timeout=0.1)
        # A column that does not exist is named before the wait.
        with pytest.raises(CheckFailed, match="column nope does not exist in"):
            items.tube.backfill("items", order_col="nope", timeout=60)
        assert items.pods() == []
    assert items.tube.backfill("items").keys == 901


def test_a_prepared_transaction_holds_the_barrier_and_is_named(items: TubeDatabase) -> None:
    items.run("BEGIN; INSERT INTO items VALUES (5000); PREPARE TRANSACTION 'two phases'")
    try:
        with pytest.raises(QueryError, match="prepared transaction 'two phases' of postgres") as caught:
            items.tube.backfill("items", timeout=0.1)
        assert caught.value.cure
    finally:
        items.run("COMMIT PREPARED 'two phases'")
    assert items.tube.backfill("items").keys == 901


def test_the_barrier_needs_no_monitoring_privilege(items: TubeDatabase) -> None:
    items.run("CREATE ROLE worker LOGIN; GRANT USAGE ON SCHEMA tube TO worker")
    try:
        with psycopg.connect(items.database.uri, application_name="hidden") as writer:
            writer.execute("INSERT INTO items VALUES (5000)")
            with pytest.raises(psycopg.errors.LockNotAvailable, match=f"process {writer.info.backend_pid}"):
                items.run("SET ROLE worker; SELECT tube.tube_backfill_step2('0.1 s')")
        items.run("SET ROLE worker; SELECT tube.tube_backfill_step2('10 s')")
    finally:
        items.run("DROP OWNED BY worker; DROP ROLE worker")


def test_scheduled_by_a_control_pod(items: TubeDatabase) -> None:
    number = items.tube.schedule_backfill("items", order_col="at")
    (pod,) = items.take()
    assert (pod.seq, pod.op, pod.shard) == (number, "{", 4)
    assert pod.message | {"reason": ""} == {
        "type": "backfill_schedule", "table": "public.items", "order_col": "at", "shard": 4, "shards": 4, "reason": "",
    }  # fmt: skip


def test_a_backfill_that_waits_is_not_requested_again(items: TubeDatabase) -> None:
    first = items.tube.schedule_backfill("items")
    assert items.tube.schedule_backfill("items") == first
    # The order is another one, so it is another request.
    assert items.tube.schedule_backfill("items", order_col="at") != first
    assert len(items.pods()) == 2
    # A backfill that has begun may have passed rows that changed since.
    start = items.run("SELECT tube.tube_backfill_step1()")[0][0]
    step3 = f"SELECT tube.tube_backfill_step3('{json.dumps(start)}', 't', 'items', max_keys => 1)"
    with psycopg.connect(items.database.uri) as begins:
        begins.execute(step3)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            items.run("SET lock_timeout = '50ms'; SELECT tube.tube_backfill_schedule('t', 'items')")
    assert items.tube.schedule_backfill("items") > first


def test_a_column_that_is_added_again_is_copied_again_by_a_sync(items: TubeDatabase) -> None:
    """For its change log. The target has the values of the dropped column, also if rounds were between both changes."""
    follow = "SELECT tube.tube_reload_follow('t')"
    items.run(f"{follow}; ALTER TABLE items ADD added int; {follow}")
    assert items.pods() == []
    for change in ("DROP n; ALTER TABLE items ADD n int", f"DROP added; {follow}; ALTER TABLE items ADD added int"):
        items.run(f"ALTER TABLE items {change}; {follow}")
        (pod,) = items.take()
        assert (pod.op, "is new or has another type" in pod.message["reason"]) == ("{", True)
        items.run("TRUNCATE tube.pods_t")


def test_a_shard_out_of_range_is_named(items: TubeDatabase) -> None:
    items.run("CREATE TABLE others (id int PRIMARY KEY)")
    calls: list[Callable[[int], object]] = [
        lambda shard: items.tube.attach("others", shard=shard),
        lambda shard: items.tube.touch("items", [1], shard=shard),
        lambda shard: items.tube.touch_query("items", "SELECT 1", shard=shard),
        lambda shard: items.tube.backfill("items", shard=shard),
        lambda shard: items.tube.schedule_backfill("items", shard=shard),
    ]
    for call in calls:
        with pytest.raises(CheckFailed, match=f"the shard {2**63} is out of range"):
            call(2**63)


def test_a_table_is_detached_from_all_tubes(items: TubeDatabase) -> None:
    other, log = items.of("other"), items.of("log")
    for tube in (other, log):
        tube.ensure()
        tube.attach("items", shard=0)
    items.run("UPDATE tube.tubes SET sync = 's' WHERE tube = 'log'")
    detach = "SELECT tube.tube_table_ensure_detached(NULL, 'items')"
    assert items.run(detach) == [(True,)]
    assert items.run(detach) == [(False,)]
    # The change log of a sync stays: without it, changes would be lost.
    assert items.run("SELECT tube FROM tube.sources WHERE detached_at IS NULL") == [("log",)]
    assert items.run("SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'tube_other%'") == [(0,)]


@pytest.mark.parametrize("column", ["nothing", "xmin"])
def test_wrong_columns_are_named(items: TubeDatabase, column: str) -> None:
    with pytest.raises(CheckFailed):
        items.tube.backfill("items", order_col=column)
    assert items.pods() == []


def test_keys_of_all_types_in_parts(tube_db: TubeDatabase) -> None:
    """Each part continues after the last key, whatever its type is; each key is inserted once."""
    tube_db.run("CREATE EXTENSION citext; CREATE EXTENSION hstore; CREATE TYPE mood AS ENUM ('b', 'a')")
    tube_db.run("CREATE TYPE pair AS (a int, b text)")
    keys = {
        "char(5)": ["ab", "aa", "b"],
        "bit(3)": ["101", "111", "100"],
        "char(3)[]": ["{ab,c}", "{ab}", "{b}"],
        "citext": ["Za", "ab", "aC", "B"],
        "hstore": ["a=>1", "b=>2", "a=>2"],
        "int2vector": ["1 2", "3", "1"],
        "mood": ["a", "b"],
        "int[]": ["{1,2}", "{1}", "{NULL}"],
        "pair": ["(1,b)", "(1,)", "(,a)"],
        "numrange": ["[1,2)", "empty"],
    }
    for number, (kind, values) in enumerate(keys.items()):
        tube_db.run(f"CREATE TABLE k{number} (k {kind} PRIMARY KEY)")
        tube_db.tube.attach(f"k{number}", shard=number)
        for value in values:
            tube_db.run(f"INSERT INTO k{number} VALUES ('{value}')")
        assert len(tube_db.keys()) == len(values), kind
        assert tube_db.tube.backfill(f"k{number}", part_keys=1).keys == len(values), kind
        assert len(tube_db.keys()) == len(values), kind
        tube_db.tube.touch(f"k{number}", values[:1])
        assert tube_db.keys() == values[:1], kind
