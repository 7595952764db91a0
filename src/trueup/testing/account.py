"""Who runs a server: root hands it to an unprivileged user, all others run it themselves."""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trueup.errors import NodeError

UNPRIVILEGED = ("nobody", "daemon", "postgres")


@dataclass(frozen=True)
class Account:
    """Who runs the server: keyword arguments for subprocess, and the owner of the data folder."""

    name: str = ""
    uid: int = -1
    gid: int = -1

    @classmethod
    def choose(cls) -> Account:
        if os.geteuid() != 0:
            return cls()
        for name in UNPRIVILEGED:
            with contextlib.suppress(KeyError):
                entry = pwd.getpwnam(name)
                return cls(name, entry.pw_uid, entry.pw_gid)
        raise NodeError(
            "PostgreSQL does not run as root, and none of the users nobody, daemon, postgres exists",
            cure="Start trueup as an ordinary user.",
        )

    def popen_args(self) -> dict[str, Any]:
        if not self.name:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def own(self, path: Path) -> None:
        if self.name:
            os.chown(path, self.uid, self.gid)

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command as this account, out of reach of Ctrl-C, and collect what it says."""
        return subprocess.run(
            command,
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
        """Whether this account can execute the command with success."""
        try:
            return self.run(command).returncode == 0
        except OSError:
            return False

    def can_enter(self, folder: Path) -> bool:
        return not self.name or self.can_run(["/bin/sh", "-c", 'cd "$1"', "sh", str(folder)])


def temp_folder(prefix: str, account: Account) -> Path:
    """A new temp folder of ours, which the account can enter but not change."""
    for parent in (Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")):
        if parent.is_dir() and account.can_enter(parent):
            made = Path(tempfile.mkdtemp(prefix=prefix, dir=parent.resolve()))
            made.chmod(0o711 if account.name else 0o700)
            return made
    raise NodeError(
        f"the user {account.name} can enter no temp folder of this machine",
        cure="Start trueup as an ordinary user, or set TMPDIR to a folder that all users can enter.",
    )


def environment() -> dict[str, str]:
    """Our environment without what would bend a server or initdb: PGDATA and its like, and the locale."""
    bends = ("PG", "LC_", "LANG")
    return {name: value for name, value in os.environ.items() if not name.startswith(bends)}
