"""The file of the task store: its location, and how it is created, opened, checked and upgraded."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path

from trueup.config.trust import is_written_by_owner, why_not_trusted
from trueup.errors import StoreError

BUSY_SECONDS = 10.0
# "true" in ASCII, in the file header: distinguishes the task store from databases of other programs.
APPLICATION_ID = 0x74727565
# The script at index n upgrades a file from version n to version n + 1. Append only.
STEPS = (
    *("schema.sql", "steering.sql", "history.sql", "browse.sql", "accepted.sql", "alerts.sql"),
    "statements.sql",
)
VERSION = len(STEPS)

_ELSEWHERE = "set TRUEUP_TASKS_DB to another file"
_FREE_SPACE = f"free disk space, or {_ELSEWHERE} on another disk"
_MOVE_AWAY = f"move the file and its -wal and -shm files away to start a new one, or {_ELSEWHERE}"
_NOT_OURS = f"{_ELSEWHERE}; this file was not changed"
_NOT_WRITABLE = f"grant your user write access to the file and its folder, or {_ELSEWHERE}"
# Matched by text, because Python 3.10 does not expose the error codes of SQLite.
_ERRORS = (
    ("file is not a database", "is not a SQLite file", _NOT_OURS),
    ("malformed", "is damaged", _MOVE_AWAY),
    ("database or disk is full", "cannot grow: the disk is full", _FREE_SPACE),
    ("readonly database", "cannot be written", _NOT_WRITABLE),
    ("unable to open database file", "cannot be opened", _NOT_WRITABLE),
    (
        "database is locked",
        f"is locked by another process (waited {BUSY_SECONDS:.0f} seconds)",
        f"end the program that holds the lock (for example an open sqlite3 shell), or {_ELSEWHERE}",
    ),
)
_creating = threading.Lock()


def sql(name: str) -> str:
    """Return the text of a `.sql` file in this package."""
    return (files("trueup.store") / name).read_text(encoding="utf-8")


def tasks_db_path(path: str | Path | None = None, configured: str = "") -> Path:
    """Return the file to use: `path`, else `TRUEUP_TASKS_DB`, else `configured`, else one in the user's data folder."""
    chosen = path or os.environ.get("TRUEUP_TASKS_DB") or configured
    if not chosen:
        from platformdirs import user_data_dir

        chosen = Path(user_data_dir("trueup")) / "trueup_tasks.db"
    given = Path(chosen).expanduser()
    if reason := why_not_trusted(given):
        raise _distrust(given, reason)
    # Resolved, because SQLite would create the target of a dangling link with open permissions.
    return given.resolve()


def _distrust(file: Path, reason: str) -> StoreError:
    """Return the error for a store that another user can have written: commands continue what is recorded there."""
    cure = f"use it as its owner, change the owner and the mode of the file and its folder, or {_ELSEWHERE}"
    return StoreError(f"the task store {file} is not used, because {reason}", cure=cure)


def open_database(path: Path) -> sqlite3.Connection:
    """Open the store with private permissions and upgrade it; create it if it does not exist."""
    if path.exists() and not path.is_file():
        # The permissions of a device such as /dev/null must not be changed.
        raise StoreError(f"the task store {path} is not a file", cure=_ELSEWHERE)
    with translated(path):
        _create_private(path)
        for file in (path, *_files_beside(path)):
            if file.exists() and (reason := why_not_trusted(file)):
                raise _distrust(file, reason)
        # mode=rw: SQLite must not create the file, because it would be readable by all.
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
    """Turn errors of SQLite and the operating system into a StoreError with a cure."""
    try:
        yield
    except sqlite3.Error as error:
        for needle, message, cure in _ERRORS:
            if needle in str(error):
                raise StoreError(f"the task store {path} {message}", cure=cure) from error
        message = f"the task store {path} cannot be used: {error}"
        raise StoreError(message, cure=f"check the file and its disk, or {_ELSEWHERE}") from error
    except OSError as error:
        message = f"the task store {path} cannot be created: {error}"
        raise StoreError(message, cure=_NOT_WRITABLE) from error


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the block in a transaction. The write lock is taken first: SQLite does not wait for a lock taken later."""
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
    # SQLite takes over what a file beside it says, and in a shared folder others can create one at any moment.
    if not is_written_by_owner(path.parent):
        raise _distrust(path, "other users can create files beside it")
    # A process that closes any handle of a file loses all its locks on it, including those of SQLite. So an existing
    # file is never opened here, and no thread of this process opens SQLite while the new file is open.
    with _creating, suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.row_factory = sqlite3.Row
    version = checked_version(connection, path)
    _make_private(path)
    _use_wal(connection)
    # With a write-ahead log this survives a killed process, and does not flush to disk on every heartbeat.
    connection.execute("PRAGMA synchronous = NORMAL")
    if version < VERSION:
        _upgrade(connection, path)


def checked_version(connection: sqlite3.Connection, path: Path) -> int:
    """Return the version of the file, 0 if it is empty. Raises StoreError for a foreign or newer file."""
    # One statement sees one state of the file: another process may create the tables at this moment.
    version, mark, objects = connection.execute(
        "SELECT user_version, application_id, (SELECT count(*) FROM sqlite_master)"
        " FROM pragma_user_version, pragma_application_id"
    ).fetchone()
    if mark != APPLICATION_ID and (mark, version, objects) != (0, 0, 0):
        raise StoreError(f"{path} is a SQLite file, but not a task store of trueup", cure=_NOT_OURS)
    if version > VERSION:
        message = f"the task store {path} has version {version}; this trueup supports versions up to {VERSION}"
        raise StoreError(message, cure=f"use the newer trueup that wrote it, or {_ELSEWHERE}")
    return int(version)


def _make_private(path: Path) -> None:
    """Remove permissions of other users. New -wal and -shm files inherit those of the main file."""
    for name in (path, *_files_beside(path)):
        # The file does not exist, or belongs to another user.
        with suppress(OSError):
            if name.stat().st_mode & 0o077:
                name.chmod(0o600)


def _files_beside(path: Path) -> list[Path]:
    return [Path(f"{path}{end}") for end in ("-wal", "-shm", "-journal")]


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to the write-ahead log; retry while the file is locked, because SQLite does not wait here."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _upgrade(connection: sqlite3.Connection, path: Path) -> None:
    with transaction(connection):
        # Read again under the lock: another process may have upgraded the file.
        from trueup.store import history

        for step in range(checked_version(connection, path), VERSION):
            for statement in _statements(sql(STEPS[step])):
                connection.execute(statement)
            if STEPS[step] == "history.sql":
                history.fill(connection)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _statements(script: str) -> Iterator[str]:
    """Yield the statements of a script. `executescript` would commit the open transaction first."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
