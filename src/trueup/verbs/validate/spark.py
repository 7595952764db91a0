"""The same validation as a Spark streaming job: Spark reads the changes, merges them by key, and judges them in tasks.

What Spark does not do: rows that differ are looked at again in the driver, for they are few. The meta database is the
only checkpoint; the folder that Spark wants for its own is thrown away.
"""

from __future__ import annotations

import pickle
import re
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from trueup.capture.log.slot import lsn_number, lsn_text
from trueup.config.model import Config, Node
from trueup.db.connection import address_of
from trueup.db.node import connect
from trueup.db.reader import close_idle
from trueup.engine.choose import EngineStarter
from trueup.engine.envelope import failed_job
from trueup.engine.local import LocalEngine
from trueup.engine.work import Room, perform
from trueup.errors import EngineError, TrueupError
from trueup.rows.keys import KeyValues
from trueup.verbs.validate.batch import Batch, Touches
from trueup.verbs.validate.judge import Mismatch, judge, tasks_of
from trueup.verbs.validate.look import collected, wait_until_visible
from trueup.verbs.validate.pending import Entry, Touch
from trueup.verbs.validate.plan import Pair
from trueup.verbs.validate.run import look_again, run
from trueup.verbs.validate.syncer import Syncer
from trueup.verbs.validate.tables import Say
from trueup.verbs.validate.validator import Validator

if TYPE_CHECKING:
    import pyarrow as pa

TRIGGER = "200 milliseconds"
_MAX_BYTES = 64 * 1024 * 1024
_RESULT = "result binary"


def run_on_spark(name: str, nodes: tuple[Node, Node], meta_node: Node, config: Config, *, say: Say) -> str:
    """Validate on Spark until it is asked to stop; gives the reason of the end."""
    starter = EngineStarter(_spark_settings(config), concurrency_factor=1.0, max_connections=0)
    local = LocalEngine(2)
    try:
        session = getattr(starter.get(0), "session", None)
        job = _Job(session)
        try:
            return run(name, nodes, meta_node, local, say=say, step=job.step)
        finally:
            job.close()
    finally:
        local.close()
        starter.close()


def run_with_spark(name: str, nodes: tuple[Node, Node], meta_node: Node, config: Config, *, say: Say) -> str:
    """The same where triggers note the changes: the driver works the tube off, and Spark's tasks judge the keys."""
    starter = EngineStarter(_spark_settings(config), concurrency_factor=1.0, max_connections=0)
    try:
        return run(name, nodes, meta_node, starter.get(0), say=say)
    finally:
        starter.close()


def _spark_settings(config: Config) -> Any:
    if config.spark.remote:
        raise EngineError(
            "a validation cannot run through Spark Connect: its driver must be in this process",
            cure="use --engine local, or a master instead of a remote",
        )
    return replace(config.spark, engine="spark")


class _Job:
    """The streaming query of a validation; batches and the driver's own looks take turns."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self._query: Any = None
        self._tables: tuple[str, ...] = ()
        self._turn = threading.RLock()
        self._error: BaseException | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="trueup-validate-")
        self._number = 0

    def step(self, validator: Validator) -> bool:
        """One round of the driver: begin or watch the query, and look again at what differed."""
        # Not in turn: who ends the query waits for its batch, and the batch waits for its turn.
        self._watch(validator)
        with self._turn:
            validator.look_around()
            return look_again(validator)

    def close(self) -> None:
        """End the query."""
        if self._query is not None:
            with suppress(Exception):
                self._query.stop()
            self._query = None
        self._folder.cleanup()

    def _watch(self, validator: Validator) -> None:
        error, self._error = self._error, None
        query = self._query
        if query is not None and not query.isActive and error is None:
            error = query.exception() or EngineError("the streaming query ended", cure="look at the executors' logs")
        tables = tuple(sorted(validator.tables.pairs))
        if query is not None and (error is not None or tables != self._tables):
            # After an error, and after a table was stopped, the query begins anew at the checkpoint.
            with suppress(Exception):
                query.stop()
            self._query = None
        if error is not None:
            raise _ours(error, validator)
        if self._query is None:
            self._tables = tables
            self._query = self._start(validator)

    def _start(self, validator: Validator) -> Any:
        from trueup.spark.changes import ChangesSource

        source, _ = validator.nodes
        pairs = validator.tables.pairs
        given = {
            "nodes": {source.name: source},
            "limit": SyncerLimit(validator.nodes, validator.syncer, validator.settings.cutover),
            "keys": {name: pair.key for name, pair in pairs.items()},
            "__module__": "trueup_registered",
        }
        self.session.dataSource.register(type("ChangesSource", (ChangesSource,), given))
        self._number += 1
        options = {
            "node": source.name, "slot": validator.stored.slot, "publication": validator.stored.publication,
            "start": lsn_text(validator.position), "advance": "false", "positions": "true",
            "max_bytes": str(_MAX_BYTES),
        }  # fmt: skip
        stream = self.session.readStream.format("trueup_changes").options(**options).load()
        writer = stream.writeStream.foreachBatch(lambda frame, number: self._batch(validator, frame))
        writer = writer.option("checkpointLocation", f"{self._folder.name}/{self._number}")
        return writer.trigger(processingTime=TRIGGER).start()

    def _batch(self, validator: Validator, frame: Any) -> None:
        """One batch, in Spark's thread: judged by tasks, committed with its position."""
        try:
            with self._turn, _kept(frame) as kept:
                take(validator, kept, parts=max(2, int(self.session.sparkContext.defaultParallelism)))
        except BaseException as error:
            self._error = error
            raise


def take(validator: Validator, frame: Any, *, parts: int) -> None:
    """Judge a batch in Spark, and commit what follows together with the position behind it."""
    from pyspark.sql import functions as f

    # What is checkpointed already is not counted again.
    frame = frame.where(f.col("position") >= validator.position)
    batch, end = _counted(validator, frame)
    rows = frame.where(f.col("op").isin("insert", "update", "delete"))
    last = f.max(f.struct("position", "xid", "op", "committed_at")).alias("last")
    merged = rows.groupBy("table", "key").agg(f.min("position").alias("first"), last)
    keyed = merged.repartition(parts, "table", "key").selectExpr(
        "table",
        "key",
        "first",
        "last.position AS position",
        "last.xid AS xid",
        "last.op AS op",
        "last.committed_at AS at",
    )
    looks = validator.looks
    nodes = _reachable(validator)
    work = JudgeKeys(
        dict(validator.tables.pairs), nodes, validator.application, validator.settings.timeout,
        validator.settings.float_tolerance, bool(looks.pending or looks.errors),
    )  # fmt: skip
    found = [pickle.loads(each.as_py()) for each in keyed.mapInArrow(work, _RESULT).toArrow().column(0)]
    touches: Touches = {}
    failed: dict[tuple[str, KeyValues], Mismatch] = {}
    later: list[Entry] = []
    for part in found:
        if isinstance(part, TrueupError):
            raise part
        for table, keys in part.touches.items():
            touches.setdefault(table, {}).update(keys)
        failed.update(part.failed)
        later += part.later
    try:
        with validator.meta.transaction():
            validator.look_later(later)
            looks.record(validator.tables.pairs, touches, failed, validator.mark)
            validator.checkpoint(batch, max(validator.position, end))
    finally:
        looks.count()


def _counted(validator: Validator, frame: Any) -> tuple[Batch, int]:
    """The counts by table and operation, what was truncated, and how far the batch goes."""
    from pyspark.sql import functions as f

    batch = Batch(validator.tables.pairs, validator.position)
    end = validator.position
    rows = frame.groupBy("table", "op").agg(
        f.count("*"), f.min("position"), f.max("position"), f.max("xid"), f.max("committed_at")
    )
    for table, op, count, first, last, xid, at in rows.collect():
        if op == "position":
            end = max(end, int(last))
        elif op != "message":
            batch.counts.setdefault(table, Counter())[op] += int(count)
            if op == "truncate":
                batch.truncated[table] = Touch(op, int(first), int(last), int(xid), _utc(at))
    return batch, end


class Part:
    """What one task of a batch brings home."""

    def __init__(self) -> None:
        self.touches: Touches = {}
        self.failed: dict[tuple[str, KeyValues], Mismatch] = {}
        self.later: list[Entry] = []


class JudgeKeys:
    """What a Python worker runs: the keys of its partition, judged table by table. A key is in one task only."""

    def __init__(
        self,
        pairs: dict[str, Pair],
        nodes: tuple[Node, Node],
        application: str,
        timeout: float,
        tolerance: float,
        tell_proven: bool,
    ) -> None:
        self._packed = pickle.dumps((pairs, nodes, application, timeout, tolerance, tell_proven))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One result a partition; an error is a result too, for it would be tried again three times."""
        import pyarrow as pa

        try:
            result: Any = self._judged(batches)
        except TrueupError as error:
            result = error
        finally:
            close_idle()
        yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(result)], pa.binary())], ["result"])

    def _judged(self, batches: Iterator[pa.RecordBatch]) -> Part:
        pairs, nodes, application, timeout, tolerance, tell_proven = pickle.loads(self._packed)
        part = Part()
        touches = _touches(batches, pairs)
        xids = {touch.xid for keys in touches.values() for touch in keys.values()}
        if not xids:
            return part
        connection = connect(nodes[0], application=application)
        try:
            hidden = wait_until_visible(connection, xids)
        finally:
            connection.close()
        for table, keys in touches.items():
            ready = [key for key, touch in keys.items() if touch.xid not in hidden]
            part.later += [Entry.of(table, key, touch) for key, touch in keys.items() if touch.xid in hidden]
            for task in tasks_of(
                pairs[table], ready, size=5000, nodes=nodes, application=application, timeout=timeout,
                tolerance=tolerance,
            ):  # fmt: skip
                part.failed.update(collected(perform(judge, task, Room())))
            wanted = ready if tell_proven else [key for name, key in part.failed if name == table and key in keys]
            part.touches[table] = {key: keys[key] for key in wanted}
        return part


def _touches(batches: Iterator[pa.RecordBatch], pairs: dict[str, Pair]) -> Touches:
    normal = {name: pair.normal() for name, pair in pairs.items()}
    found: Touches = {}
    for batch in batches:
        columns = [batch.column(at).to_pylist() for at in range(batch.num_columns)]
        for table, key, first, position, xid, op, at in zip(*columns, strict=True):
            if table in normal:
                values = normal[table](tuple(key))
                found.setdefault(table, {})[values] = Touch(op, first, position, xid, at)
    return found


class SyncerLimit:
    """How far the stream may be read: asked in the process in which Spark plans, with sessions of its own."""

    def __init__(self, nodes: tuple[Node, Node], syncer: Syncer, cutover: str) -> None:
        self._nodes = nodes
        self._syncer = syncer
        self._cutover = cutover
        self._sessions: list[Any] = []

    def position(self) -> int | None:
        """The syncer's position, or the cut-over position if that is nearer."""
        if not self._sessions:
            self._sessions = [connect(node, application="trueup validate limit") for node in self._nodes]
        try:
            place = self._syncer.place(*self._sessions)
        except Exception:
            self._sessions = []
            raise
        return min(place, lsn_number(self._cutover)) if self._cutover else place


@contextmanager
def _kept(frame: Any) -> Iterator[Any]:
    """Read once: the log would be decoded again for every use."""
    kept = frame.persist()
    try:
        yield kept
    finally:
        kept.unpersist()


def _ours(error: BaseException, validator: Validator) -> TrueupError:
    """What went wrong in a batch; a table whose key was altered is stopped by name, and the others go on."""
    from trueup.spark.changes import ALTERED

    if isinstance(error, TrueupError):
        return error
    found = re.search(rf"{re.escape(ALTERED)}(\S+): ([^\n]*)", str(error))
    if found and found[1] in validator.tables.routes:
        from trueup.errors import CheckFailed

        return CheckFailed([found[2]], table=found[1])
    return failed_job(error) if isinstance(error, Exception) else EngineError(str(error))


def _reachable(validator: Validator) -> tuple[Node, Node]:
    """The nodes with addresses that lead there from any machine."""
    source, target = (
        Node(node.name, address_of(session, application=validator.application))
        for node, session in zip(validator.nodes, (validator.source, validator.target), strict=True)
    )
    return source, target


def _utc(at: Any) -> datetime | None:
    return at.astimezone() if at is not None else None
