"""The file of the task store: where it is, and how it is created, opened, checked and upgraded."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path

from trueup.errors import StoreError

BUSY_SECONDS = 10.0
# "true" in ASCII, in the header of the file: tells the task store from the databases of other programs.
APPLICATION_ID = 0x74727565
# The script at place n brings a file from version n to version n + 1. Only ever append.
STEPS = ("schema.sql", "steering.sql")
VERSION = len(STEPS)

_ELSEWHERE = "set TRUEUP_TASKS_DB to another file"
_MAKE_ROOM = f"make room, or {_ELSEWHERE} on another disk"
_MOVE_AWAY = f"move it and its -wal and -shm files away to start a new one, or {_ELSEWHERE}"
_NOT_OURS = f"{_ELSEWHERE}: trueup leaves this one as it is"
_NOT_WRITABLE = f"give your user the right to write the file and its folder, or {_ELSEWHERE}"
# By text, since Python 3.10 does not tell SQLite's error codes.
_TROUBLE = (
    ("file is not a database", "is not a SQLite file", _NOT_OURS),
    ("malformed", "is damaged", _MOVE_AWAY),
    ("database or disk is full", "cannot grow: the disk is full", _MAKE_ROOM),
    ("readonly database", "cannot be written", _NOT_WRITABLE),
    ("unable to open database file", "cannot be opened", _NOT_WRITABLE),
    (
        "database is locked",
        f"was kept locked by another process for more than {BUSY_SECONDS:.0f} seconds",
        f"end the program that holds it (an open sqlite3 shell?), or {_ELSEWHERE}",
    ),
)
_creating = threading.Lock()


def sql(name: str) -> str:
    """The text of a `.sql` file beside this module."""
    return (files("trueup.store") / name).read_text(encoding="utf-8")


def tasks_db_path(path: str | Path | None = None, configured: str = "") -> Path:
    """The file: the one given, else `TRUEUP_TASKS_DB`, else the configured one, else one in the user's data folder."""
    chosen = path or os.environ.get("TRUEUP_TASKS_DB") or configured
    if not chosen:
        from platformdirs import user_data_dir

        chosen = Path(user_data_dir("trueup")) / "trueup_tasks.db"
    # Resolved, because a link to nowhere would make SQLite create the target, with open permissions.
    return Path(chosen).expanduser().resolve()


def open_database(path: Path) -> sqlite3.Connection:
    """Open the store, private to its owner and at the present version; create it where there is none."""
    if path.exists() and not path.is_file():
        # A device such as /dev/null would get new permissions, for everybody.
        raise StoreError(f"the task store {path} is not a file", cure=_ELSEWHERE)
    with translated(path):
        _create_private(path)
        # mode=rw: SQLite never creates the file itself, it would be readable by all.
        connection = sqlite3.connect(
            f"{path.as_uri()}?mode=rw",
            uri=True,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            _prepare(connection, path)
        except BaseException:
            connection.close()
            raise
        return connection


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn what SQLite and the system complain about into a StoreError with a cure."""
    try:
        yield
    except sqlite3.Error as error:
        for needle, message, cure in _TROUBLE:
            if needle in str(error):
                raise StoreError(f"the task store {path} {message}", cure=cure) from error
        message = f"the task store {path} cannot be used: {error}"
        raise StoreError(message, cure=f"check the file and its disk, or {_ELSEWHERE}") from error
    except OSError as error:
        message = f"the task store {path} cannot be created: {error}"
        raise StoreError(message, cure=_NOT_WRITABLE) from error


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing. The write lock is taken first: one taken later cannot be waited for."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _create_private(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A process that closes any handle on a file loses its locks on it, SQLite's too. So an existing file is
    # never opened here, and nobody in this process gets to SQLite while the new one is open.
    with _creating, suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.row_factory = sqlite3.Row
    version = checked_version(connection, path)
    _make_private(path)
    _use_wal(connection)
    # With a write-ahead log this survives a killed process, and costs no disk flush for each heartbeat.
    connection.execute("PRAGMA synchronous = NORMAL")
    if version < VERSION:
        _upgrade(connection, path)


def checked_version(connection: sqlite3.Connection, path: Path) -> int:
    """The version of the file, 0 for an empty one. It is only read until it is known to be ours."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    mark = int(connection.execute("PRAGMA application_id").fetchone()[0])
    is_empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
    if mark != APPLICATION_ID and not (mark == 0 and version == 0 and is_empty):
        raise StoreError(f"{path} is a SQLite file, but not a task store of trueup", cure=_NOT_OURS)
    if version > VERSION:
        message = f"the task store {path} is of version {version}; this trueup knows up to version {VERSION}"
        raise StoreError(message, cure=f"use the newer trueup that wrote it, or {_ELSEWHERE}")
    return version


def _make_private(path: Path) -> None:
    """Take back what an earlier hand allowed to others. New -wal and -shm files take after the main file."""
    for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        # Not there, or not ours to change (root's work on a user's file, and the other way round).
        with suppress(OSError):
            if name.stat().st_mode & 0o077:
                name.chmod(0o600)


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to the write-ahead log. SQLite does not wait for others here, so this does."""
    give_up_at = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > give_up_at:
                raise
            time.sleep(0.01)


def _upgrade(connection: sqlite3.Connection, path: Path) -> None:
    with transaction(connection):
        # Asked again under the lock: another process may have done it meanwhile.
        for step in range(checked_version(connection, path), VERSION):
            for statement in _statements(sql(STEPS[step])):
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _statements(script: str) -> Iterator[str]:
    """The statements of a script, one by one: `executescript` would commit our transaction first."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
