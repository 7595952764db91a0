"""Runs a validation on threads and on Spark: with "auto", threads begin, and Spark takes over when it is ready.

If Spark fails, threads continue from the last checkpoint, unless `--engine spark` was requested.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeVar

from trueup.config.model import Node
from trueup.config.settings import SparkSettings
from trueup.db.reader import close_idle
from trueup.db.storable import as_json, storable_values
from trueup.engine.failures import known_error, uninterrupted
from trueup.engine.lasting import LastingSpark
from trueup.engine.local import LocalEngine
from trueup.engine.work import Engine, Tasks, Work
from trueup.errors import EngineError
from trueup.verbs.validate.judge import judge
from trueup.verbs.validate.on_spark.stream import STREAM_CONNECTIONS, Stream
from trueup.verbs.validate.run import run, validate_round
from trueup.verbs.validate.sessions import Log
from trueup.verbs.validate.settings import Settings
from trueup.verbs.validate.validator import Validator

T = TypeVar("T")

_NOTE_SECONDS = 2.0
# Two of the connections to each node are for reading changes and for queries of the driver.
_OTHER_CONNECTIONS = 2


def run_lasting(settings: Settings, nodes: tuple[Node, Node], meta_node: Node, spark: SparkSettings, log: Log) -> str:
    """Validate until the user stops it; return the reason of the end.

    Changes of the log are read and judged by a streaming query. The driver reads changes that triggers recorded, and
    Spark tasks judge them.
    """
    with ExitStack() as stack:
        is_log = settings.changes == "log"
        # One of the other connections is counted by the engine itself.
        lasting = LastingSpark(
            _possible(spark, settings, log), judge, warn=log, max_connections=settings.max_connections - 1
        )
        stack.callback(lasting.close)
        local = LocalEngine(max(1, settings.max_connections - _OTHER_CONNECTIONS))
        stack.callback(local.close)
        lasting.wait()
        rounds = _Rounds(lasting, local, is_log=is_log)
        stack.callback(rounds.close)
        engine: Engine = local if is_log else _EitherEngine(local, lasting)
        return run(settings.name, nodes, meta_node, engine, log=log, one_round=rounds.one_round)


def _possible(spark: SparkSettings, settings: Settings, log: Log) -> SparkSettings:
    """Return the settings of Spark; without it, or an EngineError, if the validation cannot run on it."""
    reason = cure = ""
    if spark.remote:
        reason = "a validation cannot run through Spark Connect: its driver must be in this process"
        cure = "use --engine local, or a master instead of a remote"
    elif settings.changes == "log" and settings.max_connections <= STREAM_CONNECTIONS:
        reason = f"a validation on Spark needs --max-connections {STREAM_CONNECTIONS + 1} at least"
        cure = "use --engine local, or allow more connections"
    if not reason or spark.engine == "local":
        return spark
    if spark.engine == "spark":
        raise EngineError(reason, cure=cure)
    log(f"threads of this process do the work: {reason}")
    return replace(spark, engine="local", remote="")


class _Rounds:
    """The rounds of a validation, on threads or as a stream."""

    def __init__(self, spark: LastingSpark, local: LocalEngine, *, is_log: bool) -> None:
        self._spark = spark
        self._local = local
        self._threads = local.slots
        self._is_log = is_log
        self._stream: Stream | None = None
        self._note_at = 0.0
        self._noted: dict[str, Any] = {}

    def one_round(self, validator: Validator) -> bool:
        """Run one round; if Spark fails in it, open everything again for the next one, on threads."""
        try:
            if self._is_log and self._stream is None and (engine := self._spark.now()) is not None:
                # Changes that were read and not judged are read again by the stream.
                validator.forget_changes()
                self._stream = Stream(engine, self._local)
                self._local.slots = min(self._threads, validator.sessions.settings.max_connections - STREAM_CONNECTIONS)
                validator.sessions.log("Spark is ready: it reads and judges the changes from now on")
            more = validate_round(validator) if self._stream is None else self._stream.one_round(validator)
            self._note(validator)
            return more
        except Exception as failure:
            error = known_error(uninterrupted(failure))
            if not isinstance(error, EngineError) or self._spark.now() is None:
                raise
            self._spark.give_up(error)
            self.close()
            self._local.slots = self._threads
            validator.close()
            validator.open()
            return True

    def close(self) -> None:
        """Stop the stream."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _note(self, validator: Validator) -> None:
        """Store what runs the validation and how fast it is, for the status."""
        now = time.monotonic()
        if now < self._note_at:
            return
        self._note_at = now + _NOTE_SECONDS
        engine = self._facts()
        if engine != self._noted:
            self._noted = engine
            meta = validator.sessions.meta
            values = storable_values(meta.connection, engine)
            meta.rows("engine", name=validator.sessions.name, engine=as_json(values))

    def _facts(self) -> dict[str, Any]:
        if self._stream is not None:
            return self._stream.progress
        engine = None if self._is_log else self._spark.now()
        if engine is not None:
            return {"name": "spark", "jobs": engine.jobs}
        return {"name": "local", **({"problem": self._spark.problem} if self._spark.problem else {})}


class _EitherEngine:
    """Runs tasks on Spark when it is ready, and on threads before and after."""

    remarks: Sequence[str] = ()

    def __init__(self, local: LocalEngine, spark: LastingSpark) -> None:
        self._local = local
        self._spark = spark
        self.slots = self.max_slots = local.slots

    @property
    def name(self) -> str:
        """The engine that runs the next tasks."""
        return self._current().name

    def run(self, work: Work[T], tasks: Tasks[T]) -> Iterator[Any]:
        """Run the tasks."""
        return self._current().run(work, tasks)

    def interrupt(self) -> None:
        """End the running tasks."""
        self._current().interrupt()

    def close(self) -> None:
        """Do nothing: the caller closes both."""

    def _current(self) -> Engine:
        spark = self._spark.now()
        if spark is not None:
            # The sessions of threads would stay open beside those of the tasks.
            close_idle()
        engine = spark or self._local
        self.slots = engine.slots
        return engine
