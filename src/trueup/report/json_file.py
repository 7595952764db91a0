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
from typing import IO, Any

from trueup.config.files import PartFile
from trueup.errors import StoreError

_naming = threading.Lock()
_names_in_use: set[Path] = set()

# A pair's name, its counts, and its differences as lines of JSON.
PairReport = tuple[str, Mapping[str, Any], Iterable[str]]


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
    """Write `head`, then `diffs`: every pair with its differences, as they come."""
    with private_file(path) as file:
        _write(file, head, pairs)


def write_private(path: Path, text: str) -> None:
    """Write a text to a file that only its owner can read."""
    with private_file(path) as file:
        file.write(text)


@contextmanager
def private_file(path: Path) -> Iterator[IO[str]]:
    """Open a file that is written completely or not at all, and that only its owner can read."""
    if path.exists() and not path.is_file():
        # Replacing a device by a file would break it for all users.
        raise StoreError(f"cannot write the report {path}: not a regular file", cure="use the path of a file")
    try:
        part = PartFile(path)
        text = TextIOWrapper(part.file, encoding="utf-8")
        try:
            yield text
            text.flush()
            part.keep()
        finally:
            # Flushes once more after an error: on a full disk, that fails as well.
            with suppress(OSError):
                text.close()
            part.discard()
    except OSError as error:
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
    file.write(json.dumps(head, indent=1)[:-2] + ',\n "diffs": {')
    for number, (pair, counts, differences) in enumerate(pairs):
        file.write("," if number else "")
        file.write(f'\n  {json.dumps(pair)}: {json.dumps(counts)[:-1]}, "differences": [')
        for position, difference in enumerate(differences):
            file.write(",\n   " if position else "\n   ")
            file.write(difference)
        file.write("]}")
    file.write("}\n}\n")


def read_report(path: Path) -> dict[str, Any]:
    """Read a report; raises StoreError if it is not one."""
    try:
        with open(path, encoding="utf-8") as file:
            report = json.load(file, parse_constant=str)
    except OSError as error:
        raise _cannot_read(path, error.strerror or "cannot be opened") from None
    except ValueError as error:
        raise _cannot_read(path, f"not JSON ({error})") from None
    if not isinstance(report, dict) or not report.keys() >= {"summary", "diffs"}:
        raise _cannot_read(path, "not a report of a diff")
    return report


# A pair, the key of a row, and the hash of the row per node: None: no row; empty: not in the report.
Keyed = tuple[str, tuple[str, ...], "tuple[str | None, ...]"]


def stream_keys(path: Path) -> tuple[dict[str, Any], Iterator[Keyed]]:
    """Return the head of a report, and an iterator over pair, key and hashes of each difference.

    A report may be larger than memory. trueup writes one difference per line, with key and hashes first, which is
    streamed; a report that was reformatted is loaded completely.
    """
    try:
        with open(path, encoding="utf-8") as file:
            head = _head(file)
            first = next(file, "")
    except OSError as error:
        raise _cannot_read(path, error.strerror or "cannot be opened") from None
    except ValueError:
        head, first = None, ""
    if head is not None and (first.startswith('  "') or first.startswith("}")):
        return head, _by_line(path, *_names(path, head))
    report = read_report(path)
    names, nodes = _names(path, report)
    keys = (
        (pair, tuple([difference["key"][name] for name in names]), _hashes(difference.get("hashes") or {}, nodes))
        for pair, counts in report["diffs"].items()
        for difference in counts["differences"]
    )
    return {**report, "diffs": {}}, keys


def _names(path: Path, head: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns of the key, and the nodes."""
    with showing(path):
        return tuple(head["summary"]["primary_key"]) or ("row_hash",), tuple(head["summary"]["nodes"])


def _hashes(hashes: Mapping[str, str | None], nodes: tuple[str, ...]) -> tuple[str | None, ...]:
    return tuple([hashes.get(node, "") for node in nodes])


def _plain(names: tuple[str, ...], nodes: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern for lines without escapes (most lines); its groups are the key and the hashes."""
    key = ", ".join(re.escape(json.dumps(name)) + r': "([^"\\]*)"' for name in names)
    hashes = ", ".join(re.escape(json.dumps(node)) + r': (?:"(-?\d+)"|null)' for node in nodes)
    return re.compile(f'   {{"key": {{{key}}}, "hashes": {{{hashes}}}, ')


def _head(file: IO[str]) -> dict[str, Any] | None:
    lines: list[str] = []
    for line in file:
        if line.startswith(' "diffs": {'):
            head = json.loads("".join(lines).rstrip().rstrip(",") + "}", parse_constant=str)
            return head if isinstance(head, dict) and "summary" in head else None
        lines.append(line)
    return None


def _by_line(path: Path, names: tuple[str, ...], nodes: tuple[str, ...]) -> Iterator[Keyed]:
    scan: Any = json.JSONDecoder(parse_constant=str).scan_once  # type: ignore[attr-defined]
    plain, width = _plain(names, nodes).match, len(names)
    pair, line = "", ""
    with open(path, encoding="utf-8") as file:
        try:
            _head(file)
            for line in file:
                # The rows, most of the line, are not parsed.
                if match := plain(line):
                    groups = match.groups()
                    yield pair, groups[:width], groups[width:]
                elif line.startswith('   {"key": '):
                    key, end = scan(line, 11)
                    hashes = scan(line, end + 12)[0] if line.startswith(', "hashes": ', end) else {}
                    yield pair, tuple([key[name] for name in names]), _hashes(hashes, nodes)
                elif line.startswith('  "'):
                    pair = scan(line, 2)[0]
        except (ValueError, StopIteration) as error:
            raise _cannot_read(path, f"a line is damaged ({error})") from None
    if line.rstrip() != "}":
        raise _cannot_read(path, "the file is truncated")


@contextmanager
def showing(path: Path) -> Iterator[None]:
    """Turn errors about missing or damaged parts of a report into a StoreError."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise _cannot_read(path, f"a part is missing or damaged ({type(error).__name__}: {error})") from error


def _cannot_read(path: Path, why: str) -> StoreError:
    return StoreError(f"cannot read the report {path}: {why}", cure="check the path, or run the diff again")
