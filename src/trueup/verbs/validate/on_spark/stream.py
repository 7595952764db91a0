"""Runs a validation as a Spark streaming job: Spark reads the changes, and merges and judges them in its tasks.

Spark calls a function with each batch, on a thread of its own. This thread hands the batch to the driver, fetches the
results of the tasks, and waits until the driver has stored them: so one thread of the driver does everything that
concerns the meta database, one after the other. The driver checks pending rows again while the tasks run. The meta
database is the only checkpoint; the checkpoint folder that Spark requires is temporary.
"""

from __future__ import annotations

import pickle
import queue
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from trueup.capture.log.slot import lsn_text
from trueup.capture.log.syncer import SyncerLimit
from trueup.config.model import Node
from trueup.db.connection import address_of
from trueup.db.reader import close_idle
from trueup.engine.envelope import packed
from trueup.engine.failures import failed_job
from trueup.engine.jvm import start_callbacks, why_ended, within
from trueup.engine.local import LocalEngine
from trueup.engine.scratch import ScratchFolder
from trueup.engine.sealed import sealed_meanwhile
from trueup.engine.spark import SparkEngine
from trueup.engine.stalls import Job
from trueup.errors import CheckFailed, EngineError, NodeError, TrueupError
from trueup.verbs.validate.batch import Batch
from trueup.verbs.validate.on_spark.tasks import COLUMNS, RESULT, JudgeKeys, Judging, Part
from trueup.verbs.validate.proving.compared import Moment
from trueup.verbs.validate.run import POLL_SECONDS, finish_round
from trueup.verbs.validate.validator import Validator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

# Spark asks for new changes this often if the last batch was shorter.
TRIGGER = "100 milliseconds"
_MAX_BYTES = 64 * 1024 * 1024
# Connections to a node besides those of the tasks that judge: two of the driver, and one that asks for the position of
# the syncer. While the log is read, no task judges.
STREAM_CONNECTIONS = 3
# From this number on, the driver checks pending rows with a connection of its own while tasks judge.
_TO_CHECK_MEANWHILE = 6
# Partitions that are fetched at the same time.
_FETCHED_AT_ONCE = 2
# Each query starts a Python process, for which Spark waits 10 s. A busy machine may need longer.
_TOO_SLOW = "Python worker failed to connect back"
_MAX_SLOW_STARTS = 5
_STOP_SECONDS = 30.0
# Errors of nodes that are raised in processes of Spark, where only their text is left.
_OF_NODE = re.compile(r"trueup\.[\w.]*?(NodeError|QueryError|SlotLost): ([^\n]*)")


class _Turn:
    """A batch: the thread of Spark fetches its results, the driver stores them."""

    def __init__(self, frame: DataFrame) -> None:
        self.frame = frame
        self._compute: Callable[[], Iterator[Part]] = lambda: iter(())
        self._has_begun = threading.Event()
        # At most one part waits, so that the driver never holds those of a whole batch; None: there are no more.
        self._parts: queue.Queue[Part | Exception | None] = queue.Queue(1)
        self._ended = threading.Event()
        self._is_over = False

    # ---- the driver

    def begin(self, compute: Callable[[], Iterator[Part]]) -> None:
        """Let the thread of Spark fetch the results."""
        self._compute = compute
        self._has_begun.set()

    def next(self, timeout: float | None = None) -> Part | None:
        """Return the next part, None behind the last one; raise queue.Empty after `timeout`, or the error of a task."""
        part = self._parts.get(timeout=timeout)
        if isinstance(part, Exception):
            raise part
        return part

    def end(self, *, is_over: bool = False) -> None:
        """Let the thread of Spark go on; the query ends if `is_over`."""
        self._is_over = is_over
        self._ended.set()
        self._has_begun.set()

    # ---- the thread of Spark

    def work(self) -> None:
        """Fetch the results, and wait until the driver has stored them; raise _Stopped if the query is to end."""
        self._has_begun.wait()
        try:
            for part in self._compute() if not self._ended.is_set() else ():
                if not self._put(part):
                    break
            self._put(None)
        except Exception as error:
            self._put(error)
        self._ended.wait()
        if self._is_over:
            raise _Stopped

    def _put(self, part: Part | Exception | None) -> bool:
        """Hand a part over; return False if the driver takes no more."""
        while not self._ended.is_set():
            with suppress(queue.Full):
                self._parts.put(part, timeout=POLL_SECONDS)
                return True
        return False


class Stream:
    """The streaming query of a validation."""

    def __init__(self, engine: SparkEngine, local: LocalEngine) -> None:
        self._engine = engine
        self._local = local
        self._query: StreamingQuery | None = None
        # The tables that the query reads.
        self._tables: object = None
        self._turns: queue.Queue[_Turn] = queue.Queue()
        self._turn: _Turn | None = None
        self._is_stopping = False
        self._folder = ScratchFolder("trueup-validate-")
        # The readers of the log append to it.
        self._reading = self._folder.path / "reading"
        self._reading.touch(0o600)
        self._number = 0
        self._batches = 0
        self._slow_starts = 0
        # While there are changes to read: the watch over the process that reads them.
        self._expected: Job | None = None
        self._watch = ExitStack()

    def one_round(self, validator: Validator) -> bool:
        """Run one round: start or check the query, judge a batch, then check pending rows and errors again."""
        try:
            if validator.has_requests:
                self._stop()
                validator.reopen()
            # A Java process that hangs has no answer, also to what is asked here.
            with self._engine.watched():
                self._ensure_query(validator)
            end = validator.locate()
            validator.check_health()
            self._expect(is_due=end > validator.positions.read)
            with suppress(queue.Empty):
                turn = self._turns.get(timeout=POLL_SECONDS)
                self._expect(is_due=False)
                self._judge(validator, turn)
            finish_round(validator)
            return True
        except BaseException as error:
            hang = self._expected.error if self._expected is not None else None
            # The next query starts at the checkpoint. No batch may be read while sessions and tables are opened again.
            with suppress(EngineError):
                self._stop()
            if hang is not None and isinstance(error, Exception):
                raise hang from error
            raise

    def _expect(self, *, is_due: bool) -> None:
        """Watch that Spark hands a batch over while one is due: the process that asks for new changes may hang."""
        if not is_due:
            self._expected = None
            self._watch.close()
        elif self._expected is None:
            self._expected = self._watch.enter_context(self._engine.watched())
        elif self._expected.error is not None:
            raise self._expected.error

    @property
    def progress(self) -> dict[str, Any]:
        """Return the number of batches and jobs, and the size, the time and the rates of the last batch."""
        query = self._query
        last = query.lastProgress if query is not None else None
        facts: dict[str, Any] = {"name": "spark", "batches": self._batches, "jobs": self._jobs(query)}
        if last is not None:
            facts |= {
                "batch_rows": last["numInputRows"],
                "batch_seconds": round(last["durationMs"].get("triggerExecution", 0) / 1000, 3),
                "input_per_second": _rounded(last["inputRowsPerSecond"]),
                "processed_per_second": _rounded(last["processedRowsPerSecond"]),
            }
        return facts

    def close(self) -> None:
        """Stop the query."""
        with suppress(EngineError):
            self._stop()
        self._folder.close()

    def _jobs(self, query: StreamingQuery | None) -> int:
        """Return how many jobs Spark has run: numbers are counted per session, and the last ones are remembered."""
        tracker = self._engine.session.sparkContext.statusTracker()
        groups = [None, *([str(query.runId)] if query is not None else [])]
        numbers = [number for group in groups for number in tracker.getJobIdsForGroup(group)]
        return max(numbers, default=-1) + 1

    def _stop(self) -> None:
        """Stop the query; raise EngineError if it hangs."""
        query, self._query = self._query, None
        if query is None:
            return
        self._is_stopping = True
        self._expect(is_due=False)
        # Stopping waits for the thread of Spark, which may wait for the driver, or for a Python process that hangs.
        self._end_turns()
        is_stopped = within(_STOP_SECONDS, query.stop)
        self._end_turns()
        self._turn = None
        self._is_stopping = False
        if not is_stopped:
            raise EngineError(
                f"the streaming query did not stop within {_STOP_SECONDS:.0f} s",
                cure="check whether the machine has too little memory, or use --engine local",
            )

    def _end_turns(self) -> None:
        if self._turn is not None:
            self._turn.end(is_over=True)
        with suppress(queue.Empty):
            while True:
                self._turns.get_nowait().end(is_over=True)

    def _judge(self, validator: Validator, turn: _Turn) -> None:
        """Judge a batch that Spark has read; check pending rows meanwhile."""
        self._turn = turn
        # Sessions of the driver's threads, which checked pending rows.
        close_idle()
        settings = validator.sessions.settings
        most = settings.max_connections
        # Tasks use up the whole limit of rows per second.
        has_own = most >= _TO_CHECK_MEANWHILE and not settings.max_rows_per_second
        partitions = max(1, min(self._engine.slots, most - STREAM_CONNECTIONS - has_own))
        slots, self._local.slots = self._local.slots, 1
        try:
            with self._engine.watched(self._reading) as job, ExitStack() as files:
                # Before the tasks read rows.
                moment = validator.capture.moment() if validator.capture is not None else None
                with_proven = moment is not None
                results = judge_frame(
                    validator, turn.frame, files, partitions=partitions, file=job.path, with_proven=with_proven
                )
                turn.begin(lambda: _parts(results, partitions))
                generation = validator.scrubber.generation
                parts = _begun(turn, meanwhile=partial(_check_again, validator) if has_own else None)
                store_parts(validator, parts, generation, moment)
        except Exception as error:
            raise known(error, validator) from error
        finally:
            self._local.slots = slots
        self._batches += 1
        self._slow_starts = 0
        self._turn = None
        turn.end()

    def _ensure_query(self, validator: Validator) -> None:
        """Start the query, or start it again if a table was stopped; raise the error of one that has ended."""
        query, tables = self._query, (_keys(validator), validator.tables.not_validated())
        if query is not None and not query.isActive:
            error = query.exception() or EngineError(
                "the streaming query ended unexpectedly", cure="see the logs of the Spark executors"
            )
            self._slow_starts += 1
            if _TOO_SLOW not in str(error) or self._slow_starts > _MAX_SLOW_STARTS:
                raise known(error, validator)
            self._stop()
        if tables != self._tables:
            self._stop()
        if self._query is None:
            self._tables = tables
            try:
                self._query = self._start(validator)
            except Exception as error:
                raise known(error, validator) from error

    def _start(self, validator: Validator) -> StreamingQuery:
        from trueup.spark.changes import ChangesSource

        sessions, session = validator.sessions, self._engine.session
        source, stored = sessions.servers[0], sessions.stored
        attributes = {
            "nodes": {source.name: source},
            "limit": SyncerLimit(sessions.servers, validator.positions.syncer, sessions.settings.cutover),
            "keys": _keys(validator),
            "keyless": validator.tables.not_validated(),
            "file": str(self._reading),
            "__module__": "trueup_registered",
        }
        session.dataSource.register(type("ChangesSource", (ChangesSource,), attributes))
        self._number += 1
        options = {
            "node": source.name, "slot": stored.slot, "publication": stored.publication,
            "start": lsn_text(validator.positions.read), "advance": "false", "positions": "true",
            "max_bytes": str(_MAX_BYTES),
        }  # fmt: skip
        start_callbacks(session)
        stream = session.readStream.format("trueup_changes").options(**options).load()
        writer = stream.writeStream.foreachBatch(lambda frame, number: self._batch(frame))
        writer = writer.option("checkpointLocation", str(self._folder.path / str(self._number)))
        return writer.trigger(processingTime=TRIGGER).start()

    def _batch(self, frame: DataFrame) -> None:
        """Hand a batch to the driver and wait for it; Spark calls this on a thread of its own."""
        # A plan with one shuffle has nothing to adapt, which would be a job more; the session is that of the query.
        frame.sparkSession.conf.set("spark.sql.adaptive.enabled", "false")
        turn = _Turn(frame)
        self._turns.put(turn)
        if self._is_stopping:
            self._end_turns()
        turn.work()


class _Stopped(Exception):
    """The query is stopped: the batch is read again from the checkpoint."""


def judge_frame(
    validator: Validator,
    frame: DataFrame,
    files: ExitStack,
    *,
    partitions: int,
    file: str = "",
    with_proven: bool = False,
) -> DataFrame:
    """Return the results of Spark tasks that judge a batch; they record in `file` that they work.

    Until `files` is closed.
    """
    sessions, positions, checker = validator.sessions, validator.positions, validator.checker
    limit = sessions.settings.max_rows_per_second
    judging = Judging(
        dict(validator.tables.pairs), positions.read, _reachable(validator), sessions.application,
        sessions.settings.timeout, sessions.settings.float_tolerance,
        bool(with_proven or checker.pending or checker.errors),
        validator.scrubber.untouched_cuts(), limit / partitions, file,
    )  # fmt: skip
    work = JudgeKeys(files.enter_context(sealed_meanwhile(packed(judging))))
    return frame.select(*COLUMNS).repartition(partitions, "table", "key").mapInArrow(work, RESULT)


def _begun(turn: _Turn, *, meanwhile: Callable[[], object] | None) -> Iterator[Part]:
    """Call a function again and again until the first part is there; return all parts."""
    while True:
        try:
            first = turn.next(None if meanwhile is None else POLL_SECONDS)
        except queue.Empty:
            assert meanwhile is not None
            meanwhile()
        else:
            return chain(() if first is None else (first,), iter(turn.next, None) if first is not None else ())


def _check_again(validator: Validator) -> None:
    """Check pending rows and errors again, while tasks judge a batch."""
    validator.positions.locate()
    validator.check_pending()
    validator.check_errors()


def store_parts(validator: Validator, parts: Iterator[Part], generation: int, moment: Moment | None) -> None:
    """Commit the results of a batch together with the position behind it.

    `generation` is that of the blocks when the batch was read: if others were stored since, all of them are touched.
    `moment` is before the tasks read rows.
    """
    sessions, positions, checker = validator.sessions, validator.positions, validator.checker
    batch = Batch(validator.tables.find_pair, positions.read)
    # The first batch of a query has no rows at all if nothing is new.
    position, rows, expected = positions.read, 0, 0
    validator.compared.clear()
    try:
        with sessions.meta.transaction():
            # Each part is stored on its own: the keys of a batch may need more memory than the driver has.
            for part in parts:
                if part.start > positions.read:
                    raise _lost(f"changes from {lsn_text(positions.read)} to {lsn_text(part.start)} were not judged")
                if part.end:
                    position, expected = max(position, part.end), part.expected
                rows += part.rows
                _add_counts(batch, part)
                validator.scrubber.touch_blocks(part.blocks)
                checker.postpone_unseen(part.unseen)
                checker.record(part.touches, part.failed, sessions.mark)
                if moment is not None and part.touches:
                    validator.compared.append((moment, part.touches, part.failed))
            if rows != expected:
                raise _lost(f"{rows:,} rows of a batch of {expected:,} were judged")
            if validator.scrubber.generation != generation:
                validator.scrubber.touch_tables(batch.counts)
            look = validator.look()
            validator.checkpoint(batch, position)
    except BaseException:
        validator.scrubber.forget()
        raise
    finally:
        checker.count()
    validator.last_look = look
    positions.advance(position)
    validator.note_compared()


def _lost(message: str) -> EngineError:
    return EngineError(f"Spark has lost rows: {message}", cure="see the logs of the Spark executors")


def _add_counts(batch: Batch, part: Part) -> None:
    for table, counts in part.counts.items():
        batch.counts.setdefault(table, Counter()).update(counts)
    for table, touch in part.truncated.items():
        batch.truncated[table] = touch


@contextmanager
def _computed(results: DataFrame, partitions: int) -> Iterator[Iterator[DataFrame]]:
    """Compute the results of all partitions at the same time; yield frames that are fetched one after the other.

    The driver holds the results of two partitions at most. Those of more are kept in the executors.
    """
    from pyspark.sql.functions import spark_partition_id

    if partitions <= _FETCHED_AT_ONCE:
        yield iter((results,))
        return
    kept = results.persist()
    try:
        kept.count()
        yield (kept.where(spark_partition_id() == number) for number in range(partitions))
    finally:
        kept.unpersist()


def _parts(results: DataFrame, partitions: int) -> Iterator[Part]:
    """Yield the results of the tasks."""
    with _computed(results, partitions) as frames:
        for frame in frames:
            # Not with an iterator of Spark, whose jobs stay in the memory of its Java process for ever.
            for value in frame.toArrow().column(0):
                part = pickle.loads(value.as_buffer())
                if isinstance(part, TrueupError):
                    raise part
                yield part


def _keys(validator: Validator) -> dict[int, tuple[str, tuple[str, ...]]]:
    """Return names and keys of the validated tables by their OIDs."""
    return {pair.oid: (name, pair.key) for name, pair in validator.tables.pairs.items()}


def known(error: BaseException, validator: Validator) -> BaseException:
    """Return the error of a batch or a query: of a table whose key was altered, of a node, or of Spark."""
    from trueup.spark.changes import KEY_CHANGED

    text = str(error)
    match = re.search(rf"{re.escape(KEY_CHANGED)}(\S+): ([^\n]*)", text)
    if match and match[1] in validator.tables.routes:
        return CheckFailed([match[2]], table=match[1])
    if isinstance(error, TrueupError) or not isinstance(error, Exception):
        return error
    if (of_node := _OF_NODE.search(text)) and not why_ended():
        # It is tried again with new sessions, which raise the error as it is.
        return NodeError(of_node[2].strip(), node=validator.sessions.nodes[0].name)
    is_of_spark = type(error).__module__.partition(".")[0] in ("py4j", "pyspark")
    return failed_job(error) if is_of_spark or why_ended() else error


def _reachable(validator: Validator) -> tuple[Node, Node]:
    """Return the nodes with the addresses that libpq resolved on this machine."""
    sessions = validator.sessions
    source, target = (
        Node(node.name, address_of(session, application=sessions.application))
        for node, session in zip(sessions.nodes, (sessions.source, sessions.target), strict=True)
    )
    return source, target


def _rounded(rate: float | None) -> int:
    # Spark reports no number for a batch that took no time.
    return round(rate) if rate is not None and rate < 1e12 else 0
