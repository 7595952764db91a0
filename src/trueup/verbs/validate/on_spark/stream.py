"""Runs a validation as a Spark streaming job: Spark reads the changes, merges them by key, and judges them in tasks.

The driver checks pending rows again, because they are few. The meta database is the only checkpoint; the checkpoint
folder that Spark requires is temporary.
"""

from __future__ import annotations

import pickle
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from trueup.capture.log.slot import lsn_text
from trueup.capture.log.syncer import SyncerLimit
from trueup.config.model import Config, Node
from trueup.config.settings import SparkSettings
from trueup.db.connection import address_of
from trueup.engine.choose import EngineStarter
from trueup.engine.failures import failed_job
from trueup.engine.local import LocalEngine
from trueup.engine.scratch import ScratchFolder
from trueup.errors import CheckFailed, EngineError, TrueupError
from trueup.verbs.validate.batch import Batch
from trueup.verbs.validate.look import CatalogChanged
from trueup.verbs.validate.on_spark.tasks import RESULT, JudgeKeys, Part
from trueup.verbs.validate.pending import Touch
from trueup.verbs.validate.run import finish_round, run
from trueup.verbs.validate.sessions import Log
from trueup.verbs.validate.validator import Validator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TRIGGER = "200 milliseconds"
_MAX_BYTES = 64 * 1024 * 1024


def run_stream(name: str, nodes: tuple[Node, Node], meta_node: Node, config: Config, *, log: Log) -> str:
    """Validate changes from the log on Spark until the user stops it; return the reason of the end."""
    starter = EngineStarter(_spark_settings(config), concurrency_factor=1.0, max_connections=0)
    local = LocalEngine(2)
    try:
        stream = _Stream(starter.get(0).session)  # type: ignore[attr-defined]
        try:
            return run(name, nodes, meta_node, local, log=log, one_round=stream.one_round)
        finally:
            stream.close()
    finally:
        local.close()
        starter.close()


def run_with_spark(name: str, nodes: tuple[Node, Node], meta_node: Node, config: Config, *, log: Log) -> str:
    """Validate changes from triggers: the driver reads the pods, and Spark tasks judge the keys."""
    starter = EngineStarter(_spark_settings(config), concurrency_factor=1.0, max_connections=0)
    try:
        return run(name, nodes, meta_node, starter.get(0), log=log)
    finally:
        starter.close()


def _spark_settings(config: Config) -> SparkSettings:
    if config.spark.remote:
        raise EngineError(
            "a validation cannot run through Spark Connect: its driver must be in this process",
            cure="use --engine local, or a master instead of a remote",
        )
    return replace(config.spark, engine="spark")


class _Stream:
    """The streaming query of a validation. Batches of the query and rounds of the driver exclude each other."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._query: StreamingQuery | None = None
        self._keys: dict[int, tuple[str, tuple[str, ...]]] = {}
        self._lock = threading.RLock()
        self._error: BaseException | None = None
        self._folder = ScratchFolder("trueup-validate-")
        self._number = 0

    def one_round(self, validator: Validator) -> bool:
        """Run one round of the driver: start or check the query, then check pending rows and errors again."""
        # Without the lock: stopping the query waits for its batch, and the batch waits for the lock.
        if validator.has_requests:
            self._stop()
            with self._lock:
                validator.reopen()
        self._ensure_query(validator)
        try:
            with self._lock:
                validator.positions.locate()
                validator.check_health()
                return finish_round(validator)
        except CatalogChanged:
            # No batch may run while the tables are planned again.
            self._stop()
            raise

    def close(self) -> None:
        """Stop the query."""
        self._stop()
        self._folder.close()

    def _stop(self) -> None:
        if self._query is not None:
            with suppress(Exception):
                self._query.stop()
            self._query = None
            # The error of an interrupted batch is none; its changes are read again from the checkpoint.
            with self._lock:
                self._error = None

    def _ensure_query(self, validator: Validator) -> None:
        """Raise the error of the last batch; start the query, or start it again if a table was stopped."""
        error, self._error = self._error, None
        query = self._query
        if query is not None and not query.isActive and error is None:
            error = query.exception() or EngineError(
                "the streaming query ended unexpectedly", cure="see the logs of the Spark executors"
            )
        keys = _keys(validator)
        if error is not None or keys != self._keys:
            # The next query starts at the checkpoint.
            self._stop()
        if error is not None:
            raise _as_trueup_error(error, validator)
        if self._query is None:
            self._keys = keys
            self._query = self._start(validator)

    def _start(self, validator: Validator) -> StreamingQuery:
        from trueup.spark.changes import ChangesSource

        sessions = validator.sessions
        source, stored = sessions.servers[0], sessions.stored
        attributes = {
            "nodes": {source.name: source},
            "limit": SyncerLimit(sessions.servers, validator.positions.syncer, sessions.settings.cutover),
            "keys": _keys(validator),
            "__module__": "trueup_registered",
        }
        self._session.dataSource.register(type("ChangesSource", (ChangesSource,), attributes))
        self._number += 1
        options = {
            "node": source.name, "slot": stored.slot, "publication": stored.publication,
            "start": lsn_text(validator.positions.read), "advance": "false", "positions": "true",
            "max_bytes": str(_MAX_BYTES),
        }  # fmt: skip
        stream = self._session.readStream.format("trueup_changes").options(**options).load()
        writer = stream.writeStream.foreachBatch(lambda frame, number: self._batch(validator, frame))
        writer = writer.option("checkpointLocation", str(self._folder.path / str(self._number)))
        return writer.trigger(processingTime=TRIGGER).start()

    def _batch(self, validator: Validator, frame: DataFrame) -> None:
        """Judge one batch; Spark calls this on a thread of its own."""
        try:
            with self._lock, _persisted(frame) as rows:
                judge_frame(validator, rows, partitions=max(2, int(self._session.sparkContext.defaultParallelism)))
        except BaseException as error:
            self._error = error
            raise


def judge_frame(validator: Validator, frame: DataFrame, *, partitions: int) -> None:
    """Judge a batch in Spark tasks; commit the results together with the position behind the batch."""
    from pyspark.sql import functions as f

    sessions, positions, checker = validator.sessions, validator.positions, validator.checker
    # Changes before the checkpoint were counted already.
    frame = frame.where(f.col("position") >= positions.read)
    batch, end = _counted(validator, frame)
    rows = frame.where(f.col("op").isin("insert", "update", "delete"))
    last = f.max(f.struct("position", "xid", "op", "committed_at")).alias("last")
    merged = rows.groupBy("table", "key").agg(f.min("position").alias("first"), last)
    keyed = merged.repartition(partitions, "table", "key").selectExpr(
        "table",
        "key",
        "first",
        "last.position AS position",
        "last.xid AS xid",
        "last.op AS op",
        "last.committed_at AS at",
    )
    work = JudgeKeys(
        dict(validator.tables.pairs), _reachable(validator), sessions.application, sessions.settings.timeout,
        sessions.settings.float_tolerance, with_proven=bool(checker.pending or checker.errors),
    )  # fmt: skip
    position = max(positions.read, end)
    try:
        with _persisted(keyed.mapInArrow(work, RESULT)) as results:
            # Runs all tasks at the same time; the results stay in the executors.
            results.count()
            with sessions.meta.transaction():
                # Each part is stored on its own: the keys of a batch may need more memory than the driver has.
                for part in _parts(results):
                    checker.postpone_unseen(part.unseen)
                    checker.record(part.touches, part.failed, sessions.mark)
                look = validator.look()
                validator.checkpoint(batch, position)
    finally:
        checker.count()
    validator.last_look = look
    positions.advance(position)


def _parts(results: DataFrame) -> Iterator[Part]:
    """Yield the results of the tasks, fetched one partition after the other."""
    for (value,) in results.toLocalIterator():
        part = pickle.loads(value)
        if isinstance(part, TrueupError):
            raise part
        yield part


def _counted(validator: Validator, frame: DataFrame) -> tuple[Batch, int]:
    """Return the counts per table and operation with the truncated tables, and the end position of the batch."""
    from pyspark.sql import functions as f

    batch = Batch(validator.tables.find_pair, validator.positions.read)
    end = validator.positions.read
    rows = frame.groupBy("table", "op").agg(
        f.count("*"), f.min("position"), f.max("position"), f.max("xid"), f.max("committed_at")
    )
    for table, op, count, first, last, xid, committed_at in rows.collect():
        if op == "position":
            end = max(end, int(last))
        elif op != "message":
            batch.counts.setdefault(table, Counter())[op] += int(count)
            if op == "truncate":
                batch.truncated[table] = Touch(op, int(first), int(last), int(xid), _with_zone(committed_at))
    return batch, end


def _keys(validator: Validator) -> dict[int, tuple[str, tuple[str, ...]]]:
    """Return names and keys of the validated tables by their OIDs."""
    return {pair.oid: (name, pair.key) for name, pair in validator.tables.pairs.items()}


@contextmanager
def _persisted(frame: DataFrame) -> Iterator[DataFrame]:
    """Keep rows that are used more than once: the log would be decoded, and the keys be judged, for every use."""
    kept = frame.persist()
    try:
        yield kept
    finally:
        kept.unpersist()


def _as_trueup_error(error: BaseException, validator: Validator) -> TrueupError:
    """Return the error of a batch; CheckFailed with the table if the key of a table was altered."""
    from trueup.spark.changes import KEY_CHANGED

    if isinstance(error, TrueupError):
        return error
    match = re.search(rf"{re.escape(KEY_CHANGED)}(\S+): ([^\n]*)", str(error))
    if match and match[1] in validator.tables.routes:
        return CheckFailed([match[2]], table=match[1])
    return failed_job(error) if isinstance(error, Exception) else EngineError(str(error))


def _reachable(validator: Validator) -> tuple[Node, Node]:
    """Return the nodes with the addresses that libpq resolved on this machine."""
    sessions = validator.sessions
    source, target = (
        Node(node.name, address_of(session, application=sessions.application))
        for node, session in zip(sessions.nodes, (sessions.source, sessions.target), strict=True)
    )
    return source, target


def _with_zone(time: datetime | None) -> datetime | None:
    return time.astimezone() if time is not None else None
