"""Checksums of the files of the state table, so that a proof finds a file that was altered after a run wrote it.

Some columns of the state are not in the log, and cannot be compared with it. The checksums of the files of a run are
beside them, and are on the disk before the commit that adds the files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Readers of Delta tables ignore names that start with an underscore.
CHECKSUMS = "_checksums.json"
_READERS = 8
_BLOCK = 1 << 20


def write_checksums(folder: Path, files: Sequence[Path]) -> None:
    """Write the checksums of the files of a run into its folder."""
    with ThreadPoolExecutor(_READERS) as pool:
        found = {
            file.relative_to(folder).as_posix(): digest
            for file, digest in zip(files, pool.map(_digest, files), strict=True)
        }
    if found:
        (folder / CHECKSUMS).write_text(json.dumps(found), encoding="utf-8")


def altered_files(table: Path, files: Iterable[str]) -> list[str]:
    """Return the files of the state table that are not as a run has written them; `files` are paths in the table."""
    known: dict[str, str] = {}
    paths = sorted(files)
    for run in {path.partition("/")[0] for path in paths}:
        known |= {f"{run}/{name}": digest for name, digest in _read(table / run / CHECKSUMS).items()}
    with ThreadPoolExecutor(_READERS) as pool:
        found = pool.map(lambda path: _digest(table / path), paths)
        return [path for path, digest in zip(paths, found, strict=True) if digest is None or known.get(path) != digest]


def _read(path: Path) -> dict[str, str]:
    """Return the checksums in a file; none if it is missing or damaged: then its files count as altered."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _digest(path: Path) -> str | None:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    except OSError:
        return None
    return digest.hexdigest()
