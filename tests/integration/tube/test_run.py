"""The job `tube run`: the sink equals the source after concurrent writes and failures."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from support.fixtures import FreshServer, both_engines
from support.sqlite_sink import SqliteSink
from support.tube import TubeDatabase
from support.waiting import Pause
from trueup.api.tube import Tube
from trueup.capture.triggers.batch import batch_of
from trueup.capture.triggers.hold import Hold, HoldLost, check_generation
from trueup.engine.progress import Silent
from trueup.errors import CheckFailed
from trueup.store import TaskStore
from trueup.verbs.tube import waiting
from trueup.verbs.tube.model import Summary

ROOT = str(Path(__file__).parents[2])


@pytest.fixture
def sqlite_sink(tmp_path: Path) -> SqliteSink:
    return SqliteSink(str(tmp_path / "kept.db"))


@pytest.fixture
def items(tube_db: TubeDatabase) -> TubeDatabase:
    tube_db.run("CREATE TABLE items (id bigint PRIMARY KEY, n int, note text)")
    tube_db.tube.attach("items", shard=0)
    return tube_db


def empty(tube_db: TubeDatabase, sqlite_sink: SqliteSink, **options: Any) -> Summary:
    """Run a job until the tube is empty."""
    with Tube("t", tube_db.database.uri) as tube:
        options.setdefault("spark", tube_db.spark)
        summary: Summary = tube.run(SqliteSink(sqlite_sink.path), until_empty=True, **options)
        return summary


class RecordedMessages(Silent):
    """A progress object that records the messages of a job."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def say(self, text: str) -> None:
        self.messages.append(text)

    def wait(self, reason: str) -> None:
        self.messages.append(reason)


@dataclass
class Following:
    """A job that runs in a thread of the test."""

    summary: Summary = field(default_factory=lambda: Summary("t"))
    messages: list[str] = field(default_factory=list)


@contextmanager
def following(tube_db: TubeDatabase, sqlite_sink: SqliteSink, **options: Any) -> Iterator[Following]:
    """Run a job during the block, and stop it at the end."""
    stop, job, progress = threading.Event(), Following(), RecordedMessages()
    job.messages = progress.messages
    errors: list[BaseException] = []

    def run() -> None:
        try:
            with Tube("t", tube_db.database.uri) as tube:
                options.setdefault("spark", tube_db.spark)
                job.summary = tube.run(SqliteSink(sqlite_sink.path), stop=stop, progress=progress, **options)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    sqlite_sink.setup([])
    thread.start()
    try:
        yield job
    finally:
        stop.set()
        thread.join(60)
    assert errors == []
    assert not thread.is_alive()


def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds, at most one minute."""
    end = time.monotonic() + 120
    pause = Pause(0.02)
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        pause()


def source(tube_db: TubeDatabase, table: str = "items", where: str = "true") -> dict[Any, Any]:
    found = tube_db.run(f"SELECT to_jsonb(r) FROM {table} r WHERE {where}")
    return {str(row["id"]): row for (row,) in found}


def kept(sqlite_sink: SqliteSink, table: str = "public.items") -> dict[Any, Any]:
    rows = sqlite_sink.rows(table)
    assert len({key for _, key in rows}) == len(rows), "a key is in two shards"
    return {key[0]: row for (_, key), row in rows.items()}


@both_engines
def test_the_sink_follows(engine: str, items: TubeDatabase, sqlite_sink: SqliteSink) -> None:
    items.run("INSERT INTO items SELECT g, g, 'x' FROM generate_series(1, 600) g")
    summary = empty(items, sqlite_sink)
    assert (summary.keys, summary.written, summary.removed, summary.pods) == (600, 600, 0, 3)
    assert kept(sqlite_sink) == source(items)
    # A changed key: the old document is deleted, the new one is written. A key touched often is written once.
    before = sqlite_sink.writes
    items.run(
        "UPDATE items SET id = 1000 WHERE id = 7; DELETE FROM items WHERE id = 8; UPDATE items SET n = 0 WHERE id = 9;"
        " UPDATE items SET n = 1 WHERE id = 9"
    )
    summary = empty(items, sqlite_sink)
    assert sqlite_sink.writes - before == summary.keys == 4
    assert (summary.written, summary.removed) == (2, 2)
    assert kept(sqlite_sink) == source(items)
    items.run("TRUNCATE items; INSERT INTO items VALUES (1), (3000)")
    empty(items, sqlite_sink)
    assert kept(sqlite_sink) == source(items)
    assert set(kept(sqlite_sink)) == {"1", "3000"}
    assert items.pods() == []


@both_engines
def test_rows_that_count_as_deleted(engine: str, tube_db: TubeDatabase, sqlite_sink: SqliteSink) -> None:
    """Predicates, routing, composite keys, equal keys with different texts; exact values of every type."""
    tube_db.run("""
        CREATE TABLE docs (tenant int, name text, n numeric, is_draft boolean, f float8, at timestamptz, j jsonb,
                           b bytea, c char(5), a int[], PRIMARY KEY (tenant, name));
        CREATE TABLE nums (n numeric PRIMARY KEY, note text);
        CREATE TABLE uids (id uuid PRIMARY KEY, n int);
        INSERT INTO docs SELECT g % 5, 'n"\\,' || g, g / 3.0, g % 2 = 0, CASE g WHEN 1 THEN 'NaN'
            WHEN 3 THEN '-Infinity' ELSE g / 7.0 END, '2020-01-01 12:00+02', '{"b": [1, null], "a": 1e2}',
            '\\x00ff', 'ab', '{{1},{NULL}}' FROM generate_series(1, 40) g;
        INSERT INTO nums VALUES (1.0), (2);
        INSERT INTO uids SELECT md5(g::text)::uuid, g FROM generate_series(1, 20) g""")
    tube_db.tube.attach("docs", routing="tenant", predicate="NOT is_draft")
    tube_db.tube.attach("nums", shard=3)
    tube_db.tube.attach("uids", shard=4, predicate="100 / (n - 13) IS NOT NULL")
    for table in ("docs", "nums"):
        tube_db.tube.backfill(table)
    tube_db.run("UPDATE uids SET n = n")
    empty(tube_db, sqlite_sink, attempts=2, retry_pause=0.05)
    docs = sqlite_sink.rows("public.docs")
    assert {key for _, key in docs} == {(str(g % 5), f'n"\\,{g}') for g in range(1, 41, 2)}
    assert all(str(shard) == key[0] for shard, key in docs)
    first, third, fifth = (docs[g % 5, (str(g % 5), f'n"\\,{g}')] for g in (1, 3, 5))
    assert (first["f"], third["f"], fifth["f"]) == ("NaN", "-Infinity", 5 / 7.0)
    assert (fifth["tenant"], fifth["n"], fifth["is_draft"]) == (0, "1.6666666666666667", False)
    assert (fifth["at"], fifth["j"]) == ("2020-01-01 10:00:00+00", '{"a": 100, "b": [1, null]}')
    assert (fifth["b"], fifth["c"], fifth["a"]) == ("\\x00ff", "ab   ", "{{1},{NULL}}")
    # If a predicate fails for one row, that row is a dead letter; the others are written.
    assert len(sqlite_sink.rows("public.uids")) == 19
    (letter,) = tube_db.tube.dead_letters()
    assert (letter.table, letter.attempts, letter.next_at) == ("public.uids", 2, None)
    assert "division by zero" in letter.error
    # A row that no longer matches is deleted; a row with another shard moves; 1.0 becomes 1.00.
    tube_db.run("""UPDATE docs SET is_draft = true WHERE tenant = 0; UPDATE docs SET tenant = 9 WHERE tenant = 1;
                 UPDATE nums SET n = 1.00 WHERE n = 1; UPDATE uids SET n = 5 WHERE n = 13""")
    empty(tube_db, sqlite_sink)
    docs = sqlite_sink.rows("public.docs")
    assert {shard for shard, _ in docs} == {2, 3, 4, 9}
    assert {key for shard, key in docs if shard == 9} == {("9", f'n"\\,{g}') for g in (1, 11, 21, 31)}
    assert set(sqlite_sink.rows("public.nums")) == {(3, ("1.00",)), (3, ("2",))}
    assert (len(sqlite_sink.rows("public.uids")), tube_db.tube.dead_letters()) == (20, [])


@both_engines
def test_changes_of_columns_and_tables(engine: str, items: TubeDatabase, sqlite_sink: SqliteSink) -> None:
    items.run("INSERT INTO items VALUES (1, 1, 'a')")
    with following(items, sqlite_sink):
        until(lambda: kept(sqlite_sink) == source(items))
        items.run("ALTER TABLE items ADD COLUMN more int DEFAULT 5; UPDATE items SET n = 2")
        until(lambda: kept(sqlite_sink) == source(items))
        items.run(
            "ALTER TABLE items RENAME COLUMN note TO words; ALTER TABLE items DROP COLUMN n; UPDATE items SET more = 6"
        )
        until(lambda: kept(sqlite_sink) == source(items))
        items.run("CREATE TABLE others (id int PRIMARY KEY); SELECT 1")
        items.tube.attach("others", shard=2)
        items.run("INSERT INTO others VALUES (5); UPDATE items SET more = 7")
        until(lambda: set(kept(sqlite_sink, "public.others")) == {"5"} and kept(sqlite_sink) == source(items))
        items.run("DROP TABLE others; UPDATE items SET more = 8")
        until(lambda: kept(sqlite_sink) == source(items))


@both_engines
def test_eight_writers_a_backfill_and_garbage(engine: str, items: TubeDatabase, sqlite_sink: SqliteSink) -> None:
    """Random pauses, rollbacks and changed keys during a backfill into a sink with outdated documents."""
    items.run("INSERT INTO items SELECT -g, g, 'x' FROM generate_series(1, 3000) g")
    empty(items, sqlite_sink)
    # An outdated document: its row was deleted before the tube existed.
    items.run(
        "ALTER TABLE items DISABLE TRIGGER USER; DELETE FROM items WHERE id < -2900;"
        " ALTER TABLE items ENABLE ALWAYS TRIGGER tube_t_insert; ALTER TABLE items ENABLE ALWAYS TRIGGER tube_t_update;"
        " ALTER TABLE items ENABLE ALWAYS TRIGGER tube_t_delete;"
        " ALTER TABLE items ENABLE ALWAYS TRIGGER tube_t_truncate"
    )
    assert len(kept(sqlite_sink)) == 3000

    def write(number: int) -> None:
        chance = random.Random(number)
        with psycopg.connect(items.database.uri) as connection:
            for step in range(25):
                low = (number * 25 + step) * 1000
                connection.execute(
                    "INSERT INTO items SELECT g, 0 FROM generate_series(%s::int, %s::int) g", [low, low + 5]
                )
                time.sleep(chance.random() * 0.01)
                connection.execute("UPDATE items SET id = id + 500 WHERE id = %s", [low])
                connection.execute("DELETE FROM items WHERE id = %s", [-chance.randint(1, 2900)])
                connection.execute("UPDATE items SET n = n + 1 WHERE id = %s", [-chance.randint(1, 2900)])
                if chance.random() < 0.1:
                    connection.rollback()
                else:
                    connection.commit()

    threads = [threading.Thread(target=write, args=[number]) for number in range(8)]
    with following(items, sqlite_sink, max_pods=7 if engine == "local" else 200):
        for thread in threads:
            thread.start()
        items.tube.schedule_backfill("items", order_col="n")
        for thread in threads:
            thread.join()
        until(lambda: not items.pods() and kept(sqlite_sink) == source(items))
    assert len(kept(sqlite_sink)) > 3500
    (found,) = items.tube.backfills()
    assert found.finished_at is not None
    assert items.tube.stats()[0].keys_done > 6000


def test_a_thousand_shards(tube_db: TubeDatabase, sqlite_sink: SqliteSink) -> None:
    tube_db.run(
        "CREATE TABLE items (id bigint PRIMARY KEY, n int);"
        " INSERT INTO items SELECT g, g FROM generate_series(1, 4000) g"
    )
    tube_db.tube.ensure(partitions=4)
    tube_db.tube.attach("items", routing="n % 1000")
    tube_db.tube.backfill("items")
    tube_db.run("DELETE FROM items WHERE id % 7 = 0")
    summary = empty(tube_db, sqlite_sink)
    assert kept(sqlite_sink) == source(tube_db)
    # Rows that move to another shard, and another partition, are in that one only.
    tube_db.run("UPDATE items SET n = n + 1 WHERE id % 11 = 0")
    empty(tube_db, sqlite_sink)
    assert kept(sqlite_sink) == source(tube_db)
    assert {shard for shard, _ in sqlite_sink.rows("public.items")} == set(range(1000))
    assert summary.removed > 500


@both_engines
def test_a_sink_that_is_down_or_rejects_documents(
    engine: str, items: TubeDatabase, sqlite_sink: SqliteSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    items.run("INSERT INTO items SELECT g, g FROM generate_series(1, 300) g")
    with monkeypatch.context() as patch:
        patch.setattr(waiting, "FIRST_SECONDS", 0.3)
        with pytest.raises(CheckFailed, match="the sink was not reached since the start of the job") as caught:
            items.tube.run("postgresql://app@127.0.0.1:1/nothing")
    assert caught.value.cure.startswith("check the address")
    assert len(items.pods()) == 2
    sqlite_sink.fault("down")
    with following(items, sqlite_sink, attempts=3, retry_pause=0.05) as job:
        until(lambda: (items.tube.stats()[0].waiting or "").startswith("the sink is down: out of order"))
        assert any("the sink is down: out of order" in line for line in job.messages)
        items.run("UPDATE items SET n = 0 WHERE id < 20")
        assert items.tube.stats()[0].live_pods == 3
        sqlite_sink.fault("down", None)
        until(lambda: kept(sqlite_sink) == source(items))
        # Rejected documents, named by the sink or not, become dead letters after some tries; the others are written.
        for how in ("named", "silent"):
            sqlite_sink.fault("poison", f"{how} 5 250")
            items.run("UPDATE items SET n = n + 1000")
            until(lambda: items.tube.stats()[0].parked == 2)
            right, found = source(items), kept(sqlite_sink)
            assert {key for key in right if right[key] != found[key]} == {"5", "250"}
            letters = items.tube.dead_letters()
            assert {(letter.key, letter.attempts, "cannot be digested" in letter.error) for letter in letters} == {
                ("5", 3, True),
                ("250", 3, True),
            }
            # A later successful write removes one dead letter; the other is tried again on request.
            sqlite_sink.fault("poison", None)
            items.run("UPDATE items SET n = n + 1 WHERE id = 5")
            until(lambda: [each.key for each in items.tube.dead_letters()] == ["250"])
            assert items.tube.retry_letters(keys=["250"]) == 1
            until(lambda: items.tube.dead_letters() == [])
            assert kept(sqlite_sink) == source(items)
        # If a sink refuses all documents, the job waits instead of creating a million dead letters.
        sqlite_sink.fault("poison", "silent all")
        items.run("UPDATE items SET n = 7")
        until(lambda: "refuses all documents" in (items.tube.stats()[0].waiting or ""))
        assert items.tube.dead_letters() == []
        sqlite_sink.fault("poison", None)
        until(lambda: kept(sqlite_sink) == source(items))
    assert job.summary.parked == 4
    assert job.summary.outages == 2


def test_two_jobs_on_one_tube(items: TubeDatabase, sqlite_sink: SqliteSink) -> None:
    items.tube.ensure(partitions=2)
    with following(items, sqlite_sink, partitions=[0]):
        until(lambda: items.tube.stats()[0].worker is not None)
        with pytest.raises(CheckFailed, match="partition 0 of the tube t is locked by server process"):
            empty(items, sqlite_sink)
        empty(items, sqlite_sink, partitions=[1])
        with pytest.raises(CheckFailed, match="has no partition 2"):
            empty(items, sqlite_sink, partitions=[2])
        ended: list[Summary] = []
        waiting = threading.Thread(target=lambda: ended.append(empty(items, sqlite_sink, wait=60)))
        waiting.start()
        items.run("INSERT INTO items VALUES (1)")
        until(lambda: set(kept(sqlite_sink)) == {"1"})
        assert not ended
    waiting.join()
    assert ended


def test_a_job_that_lost_its_session_stops_before_its_successor_writes(
    items: TubeDatabase, sqlite_sink: SqliteSink
) -> None:
    """The current write ends before the successor starts, and the first job deletes no pods."""
    items.run("INSERT INTO items VALUES (1, 1)")
    sqlite_sink.fault("slow")
    with following(items, sqlite_sink) as job:
        until(lambda: bool(sqlite_sink.has("busy")))
        items.run("SELECT pg_terminate_backend(pid) FROM tube.holders")
        items.run("UPDATE items SET n = 2")
        # Its write is running, and its pods are kept.
        assert [pod.ids for pod in items.pods()] == [(1,), (1,)]
        sqlite_sink.fault("slow", None)
        until(lambda: kept(sqlite_sink) == source(items))
        until(lambda: items.pods() == [])
    assert job.summary.outages == 1
    assert items.run("SELECT generation FROM tube.workers") == [(2,)]
    # A job of an old generation writes nothing of its claimed pods before it has the lock again.
    with following(items, sqlite_sink):
        until(lambda: items.run("SELECT generation FROM tube.workers WHERE ended_at IS NULL") == [(3,)])
        before = sqlite_sink.writes
        items.run("UPDATE tube.workers SET generation = 4; UPDATE items SET n = 3")
        until(lambda: kept(sqlite_sink) == source(items) and items.pods() == [])
        assert sqlite_sink.writes == before + 1
    # A worker of an older generation may not delete or write.
    items.run("INSERT INTO items VALUES (3, 3)")
    with Tube("t", items.database.uri) as tube, Tube("t", items.database.uri) as other:
        hold = Hold(tube.session, "t", [0])
        hold.take(wait=0, say=print)
        claimed = [(0, pod) for pod in tube.claim()]
        tube.session.rows(sql.SQL("DELETE FROM tube.holders").format())
        messages: list[str] = []
        successor = Hold(other.session, "t", [0], grace=0.5)
        successor.take(wait=0, say=messages.append)
        assert "waiting until it writes no more" in messages[0]
        for call in (hold.check, lambda: hold.acknowledge(batch_of(claimed, {}))):
            with pytest.raises(HoldLost, match="another worker has taken partition"):
                call()
        assert [pod.ids for pod in tube.claim()] == [(3,)]
        successor.release()


KILLED_DRIVER = """
import os, signal
from trueup.api.tube import Tube
from trueup.capture.triggers.hold import Hold
tube = Tube("t", {uri!r})
Hold(tube.session, "t", {partitions}, executors={executors}).take(wait=0, say=print)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_executors_of_a_killed_driver_are_fenced_and_waited_for(items: TubeDatabase) -> None:
    """They check the generation before each write, so the successor first takes it, then waits for the last write."""
    uri, partitions, grace = items.database.uri, [0], 0.5

    def successor(say: Callable[[str], None], **options: Any) -> None:
        with Tube("t", uri) as tube:
            hold = Hold(tube.session, "t", partitions, grace=grace)
            hold.take(**{"wait": 5, "say": say, **options})
            hold.release()

    def killed(*, executors: bool) -> None:
        program = KILLED_DRIVER.format(uri=uri, executors=executors, partitions=partitions)
        assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGKILL

    messages: list[str] = []
    killed(executors=False)
    successor(messages.append)
    assert messages == []
    killed(executors=True)
    ((generation,),) = items.run("SELECT generation FROM tube.workers")

    def is_fenced(text: str) -> None:
        with pytest.raises(HoldLost):
            check_generation(items.tube.session, "t", 0, generation)

    # A successor that is stopped or killed while it waits does not shorten the wait of the next one.
    with pytest.raises(CheckFailed, match="stopped while waiting for the last write"):
        successor(is_fenced, is_stopped=lambda: True)
    started = time.monotonic()
    successor(messages.append)
    assert len(messages) == 1
    assert time.monotonic() - started >= 0.5
    successor(messages.append)
    assert len(messages) == 1
    # The time passes for all partitions at once.
    items.tube.ensure(partitions=8)
    partitions, grace = list(range(8)), 1.0
    killed(executors=True)
    started = time.monotonic()
    successor(messages.append)
    assert 1 <= time.monotonic() - started < 8
    assert len(messages) == 2
    # A successor that cannot have all partitions keeps none, and the next one waits as long.
    killed(executors=True)
    with Tube("t", uri) as other, other.lock(7):
        with pytest.raises(CheckFailed):
            successor(messages.append, wait=0)
        for partition in range(7):
            with items.tube.lock(partition):
                pass
    assert len(messages) == 2


def test_a_node_restart_and_a_paused_job(fresh_server: FreshServer, sqlite_sink: SqliteSink) -> None:
    """The job waits for its node, takes the lock again and continues; rows larger than a chunk are split."""
    server = fresh_server(name="restarted")
    database = server.create_database("shop")
    Tube.install(database.uri)
    with Tube("t", database.uri) as tube:
        tube.ensure()
        database.execute("CREATE TABLE items (id int PRIMARY KEY, n int, note text)")
        tube.attach("items", shard=0)
    tube_db = TubeDatabase(database)
    with following(tube_db, sqlite_sink) as job:
        database.execute("INSERT INTO items VALUES (1, 1)")
        until(lambda: set(kept(sqlite_sink)) == {"1"})
        server.restart("immediate")
        database.execute("INSERT INTO items SELECT g, g, repeat('x', 5000) FROM generate_series(2, 301) g")
        until(lambda: kept(sqlite_sink) == source(tube_db))
        with TaskStore() as store:
            (task,) = store.list(status="RUNNING")
            store.ask(task.task_id, "pause")
            with Tube("t", database.uri) as tube:
                until(lambda: (tube.stats()[0].waiting or "").startswith("paused"))
                database.execute("UPDATE items SET n = 0")
                assert kept(sqlite_sink) != source(tube_db)
                store.ask(task.task_id, "")
                until(lambda: kept(sqlite_sink) == source(tube_db))
    assert job.summary.outages >= 1
    database.execute("UPDATE items SET n = 5; UPDATE items SET n = 6")
    writes = sqlite_sink.count
    with Tube("t", database.uri) as tube:
        assert tube.run(SqliteSink(sqlite_sink.path), until_empty=True, max_bytes=100_000).written == 301
    assert kept(sqlite_sink) == source(tube_db)
    assert sqlite_sink.count - writes > 10, "all rows were in one chunk"


STEPS = """
import os, signal, sys
from trueup.capture.triggers import hold
from trueup.capture.triggers import queue
from trueup.api.tube import Tube
sys.path.append({root!r})
from support.sqlite_sink import SqliteSink

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

if {step!r} == "claim":
    queue.batch_of = die
elif {step!r} == "delete":
    hold.delete = die
with Tube("t", {uri!r}) as tube:
    tube.run(SqliteSink({path!r}), until_empty=True)
"""


@pytest.mark.parametrize("step", ["claim", "before", "after", "delete"])
def test_killed_at_each_step(items: TubeDatabase, sqlite_sink: SqliteSink, step: str) -> None:
    items.run("INSERT INTO items SELECT g, g FROM generate_series(1, 300) g; DELETE FROM items WHERE id = 3")
    if step in ("before", "after"):
        sqlite_sink.fault("kill", step)
    script = STEPS.format(root=ROOT, step=step, uri=items.database.uri, path=sqlite_sink.path)
    done = subprocess.run([sys.executable, "-c", script], timeout=60, check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(items.pods()) == 3, "pods were deleted before the sink had them"
    sqlite_sink.fault("kill", None)
    items.run("UPDATE items SET n = -1 WHERE id = 5; DELETE FROM items WHERE id = 6")
    empty(items, sqlite_sink)
    assert kept(sqlite_sink) == source(items)
    assert items.pods() == []
