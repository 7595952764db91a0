"""The cache folder of the user, for files that are executed: only this user can change it, or it is not used."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import stat
from contextlib import suppress
from pathlib import Path

import platformdirs

# Linux follows as many.
_MAX_LINKS = 40


def cache_folder() -> Path | None:
    """Return the folder, without links in its path; None if it cannot be written, or if others can change it."""
    with suppress(OSError, RuntimeError):
        folder = Path(platformdirs.user_cache_dir("trueup"))
        # Without a home folder the path starts with a tilde; a relative path is one of the working folder.
        if not folder.is_absolute():
            return None
        # Checked before the folder is created: root with the home of another user must not leave one there.
        if (resolved := _resolved(folder)) is None:
            return None
        folder = resolved
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.stat()
        if state.st_uid != os.geteuid() or state.st_mode & 0o022 or not os.access(folder, os.W_OK | os.X_OK):
            return None
        # Also those that were created with the user's umask.
        if all(_is_safe(parent.stat()) for parent in folder.parents):
            folder.chmod(0o700)
            return folder
    return None


def remove_folder(path: Path) -> None:
    """Remove a folder that has the name of a file of the cache: a file cannot replace it. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)


def _resolved(path: Path) -> Path | None:
    """Return a path without links; None if another user, except root, has put a link into it, or can change it.

    In a shared folder, such as /tmp, the link of another user would choose a folder of this user.
    """
    resolved, names, links = Path("/"), list(reversed(path.parts[1:])), 0
    while names:
        if resolved.exists() and not _is_safe(resolved.stat()):
            return None
        name = names.pop()
        following = resolved.parent if name == ".." else resolved / name
        if not following.is_symlink():
            resolved = following
            continue
        links += 1
        if links > _MAX_LINKS or following.lstat().st_uid not in (0, os.geteuid()):
            return None
        target = following.readlink()
        names += reversed(target.parts[1:] if target.is_absolute() else target.parts)
        resolved = Path("/") if target.is_absolute() else resolved
    return resolved


def _is_safe(folder: os.stat_result) -> bool:
    """Whether no other user, except root, can rename or remove what this user has in a folder."""
    if folder.st_uid not in (0, os.geteuid()):
        return False
    if folder.st_mode & stat.S_ISVTX:
        return True
    return not folder.st_mode & 0o002 and (not folder.st_mode & 0o020 or _is_private_group(folder.st_gid))


def _is_private_group(number: int) -> bool:
    """Whether a group has the name of this user, and no other member: many systems create such a group per user."""
    try:
        group, user = grp.getgrgid(number), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return group.gr_gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
