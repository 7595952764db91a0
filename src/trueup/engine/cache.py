"""The cache folder of the user, for files that are executed: only this user can change it, or it is not used."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

import platformdirs

from trueup.config.trust import is_safe, resolved


def cache_folder() -> Path | None:
    """Return the folder, without links in its path; None if it cannot be written, or if others can change it."""
    with suppress(OSError, RuntimeError):
        folder = Path(platformdirs.user_cache_dir("trueup"))
        # Without a home folder the path starts with a tilde; a relative path is one of the working folder.
        if not folder.is_absolute():
            return None
        # Checked before the folder is created: root with the home of another user must not leave one there.
        if (place := resolved(folder)) is None:
            return None
        folder = place
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.stat()
        if state.st_uid != os.geteuid() or state.st_mode & 0o022 or not os.access(folder, os.W_OK | os.X_OK):
            return None
        # Also those that were created with the user's umask.
        if all(is_safe(parent) for parent in folder.parents):
            folder.chmod(0o700)
            return folder
    return None


def remove_folder(path: Path) -> None:
    """Remove a folder that has the name of a file of the cache: a file cannot replace it. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
