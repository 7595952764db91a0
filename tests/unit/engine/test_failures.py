"""Which exceptions are errors of the environment, and which are defects."""

from __future__ import annotations

import errno
import sqlite3

import psycopg
import pytest
from psycopg import errors

from trueup.config.model import Node
from trueup.db.connection import NodeConnection
from trueup.engine.failures import error_of, known_error, uninterrupted
from trueup.errors import EngineError, NodeError, QueryError, StoreError, TrueupError


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (psycopg.OperationalError("server closed the connection unexpectedly"), NodeError),
        (errors.AdminShutdown("terminating connection due to administrator command"), NodeError),
        (errors.CannotConnectNow("the database system is starting up"), NodeError),
        (errors.LockNotAvailable("canceling statement due to lock timeout"), QueryError),
        (errors.ReadOnlySqlTransaction("cannot execute UPDATE in a read-only transaction"), QueryError),
        (errors.InsufficientPrivilege("permission denied for table items"), QueryError),
        (errors.UndefinedTable("relation does not exist"), QueryError),
        (errors.InternalError_("cache lookup failed for relation 4711"), QueryError),
        (errors.DiskFull("could not extend file"), QueryError),
        (OSError(errno.ENOSPC, "No space left on device", "/data/report.json"), StoreError),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), StoreError),
        (sqlite3.OperationalError("disk I/O error"), StoreError),
        (MemoryError(), EngineError),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_errors_of_the_environment(error: Exception, kind: type[TrueupError]) -> None:
    known = known_error(error)
    assert type(known) is kind
    assert known.cure


@pytest.mark.parametrize(
    "error",
    [
        errors.SyntaxError("syntax error at or near"),
        errors.UndefinedFunction("function does not exist"),
        psycopg.ProgrammingError("the query has 2 placeholders but 1 parameters were passed"),
        psycopg.DataError("cannot adapt"),
        KeyError("name"),
        OSError("without a number"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_defects(error: Exception) -> None:
    assert known_error(error) is None
    assert "this is a defect of trueup" in error_of(error).cure


def test_a_defect_has_its_place_and_no_password() -> None:
    try:
        raise ValueError("postgresql://u:secret@host/db")
    except ValueError as raised:
        defect = error_of(raised)
    assert defect.message.startswith("unexpected ValueError at test_failures.py:")
    assert "secret" not in defect.message


def test_files_are_named() -> None:
    error = known_error(OSError(errno.ENOSPC, "No space left on device", "/data/report.json"))
    assert str(error) == "/data/report.json: No space left on device"


def test_an_error_of_a_session_names_its_node() -> None:
    error = psycopg.OperationalError("server closed the connection unexpectedly")
    assert str(known_error(error)) == "server closed the connection unexpectedly"
    error.__dict__[NodeConnection.MARK] = Node("n2", "host=h dbname=d user=u")
    found = known_error(error)
    assert (str(found), found and found.cure) == (
        "node n2: server closed the connection unexpectedly",
        "check that the server is running and reachable: n2 (u@h/d)",
    )


def test_an_error_while_ctrl_c_is_handled_does_not_hide_it() -> None:
    def fails() -> None:
        try:
            try:
                raise KeyboardInterrupt
            finally:
                raise NodeError("another command is already in progress", node="n1")
        except NodeError as error:
            raise EngineError("the batch failed") from error

    with pytest.raises(EngineError) as failed:
        fails()
    with pytest.raises(KeyboardInterrupt):
        uninterrupted(failed.value)
    error = EngineError("the batch failed")
    assert uninterrupted(error) is error
