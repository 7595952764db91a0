"""Servers that go back: standbys that are promoted, and copies of the data that are restored."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

from support.waiting import Pause
from trueup.testing.account import Account, temp_folder
from trueup.testing.postgres import Server


class Backup:
    """A copy of the files of a server, made while it was stopped for a moment."""

    def __init__(self, server: Server) -> None:
        self.folder = temp_folder("trueup-backup-", Account.choose())
        self._server = server
        server.stop()
        self._copy(server.data_dir, self.folder / "data")
        self._copy(server.data_dir.parent / "pg_hba.conf", self.folder / "pg_hba.conf")
        server.restart()

    def restore(self) -> None:
        """Replace the files of the server, as after a disaster; it has the same timeline, and an older state."""
        self._server.kill()
        shutil.rmtree(self._server.data_dir, ignore_errors=True)
        self._copy(self.folder / "data", self._server.data_dir)
        self._server.restart()

    def standby(self) -> Server:
        """Start a standby of the server from the copy; `Server.remove` and `remove` end it."""
        (self.folder / "data" / "standby.signal").touch()
        address = f"host=127.0.0.1 port={self._server.port} user=postgres"
        settings = {**self._server.settings, "primary_conninfo": address}
        return Server.start(self.folder, name="standby", bin_dir=self._server.bin_dir, settings=settings)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _copy(self, source: Path, target: Path) -> None:
        subprocess.run(["cp", "-a", str(source), str(target)], check=True)


def wait_for_replay(primary: Server, standby: Server) -> None:
    """Wait until the standby has replayed everything that is on the primary."""
    (position,) = primary.database("postgres").execute("SELECT pg_current_wal_flush_lsn()")
    until = time.monotonic() + 60
    replay = standby.database("postgres")
    pause = Pause()
    while replay.execute("SELECT pg_last_wal_replay_lsn() >= %s", position) != [(True,)]:
        assert time.monotonic() < until, "the standby does not follow the primary"
        pause()


def fail_over(primary: Server, standby: Server) -> None:
    """Kill the primary and promote the standby, which may be stopped and behind."""
    primary.kill()
    if not standby.running:
        # Nothing more arrives from the primary.
        standby.restart()
    standby.database("postgres").execute("SELECT pg_promote(true, 60)")
