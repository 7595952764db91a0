"""Write files that only their owner can read, that are complete or absent, and that survive a power failure."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO

# A link in the place of a file is refused: in a shared folder, another user may have put it there.
_NEVER_LINKS = os.O_CLOEXEC | os.O_NOFOLLOW


class PartFile:
    """A private file under a temporary name, until `keep` makes it durable under its own name or `discard` removes it.

    The temporary name is random and must be new, so that two writers of one path do not mix their contents, and no
    other user can prepare it. The file is locked while it is open: unlocked ones were left by a killed process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        _remove_left(path)
        self._part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        descriptor = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NEVER_LINKS, 0o600)
        self.file: IO[bytes] = open(descriptor, "wb")  # noqa: SIM115
        # A file system without locks: files that were left stay.
        with suppress(OSError):
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def keep(self, *, new: bool = False) -> None:
        """Put the content and the name on the disk. The file stays open.

        `new`: an existing file is not replaced; raises FileExistsError, also if another process wrote it a moment ago.
        """
        self.file.flush()
        os.fsync(self.file.fileno())
        if new:
            _rename_new(self._part, self.path)
        else:
            os.replace(self._part, self.path)
        sync_folder(self.path.parent)

    def discard(self) -> None:
        """Close the file, and remove it if it was not kept."""
        with suppress(OSError):
            self.file.close()
        with suppress(OSError):
            self._part.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Write a private file, completely or not at all; when this returns it is on the disk."""
    part = PartFile(path)
    try:
        part.file.write(content)
        part.keep()
    finally:
        part.discard()


def open_private(path: Path, flags: int) -> int:
    """Open a log or a lock file that may exist, and return its descriptor; only its owner can read it.

    Raises OSError if it is a link, has a second name, is not a regular file, or belongs to another user.
    """
    # Without O_TRUNC: another file must not be emptied. O_NONBLOCK: a pipe without a reader would block.
    descriptor = os.open(path, flags & ~os.O_TRUNC | os.O_CREAT | os.O_NONBLOCK | _NEVER_LINKS, 0o600)
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode) or facts.st_nlink > 1 or facts.st_uid != os.geteuid():
        os.close(descriptor)
        raise OSError(errno.EPERM, "not a regular file of this user", str(path))
    os.fchmod(descriptor, 0o600)
    if flags & os.O_TRUNC:
        os.ftruncate(descriptor, 0)
    return descriptor


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Create a folder and its parents, and put their names on the disk; an existing folder stays as it is."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(mode=mode, parents=True, exist_ok=True)
    for folder in missing:
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Put the names of new files in a folder on the disk."""
    sync_file(folder)


def sync_file(path: Path) -> None:
    """Put the content of a file on the disk, also if another process wrote it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Put a folder on the disk, with all files and folders in it."""
    for place, _, names in os.walk(folder):
        for name in names:
            sync_file(Path(place) / name)
        sync_folder(Path(place))


def rename_folder(part: Path, path: Path) -> None:
    """Put a complete folder on the disk, then give it its name."""
    sync_tree(part)
    os.rename(part, path)
    sync_folder(path.parent)


def sync_delta_commit(table: Path, version: int) -> None:
    """Put the commits of a Delta table after `version` on the disk: the writer of Delta tables does not do it."""
    log = table / "_delta_log"
    for path in log.iterdir():
        if path.is_file() and (path.name > f"{version:020d}.json" or path.name == "_last_checkpoint"):
            sync_file(path)
    sync_folder(log)
    sync_folder(table)


def _rename_new(part: Path, path: Path) -> None:
    """Rename a file; raises FileExistsError if the new name is in use, which `os.rename` would replace."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError:
        # A file system without hard links.
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        os.rename(part, path)
    else:
        part.unlink()


def _remove_left(path: Path) -> None:
    """Remove the temporary files of this path that a killed process left."""
    start, end = f".{path.name}.", ".part"
    with suppress(OSError):
        for name in os.listdir(path.parent):
            if name.startswith(start) and name.endswith(end) and len(name) == len(start) + 8 + len(end):
                _remove_unlocked(path.with_name(name))


def _remove_unlocked(part: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(part, os.O_RDONLY | os.O_NONBLOCK | _NEVER_LINKS)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()
        finally:
            os.close(descriptor)


def odd_character(path: str | Path) -> str:
    """Return a character of this path that Spark takes as part of a pattern or an address, or ''.

    Spark would fail with an error of Java, or read other files.
    """
    place = str(Path(path).absolute())
    return next((character for character in "{}[]*?\\:" if character in place), "")
