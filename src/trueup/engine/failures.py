"""Tell errors of the environment (servers, disks, Java) from defects of trueup, for all verbs and both engines.

Verbs raise errors of trueup where they know more, such as the block. All other exceptions end here: what a lost
session, a full disk or a killed process raises becomes an error with a cause and a cure; the rest is a defect.
"""

from __future__ import annotations

import os
import re
import sqlite3
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from trueup.config.model import Node
from trueup.config.secrets import mask
from trueup.db.connection import node_of
from trueup.db.node import error_from_server, is_lost
from trueup.engine.jvm import ENDING_SECONDS, why_ended
from trueup.errors import EngineError, StoreError, TrueupError

# The end of cures; a verb that needs Spark removes it.
OR_LOCAL = ", or use --engine local"
INSTALL = "install the same trueup for the Python of the executors (docs/clusters.md), or use --engine local"
# What the driver reads if the executors refuse the tasks.
REFUSED = "the executors "
_RUN_AGAIN = "run the command again"
_UNKNOWN = Node("(unknown)", "")
# Classes of SQLSTATE that a server returns because of its state, its limits or its administrator.
_CLASSES = ("08", "25", "28", "40", "53", "54", "55", "57", "58", "72", "F0", "XX")
# What other sessions can do while trueup runs: revoke a right, drop a table, a column, a type, a schema, a database.
_STATES = ("42501", "42P01", "42703", "42704", "3F000", "3D000")


def known_error(error: BaseException) -> TrueupError | None:
    """Return an error of the environment as an error of trueup; None for a defect."""
    if isinstance(error, TrueupError):
        return error
    if isinstance(error, psycopg.Error):
        return _database_error(error)
    if _is_of_spark(error):
        return failed_job(error)
    if isinstance(error, MemoryError):
        return EngineError("this process ran out of memory", cure="free memory, or use fewer tasks at once")
    if isinstance(error, sqlite3.Error):
        return StoreError(f"the task store failed: {error}", cure="check the file (TRUEUP_TASKS_DB) and its disk")
    if isinstance(error, OSError) and error.errno is not None:
        return _system_error(error)
    return None


def error_of(error: BaseException) -> TrueupError:
    """Return any exception as an error of trueup: a defect is reported with its place in the source."""
    known = known_error(error)
    if known is not None:
        return known
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""
    return EngineError(
        f"unexpected {type(error).__name__}{where}: {mask(str(error))}",
        cure="this is a defect of trueup: run again with -v and report the output",
    )


def uninterrupted(error: Exception) -> Exception:
    """Return the error; raise KeyboardInterrupt if it was raised while one was handled, so that Ctrl-C ends the work.

    A signal in the middle of a query can leave its session unusable, so that closing a transaction fails too.
    """
    if is_interrupted(error):
        raise KeyboardInterrupt from error
    return error


def is_interrupted(error: BaseException) -> bool:
    """Whether an error is a KeyboardInterrupt, or was raised while one was handled."""
    context: BaseException | None = error
    while context is not None and not isinstance(context, KeyboardInterrupt):
        context = context.__context__
    return context is not None


@contextmanager
def environment_errors() -> Iterator[None]:
    """Raise errors of the environment as errors of trueup; also a decorator. Other exceptions are defects, and stay."""
    try:
        yield
    except TrueupError:
        raise
    except Exception as error:
        known = error_of(error) if isinstance(error, psycopg.Error) else known_error(error)
        if known is None:
            raise
        raise known from error


def _database_error(error: psycopg.Error) -> TrueupError | None:
    state = error.sqlstate or ""
    if not (is_lost(error) or state[:2] in _CLASSES or state in _STATES):
        return None
    node = node_of(error)
    known = error_from_server(error, node or _UNKNOWN)
    if node is None:
        known.node, known.cure = None, "check that the servers are running and reachable"
    known.cure = known.cure or _RUN_AGAIN
    return known


def _is_of_spark(error: BaseException) -> bool:
    """Whether Spark or the connection with its Java process failed; Spark is not imported for this."""
    if type(error).__module__.partition(".")[0] in ("py4j", "pyspark", "grpc"):
        return True
    # When the Java process ends, sockets of the client fail with errors of the operating system.
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, (OSError, EOFError)) and any("/py4j/" in frame.filename for frame in frames)


def _system_error(error: OSError) -> TrueupError:
    path = error.filename
    where = f"{os.fsdecode(path)}: " if isinstance(path, (str, bytes, os.PathLike)) else ""
    return StoreError(
        mask(f"{where}{error.strerror or error}"),
        cure="check the file, its folder and the free space of the disk" if where else _RUN_AGAIN,
    )


# Of a query whose Spark has stopped itself, for example after a task had no memory left.
_STOPPED = re.compile(r'dagScheduler\(\)" is null|SparkContext (was|has been) shut ?down')


def ended_java(how: str) -> EngineError:
    """Return the error for a Java process that has ended, such as "was killed (SIGKILL)"."""
    return EngineError(
        f"the Java process of Spark {how}",
        cure="check the log of the system for the reason, often too little memory (spark.driver.memory in [spark]),"
        " or use --engine local",
    )


def failed_job(error: BaseException) -> EngineError:
    """Return the error for a Spark job that failed."""
    if ended := why_ended(ENDING_SECONDS):
        return ended_java(ended)
    text = str(error)
    # The last error of the traceback is the cause.
    causes = re.findall(r"^\s*((?:\w+\.)*\w*(?:Error|Exception)\b: .+)$", text, re.MULTILINE)
    # A worker imports the packages of trueup when it loads the function, before any task runs.
    if missing := re.search(r"No module named '(\w+)[\w.]*'", causes[-1] if causes else text):
        if missing[1] == "trueup":
            return EngineError("trueup is not installed on the executors", cure=INSTALL)
        reason = f"do not have the package {missing[1]}, which trueup requires ({missing[0]})"
        return EngineError(REFUSED + reason, cure=INSTALL)
    if program := re.search(r'Cannot run program "([^"]*)"', text):
        return EngineError(
            f"Spark cannot start the Python of its workers: {mask(program[1])}",
            cure="set PYSPARK_PYTHON (or spark.pyspark.python) to a Python that has trueup, or use --engine local",
        )
    if "PYTHON_VERSION_MISMATCH" in text:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return EngineError(
            f"the executors run another version of Python than the driver ({version})",
            cure="set spark.pyspark.python (or PYSPARK_PYTHON) to the same version on the executors",
        )
    if _STOPPED.search(text):
        return EngineError(
            "Spark has stopped while a query was running, often because of too little memory",
            cure='set "spark.driver.memory" to more in [spark.conf], or leave out long columns with --exclude-columns',
        )
    return EngineError(
        mask(f"the Spark job failed: {causes[-1] if causes else _java_cause(error, text)}"),
        cure="check the logs of the executors, or use --engine local",
    )


def _java_cause(error: BaseException, text: str) -> str:
    """Return the last cause in a stack trace of Java, or the first line of the text."""
    if re.search(r"Python worker (exited|failed)|pyspark\.daemon", text):
        return "its Python workers were killed or crashed"
    causes = re.findall(r"^(?:Caused by)?: (?:\w+\.)*(\w+\b.*)$", text, re.MULTILINE)
    first = next((line for line in text.splitlines() if line.strip()), "")
    return str(causes[-1]).strip() if causes else f"{type(error).__name__}: {first.strip()}"
