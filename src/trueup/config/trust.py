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
    return "" if is_written_by_owner(place) else f"other users can write it (mode {stat.S_IMODE(state.st_mode):03o})"


def resolved(path: Path) -> Path | None:
    """Return a path without links; None if another user, except root, has put a link into it, or can change it.

    In a shared folder, such as /tmp, the link of another user would choose a file or a folder of this user.
    """
    result, names, links = Path("/"), list(reversed(path.parts[1:])), 0
    while names:
        if result.exists() and not is_safe(result):
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


def is_safe(folder: Path) -> bool:
    """Whether no other user, except root, can rename or remove what this user has in a folder."""
    state = folder.stat()
    if state.st_uid not in (0, os.geteuid()):
        return False
    return bool(state.st_mode & stat.S_ISVTX) or is_written_by_owner(folder)


def is_written_by_owner(path: Path) -> bool:
    """Whether only the owner of a file or folder can write it."""
    state = path.stat()
    if not state.st_mode & 0o022:
        return True
    # With an access control list, the bits of the group are those of all users and groups in it.
    return not state.st_mode & 0o002 and not _has_list(path) and _is_private_group(state.st_gid)


def _has_list(path: Path) -> bool:
    try:
        return "system.posix_acl_access" in os.listxattr(path)
    except (AttributeError, OSError):
        # Other systems, and file systems without such lists.
        return False


def _is_private_group(number: int) -> bool:
    """Whether a group has the name of this user, and no other member: many systems create such a group per user."""
    try:
        group, user = grp.getgrgid(number), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    if group.gr_gid != user.pw_gid or group.gr_name != user.pw_name or not set(group.gr_mem) <= {user.pw_name}:
        return False
    # Those whose first group it is are not in the list of its members.
    return all(other.pw_uid == user.pw_uid for other in pwd.getpwall() if other.pw_gid == number)


def _name(uid: int) -> str:
    try:
        return f"the user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"the user {uid}"
