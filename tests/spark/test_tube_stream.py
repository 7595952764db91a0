"""spark.readStream.format("trueup_tube"): every touched key in a Spark program, also after a crash of the driver."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

import trueup
from support.class_archive import archive_options
from support.fixtures import Databases, Spark
from support.spark import INTERPRETED, JVM_OPTIONS
from trueup.api.tube import Tube
from trueup.capture.triggers.batch import Keys
from trueup.capture.triggers.hold import HoldLost
from trueup.capture.triggers.shape import Shapes, tables_of
from trueup.config.settings import SparkSettings
from trueup.engine.java import find_java
from trueup.engine.work import Room
from trueup.sinks import open_sink
from trueup.sinks.base import Mark
from trueup.spark.tube.datasource import SCHEMA, TubeSource
from trueup.spark.tube.offsets import Offset, packed, unpacked
from trueup.testing.postgres import Database
from trueup.verbs.tube.pipeline_spark import SparkTask, deliver_task

Items = tuple[Database, Tube]


@pytest.fixture
def items(databases: Databases) -> Iterator[Items]:
    [database] = databases(1)
    database.execute("CREATE TABLE items (id bigint PRIMARY KEY, n int, tenant int)")
    Tube.install(database.uri)
    with Tube("t", database.uri) as tube:
        tube.ensure(partitions=2)
        tube.attach("items", routing="tenant")
        yield database, tube


def until(condition: Callable[[], bool], query: StreamingQuery | None = None) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert query is None or query.isActive, query.exception()
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.05)


class Copy:
    """A Spark program that copies the table from the stream, and records the batches."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, str], dict[str, Any]] = {}
        self.batches: list[tuple[int, list[tuple[int, str]]]] = []
        self.controls: list[dict[str, Any]] = []
        self.parts: list[dict[int, set[int]]] = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, frame: DataFrame, number: int) -> None:
        from pyspark.sql import functions as F

        rows = frame.withColumn("part", F.spark_partition_id()).collect()
        touched = [(row.shard, row.key[0]) for row in rows if row.control is None]
        self.batches.append((number, touched))
        parts: dict[int, set[int]] = {}
        for row in rows:
            parts.setdefault(row.shard, set()).add(row.part)
            if row.control is not None:
                self.controls.append(json.loads(row.control))
            elif row.row is None:
                self.rows.pop((row.shard, row.key[0]), None)
            else:
                self.rows[row.shard, row.key[0]] = json.loads(row.row)
        self.parts.append(parts)
        assert self.gate.wait(60)


@contextmanager
def streaming(
    spark: Spark, database: Database, copy: Copy, checkpoint: Path, **options: Any
) -> Iterator[StreamingQuery]:
    stream = spark.readStream.format("trueup_tube").option("address", database.uri).options(**options).load("t")
    query = stream.writeStream.foreachBatch(copy).option("checkpointLocation", str(checkpoint)).start()
    try:
        yield query
    finally:
        copy.gate.set()
        query.stop()


def source(database: Database) -> dict[tuple[int, str], dict[str, Any]]:
    rows = database.execute("SELECT tenant, to_jsonb(r) FROM items r")
    return {(tenant, str(row["id"])): row for tenant, row in rows}


def waiting(tube: Tube) -> int:
    return sum(partition.live_pods + partition.backfill_pods + partition.control_pods for partition in tube.stats())


def test_offsets_name_exactly_their_pods() -> None:
    numbers = (3, 4, 5, 9, 11, 12)
    assert (packed(numbers), unpacked(packed(numbers)), packed([])) == ("3-5,9,11-12", numbers, "")
    offset = Offset(7, {0: numbers, 3: (1,)})
    assert Offset.from_json(json.loads(json.dumps(offset.as_json()))) == offset


def test_a_copy_follows_the_table(spark: Spark, items: Items, tmp_path: Path) -> None:
    database, tube = items
    trueup.register(spark)
    database.execute("INSERT INTO items SELECT g, g, g % 50 FROM generate_series(1, 3000) g")
    copy = Copy()
    with streaming(spark, database, copy, tmp_path / "c", most_keys=4000) as query:
        until(lambda: copy.rows == source(database), query)
        # One shard is in one task, though there were several tasks; each key once.
        assert all(len(parts) == 1 for batch in copy.parts for parts in batch.values())
        assert any(len(set.union(*batch.values())) > 1 for batch in copy.parts if batch)
        assert all(len(touched) == len(set(touched)) for _, touched in copy.batches)
        # The last batch is deleted without another one coming.
        until(lambda: waiting(tube) == 0, query)
        database.execute(
            "UPDATE items SET tenant = 77 WHERE id = 5; DELETE FROM items WHERE id = 6; TRUNCATE items;"
            " INSERT INTO items VALUES (5, 5, 77)"
        )
        tube.schedule_backfill("items")
        until(lambda: {control["type"] for control in copy.controls} == {"truncate", "backfill_end"}, query)
        until(lambda: waiting(tube) == 0, query)
        assert copy.rows[77, "5"]["id"] == 5
        assert tube.stats()[0].worker is not None
        # A second driver stops with a clear error, in the process that Spark would start for it.
        reader = TubeSource({"address": database.uri, "tube": "t"}).streamReader(SCHEMA)
        with pytest.raises(trueup.CheckFailed, match="partition 0 of the tube t is locked by server process"):
            reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    until(lambda: tube.stats()[0].worker is None)


def test_a_checkpoint_from_before_a_restore_is_refused(items: Items) -> None:
    """Other pods may have the numbers of the checkpoint: they must not be deleted."""
    database, tube = items
    options = {"address": database.uri, "tube": "t"}

    def offset_after(start: dict[str, Any]) -> dict[str, Any]:
        reader = TubeSource(options).streamReader(SCHEMA)
        try:
            return reader.latestOffset(start, reader.getDefaultReadLimit())
        finally:
            reader.stop()

    backup = "SELECT last_value FROM tube.pod_seq"
    (number,) = database.execute(backup)[0]
    start = TubeSource(options).streamReader(SCHEMA).initialOffset()
    database.execute("INSERT INTO items VALUES (1, 1, 1)")
    first = offset_after(start)
    # The same batch again after a kill, and the next one.
    assert offset_after(start)["pods"] == first["pods"]
    first = offset_after(start)
    assert offset_after(first) == first
    assert waiting(tube) == 0
    database.execute("INSERT INTO items VALUES (2, 2, 2)")
    second = offset_after(first)
    assert offset_after(second) == second
    # The state of the source after the first batch, and a row of the new history.
    database.execute(
        f"UPDATE tube.readers SET begun = '{first['token']}', done = '{first['token']}', round = {first['round']};"
        f" SELECT setval('tube.pod_seq', {number}); INSERT INTO items VALUES (3, 3, 3), (4, 4, 4)"
    )
    with pytest.raises(trueup.CheckFailed, match="do not belong together"):
        offset_after(second)
    assert waiting(tube) == 2


BROKEN_BETWEEN = {
    # Change between claim and read -> cure.
    "renamed": ("ALTER TABLE {0} RENAME TO other", "ALTER TABLE other RENAME TO {0}"),
    "filtered": ("ALTER TABLE {0} RENAME n TO m", "ALTER TABLE {0} RENAME m TO n"),
    "rekeyed": ("ALTER TABLE {0} DROP COLUMN id CASCADE", ""),
    "gone": ("DROP TABLE {0}", ""),
}


def test_tables_that_break_between_claim_and_read(items: Items) -> None:
    """Their pods are put back: none is lost, none is acknowledged unread, and the other tables go on."""
    database, tube = items
    for table in BROKEN_BETWEEN:
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, n int)")
        tube.attach(table, shard=0, predicate="n > 0" if table == "filtered" else None)
        database.execute(f"INSERT INTO {table} VALUES (1, 1); TRUNCATE {table}; INSERT INTO {table} VALUES (2, 1)")
    database.execute("INSERT INTO items VALUES (1, 1, 1)")
    reader = TubeSource({"address": database.uri, "tube": "t"}).streamReader(SCHEMA)
    limit = reader.getDefaultReadLimit()

    def rows(start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, list[str] | None, str]]:
        batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
        found = [row for batch in batches for row in batch.to_pylist()]
        return [(row["table"], row["key"], row["op"]) for row in sorted(found, key=lambda row: row["table"])]

    try:
        start = reader.initialOffset()
        end = reader.latestOffset(start, limit)
        numbers = set(database.execute("SELECT seq FROM tube.pods_t"))
        for table, (change, _) in BROKEN_BETWEEN.items():
            database.execute(change.format(table))
        assert rows(start, end) == [("public.items", ["1"], "I")]
        # A replay of the batch, and its commit, do not touch the pods that were put back.
        assert rows(start, end) == [("public.items", ["1"], "I")]
        assert reader.latestOffset(end, limit) == end
        assert waiting(tube) == 3 * len(BROKEN_BETWEEN)
        assert not numbers & set(database.execute("SELECT seq FROM tube.pods_t"))
        # The others go on, and what is fixed is delivered, in order.
        database.execute("INSERT INTO items VALUES (2, 2, 2)")
        following = reader.latestOffset(end, limit)
        assert rows(end, following) == [("public.items", ["2"], "I")]
        for table, (_, cure) in BROKEN_BETWEEN.items():
            database.execute(cure.format(table) or "SELECT")
    finally:
        reader.stop()
    reader = TubeSource({"address": database.uri, "tube": "t"}).streamReader(SCHEMA)
    try:
        last = reader.latestOffset(following, limit)
        assert rows(following, last) == [
            (f"public.{table}", key, op)
            for table in ("filtered", "renamed")
            for key, op in ((["1"], "I"), (["2"], "I"), (None, "X"))
        ]
        assert reader.latestOffset(last, limit) == last
        assert waiting(tube) == 3 * 2
    finally:
        reader.stop()


def test_the_job_as_spark_tasks(spark: Spark, items: Items, databases: Databases) -> None:
    """The functions of the job in workers of Spark; they write nothing after the driver has lost its lock."""
    database, tube = items
    [target] = databases(1)
    database.execute("INSERT INTO items SELECT g, g, g % 7 FROM generate_series(1, 3000) g")
    settings = SparkSettings(engine="spark")
    with Tube("t", database.uri) as job:
        summary = job.run(target.uri, until_empty=True, spark=settings)
        assert (summary.written, summary.dead_letters, waiting(tube)) == (3000, 0, 0)
        database.execute(
            "DELETE FROM items WHERE id > 2900; UPDATE items SET tenant = 9 WHERE id < 10; TRUNCATE items;"
            " INSERT INTO items VALUES (1, 2, 3)"
        )
        job.run(target.uri, until_empty=True, spark=settings)
    assert target.execute("SELECT id, n, tenant FROM items") == [(1, 2, 3)]
    # A table that cannot be read is set aside, a key that is no value of its type is parked; the other tables go on.
    database.execute("CREATE TABLE gone (id int PRIMARY KEY, n int); CREATE TABLE ids (id uuid PRIMARY KEY)")
    tube.attach("gone", shard=0, predicate="n > 0")
    number = tube.attach("ids", shard=0).source
    database.execute(f"""INSERT INTO gone VALUES (2, 1); ALTER TABLE gone DROP COLUMN n; INSERT INTO ids
                         VALUES ('{UUID(int=1)}'); INSERT INTO tube.pods_t (shard, source, op, keys)
                         VALUES (0, {number}, 'T', '{{foo}}'); INSERT INTO items VALUES (5, 6, 7)""")
    with Tube("t", database.uri) as job:
        summary = job.run(target.uri, until_empty=True, spark=settings)
        assert summary.parked == 1
        assert [problem.partition(":")[0] for problem in summary.problems] == ["public.gone"]
        assert [(letter.table, letter.key, letter.next_at) for letter in job.dead_letters()] == [
            ("public.ids", "foo", None)
        ]
    assert target.execute("SELECT id, n, tenant FROM items ORDER BY 1") == [(1, 2, 3), (5, 6, 7)]
    assert target.execute("SELECT id FROM ids") == [(UUID(int=1),)]
    assert database.execute(f"SELECT count(*) FROM tube.pods_t WHERE op <> '!' AND source <> {number}") == [(1,)]
    tube.detach("gone")
    database.execute("DELETE FROM tube.pods_t")
    keys: Keys = {1: {(3, 1): "U"}}
    shapes = Shapes(tube.session, "t").get([1])
    mark = Mark(1, datetime.now(timezone.utc))
    sink = pickle.dumps(open_sink(target.uri))
    task = SparkTask(
        tube.session.node,
        "tube",
        "t",
        ((1, 1),),
        keys,
        shapes,
        mark,
        sink,
        tuple(tables_of(list(shapes.values()))),
        0,
        10**6,
    )
    with pytest.raises(HoldLost, match="has taken partition 1 of the tube t"):
        list(deliver_task(task, Room()))


PROGRAM = """
import os, signal
from pyspark.sql import SparkSession
import trueup
spark = SparkSession.builder.master("local[2]").getOrCreate()
trueup.register(spark, nodes={{"n1": {uri!r}}})
def each(frame, number):
    with open({out!r}, "a") as out:
        out.write(f"{{number}} {{sorted(row.key[0] for row in frame.collect())}}\\n")
    if {die!r}:
        os.kill(spark._jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
stream = spark.readStream.format("trueup_tube").option("node", "n1").load("t")
stream.writeStream.foreachBatch(each).option("checkpointLocation", {checkpoint!r}).start().awaitTermination()
"""


def _not_activated(folder: Path) -> dict[str, str]:
    """Return an environment as of a virtual environment that is not activated: python3 of the PATH has no packages."""
    folder.mkdir()
    (folder / "python3").write_text(f'#!/bin/sh\nexec {os.path.realpath(sys.executable)} -S "$@"\n')
    (folder / "python3").chmod(0o755)
    conf = {"spark.ui.enabled": "false", **INTERPRETED}
    options = " ".join(f"--conf {key}={value}" for key, value in conf.items())
    fast = f"{options} --driver-java-options '{JVM_OPTIONS} {archive_options()}' pyspark-shell"
    unset = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYTHONPATH")
    return {
        **{name: value for name, value in os.environ.items() if name not in unset},
        "PATH": f"{folder}:/usr/bin:/bin",
        "JAVA_HOME": str(find_java()),
        "PYSPARK_SUBMIT_ARGS": fast,
    }


def test_after_a_kill_the_same_pods_are_read_again(spark: Spark, items: Items, tmp_path: Path) -> None:
    """After a kill within a batch, with more keys touched, the first batch is the same as before.

    The killed program runs in a virtual environment that is not activated.
    """
    database, tube = items
    database.execute("INSERT INTO items SELECT g, g, g % 3 FROM generate_series(1, 9) g")
    checkpoint, out = tmp_path / "c", tmp_path / "out"
    program = PROGRAM.format(out=str(out), die=True, uri=database.uri, checkpoint=str(checkpoint))
    command, environment = [sys.executable, "-c", program], _not_activated(tmp_path / "bin")
    done = subprocess.run(command, timeout=120, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert out.read_text(encoding="utf-8").startswith("0 ['1', '2', '3'")
    database.execute(
        "INSERT INTO items SELECT g, g, g % 3 FROM generate_series(10, 12) g; DELETE FROM items WHERE id = 2"
    )
    # As if 20 seconds had passed, after which the executors of the killed driver write no more.
    database.execute("UPDATE tube.workers SET ended_at = clock_timestamp()")
    # The session of the killed driver may exist for a moment.
    # With Trigger.AvailableNow it processes all waiting pods, and ends.
    copy = Copy()
    stream = spark.readStream.format("trueup_tube").option("address", database.uri).option("wait", 60).load("t")
    writer = stream.writeStream.foreachBatch(copy).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(60), "the process did not end"
    assert (copy.rows == source(database), waiting(tube)) == (True, 0)
    number, first = copy.batches[0]
    assert (number, {key for _, key in first}) == (0, {str(g) for g in range(1, 10)})
    assert os.path.isdir(checkpoint)


def test_a_table_with_a_problem_is_set_aside(items: Items, spark: Spark, tmp_path: Path) -> None:
    database, tube = items
    database.execute("CREATE TABLE gone (id int PRIMARY KEY, n int); INSERT INTO gone VALUES (1, 1)")
    tube.attach("gone", shard=0, predicate="n > 0")
    database.execute("""INSERT INTO gone VALUES (2, 1); ALTER TABLE gone DROP COLUMN n;
                        INSERT INTO items VALUES (1, 1, 1)""")
    copy = Copy()
    stream = spark.readStream.format("trueup_tube").option("address", database.uri).load("t")
    writer = stream.writeStream.foreachBatch(copy).option("checkpointLocation", str(tmp_path / "checkpoint"))
    # The rows of the other tables are delivered; then the stream ends with an error.
    with pytest.raises(StreamingQueryException, match=r"public\.gone: predicate for public\.gone"):
        writer.trigger(availableNow=True).start().awaitTermination(60)
    assert set(copy.rows) == {(1, "1")}
    assert database.execute("SELECT count(*) FROM tube.pods_t WHERE op <> '!'") == [(1,)]


def test_a_python_without_trueup_is_named(spark: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user chose another Python for the workers: the error says what to set."""
    bare = _not_activated(tmp_path / "bin")["PATH"].partition(":")[0] + "/python3"
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", bare)
    with pytest.raises(trueup.TrueupError, match=r"bin/python3, which does not have trueup") as caught:
        trueup.register(spark)
    assert f"set PYSPARK_PYTHON={sys.executable} before the Spark session is started" in caught.value.cure
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(tmp_path / "nothing"))
    with pytest.raises(trueup.TrueupError, match="which does not exist"):
        trueup.register(spark)
