"""A Spark session for large joins, whose results do not depend on its settings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

from trueup.config.settings import SparkSettings
from trueup.engine.failures import known_error
from trueup.engine.jvm import ENDING_SECONDS, stop_session, why_ended
from trueup.engine.python import use_this_python
from trueup.engine.session import existing_session, start_session

# Joins of millions of rows need more memory than hashing blocks.
_LOCAL_CONF = {
    "spark.driver.memory": "3g",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC -Xss4m",
    # Partitions that fit into memory are joined without being sorted first.
    "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold": "64m",
}

# The optimizing compiler of Java (C2) costs more processor time than a short run has work for it.
_OPTIONS = "spark.driver.extraJavaOptions"
_SMALL_CONF = {**_LOCAL_CONF, _OPTIONS: f"{_LOCAL_CONF[_OPTIONS]} -XX:TieredStopAtLevel=1"}

# Generated code that the JVM does not compile is slow. It compiles no function larger than the limit: without
# whole-stage code, an expression is compiled in parts. And code that Spark has dropped from its cache of 100 classes,
# fewer than one run has, is generated and compiled again.
_COMPILED = {"spark.sql.codegen.hugeMethodLimit": "8000", "spark.sql.codegen.cache.maxEntries": "2000"}

# Settings that results depend on, also in a session that has others: numbers that overflow are errors, days are those
# of UTC, no file is skipped, and times are written as microseconds (others read Spark's default only up to 2262).
_EXACT = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
}


@contextmanager
def spark_session(
    settings: SparkSettings | None = None, given: SparkSession | None = None, *, copy: bool = True, small: bool = False
) -> Iterator[SparkSession]:
    """Yield a session: a copy of the given one, else of the one of this process, else a new one that is stopped.

    The settings of a session that is not ours do not change. Without `copy`, the given session itself is used, because
    the caller has frames of it, and its settings change for the time of the block. A new session for `small` work has
    a Java that compiles less.
    """
    settings = settings or SparkSettings()
    is_local = not (settings.master or settings.remote)
    existing: SparkSession | None = given or (existing_session() if is_local else None)
    if existing is not None:
        use_this_python(existing)
        if given is not None and not copy:
            with changed_settings(given, _EXACT):
                yield given
        else:
            yield _exact(_copy(existing))
        return
    local = _SMALL_CONF if small else _LOCAL_CONF
    conf = {**_COMPILED, **(local if is_local else {}), **settings.conf}
    session = start_session(
        slots=settings.slots or os.cpu_count() or 2,
        master=settings.master,
        remote=settings.remote,
        conf=conf,
        class_archive=settings.class_archive,
        seconds=settings.stall_seconds,
    )
    try:
        yield _exact(session)
    except Exception as error:
        # Asked now: when the session is stopped, nothing is known about its Java process any more.
        if why_ended(ENDING_SECONDS) and (known := known_error(error)) is not None and known is not error:
            raise known from error
        raise
    finally:
        stop_session(session)


@contextmanager
def changed_settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change settings of a session for a while."""
    before = {name: session.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            session.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, old)


def _copy(session: SparkSession) -> SparkSession:
    """Return a session with the same settings and the same context, but separate from now on."""
    # Spark Connect; a server before 4.1 cannot copy sessions.
    clone = getattr(session, "cloneSession", None)
    if clone is not None:
        copy: SparkSession = clone()
        return copy
    if not hasattr(session, "_jsparkSession"):
        return session
    # PySpark has no name for it; newSession would lose the settings that the session got after its start.
    return type(session)(session.sparkContext, session._jsparkSession.cloneSession())


def _exact(session: SparkSession) -> SparkSession:
    for name, value in _EXACT.items():
        session.conf.set(name, value)
    return session
