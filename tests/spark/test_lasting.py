"""Jobs that run until they are stopped: threads begin, Spark takes over, and threads continue when Spark fails."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from trueup.api.tube import Tube
from trueup.api.validate import Validation
from trueup.config.model import Node
from trueup.config.settings import SparkSettings
from trueup.engine import choose, handover, lasting
from trueup.engine.lasting import LastingSpark
from trueup.engine.local import answers_of
from trueup.engine.progress import Silent
from trueup.engine.spark import SparkEngine
from trueup.errors import EngineError, Interrupted
from trueup.verbs.sync import copy
from trueup.verbs.sync import run as sync
from trueup.verbs.sync.request import SyncRequest
from trueup.verbs.tube.model import Summary
from trueup.verbs.tube.text import stats_text
from trueup.verbs.tube.waiting import Waiting
from trueup.verbs.validate.checks import MAX_KEYS_PER_TASK, Checker
from trueup.verbs.validate.status import status_text

if TYPE_CHECKING:
    from support.fixtures import Databases, Spark

PATIENCE = 120.0
AUTO = SparkSettings(engine="auto", local_seconds=0)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        # Most conditions open sessions of the servers, which need the processor as Spark does.
        time.sleep(0.2)


class Ready(threading.Event):
    """When the start of Spark ends; the engine that was started."""

    engine: SparkEngine


@pytest.fixture
def ready(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> Ready:
    """Let the shared session be started in the background, which ends when the event is set."""
    event = Ready()

    class Shared(SparkEngine):
        def warm_up(self, work: Any) -> None:
            super().warm_up(work)
            event.engine = self
            assert event.wait(PATIENCE)

        def close(self) -> None:
            """Do not stop the session."""

    monkeypatch.setattr(lasting, "session_of_program", lambda settings: None)
    monkeypatch.setattr(choose, "start_session", lambda **options: spark)
    monkeypatch.setattr(choose, "SparkEngine", Shared)
    return event


class Said(Silent):
    """The messages of a job."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def say(self, text: str) -> None:
        self.messages.append(text)


@contextmanager
def running(work: Callable[[], object], stop: Callable[[], object]) -> Iterator[list[Any]]:
    """Run `work` in a thread during the block; yield the list of its result or its error."""
    ended: list[Any] = []

    def run() -> None:
        try:
            ended.append(work())
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield ended
    finally:
        stop()
        thread.join(PATIENCE)
    assert not thread.is_alive()


def _fails(*arguments: object, **options: object) -> Any:
    raise EngineError("the Java process of Spark was killed (SIGKILL)", cure="use --engine local")


def _interrupt(worker: Tube, change: Callable[[], object], sink: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt a tube while Java hangs in a batch: the wave is ended, and not waited for."""
    began, ended = threading.Event(), threading.Event()

    def hang(*arguments: object) -> Iterator[Any]:
        began.set()
        ended.wait(5)
        yield from _fails()

    def beat(waiting: object) -> None:
        if began.is_set():
            raise KeyboardInterrupt

    change()
    monkeypatch.setattr(SparkEngine, "run", hang)
    monkeypatch.setattr(SparkEngine, "interrupt", lambda engine: ended.set())
    monkeypatch.setattr(Waiting, "beat", beat)
    with pytest.raises(Interrupted):
        worker.run(sink, spark=replace(AUTO, engine="spark"))
    assert ended.is_set()


def _kill_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the Java process of this process be one that was killed: the shared one is still needed."""
    with subprocess.Popen(["sleep", "600"]) as process:
        process.kill()
    monkeypatch.setattr("trueup.engine.spark.own_process", lambda: process)


@pytest.mark.parametrize("noticed_by", ["a batch", "an idle tube"])
def test_a_tube(ready: Ready, databases: Databases, monkeypatch: pytest.MonkeyPatch, noticed_by: str) -> None:
    [source, target] = databases(2)
    monkeypatch.setattr("trueup.capture.triggers.hold.GRACE", 0.3)
    source.execute("CREATE TABLE items (id int PRIMARY KEY, n int)")
    Tube.install(source.uri)
    stop, said = threading.Event(), Said()

    def copied() -> bool:
        rows = "SELECT id, n FROM items ORDER BY id"
        has_table = target.execute("SELECT to_regclass('items') IS NOT NULL") == [(True,)]
        return has_table and target.execute(rows) == source.execute(rows)

    with Tube("t", source.uri) as tube, Tube("t", source.uri) as worker:
        tube.ensure()
        tube.attach("items", shard=0)
        source.execute("INSERT INTO items SELECT g, g FROM generate_series(1, 600) g")
        with running(lambda: worker.run(target.uri, spark=AUTO, stop=stop, progress=said), stop.set) as ended:
            until(copied)
            until(lambda: tube.stats()[0].engine == {"name": "local"})
            ready.set()

            def is_on_spark() -> bool:
                source.execute("UPDATE items SET n = n + 1 WHERE id < 300; DELETE FROM items WHERE id = 7")
                return tube.stats()[0].engine.get("name") == "spark"

            until(is_on_spark)
            until(copied)
            engine = tube.stats()[0].engine
            assert engine["batches"] >= 1
            assert engine["jobs"] > engine["batches"]
            assert "t/0 runs on Spark: " in stats_text(tube.stats(), ())
            # A generation of its own: a worker that follows waits for the executors.
            assert source.execute("SELECT generation, owner ->> 'executors' FROM tube.workers") == [(2, "true")]
            if noticed_by == "a batch":
                monkeypatch.setattr(SparkEngine, "run", _fails)
                source.execute("UPDATE items SET n = -n")
                until(copied)
            else:
                until(lambda: source.execute("SELECT FROM tube.pods_t") == [])
                _kill_java(monkeypatch)
            until(lambda: "problem" in tube.stats()[0].engine)
            assert "t/0 runs on threads: the Java process of Spark was killed" in stats_text(tube.stats(), ())
            source.execute("UPDATE items SET n = -n WHERE id > 500")
            until(copied)
        if noticed_by == "a batch":
            _interrupt(worker, lambda: source.execute("UPDATE items SET n = 3"), target.uri, monkeypatch)
            assert not copied()
    (summary,) = ended
    assert isinstance(summary, Summary), summary
    assert summary.outages == 1
    assert min(summary.ran_on["local"], summary.ran_on["spark"]) >= 1
    assert sum("Spark is ready" in text for text in said.messages) == 1
    assert sum("because Spark failed: the Java process" in text for text in said.messages) == 1
    assert sum("waiting until it writes no more" in text for text in said.messages) == 1


def _hang_reader(engine: SparkEngine, has_batch: Callable[[], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the process that asks the source for new changes; it is killed instead of the shared Java process."""
    name = "pyspark.sql.streaming.python_streaming_source_runner"
    readers = []
    for child in psutil.Process().children(recursive=True):
        # Some end meanwhile.
        with suppress(psutil.NoSuchProcess):
            readers += [child] if name in child.cmdline() else []
    (reader,) = readers

    def kill() -> bool:
        reader.kill()
        return True

    monkeypatch.setattr("trueup.engine.spark.kill_own_process", kill)
    engine.limit_stalls(1.0, is_here=True)
    # The next batch is the first one with this limit.
    until(has_batch)
    # On a slow machine it was killed already.
    with suppress(psutil.NoSuchProcess):
        reader.suspend()


@pytest.mark.parametrize("changes", ["log", "changelog"])
def test_a_validation(changes: Any, ready: Ready, databases: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    up, down = databases(2)
    for database in (up, down):
        database.execute("CREATE TABLE t (id int PRIMARY KEY, n int); CREATE TABLE gone (id int PRIMARY KEY)")
    monkeypatch.setenv("TRUEUP__SPARK__LOCAL_SECONDS", "0")
    validation = Validation(f"v_{up.name}"[-30:], nodes={"n1": up.uri, "n2": down.uri})
    validation.create(
        source="n1", target="n2", tables=("public.*",), syncer="lag:0.3", changes=changes, check_interval=0.2,
        row_error_delay=0.3,
    )  # fmt: skip
    sizes: list[int] = []
    record = Checker.record

    def recorded(self: Checker, touches: Any, *rest: Any) -> None:
        sizes.append(sum(len(keys) for keys in touches.values()))
        record(self, touches, *rest)

    monkeypatch.setattr(Checker, "record", recorded)
    # Spark keeps the jobs of its iterator in memory for ever, and a validation runs for weeks.
    monkeypatch.setattr("pyspark.sql.classic.dataframe.DataFrame.toLocalIterator", _fails)

    def insert(first: int, last: int, wrong: int) -> None:
        """Insert rows on both nodes, one of them on the source only; wait until it is an error."""
        down.execute(f"INSERT INTO t SELECT i FROM generate_series({first}, {last}) i WHERE i <> {wrong}")
        up.execute(f"INSERT INTO t SELECT i FROM generate_series({first}, {last}) i")
        until(lambda: ended or (str(wrong),) in {error.key for error in validation.errors()})
        assert ended == []
        until(lambda: validation.status().total("inserts") == last)

    messages: list[str] = []
    with running(lambda: validation.start(engine="auto", log=messages.append), validation.stop) as ended:
        until(lambda: ended or validation.status().engine == {"name": "local"})
        insert(1, 1000, 77)
        ready.set()
        until(lambda: ended or validation.status().engine.get("name") == "spark")
        # Tables change while it runs.
        assert validation.remove(["public.gone"], timeout=PATIENCE) == ("public.gone",)
        # While errors are open, the driver gets the proven keys too; not all at once, because it holds them in memory.
        sizes.clear()
        insert(1001, 13_000, 1077)
        until(lambda: validation.status().engine["jobs"] > 2)
        assert "  runs on Spark: " in status_text(validation.status())
        if changes == "log":
            assert max(sizes) <= MAX_KEYS_PER_TASK
            batches = validation.status().engine["batches"]
            assert batches > 0

            def has_batch() -> bool:
                up.execute("SELECT pg_logical_emit_message(true, 'test', '')")
                return bool(ended) or validation.status().engine.get("batches") != batches

            _hang_reader(ready.engine, has_batch, monkeypatch)
            problem = "no task of the Spark job was finished for"
        else:
            monkeypatch.setattr(SparkEngine, "run", _fails)
            problem = "the Java process of Spark was killed"
        insert(13_001, 13_100, 13_077)
        until(lambda: ended or "problem" in validation.status().engine)
        assert validation.status().engine["problem"].startswith(problem)
        assert validation.fence().errors == 3
    assert ended == ["stopped by the user"]
    assert sum(f"because Spark failed: {problem}" in text for text in messages) == 1
    assert sum("Spark is ready" in text for text in messages) == (changes == "log")
    validation.delete()


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_copy(
    is_lost: bool,
    ready: Ready,
    databases: Databases,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Threads copy four parts, Spark the others; a wave that is lost after it has written is copied once."""
    source, target = databases(2)
    for database in (source, target):
        database.execute("CREATE TABLE items (id int PRIMARY KEY, note text)")
    source.execute("INSERT INTO items SELECT g, repeat('x', 500) FROM generate_series(1, 2000) g; ANALYZE items")
    monkeypatch.setattr(choose, "existing_session", lambda: None)
    monkeypatch.setattr(handover, "MEASURED_SECONDS", 0.0)
    monkeypatch.setattr(handover, "WORTH_SECONDS", 0.0)
    monkeypatch.setattr(copy, "LEAST_BYTES", 16_384)
    monkeypatch.setattr(copy, "PART_BYTES", 16_384)
    warmed, first, waves = threading.Event(), iter(range(4)), list[int]()
    warm_up, wave = SparkEngine.warm_up, SparkEngine.wave

    def warm(engine: SparkEngine, work: Any) -> None:
        warm_up(engine, work)
        warmed.set()

    def on_thread(work: Any, task: Any) -> list[Any]:
        if next(first, None) is None:
            assert warmed.wait(PATIENCE)
        return answers_of(work, task)

    def on_spark(engine: SparkEngine, work: Any, deals: Any, tag: str, *, keep: bool) -> list[bytes]:
        results = wave(engine, work, deals, tag, keep=keep)
        waves.append(sum(map(len, deals)))
        return _fails() if is_lost else results

    ready.set()
    monkeypatch.setattr(SparkEngine, "warm_up", warm)
    monkeypatch.setattr(SparkEngine, "wave", on_spark)
    monkeypatch.setattr(handover, "answers_of", on_thread)
    request = SyncRequest(Node("n1", source.uri), Node("n2", target.uri), spark=AUTO)
    sync.start(request, Silent())
    rows = "SELECT count(*), sum(id), sum(length(note)) FROM items"
    assert target.execute(rows) == source.execute(rows)
    copied = "SELECT sum(rows)::int, count(*) > 40 FROM trueup.copied"
    assert target.execute(copied) == [(2000, True)]
    assert (sum(waves) > 0, len(waves) == 1) == (True, is_lost)
    lost = "Spark was lost, and threads of this process do the rest of the work: the Java process of Spark was killed"
    assert sum(text.startswith(lost) for text in caplog.messages) == is_lost


def test_spark_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(lasting, "session_of_program", lambda settings: None)
    monkeypatch.setattr(lasting, "start_spark", _fails)

    def spark(**settings: Any) -> LastingSpark:
        return LastingSpark(SparkSettings(**settings), lambda task, room: (), warn=warnings.append)

    required = spark(engine="spark")
    with pytest.raises(EngineError, match="was killed"):
        required.wait()
    assert warnings == []
    for settings in ({"local_seconds": 0.0}, {"master": "spark://127.0.0.1:1"}):
        auto = spark(**settings)
        auto.wait()
        until(lambda: auto.now() is None and not auto.may_take_over)  # noqa: B023
        assert "was killed (SIGKILL) (use --engine local)" in auto.problem
        auto.close()
    assert len(warnings) == 2
    monkeypatch.setattr("trueup.engine.memory.free_megabytes", lambda: 999)
    small = spark(local_seconds=0.0)
    until(lambda: small.now() is None and not small.may_take_over)
    assert "needs about 1,000 MB of memory, and 999 MB are free" in small.problem
    # A job that ends before its time does not start Java.
    for settings in ({}, {"engine": "local"}):
        short = spark(**settings)
        assert short.now() is None
        short.close()
    required.close()
