"""A database with tubes, for tests."""

from __future__ import annotations

import subprocess
from typing import Any

from trueup.api.tube import Tube
from trueup.capture.triggers.install import Installed
from trueup.capture.triggers.model import Pod, TubeInfo
from trueup.config.settings import SparkSettings
from trueup.testing.postgres import Database


def restore(old: Database, new: Database) -> None:
    """Dump a database and restore it as another one."""
    programs = old.server.bin_dir
    dump = subprocess.run([str(programs / "pg_dump"), old.uri], capture_output=True, check=True).stdout
    command = [str(programs / "psql"), "-q", "-v", "ON_ERROR_STOP=1", new.uri]
    subprocess.run(command, input=dump, capture_output=True, check=True)


class TubeDatabase:
    """A database with installed functions, its tube t, and shortcuts."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.spark = SparkSettings(engine="local")
        self._tubes: dict[str, Tube] = {}
        self.tube = self.of("t")

    def of(self, name: str) -> Tube:
        """Return a tube by name."""
        if name not in self._tubes:
            self._tubes[name] = Tube(name, self.database.uri)
        return self._tubes[name]

    def close(self) -> None:
        """Close all sessions."""
        for tube in self._tubes.values():
            tube.close()

    def install(self) -> Installed:
        """Install the functions, or upgrade them."""
        return Tube.install(self.database.uri)

    def uninstall(self, *, force: bool = False) -> int:
        """Drop the schema."""
        return Tube.uninstall(self.database.uri, force=force)

    def tubes(self) -> tuple[TubeInfo, ...]:
        """Return all tubes."""
        return Tube.list(self.database.uri)

    def run(self, statements: str) -> list[tuple[Any, ...]]:
        """Run SQL and return its rows."""
        return self.database.execute(statements)

    def pods(self, tube: str = "t", partition: int = 0) -> list[Pod]:
        """Return the waiting pods."""
        return self.of(tube).claim(partition, limit=100_000)

    def take(self, tube: str = "t", partition: int = 0) -> list[Pod]:
        """Delete and return the waiting pods."""
        found = self.pods(tube, partition)
        assert self.of(tube).delete([pod.seq for pod in found]) == len(found)
        return found

    def ids(self, tube: str = "t") -> list[int]:
        """Delete the waiting pods; return their integer keys, sorted, each once."""
        return sorted({key for pod in self.take(tube) for key in pod.ids})

    def keys(self, tube: str = "t") -> list[str]:
        """Delete the waiting pods; return their text keys, sorted, each once."""
        return sorted({key for pod in self.take(tube) for key in pod.keys or ()})
