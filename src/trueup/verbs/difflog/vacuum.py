"""Removes the files of the state table that its last versions do not contain.

A commit replaces files but leaves them on the disk. A process that reads the state, such as a proof, may still read an
earlier version.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from trueup.verbs.difflog.checksums import CHECKSUMS
from trueup.verbs.difflog.state import StateTable

# Earlier versions of the table whose files are kept for readers.
EARLIER_VERSIONS = 2


def vacuum(table: StateTable, *, execute: bool = True) -> int:
    """Remove the files that no kept version contains, and return their size. Call it only when no run is unfinished."""
    current = table.version()
    if current is None:
        return 0
    kept: set[Path] = set()
    for version in range(max(0, current - EARLIER_VERSIONS), current + 1):
        kept |= {table.path / file.path for file in table.files(version)}
    return sum(_remove(folder, kept, execute=execute) for folder in sorted(table.path.glob("run-*")))


def _remove(folder: Path, kept: set[Path], *, execute: bool) -> int:
    """Remove the unused files in the folder of one run, or the folder if nothing in it is used; return their size."""
    unused = [path for path in _files(folder) if path not in kept]
    size = sum(path.stat().st_size for path in unused)
    if not execute:
        return size
    if not any(path in kept for path in _files(folder)):
        shutil.rmtree(folder, ignore_errors=True)
    for path in unused:
        path.unlink(missing_ok=True)
    return size


def _files(folder: Path) -> Iterator[Path]:
    # The checksums are removed with the last file of their run.
    return (path for path in folder.rglob("*") if path.is_file() and path.name != CHECKSUMS)
