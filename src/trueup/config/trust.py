"""Whether only this user, and root, can have written a file: others must not choose what runs with its rights."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

# Linux follows as many.
_MAX_LINKS = 40


def why_not_trusted(path: Path) -> str:
    """Return how another user can have written a file, or put it in its place; '' if none can."""
    place = resolved(path.absolute())
    if place is None:
        return "another user can replace it, or a folder of its path"
    if not place.exists():
        return ""
    state = place.stat()
    if state.st_uid not in (0, os.geteuid()):
        return f"it belongs to {_name(state.st_uid)}"
    return "" if is_written_by_owner(state) else f"other users can write it (mode {stat.S_IMODE(state.st_mode):03o})"


def resolved(path: Path) -> Path | None:
    """Return a path without links; None if another user, except root, has put a link into it, or can change it.

    In a shared folder, such as /tmp, the link of another user would choose a file or a folder of this user.
    """
    result, names, links = Path("/"), list(reversed(path.parts[1:])), 0
    while names:
        if result.exists() and not is_safe(result.stat()):
            return None
        name = names.pop()
        following = result.parent if name == ".." else result / name
        if not following.is_symlink():
            result = following
            continue
        links += 1
        if links > _MAX_LINKS or following.lstat().st_uid not in (0, os.geteuid()):
            return None
        target = following.readlink()
        names += reversed(target.parts[1:] if target.is_absolute() else target.parts)
        result = Path("/") if target.is_absolute() else result
    return result


def is_safe(folder: os.stat_result) -> bool:
    """Whether no other user, except root, can rename or remove what this user has in a folder."""
    if folder.st_uid not in (0, os.geteuid()):
        return False
    return bool(folder.st_mode & stat.S_ISVTX) or is_written_by_owner(folder)


def is_written_by_owner(state: os.stat_result) -> bool:
    """Whether only the owner of a file or folder can write it."""
    return not state.st_mode & 0o002 and (not state.st_mode & 0o020 or _is_private_group(state.st_gid))


def _is_private_group(number: int) -> bool:
    """Whether a group has the name of this user, and no other member: many systems create such a group per user."""
    try:
        group, user = grp.getgrgid(number), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return group.gr_gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _name(uid: int) -> str:
    try:
        return f"the user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"the user {uid}"
