"""Files that something relies on are on the disk when a call returns, with their names and those of their folders."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path

import pytest

from support.sinks import THINGS
from trueup.sinks import open_sink
from trueup.sinks.base import Document, Mark
from trueup.verbs.difflog.manifest import Runs


class Disk:
    """The files and folders that were synced, with the state in which they were."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._synced: set[tuple[int, int]] = set()
        sync = os.fsync

        def record(descriptor: int) -> None:
            sync(descriptor)
            self._synced.add(_state(os.fstat(descriptor)))

        monkeypatch.setattr(os, "fsync", record)

    def missing(self, folder: Path) -> list[str]:
        """Return what would not survive a power failure: changed after its last sync, or never synced."""
        places = [folder.parent, folder, *folder.rglob("*")]
        return [str(place) for place in places if _state(place.stat()) not in self._synced]


def _state(facts: os.stat_result) -> tuple[int, int]:
    # The number and the time of the last change of content or names.
    return facts.st_ino, facts.st_mtime_ns


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.mark.parametrize("scheme", ["parquet", "delta"])
def test_the_files_of_a_sink(tmp_path: Path, disk: Disk, scheme: str) -> None:
    folder = tmp_path / "new" / "copy"
    sink = open_sink(f"{scheme}:{folder}", {})
    sink.setup([THINGS])
    row = {"id": "1", "name": "x", "price": None, "seen": None, "n": None}
    document = Document("public.things", 0, ("1",), "I", row)
    for seq in range(1, 13):  # A Delta table writes a checkpoint after ten commits.
        sink.write([document], mark=Mark(seq, datetime.now(timezone.utc)))
        assert disk.missing(folder) == []
    sink.close()


def test_the_folders_of_a_difflog(tmp_path: Path, disk: Disk) -> None:
    runs = Runs(tmp_path / "new" / "work")
    run = runs.new(1, {"chunks": []})
    run.begin()
    with run.output("log/rows") as part:
        (part / "deep").mkdir(parents=True)
        (part / "deep" / "rows.parquet").write_bytes(b"rows")
    run.done("log/rows")
    assert disk.missing(runs.work) == []
