"""The file of the store: its path, its permissions, and errors if it cannot be used."""

from __future__ import annotations

import os
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from trueup.errors import StoreError
from trueup.store import COMPLETED, TaskStore, file, tasks_db_path

Query = Callable[..., list[tuple[Any, ...]]]
UNPRIVILEGED_UID = 65534


def mode(path: Path | str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def refused(path: Path) -> StoreError:
    with pytest.raises(StoreError) as caught:
        TaskStore(path)
    assert str(path) in caught.value.message
    assert "TRUEUP_TASKS_DB" in caught.value.cure
    return caught.value


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder, without root privileges: root may write everywhere."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        was = os.geteuid()
        if was == 0:
            os.chown(folder, UNPRIVILEGED_UID, -1)
            os.seteuid(UNPRIVILEGED_UID)
        try:
            yield folder
        finally:
            if was == 0:
                os.seteuid(0)
            folder.chmod(0o700)


def test_a_given_path_takes_precedence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRUEUP_TASKS_DB", str(tmp_path / "env.db"))
    assert tasks_db_path(str(tmp_path / "given.db")) == tmp_path / "given.db"
    assert tasks_db_path() == tmp_path / "env.db"


@pytest.mark.parametrize("value", [None, ""])
def test_the_default_is_in_the_users_data_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str | None
) -> None:
    folder = tmp_path / "share" / "trueup"
    monkeypatch.setattr(platformdirs, "user_data_dir", lambda name: str(folder) if name == "trueup" else "")
    monkeypatch.delenv("TRUEUP_TASKS_DB", raising=False)
    if value is not None:
        monkeypatch.setenv("TRUEUP_TASKS_DB", value)
    with TaskStore() as store:
        assert store.path == folder / "trueup_tasks.db"
    assert mode(folder) == 0o700


def test_a_tilde_means_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tasks_db_path("~/x.db") == tmp_path / "x.db"


@pytest.mark.usefixtures("no_umask")
def test_only_the_owner_may_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "50% of ?#.db"
    at_connect: list[int] = []
    connect = sqlite3.connect

    def watched(*args: Any, **options: Any) -> sqlite3.Connection:
        at_connect.append(mode(path))
        opened: sqlite3.Connection = connect(*args, **options)
        return opened

    monkeypatch.setattr(sqlite3, "connect", watched)
    with TaskStore(path) as store:
        store.start("TABLE_DIFF", context={})
        assert at_connect == [0o600]  # from the start, not afterwards
        assert {mode(f"{path}{end}") for end in ("", "-wal", "-shm")} == {0o600}
        assert mode(path.parent) == 0o700
    assert sorted(found.name for found in path.parent.iterdir()) == [path.name]


@pytest.mark.usefixtures("no_umask")
def test_a_dangling_link_creates_a_private_file(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "target.db")
    TaskStore(tmp_path / "link.db").close()
    assert mode(tmp_path / "target.db") == 0o600


@pytest.mark.usefixtures("no_umask")
def test_wide_permissions_are_removed(path: Path) -> None:
    with TaskStore(path) as first:
        for end in ("", "-wal", "-shm"):
            os.chmod(f"{path}{end}", 0o644)
        with TaskStore(path):
            assert {mode(f"{path}{end}") for end in ("", "-wal", "-shm")} == {0o600}
        assert first.list() == []


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch(mode=0o644)
    TaskStore(path).close()
    assert mode(path) == 0o600


def test_the_journal_mode_and_the_busy_timeout(store: TaskStore, query: Query) -> None:
    assert query("PRAGMA journal_mode") == [("wal",)]
    assert query("PRAGMA user_version") == [(file.VERSION,)]
    assert store._connection.execute("PRAGMA busy_timeout").fetchone()[0] == 10_000


def test_opening_again_keeps_everything(path: Path) -> None:
    with TaskStore(path) as store:
        done = store.finish(store.start("TABLE_DIFF", context={"a": 1}).task_id, COMPLETED)
    with TaskStore(path) as store:
        assert store.list() == [done]


def test_a_file_that_is_not_sqlite(path: Path) -> None:
    path.write_text("dear diary, " * 500)
    path.chmod(0o644)
    assert "is not a SQLite file" in refused(path).message
    assert path.read_text() == "dear diary, " * 500
    assert mode(path) == 0o644


@pytest.mark.parametrize("pragma", ["", "PRAGMA user_version = 1", "PRAGMA application_id = 77"])
def test_the_database_of_another_program_is_left_alone(path: Path, query: Query, pragma: str) -> None:
    query("CREATE TABLE bookmarks (url TEXT)")
    if pragma:
        query(pragma)
    path.chmod(0o644)
    before = path.read_bytes()
    assert "not a task store" in refused(path).message
    assert path.read_bytes() == before
    assert mode(path) == 0o644


def test_a_newer_version_is_refused(path: Path, query: Query) -> None:
    TaskStore(path).close()
    query("PRAGMA user_version = 99")
    error = refused(path)
    assert "version 99" in error.message
    assert "newer trueup" in error.cure
    assert query("PRAGMA user_version") == [(99,)]


def test_a_damaged_file(path: Path) -> None:
    with TaskStore(path) as store:
        for _ in range(20):
            store.start("TABLE_DIFF", context={"x": "y" * 2000})
    size = path.stat().st_size
    with path.open("r+b") as raw:
        raw.seek(100)
        raw.write(b"\xff" * (size - 100))
    error = refused(path)
    assert "damaged" in error.message
    assert "move the file" in error.cure


def test_a_truncated_file(path: Path) -> None:
    with TaskStore(path) as store:
        for _ in range(20):
            store.start("TABLE_DIFF", context={"x": "y" * 2000})
    os.truncate(path, 5000)
    assert "damaged" in refused(path).message


def test_a_full_disk(store: TaskStore) -> None:
    task = store.start("TABLE_DIFF", context={})
    store._connection.execute("PRAGMA max_page_count = 1")
    with pytest.raises(StoreError, match="disk is full") as caught:
        store.start("TABLE_DIFF", context={"x": "y" * 1_000_000})
    assert "free disk space" in caught.value.cure
    assert store.list() == [task]


def test_a_folder_instead_of_a_file(tmp_path: Path) -> None:
    assert "not a file" in refused(tmp_path).message


def test_a_file_instead_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot be created" in refused(tmp_path / "file" / "tasks.db").message


def test_a_read_only_folder(unprivileged: Path) -> None:
    folder = unprivileged / "mine"
    folder.mkdir()
    TaskStore(folder / "old.db").close()
    folder.chmod(0o555)
    assert "Permission denied" in refused(folder / "new.db").message
    assert "write access" in refused(folder / "old.db").cure
    assert "Permission denied" in refused(folder / "sub" / "new.db").message
    folder.chmod(0o755)


def test_a_read_only_file(unprivileged: Path) -> None:
    path = unprivileged / "tasks.db"
    TaskStore(path).close()
    path.chmod(0o400)
    with pytest.raises(StoreError, match="cannot be written") as caught, TaskStore(path) as store:
        store.start("TABLE_DIFF", context={})
    assert "write access" in caught.value.cure


def test_a_lock_that_is_never_released(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "BUSY_SECONDS", 0.05)
    with TaskStore(path) as store, closing(sqlite3.connect(path, isolation_level=None)) as shell:
        shell.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked by another process") as caught:
            store.start("TABLE_DIFF", context={})
        assert "sqlite3 shell" in caught.value.cure
        assert store.list() == []
        shell.execute("ROLLBACK")
        assert len([store.start("TABLE_DIFF", context={})]) == 1


def test_a_lock_during_the_creation_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.touch()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        waits: list[float] = []

        def release(seconds: float) -> None:
            waits.append(seconds)
            other.execute("ROLLBACK")

        # SQLite itself does not wait for this kind of lock when it switches to the write-ahead log.
        monkeypatch.setattr("trueup.store.file.time.sleep", release)
        with TaskStore(path) as store:
            assert store.list() == []
    assert len(waits) == 1


def test_a_store_that_another_process_creates_during_the_check(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is empty at one moment and has tables at the next is not a file of another program."""
    connect = sqlite3.connect
    is_created: list[bool] = []

    class Late(sqlite3.Connection):
        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            if "sqlite_master" in statement and not is_created:
                is_created.append(True)
                TaskStore(path).close()
            return super().execute(statement, *values)

    monkeypatch.setattr("trueup.store.file.sqlite3.connect", partial(connect, factory=Late))
    with TaskStore(path) as store:
        assert store.list() == []
    assert is_created


def test_a_failed_step_leaves_the_file_as_it_was(path: Path, query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = {
        "one.sql": "CREATE TABLE one (a);\n",
        "two.sql": "CREATE TABLE two (a);\nCREATE TABLE one (b);\n",
    }
    monkeypatch.setattr(file, "sql", scripts.__getitem__)
    monkeypatch.setattr(file, "STEPS", ("one.sql",))
    monkeypatch.setattr(file, "VERSION", 1)
    file.open_database(path).close()
    monkeypatch.setattr(file, "STEPS", ("one.sql", "two.sql"))
    monkeypatch.setattr(file, "VERSION", 2)
    with pytest.raises(StoreError, match="table one already exists"):
        file.open_database(path)
    assert query("PRAGMA user_version") == [(1,)]
    assert query("SELECT name FROM sqlite_master") == [("one",)]
    scripts["two.sql"] = "-- why\nCREATE TABLE two (a);\n-- the end\n"
    file.open_database(path).close()
    assert query("PRAGMA user_version") == [(2,)]
    assert query("SELECT name FROM sqlite_master ORDER BY name") == [("one",), ("two",)]


def test_a_device_is_refused_and_keeps_its_mode(tmp_path: Path) -> None:
    device = tmp_path / "pipe"
    os.mkfifo(device, 0o666)
    device.chmod(0o666)
    with pytest.raises(StoreError, match="not a file"):
        file.open_database(device)
    assert device.is_fifo()
    assert stat.S_IMODE(device.stat().st_mode) == 0o666
