"""Files that another user can have written choose nothing that runs with the rights of this user."""

from __future__ import annotations

import grp
import os
import pwd
import re
import struct
from collections.abc import Callable
from pathlib import Path

import platformdirs
import pytest

from trueup.config.load import load, load_spark
from trueup.config.trust import why_not_trusted
from trueup.errors import ConfigError, StoreError
from trueup.serve.alert_settings import load_alerts
from trueup.serve.options import read_tokens
from trueup.store import TaskStore
from trueup.store.file import tasks_db_path
from trueup.verbs.difflog.config import load_difflog
from trueup.verbs.schedule.config import load_jobs

STRANGER = 12345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
ALERTS = """[alerts.targets.x]
command = ["touch", "hijacked"]
"""
Doubt = Callable[[Path], object]


def _given(path: Path) -> None:
    os.chown(path, STRANGER, -1)


def _given_link(path: Path, target: str) -> None:
    path.symlink_to(target)
    os.lchown(path, STRANGER, -1)


def _in_their_folder(path: Path) -> None:
    os.chown(path.parent, STRANGER, -1)


def _by_their_link(path: Path) -> None:
    path.rename(path.with_name("own"))
    _given_link(path, "own")


def _by_a_link_to_theirs(path: Path) -> None:
    own = path.with_name("own")
    path.rename(own)
    path.symlink_to(own.absolute())
    _given(own)


DOUBTS: dict[str, Doubt] = {
    "writable": lambda path: path.chmod(0o666),
    "in a writable folder": lambda path: path.parent.chmod(0o777),
    "below a writable folder": lambda path: path.parent.parent.chmod(0o777),
}
AS_ROOT: dict[str, Doubt] = {
    "of another user": _given,
    "in a folder of another user": _in_their_folder,
    "by a link of another user": _by_their_link,
    "by a link to one of another user": _by_a_link_to_theirs,
}
each_doubt = pytest.mark.parametrize(
    "doubt",
    [
        *(pytest.param(doubt, id=name) for name, doubt in DOUBTS.items()),
        *(pytest.param(doubt, id=name, marks=as_root) for name, doubt in AS_ROOT.items()),
    ],
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, two levels below that of the test."""
    folder = tmp_path / "parent" / "here"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def _put(name: str, text: str) -> Path:
    file = Path(name)
    file.write_text(text)
    file.chmod(0o600)
    return file


@each_doubt
def test_a_file_that_was_not_named(here: Path, doubt: Doubt) -> None:
    file = _put("trueup.toml", ALERTS)
    assert load(env={}).path == file
    doubt(file)
    readers: list[Callable[[], object]] = [
        lambda: load(env={}), lambda: load_spark(env={}), load_alerts, load_difflog,
        lambda: load_jobs(None, verbs=["diff"]),
    ]  # fmt: skip
    for read in readers:
        with pytest.raises(ConfigError, match=r"trueup\.toml: it is not read, because (it|other|another)") as caught:
            read()
        assert "--config or TRUEUP_CONFIG" in caught.value.cure
    # The user who names it, trusts it.
    assert load("trueup.toml", env={}).path == file
    assert load(env={"TRUEUP_CONFIG": "trueup.toml"}).path == file


@each_doubt
def test_a_version_log_that_was_not_named(here: Path, doubt: Doubt) -> None:
    doubt(_put("difflog.toml", "multiplier = 1"))
    with pytest.raises(ConfigError, match=r"difflog\.toml: it is not read, because") as caught:
        load_difflog(env={})
    assert "TRUEUP_DIFFLOG" in caught.value.cure
    with pytest.raises(ConfigError) as named:
        load_difflog("difflog.toml", env={})
    assert "not read" not in str(named.value)


@as_root
def test_the_file_of_the_home_of_another_user(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `sudo -E`, which keeps the home folder."""
    monkeypatch.setattr(platformdirs, "user_config_dir", lambda *_, **__: str(here / "home"))
    Path("home").mkdir()
    _given(_put("home/trueup.toml", ALERTS))
    with pytest.raises(ConfigError, match="it is not read, because it belongs to the user 12345"):
        load(env={})


@each_doubt
def test_a_task_store(here: Path, doubt: Doubt) -> None:
    path = here / "tasks.db"
    with TaskStore(path) as store:
        store.start("TABLE_DIFF", context={})
    doubt(path)
    with pytest.raises(StoreError, match=re.escape(f"{here}/") + r"(tasks\.db|own) is not used, because") as caught:
        TaskStore(path)
    assert "TRUEUP_TASKS_DB" in caught.value.cure


@as_root
@pytest.mark.parametrize("name", ["tasks.db-wal", "tasks.db-shm", "tasks.db-journal", "tasks.db.d"])
def test_what_is_beside_a_task_store(here: Path, name: str) -> None:
    """SQLite takes over what its journals say."""
    TaskStore(here / "tasks.db").close()
    beside = here / name
    beside.mkdir() if name.endswith(".d") else beside.touch()
    _given(beside)
    with pytest.raises(StoreError, match=f"{name} is not used, because it belongs to"), TaskStore("tasks.db") as store:
        store.folder()


def test_a_task_store_in_a_shared_folder(here: Path) -> None:
    """As /tmp: others can create a journal at any moment."""
    TaskStore(here / "tasks.db").close()
    here.chmod(0o1777)
    for name in ("tasks.db", "new.db"):
        with pytest.raises(StoreError, match=f"{name} is not used, because other users can create files beside it"):
            TaskStore(here / name)
    assert not (here / "new.db").exists()


@as_root
def test_a_task_store_behind_a_link_of_another_user(here: Path) -> None:
    Path("own").mkdir()
    _given_link(here / "link", "own")
    with pytest.raises(StoreError, match=r"link/tasks\.db is not used, because another user can replace it"):
        tasks_db_path(here / "link" / "tasks.db")


@as_root
def test_tokens_of_another_user(here: Path) -> None:
    file = _put("tokens", "alice 0123456789abcdef01")
    assert read_tokens("tokens")
    _given(file)
    with pytest.raises(ConfigError, match="belongs to another user"):
        read_tokens("tokens")


def test_what_is_trusted(here: Path) -> None:
    file = _put("file", "")
    file.chmod(0o644)
    assert why_not_trusted(file) == ""
    # As /tmp: others can add files, and replace only their own.
    here.chmod(0o1777)
    assert why_not_trusted(file) == ""
    Path("link").symlink_to("file")
    assert why_not_trusted(Path("link")) == ""


@pytest.mark.parametrize("name", ["here", "here/file"])
def test_an_access_control_list(here: Path, name: str) -> None:
    """The bits of the group are those of all users that are in the list."""
    file = _put("file", "")
    place = here.parent / name
    anyone = 0xFFFFFFFF
    entries = [(1, 7, anyone), (2, 7, STRANGER), (4, 5, anyone), (16, 7, anyone), (32, 5, anyone)]
    access = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(place, "system.posix_acl_access", access)
    except OSError as error:
        pytest.skip(f"no access control lists here: {error}")
    # Of this user's own group, which is not the reason.
    os.chown(place, -1, os.getegid())
    assert why_not_trusted(file) != ""


def test_a_group_of_one(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other users may have the group as their first one, and then it does not list them."""
    own = pwd.getpwuid(os.geteuid())
    group = grp.getgrgid(own.pw_gid)
    file = _put("file", "")
    file.chmod(0o660)
    os.chown(file, -1, own.pw_gid)
    alone = group.gr_name == own.pw_name and set(group.gr_mem) <= {own.pw_name}
    monkeypatch.setattr(pwd, "getpwall", lambda: [own])
    assert (why_not_trusted(file) == "") is alone
    other = pwd.struct_passwd(("other", "x", STRANGER, own.pw_gid, "", "/", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwall", lambda: [own, other])
    assert why_not_trusted(file) == "other users can write it (mode 660)"
