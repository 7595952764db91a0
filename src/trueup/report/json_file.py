"""The JSON report: streamed, written completely or not at all, readable by its owner only."""

from __future__ import annotations

import errno
import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, NamedTuple

from trueup.config.files import PartFile
from trueup.errors import StoreError

_naming = threading.Lock()
_names_in_use: set[Path] = set()

# The layout of the file, its first field: the lines of `write_report`. A reader can rely on them.
FORMAT = "lines"


class PairReport(NamedTuple):
    """A pair of nodes in a report. All lists are JSON.

    `resolved` has, of a rerun, the keys that are equal now; `accepted` has the differences that are known and wanted.
    """

    pair: str
    counts: Mapping[str, Any]
    differences: Iterable[str]
    resolved: Iterable[str] | None = None
    accepted: Iterable[str] | None = None


def report_path(
    folder: Path, schema: str, table: str, stamp: str, *, kind: str = "diffs", ending: str = "json"
) -> Path:
    """Return `public_customers_diffs-20250722120353.json`, with a number appended if the name is in use."""
    stem = re.sub(r"[^\w.-]+", "_", f"{schema}_{table}")[:150]
    path = folder / f"{stem}_{kind}-{stamp}.{ending}"
    number = 1
    with _naming:
        # Tables that are compared at the same time may have the same name before a file exists.
        while path.exists() or path in _names_in_use:
            number += 1
            path = folder / f"{stem}_{kind}-{stamp}-{number}.{ending}"
        _names_in_use.add(path)
    return path


def write_report(path: Path, head: Mapping[str, Any], pairs: Iterable[PairReport]) -> None:
    """Write `head`, then `diffs`: every pair with its differences, as they come, one per line.

    Raises FileExistsError if another process took the name.
    """
    with private_file(path, new=True) as file:
        _write(file, head, pairs)


def write_private(path: Path, text: str) -> None:
    """Write a text to a file that only its owner can read."""
    with private_file(path) as file:
        file.write(text)


@contextmanager
def private_file(path: Path, *, new: bool = False) -> Iterator[IO[str]]:
    """Open a file that is written completely or not at all, and that only its owner can read.

    `new`: raises FileExistsError if the file exists at the end, instead of replacing it.
    """
    if path.exists() and not path.is_file():
        # Replacing a device by a file would break it for all users.
        raise StoreError(f"cannot write the report {path}: not a regular file", cure="use the path of a file")
    try:
        part = PartFile(path)
        text = TextIOWrapper(part.file, encoding="utf-8")
        try:
            yield text
            text.flush()
            part.keep(new=new)
        finally:
            # Flushes once more after an error: on a full disk, that fails as well.
            with suppress(OSError):
                text.close()
            part.discard()
    except OSError as error:
        if new and isinstance(error, FileExistsError):
            raise
        raise StoreError(f"cannot write the report {path}: {error.strerror}", cure=cure_for(error)) from None


def cure_for(error: OSError) -> str:
    """Return the cure for a folder that cannot be written to."""
    first = {
        errno.ENOENT: "create the folder",
        errno.ENOTDIR: "use the path of a folder",
        errno.EACCES: "allow your user to write there",
        errno.EROFS: "make it writable",
    }.get(error.errno or 0, "free space there")
    return f"{first}, or choose another folder (--report-dir for reports)"


def _write(file: IO[str], head: Mapping[str, Any], pairs: Iterable[PairReport]) -> None:
    file.write(json.dumps({"format": FORMAT, **head}, indent=1)[:-2] + ',\n "diffs": {\n')
    for number, (pair, counts, differences, resolved, accepted) in enumerate(pairs):
        file.write(",\n" if number else "")
        file.write(f'  {json.dumps(pair)}: {json.dumps(counts)[:-1]}, "differences": [\n')
        _write_list(file, differences)
        if accepted is not None:
            file.write('  ], "accepted_differences": [\n')
            _write_list(file, accepted)
        if resolved is not None:
            file.write('  ], "resolved_keys": [\n')
            _write_list(file, resolved)
        file.write("  ]}")
    file.write("\n }\n}\n")


def _write_list(file: IO[str], entries: Iterable[str]) -> None:
    before = "   "
    for entry in entries:
        file.write(before + entry)
        before = ",\n   "
    file.write("" if before == "   " else "\n")
