"""Choose the engine: threads of this process for small tables, Spark for large ones or when a cluster is configured."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from trueup.config.settings import SparkSettings
from trueup.engine.background import BackgroundStart
from trueup.engine.failures import known_error
from trueup.engine.handover import HandOverEngine
from trueup.engine.jvm import stop_session
from trueup.engine.launch import Launch
from trueup.engine.local import LocalEngine
from trueup.engine.memory import check_memory_for_spark
from trueup.engine.python import use_this_python
from trueup.engine.sealed import is_here
from trueup.engine.session import existing_session, start_session
from trueup.engine.slots import Share, cores_here
from trueup.engine.spark import SparkEngine
from trueup.engine.work import Engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# With "auto", a session of the program is used from the first task of tables with this many rows: there is no start to
# wait for. Smaller ones take less time than the first jobs of a session.
SESSION_ROWS = 2_000_000


def uses_spark(settings: SparkSettings, rows: int) -> bool:
    """Whether a table of this many rows is compared on Spark."""
    if settings.engine != "auto":
        return settings.engine == "spark"
    return bool(settings.master or settings.remote) or rows >= settings.local_rows


class EngineStarter:
    """Starts the engine; Spark starts in the background while the driver plans. Several runs may share it."""

    def __init__(self, settings: SparkSettings, *, concurrency_factor: float, max_connections: int) -> None:
        self._settings = settings
        self._share = Share(concurrency_factor, max_connections, fixed=settings.slots)
        self._spark: BackgroundStart[SparkEngine] | None = None
        self._local: Engine | None = None
        self._hand_over: HandOverEngine | None = None
        self._lock = threading.Lock()
        # Looked up here, because an active session belongs to a thread.
        self._session = session_of_program(settings)
        if uses_spark(settings, rows=0):
            self._begin()

    def get(self, rows: int) -> Engine:
        """Return the engine for this many rows; wait until it has started."""
        with self._lock:
            if self._spark is None:
                if not uses_spark(self._settings, rows):
                    self._local = self._local or LocalEngine(self._share.of(cores_here()))
                    return self._local
                self._begin()
            spark = self._spark
        assert spark is not None
        return spark.result()

    def get_with_hand_over(self, rows: int) -> Engine:
        """Return the engine for tasks that can run twice: with "auto", threads that Spark takes over from.

        A cluster, and a session of the program for a large table, are used from the first task.
        """
        settings = self._settings
        slots = self._share.of(cores_here())
        with self._lock:
            is_free = settings.engine == "auto" and self._spark is None
            if is_free and self._session is not None and rows >= SESSION_ROWS:
                self._begin()
            elif is_free and self._session is None and slots > 1 and not uses_spark(settings, rows=0):
                if self._hand_over is None:
                    self._hand_over = HandOverEngine(
                        slots,
                        BackgroundStart(self._start_checked),
                        seconds=settings.local_seconds,
                        max_connections=self._share.max_connections,
                    )
                return self._hand_over
        return self.get(rows)

    def interrupt(self) -> None:
        """End the running Spark jobs, from another thread."""
        if self._hand_over is not None:
            self._hand_over.interrupt()
        if self._spark is not None and (engine := self._spark.now()) is not None:
            engine.interrupt()

    def close(self) -> None:
        """Stop the engine, and a Spark session that was started but not used; end a start that is not done."""
        if self._hand_over is not None:
            self._hand_over.close()
        if self._local is not None:
            self._local.close()
        if self._spark is not None:
            self._spark.close()

    def _begin(self) -> None:
        self._spark = BackgroundStart(lambda launch: start_spark(self._settings, self._share, self._session, launch))
        self._spark.begin(lambda engine: None)

    def _start_checked(self, launch: Launch) -> SparkEngine:
        """Start Spark beside the threads, if there is memory for both."""
        check_memory_for_spark()
        return start_spark(self._settings, self._share, None, launch)


def session_of_program(settings: SparkSettings) -> SparkSession | None:
    """Return the session that this program has, if the settings name no other place."""
    return None if settings.master or settings.remote or settings.engine == "local" else existing_session()


def start_spark(settings: SparkSettings, share: Share, session: SparkSession | None, launch: Launch) -> SparkEngine:
    """Return Spark in a session of the program, else start it: on this machine with one core per slot, or elsewhere."""
    if session is not None:
        use_this_python(session)
        engine = SparkEngine(session, share, owned=False)
        engine.limit_stalls(settings.stall_seconds, is_here=False)
        return engine
    slots = share.of(cores_here())
    session = start_session(
        slots=slots,
        master=settings.master,
        remote=settings.remote,
        conf=settings.conf,
        class_archive=settings.class_archive,
        launch=launch,
        seconds=settings.stall_seconds,
    )
    try:
        if not (settings.master or settings.remote):
            engine = SparkEngine(session, Share(fixed=slots), owned=True)
        else:
            engine = SparkEngine(session, share, owned=True, lasting=bool(settings.remote))
        engine.limit_stalls(settings.stall_seconds, is_here=is_here(settings.master, settings.remote))
    except BaseException as error:
        # Asked before the stop: afterwards nothing is known about the Java process any more.
        known = known_error(error)
        stop_session(session)
        if known is None or known is error:
            raise
        raise known from error
    return engine
