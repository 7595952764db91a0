"""Pods are claimed and deleted by exact number, in index order, by one worker per partition."""

from __future__ import annotations

import random
import threading
import time

import psycopg
import pytest

from support.tube import TubeDatabase
from trueup.api.tube import Tube
from trueup.errors import CheckFailed, QueryError


@pytest.fixture
def items(tube_db: TubeDatabase) -> TubeDatabase:
    tube_db.run("CREATE TABLE items (id bigint PRIMARY KEY, n int)")
    tube_db.tube.attach("items", shard=0)
    return tube_db


def test_a_lower_sequence_number_that_commits_later_is_delivered(items: TubeDatabase) -> None:
    with psycopg.connect(items.database.uri) as early:
        early.execute("INSERT INTO items VALUES (1)")
        items.run("INSERT INTO items VALUES (2)")
        (later,) = items.take()
        assert later.ids == (2,)
    (pod,) = items.take()
    assert (pod.ids, pod.seq < later.seq) == ((1,), True)


def test_claimed_pods_are_skipped_and_read_again(items: TubeDatabase) -> None:
    items.run("INSERT INTO items SELECT g FROM generate_series(1, 1000) g")
    first = items.tube.claim(limit=2)
    second = items.tube.claim(limit=10, skip=[pod.seq for pod in first])
    assert [pod.seq for pod in second] == [pod.seq + 2 for pod in first]
    numbers = [pod.seq for pod in (*second, *first)]
    assert items.tube.read(numbers) == [*first, *second]
    assert items.tube.delete([first[0].seq, 999_999]) == 1
    assert items.tube.read(numbers) == [first[1], *second]


@pytest.mark.parametrize("partitions", [1, 3])
def test_the_order_is_that_of_the_index(items: TubeDatabase, partitions: int) -> None:
    items.tube.ensure(partitions=partitions)
    items.run("""INSERT INTO tube.pods_t (shard, source, op, ids)
                 SELECT g % 9, 1, CASE WHEN g % 2 = 0 THEN 'B' ELSE 'I' END, '{1}' FROM generate_series(1, 20000) g;
                 ANALYZE tube.pods_t""")
    condition = f"abs(shard % {partitions}) = 0" if partitions > 1 else "true"
    claim = f"SELECT seq FROM tube.pods_t WHERE {condition} ORDER BY op = 'B', seq LIMIT 100"
    plan = "\n".join(str(row[0]) for row in items.run(f"EXPLAIN {claim}"))
    assert "Index Scan using pods_t_order" in plan or "Index Only Scan using pods_t_order" in plan, plan
    assert "Sort" not in plan
    pods = items.pods()
    assert [(pod.op == "B", pod.seq) for pod in pods] == sorted((pod.op == "B", pod.seq) for pod in pods)
    assert {pod.shard % partitions for pod in pods} == {0}
    assert items.tube.delete([pod.seq for pod in pods]) == len(pods)


def test_one_worker_per_partition(items: TubeDatabase) -> None:
    items.tube.ensure(partitions=2)
    with Tube("t", items.database.uri) as other, items.tube.lock(0):
        pid = items.tube.session.connection.info.backend_pid
        with (
            pytest.raises(
                CheckFailed, match=rf"partition 0 of the tube t is locked by server process {pid} \(postgres, trueup"
            ),
            other.lock(0, wait=0.3),
        ):
            pass
        with other.lock(1):
            pass
        with pytest.raises(QueryError, match="partition 0 of the tube t is locked"):
            other.ensure(partitions=3)
    with Tube("t", items.database.uri) as other, other.lock(0):
        pass
    with pytest.raises(CheckFailed, match="has no partition 2"):
        items.tube.claim(2)


def test_claiming_waits_for_a_lock(items: TubeDatabase) -> None:
    entered = threading.Event()
    with Tube("t", items.database.uri) as other:

        def wait() -> None:
            with other.lock(wait=30):
                entered.set()

        with items.tube.lock():
            thread = threading.Thread(target=wait)
            thread.start()
            assert not entered.is_set()
        thread.join()
        assert entered.is_set()


def test_explicit_touches(items: TubeDatabase) -> None:
    items.run("INSERT INTO items SELECT g, g % 2 FROM generate_series(1, 600) g")
    items.take()
    assert items.tube.touch("items", [5, 7]) == 1
    assert items.tube.touch_query("items", "SELECT id FROM public.items WHERE n = 1 ORDER BY id DESC") == 2
    pods = items.take()
    assert [(pod.op, len(pod.ids)) for pod in pods] == [("T", 2), ("T", 250), ("T", 50)]
    assert list(pods[1].ids) == list(range(599, 99, -2))
    items.run("SET application_name = 'my backfill'; SELECT tube.tube_touch('t', 'items', '{9}')")
    assert [(pod.op, pod.ids) for pod in items.take()] == [("B", (9,))]
    items.run("CREATE TABLE other (id int PRIMARY KEY)")
    with pytest.raises(QueryError, match="not attached"):
        items.tube.touch("other", [1])


def test_explicit_touches_are_routed(tube_db: TubeDatabase) -> None:
    tube_db.run("CREATE TABLE docs (id int PRIMARY KEY, tenant int); INSERT INTO docs VALUES (1, 5), (2, 6)")
    tube_db.tube.attach("docs", routing="tenant")
    tube_db.tube.touch("docs", [1, 2])
    assert sorted((pod.shard, pod.ids) for pod in tube_db.take()) == [(5, (1,)), (6, (2,))]
    with pytest.raises(QueryError, match="cannot be computed") as caught:
        tube_db.tube.touch("docs", [1, 99])
    assert caught.value.cure == "specify the shard with --shard"
    tube_db.tube.touch("docs", [99], shard=8)
    tube_db.tube.touch_query("docs", "SELECT tenant, id FROM public.docs")
    assert sorted((pod.shard, pod.ids) for pod in tube_db.take()) == [(5, (1,)), (6, (2,)), (8, (99,))]


def test_stats(items: TubeDatabase) -> None:
    items.tube.ensure(partitions=2)
    items.run("INSERT INTO items SELECT g FROM generate_series(1, 300) g; TRUNCATE items; INSERT INTO items VALUES (1)")
    items.tube.backfill("items")
    zero, one = items.tube.stats()
    assert (zero.live_pods, zero.live_keys, zero.control_pods) == (3, 301, 2)
    assert (zero.backfill_pods, zero.backfill_keys, zero.troubles, zero.shards) == (1, 1, 0, 1)
    assert zero.oldest_live_s is not None
    assert zero.oldest_backfill_s is not None
    assert zero.oldest_live_s >= zero.oldest_backfill_s > 0
    assert (one.live_pods, one.oldest_live_s) == (0, None)
    items.take()
    items.tube.schedule_backfill("items")
    zero, _ = items.tube.stats()
    assert (zero.control_pods, zero.oldest_live_s, zero.oldest_backfill_s is not None) == (2, None, True)


def test_eight_writers_and_nothing_is_lost(items: TubeDatabase) -> None:
    """Random pauses, rollbacks and changed keys, with a concurrent reader that deletes pods by exact number."""
    writers, rounds = 8, 25
    committed: list[set[int]] = [set() for _ in range(writers)]

    def write(number: int) -> None:
        chance = random.Random(number)
        with psycopg.connect(items.database.uri) as connection:
            for step in range(rounds):
                low = (number * rounds + step) * 1000
                connection.execute(
                    "INSERT INTO items SELECT g, 0 FROM generate_series(%s::int, %s::int) g", [low, low + 5]
                )
                time.sleep(chance.random() * 0.01)
                connection.execute("UPDATE items SET id = id + 500 WHERE id = %s", [low])
                if chance.random() < 0.1:
                    connection.rollback()
                else:
                    connection.commit()
                    committed[number] |= {*range(low, low + 6), low + 500}

    threads = [threading.Thread(target=write, args=[number]) for number in range(writers)]
    seen: set[int] = set()
    highest, overtaken = 0, 0
    with psycopg.connect(items.database.uri) as late:
        late.execute("INSERT INTO items VALUES (-1, 0)")
        for thread in threads:
            thread.start()
        while True:
            working = any(thread.is_alive() for thread in threads)
            pods = items.tube.claim(limit=7)
            overtaken += sum(pod.seq < highest for pod in pods)
            highest = max([highest, *(pod.seq for pod in pods)])
            seen |= {key for pod in pods for key in pod.ids}
            items.tube.delete([pod.seq for pod in pods])
            if highest:
                # Whatever the threads do, one lower number is committed after a higher one was read.
                late.commit()
            if not working and not pods:
                break
    expected = {-1}.union(*committed)
    assert seen == expected
    assert len(expected) > writers * rounds * 5
    assert overtaken
