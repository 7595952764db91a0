"""Threads begin and Spark takes over: every task has its answers exactly once, whatever fails and whenever."""

from __future__ import annotations

import pickle
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trueup.config.settings import SparkSettings
from trueup.engine import background, choose, handover, lasting, memory
from trueup.engine.background import BackgroundStart
from trueup.engine.choose import SESSION_ROWS, EngineStarter
from trueup.engine.envelope import check_complete
from trueup.engine.handover import HandOverEngine
from trueup.engine.launch import Launch
from trueup.engine.local import LocalEngine
from trueup.engine.permits import Permits
from trueup.engine.session import LEAST_SECONDS
from trueup.engine.slots import IdleCores
from trueup.engine.work import More, Room, Tasks, Work, perform
from trueup.errors import EngineError, Interrupted, NodeError
from trueup.task.compare.state import State
from trueup.testing.processes import wait_until
from trueup.verbs.diff.answers import answers

SOON = 20.0


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hand over as soon as Spark is ready and a task is finished."""
    monkeypatch.setattr(handover, "MEASURED_SECONDS", 0.0)
    monkeypatch.setattr(handover, "WORTH_SECONDS", 0.0)


class Used:
    """Counts the slots that are used at the same time."""

    def __init__(self) -> None:
        self.most = self._now = 0
        self._lock = threading.Lock()

    def add(self, slots: int) -> None:
        with self._lock:
            self._now += slots
            self.most = max(self.most, self._now)


class FakeSpark:
    """Runs waves in this process; some fail: before their tasks have run, after it, without an answer, or never end."""

    def __init__(self, failures: Sequence[str] = (), slots: int = 2, used: Used | None = None) -> None:
        self.failures = list(failures)
        self.slots = slots
        self.used = used or Used()
        self.waves = 0
        # Whether workers kept their sessions with the nodes.
        self.kept: set[bool] = set()
        self.is_closed = False
        self.began, self.interrupted = threading.Event(), threading.Event()

    def warm_up(self, work: Work[Any]) -> None:
        assert not self.waves

    def check(self) -> None:
        if "ended" in self.failures:
            raise EngineError("the Java process of Spark was killed (SIGKILL)")

    def wave(self, work: Work[Any], deals: Sequence[Sequence[Any]], tag: str, *, keep: bool) -> list[bytes]:
        assert not self.is_closed
        self.waves += 1
        self.kept.add(keep)
        failure = self.failures.pop(0) if self.failures else ""
        self.began.set()
        if failure == "endless":
            assert self.interrupted.wait(SOON)
        if failure in ("before", "endless"):
            raise EngineError("the Java process of Spark was killed (SIGKILL)")
        slots = min(self.slots, len(deals))
        self.used.add(slots)
        # As a worker does: the mark is not written by this thread.
        with_marks = _marked(work, [task for deal in deals for task in deal])
        self.used.add(-slots)
        if failure == "after":
            raise EngineError("the Spark job failed")
        results = with_marks[: -2 if failure == "incomplete" else None]
        check_complete(results, sum(map(len, deals)))
        return results

    def interrupt_wave(self, tag: str) -> None:
        self.interrupted.set()

    def interrupt(self) -> None:
        self.interrupted.set()

    def limit_stalls(self, seconds: float, *, is_here: bool) -> None: ...

    def close(self) -> None:
        self.is_closed = True


def _marked(work: Work[Any], tasks: Sequence[Any]) -> list[bytes]:
    answers = [answer for task in tasks for answer in perform(getattr(work, "inner", work), task, Room())]
    return [pickle.dumps(answer, pickle.HIGHEST_PROTOCOL) for answer in answers]


class _Work:
    """Yields the task, and for some tasks more tasks; on threads it takes a moment and counts its slot."""

    def __init__(self, splitting: frozenset[int], used: Used, ready: threading.Event, ready_after: int) -> None:
        self.splitting, self.used, self.ready, self.left = splitting, used, ready, ready_after
        self.begun: list[int] = []

    def inner(self, task: int, room: Room) -> Iterator[Any]:
        self.begun.append(task)
        yield task
        if task in self.splitting:
            yield More((task + 1_000, task + 2_000))

    def __call__(self, task: int, room: Room) -> Iterator[Any]:
        self.used.add(1)
        time.sleep(0.0005)
        self.left -= 1
        if self.left <= 0:
            self.ready.set()
        answers = list(self.inner(task, room))
        self.used.add(-1)
        return iter(answers)


def _all(engine: HandOverEngine, work: Work[int], tasks: Tasks[int]) -> tuple[Counter[int], Counter[str]]:
    found: Counter[int] = Counter()
    ran_on: Counter[str] = Counter()
    for answer in engine.run(work, tasks):
        if isinstance(answer, More):
            tasks.add(answer.tasks)
        else:
            found[answer] += 1
            ran_on[tasks.ran_on] += 1
    assert tasks.under_way == 0
    return found, ran_on


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=3),
    slots=st.integers(2, 4),
    splitting=st.frozensets(st.integers(0, 40), max_size=10),
    failures=st.lists(st.sampled_from(["", "", "before", "after", "incomplete"]), max_size=4),
    ready_after=st.integers(0, 30),
    starts=st.booleans(),
)
@pytest.mark.usefixtures("at_once")
def test_every_task_has_its_answers_exactly_once(
    sizes: list[int], slots: int, splitting: frozenset[int], failures: list[str], ready_after: int, starts: bool
) -> None:
    used, ready = Used(), threading.Event()
    spark = FakeSpark(failures, slots, used)

    def start(launch: Launch) -> FakeSpark:
        while not (ready.wait(0.001) or launch.is_over):
            pass
        if not starts:
            raise EngineError("Spark needs Java 17 or newer")
        return spark

    engine = HandOverEngine(slots, BackgroundStart(start), seconds=0.0)
    work = _Work(splitting, used, ready, ready_after)
    with ThreadPoolExecutor(len(sizes)) as runs:
        results = list(runs.map(lambda size: _all(engine, work, Tasks(range(size), expected=size)), sizes))
    was_closed = spark.is_closed
    engine.close()
    for size, (found, ran_on) in zip(sizes, results, strict=True):
        split = [task for task in range(size) if task in splitting]
        assert found == Counter([*range(size), *(task + more for task in split for more in (1_000, 2_000))])
        assert ran_on.total() == found.total()
        assert starts or set(ran_on) <= {"local"}
    assert used.most <= slots
    failed = any(failures[: spark.waves])
    # A task that a thread has begun is not given to Spark too.
    assert failed or Counter(work.begun) == sum((found for found, _ in results), Counter[int]())
    assert len(engine.remarks) <= 1
    assert not failed or "Spark was lost" in engine.remarks[0]
    # Threads do the rest, and may need its memory for long.
    assert was_closed == failed
    assert spark.is_closed or not (failed or spark.waves)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("failing", [0, 3, 400, 990])
@pytest.mark.parametrize("name", ["local", "local+spark"])
def test_what_a_stopped_run_has_not_compared_is_counted(name: str, failing: int) -> None:
    spark = FakeSpark()
    start = BackgroundStart(lambda launch: spark)

    def work(task: int, room: Room) -> Iterator[int]:
        # The thread that starts Spark may be late.
        assert name == "local" or task < 100 or wait_until(lambda: start.is_done, SOON)
        if task == failing:
            raise NodeError("the server is gone", node="n1")
        time.sleep(0.0002)
        yield task

    both = HandOverEngine(3, start, seconds=0.0)
    engine = LocalEngine(3) if name == "local" else both
    state = State(("n1", "n2"), 10, cast(Any, None))
    tasks = Tasks(range(1_000), expected=1_000)
    run = cast(Any, SimpleNamespace(engine=engine, state=state, controls=()))
    compared = sum(1 for _ in answers(run, work, tasks))
    engine.close()
    both.close()
    assert len(state.failures) == 1
    assert state.left_out == {("n1", "n2"): 1_000 - compared - 1}
    assert failing < 400 or engine.name == name


def _slow(task: int, room: Room) -> Iterator[int]:
    time.sleep(0.01)
    yield task


def _slower_than(start: BackgroundStart[FakeSpark]) -> Work[int]:
    """Return work that is not finished before Spark has started: the thread that starts it may be late."""

    def work(task: int, room: Room) -> Iterator[int]:
        assert task < 10 or wait_until(lambda: start.is_done, SOON)
        return _slow(task, room)

    return work


@pytest.mark.usefixtures("at_once")
def test_little_work_starts_nothing() -> None:
    started: list[Launch] = []
    engine = HandOverEngine(2, BackgroundStart(lambda launch: started.append(launch)), seconds=500.0)
    found, ran_on = _all(engine, _slow, Tasks(range(50), expected=50))
    engine.close()
    assert (found.total(), dict(ran_on), engine.name, started) == (50, {"local": 50}, "local", [])


def test_a_pause_is_not_counted_as_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "MEASURED_SECONDS", 0.02)
    monkeypatch.setattr(IdleCores, "now", lambda self: 1.0)
    # Threads that are late must not be taken for work.
    clock, paused = [0.0], iter([1_000.0])
    monkeypatch.setattr(handover, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def gate(count: int) -> int:
        clock[0] += next(paused, 0.0)
        return count

    def work(task: int, room: Room) -> Iterator[int]:
        clock[0] += 0.01
        yield task

    started: list[Launch] = []
    engine = HandOverEngine(2, BackgroundStart(lambda launch: started.append(launch)), seconds=5.0)
    assert _all(engine, work, Tasks(range(50), gate, expected=50))[0].total() == 50
    engine.close()
    assert not started


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(("idle", "seconds", "starts"), [(0.1, 0.01, False), (1.0, 0.01, True), (0.1, 0.0, True)])
def test_spark_starts_if_cores_are_idle(
    idle: float, seconds: float, starts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IdleCores, "now", lambda self: idle)
    spark = FakeSpark()
    start = BackgroundStart(lambda launch: spark)
    engine = HandOverEngine(2, start, seconds=seconds)
    found, ran_on = _all(engine, _slower_than(start) if starts else _slow, Tasks(range(60), expected=60))
    engine.close()
    assert (found.total(), "spark" in ran_on, spark.is_closed) == (60, starts, starts)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(("free", "limit", "kept"), [(4, 0, True), (3, 0, False), (4, 3, False)])
def test_workers_keep_sessions_if_there_are_connections_for_threads_too(free: int, limit: int, kept: bool) -> None:
    spark = FakeSpark()
    start = BackgroundStart(lambda launch: spark)
    engine = HandOverEngine(2, start, seconds=0.0, max_connections=limit)
    engine.max_slots = free
    _all(engine, _slower_than(start), Tasks(range(40), expected=40))
    engine.close()
    assert spark.kept == {kept}


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("is_slow", [False, True])
def test_a_start_that_is_not_needed_any_more_is_ended(monkeypatch: pytest.MonkeyPatch, is_slow: bool) -> None:
    ended = threading.Event()
    if is_slow:
        monkeypatch.setattr(handover, "SLOW_START_SECONDS", 0.0)

    def start(launch: Launch) -> FakeSpark:
        while not launch.is_over:
            time.sleep(0.001)
        ended.set()
        raise EngineError("the start of Spark was ended")

    engine = HandOverEngine(2, BackgroundStart(start), seconds=0.0)
    for _ in range(2):
        assert _all(engine, _slow, Tasks(range(10), expected=10))[0].total() == 10
    engine.close()
    assert ended.is_set()
    # Reported once, and only if it has lasted.
    assert len(engine.remarks) == is_slow
    reported = r"Spark has not started within \d+ s, and threads of this process did the work: its Java .* may hang"
    assert all(re.fullmatch(reported, remark) for remark in engine.remarks)


@pytest.mark.usefixtures("at_once")
def test_a_java_process_that_hangs_does_not_delay_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark import java_gateway

    monkeypatch.setattr(background, "END_SECONDS", 0.1)
    processes: list[subprocess.Popen[bytes]] = []
    hangs = threading.Event()

    def start(launch: Launch) -> FakeSpark:
        with launch.recorded(Path(tempfile.gettempdir())):
            # As PySpark does.
            processes.append(vars(java_gateway)["Popen"](["sh", "-c", "trap '' TERM; exec sleep 600"]))
        name = Path(f"/proc/{processes[0].pid}/comm")
        assert wait_until(lambda: name.read_text() == "sleep\n", SOON)
        hangs.set()
        processes[0].wait()
        raise EngineError("Spark failed to start")

    engine = HandOverEngine(2, BackgroundStart(start), seconds=0.0)

    def work(task: int, room: Room) -> Iterator[int]:
        assert task < 5 or hangs.wait(SOON)
        yield task

    assert _all(engine, work, Tasks(range(10), expected=10))[0].total() == 10
    began = time.monotonic()
    engine.close()
    assert time.monotonic() - began < SOON
    assert processes[0].wait(SOON) == -signal.SIGKILL
    assert not engine.remarks


@pytest.mark.usefixtures("at_once")
def test_a_java_process_that_is_used_is_not_killed_at_the_end() -> None:
    spark, launches = FakeSpark(), list[Launch]()

    def launch_spark(launch: Launch) -> FakeSpark:
        launches.append(launch)
        return spark

    start = BackgroundStart(launch_spark)
    engine = HandOverEngine(2, start, seconds=0.0)
    _, ran_on = _all(engine, _slower_than(start), Tasks(range(40), expected=40))
    engine.close()
    assert ran_on["spark"]
    assert [launch.is_over for launch in launches] == [False]
    assert spark.is_closed


@pytest.mark.usefixtures("at_once")
def test_a_wave_ends_when_the_runs_are_stopped() -> None:
    spark = FakeSpark(["endless"])
    engine = HandOverEngine(2, BackgroundStart(lambda launch: spark), seconds=0.0)

    def interrupt() -> None:
        spark.began.wait(SOON)
        engine.interrupt()

    threading.Thread(target=interrupt).start()
    with pytest.raises(EngineError, match="killed"):
        list(engine.run(_slow, Tasks(range(100_000), expected=100_000)))
    engine.close()
    assert (spark.waves, spark.is_closed) == (1, True)


@pytest.mark.usefixtures("at_once")
def test_ctrl_c_ends_a_wave(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = FakeSpark(["endless"])

    def wait_for(futures: list[Future[Any]], return_when: str) -> tuple[set[Future[Any]], set[Future[Any]]]:
        while True:
            done, left = wait(futures, timeout=0.01, return_when=return_when)
            if spark.began.is_set():
                raise KeyboardInterrupt
            if done:
                return done, left

    monkeypatch.setattr(handover, "wait_for", wait_for)
    engine = HandOverEngine(2, BackgroundStart(lambda launch: spark), seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        list(engine.run(_slow, Tasks(range(100_000), expected=100_000)))
    assert spark.interrupted.is_set()
    engine.close()
    assert (spark.waves, spark.is_closed) == (1, True)


@pytest.mark.usefixtures("at_once")
def test_a_stop_request_ends_threads_and_spark() -> None:
    spark = FakeSpark()

    def gate(count: int) -> int:
        if spark.waves:
            raise Interrupted("stopped")
        return count

    engine = HandOverEngine(2, BackgroundStart(lambda launch: spark), seconds=0.0)
    with pytest.raises(Interrupted):
        _all(engine, _slow, Tasks(range(100_000), gate, expected=100_000))
    engine.close()
    assert spark.is_closed


def test_a_wave_leaves_a_slot_to_other_runs() -> None:
    permits = Permits(3)
    with permits.used_by_run():
        assert permits.take_most() == 3
        permits.give_back(3)
        with permits.used_by_run():
            assert permits.take_most() == 2
            assert not permits.has_free()
            permits.take_one()
            permits.give_back(3)


def test_a_cluster_and_a_session_of_the_program_are_used_from_the_first_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "start_session", lambda **options: object())
    monkeypatch.setattr(choose, "use_this_python", lambda session: None)
    monkeypatch.setattr(choose, "SparkEngine", lambda session, share, **options: FakeSpark())
    chosen = {}
    for name, settings_, session in (
        ("auto", SparkSettings(), None),
        ("session", SparkSettings(), object()),
        ("session, local_rows", SparkSettings(local_rows=100), object()),
        ("session, large table", SparkSettings(), object()),
        ("master", SparkSettings(master="spark://h:1"), None),
        ("remote", SparkSettings(remote="sc://h"), None),
        ("local", SparkSettings(engine="local"), None),
        ("spark", SparkSettings(engine="spark"), None),
        ("one slot", SparkSettings(slots=1), None),
    ):
        monkeypatch.setattr(choose, "existing_session", lambda session=session: session)
        starter = EngineStarter(settings_, concurrency_factor=1.0, max_connections=0)
        chosen[name] = type(starter.get_with_hand_over(SESSION_ROWS if "large" in name else 100)).__name__
        starter.close()
    threads, cluster = "LocalEngine", "FakeSpark"
    assert chosen == {
        **{"auto": "HandOverEngine", "session": threads, "session, local_rows": cluster},
        **{"session, large table": cluster, "master": cluster},
        **{"remote": cluster, "local": threads, "spark": cluster, "one slot": threads},
    }


def test_too_little_memory_is_a_reason_not_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_megabytes", lambda: 600)
    # Another test of this process may have one.
    monkeypatch.setattr(choose, "existing_session", lambda: None)
    starter = EngineStarter(SparkSettings(local_seconds=0.0), concurrency_factor=1.0, max_connections=0)
    monkeypatch.setattr(handover, "MEASURED_SECONDS", 0.0)
    engine: Any = starter.get_with_hand_over(100)

    def work(task: int, room: Room) -> Iterator[Any]:
        yield from _slow(task, room)
        # The thread that looks at the memory may be late.
        if task >= 30 and not engine.remarks and time.monotonic() < end:
            yield More((task + 1_000,))

    end = time.monotonic() + SOON
    found, ran_on = _all(engine, work, Tasks(range(40), expected=40))
    starter.close()
    assert found.total() >= 40
    assert set(ran_on) == {"local"}
    assert engine.remarks == [
        "Spark was not started, and threads of this process do all the work: Spark needs about 1,000 MB of memory, and"
        " 600 MB are free"
    ]


def test_the_end_of_a_run_ends_a_start_of_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    launches: list[Launch] = []

    def start(**options: Any) -> Any:
        launches.append(options["launch"])
        assert wait_until(lambda: launches[0].is_over, SOON)
        raise EngineError("the start of Spark was ended")

    monkeypatch.setattr(choose, "existing_session", lambda: None)
    monkeypatch.setattr(choose, "start_session", start)
    starter = EngineStarter(SparkSettings(engine="spark"), concurrency_factor=1.0, max_connections=0)
    assert wait_until(lambda: bool(launches), SOON)
    starter.interrupt()
    starter.close()
    assert launches[0].is_over
    with pytest.raises(EngineError, match="was ended"):
        starter.get(100)


@pytest.mark.parametrize("engine", ["spark", "auto"])
def test_a_required_spark_that_hangs_is_noticed(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    seen: list[object] = []

    class Watched(FakeSpark):
        @contextmanager
        def watched(self, *, least: float) -> Iterator[None]:
            seen.append(least)
            yield

        def warm_up(self, work: Any) -> None:
            seen.append("warm")

    monkeypatch.setattr(lasting, "start_spark", lambda *options: Watched())
    monkeypatch.setattr(lasting, "session_of_program", lambda settings: None)
    settings = SparkSettings(engine=engine, local_seconds=0.0)
    spark = lasting.LastingSpark(settings, _slow, warn=lambda text: None)
    assert wait_until(lambda: spark.now() is not None, SOON)
    spark.close()
    # With "auto", threads do the work meanwhile.
    assert seen == ([LEAST_SECONDS, "warm"] if engine == "spark" else ["warm"])


def test_spark_that_has_ended_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that has nothing to do for hours has started it before."""
    warnings: list[str] = []
    monkeypatch.setattr(lasting, "start_spark", lambda *options: FakeSpark(["ended"]))
    monkeypatch.setattr(lasting, "session_of_program", lambda settings: None)
    spark = lasting.LastingSpark(SparkSettings(local_seconds=0.0), _slow, warn=warnings.append)
    assert wait_until(lambda: spark.now() is None and not spark.may_take_over, SOON)
    assert (spark.problem, len(warnings)) == ("the Java process of Spark was killed (SIGKILL)", 1)
    spark.close()
