"""The user that runs a server: an unprivileged one if this process runs as root, else the current user."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from trueup.errors import NodeError

UNPRIVILEGED = ("nobody", "daemon", "postgres")


@dataclass(frozen=True)
class Account:
    """The user that runs the server and owns the data folder; without a name, the current user."""

    name: str = ""
    uid: int = -1
    gid: int = -1

    @classmethod
    def choose(cls) -> Account:
        """Return the account to use. Raises NodeError if this is root and no unprivileged user exists."""
        if os.geteuid() != 0:
            return cls()
        for name in UNPRIVILEGED:
            with contextlib.suppress(KeyError):
                entry = pwd.getpwnam(name)
                return cls(name, entry.pw_uid, entry.pw_gid)
        raise NodeError(
            "PostgreSQL does not run as root, and none of the users nobody, daemon and postgres exists",
            cure="Run trueup as an ordinary user.",
        )

    def command(self, words: Sequence[str]) -> list[str]:
        """Return a command that runs these words as this user, together with `popen_args`."""
        return [*(_setpriv(self) if self.name else ()), *words]

    def popen_args(self) -> dict[str, Any]:
        """Return the keyword arguments for `subprocess` that select this user, if `command` cannot."""
        if not self.name or _setpriv(self):
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def own(self, path: Path) -> None:
        if self.name:
            os.chown(path, self.uid, self.gid)

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command as this user, in a session that Ctrl-C does not reach, and capture its output."""
        return subprocess.run(
            self.command(command),
            capture_output=True,
            text=True,
            errors="replace",
            cwd="/",
            env=environment(),
            start_new_session=True,
            check=False,
            **self.popen_args(),
        )

    def can_run(self, command: Sequence[str]) -> bool:
        """Return whether the command succeeds when run as this user."""
        try:
            return self.run(command).returncode == 0
        except OSError:
            return False

    def can_enter(self, folder: Path) -> bool:
        return not self.name or self.can_run(["/bin/sh", "-c", 'cd "$1"', "sh", str(folder)])


@cache
def _setpriv(account: Account) -> tuple[str, ...]:
    """Return the words before a command that select the user, or none if the program is missing or has other options.

    To select it, Python would copy this process: 40 ms of processor time for one of 650 MB, instead of 1 ms.
    """
    program = shutil.which("setpriv")
    if program is None:
        return ()
    user = (program, f"--reuid={account.uid}", f"--regid={account.gid}", "--clear-groups", "--")
    # setpriv has the rights of root until it has started a program: the shell finds only what the user can access.
    words = (*user, "/bin/sh", "-c", 'exec "$0" "$@"')
    done = subprocess.run([*words, "id", "-u"], capture_output=True, text=True, cwd="/", check=False)
    return words if done.stdout.strip() == str(account.uid) else ()


def temp_folder(prefix: str, account: Account) -> Path:
    """Create a temporary folder that the account can enter but not change."""
    for parent in (Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")):
        if parent.is_dir() and account.can_enter(parent):
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent.resolve()))
            folder.chmod(0o711 if account.name else 0o700)
            return folder
    raise NodeError(
        f"user {account.name} cannot enter any temporary folder of this machine",
        cure="Run trueup as an ordinary user, or set TMPDIR to a folder that all users can enter.",
    )


def environment() -> dict[str, str]:
    """Return the environment without the variables that change initdb or a server: PG*, LC_* and LANG*."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
