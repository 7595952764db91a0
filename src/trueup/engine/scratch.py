"""Temporary folders that are removed even after the process was killed: by the next one that creates such a folder."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOCK = ".lock"


class ScratchFolder:
    """A temporary folder with a lock that the system releases when the process ends, however it ends."""

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        # Another folder that is removed with this one.
        self.also: ScratchFolder | None = None
        remove_abandoned(prefix, parent)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            # Another process may have removed it before it was locked.
            if os.fstat(self._lock).st_nlink:
                break
            os.close(self._lock)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        if self.also is not None:
            self.also.close()


@contextmanager
def closing_on_error(folder: ScratchFolder) -> Iterator[None]:
    """Remove the folder if the block fails."""
    try:
        yield
    except BaseException:
        folder.close()
        raise


def remove_abandoned(prefix: str, parent: Path | None = None) -> None:
    """Remove the folders of this user whose process is gone; one without a lock file is being created."""
    for folder in (parent or Path(tempfile.gettempdir())).glob(f"{prefix}*"):
        # Another process may remove the same folder.
        with suppress(OSError):
            if folder.lstat().st_uid != os.geteuid():
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
