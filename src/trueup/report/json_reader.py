"""Read a JSON report in bounded memory: line by line, as `json_file` writes it.

A report that another program reformatted has the same content and other lines: it is loaded completely.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from trueup.errors import StoreError
from trueup.report.json_file import FORMAT

# Whether differences of a kind are wanted; asked for each of them.
Wanted = Callable[[str], bool]
# Instead of the hashes of a row whose difference is not confirmed.
HOT = "hot"
# A pair, the key of a row, and the hash of the row per node: None: no row; empty: not in the report; or HOT.
Keyed = tuple[str, tuple[str, ...], "tuple[str | None, ...]"]


@dataclass(frozen=True)
class Section:
    """A pair of nodes: its counts, the number of listed differences per kind, and where they start in the file."""

    pair: str
    counts: Mapping[str, Any]
    listed: Mapping[str, int]
    start: int = 0
    line: int = 0
    # Accepted differences: their number, and the first one in the file.
    accepted: int = 0
    accepted_start: int = 0
    accepted_line: int = 0


class Report(ABC):
    """A report: its head, and per pair of nodes the counts and an iterator over the differences."""

    path: Path
    head: Mapping[str, Any]

    @property
    @abstractmethod
    def sections(self) -> Sequence[Section]:
        """The pairs of nodes."""

    @property
    def counts(self) -> dict[str, Mapping[str, Any]]:
        """The counts of each pair of nodes."""
        return {section.pair: section.counts for section in self.sections}

    @abstractmethod
    def differences(self, section: Section, wanted: Wanted = lambda kind: True) -> Iterator[Mapping[str, Any]]:
        """Yield the differences of a pair, of the kinds that are wanted."""

    @abstractmethod
    def accepted(self, section: Section) -> Iterator[Mapping[str, Any]]:
        """Yield the accepted differences of a pair."""

    @abstractmethod
    def keys(self) -> Iterator[Keyed]:
        """Yield pair, key and hashes of all differences."""

    @abstractmethod
    def lines(self) -> Iterator[str]:
        """Yield the text of the report, checked, in pieces."""

    def some(self, section: Section, most: int) -> list[Mapping[str, Any]]:
        """Return at most this many differences of a pair, some of each kind."""
        left = divided(most, section.listed)
        shown = []

        def is_wanted(kind: str) -> bool:
            left[kind] -= 1
            return left[kind] >= 0

        for difference in self.differences(section, is_wanted):
            shown.append(difference)
            if len(shown) == min(most, sum(section.listed.values())):
                break
        return shown

    def _names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the columns of the key, and the nodes."""
        with showing(self.path):
            summary = self.head["summary"]
            return tuple(summary["primary_key"]) or ("row_hash",), tuple(summary["nodes"])


def divided(total: int, wanted: Mapping[str, int]) -> dict[str, int]:
    """Divide a number among kinds: each gets as many as it has, or an equal part of what the smaller ones leave."""
    parts = {}
    for number, kind in enumerate(sorted(wanted, key=lambda kind: wanted[kind])):
        parts[kind] = min(wanted[kind], total // (len(wanted) - number))
        total -= parts[kind]
    return parts


def open_report(path: Path) -> Report:
    """Return the report in a file; it raises StoreError, with the position, where the file is damaged."""
    try:
        with open(path, "rb") as file:
            start = _Place(path, 0, 0)
            head = _head(file, start)
        if head is not None:
            return _Lines(path, head, start)
        return loaded(path, _load(path))
    except OSError as error:
        raise _cannot_read(path, error.strerror or "cannot be opened") from None


def loaded(path: Path, content: Any) -> Report:
    """Return a report that is in memory."""
    if not isinstance(content, dict) or not content.keys() >= {"summary", "diffs"}:
        cure = "give the JSON report of a diff, or the id of a task: trueup report ID"
        raise _cannot_read(path, "not a report of a diff", cure)
    with showing(path):
        return _Loaded(path, content)


def _load(path: Path) -> Any:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file, parse_constant=str)
    except (ValueError, RecursionError) as error:
        raise _cannot_read(path, f"not JSON ({error})") from None


class _Loaded(Report):
    def __init__(self, path: Path, content: Mapping[str, Any]) -> None:
        self.path = path
        self.head = {name: value for name, value in content.items() if name != "diffs"}
        self._content = content
        self._diffs = {pair: counts["differences"] for pair, counts in content["diffs"].items()}
        self._sections = [
            Section(
                pair,
                {name: value for name, value in counts.items() if name not in _LISTS},
                Counter(listed_as(difference) for difference in counts["differences"]),
                accepted=len(counts.get("accepted_differences", ())),
            )
            for pair, counts in content["diffs"].items()
        ]

    @property
    def sections(self) -> Sequence[Section]:
        return self._sections

    def differences(self, section: Section, wanted: Wanted = lambda kind: True) -> Iterator[Mapping[str, Any]]:
        return (difference for difference in self._diffs[section.pair] if wanted(listed_as(difference)))

    def accepted(self, section: Section) -> Iterator[Mapping[str, Any]]:
        yield from self._content["diffs"][section.pair].get("accepted_differences", ())

    def keys(self) -> Iterator[Keyed]:
        names, nodes = self._names()
        for pair, differences in self._diffs.items():
            for difference in differences:
                key = tuple([difference["key"][name] for name in names])
                hashes = dict.fromkeys(nodes, HOT) if difference.get("hot") else difference.get("hashes")
                yield pair, key, _hashes(hashes or {}, nodes)

    def lines(self) -> Iterator[str]:
        yield json.dumps(self._content, indent=1) + "\n"


def listed_as(difference: Mapping[str, Any]) -> str:
    """Return the kind of a difference, or `hot` if it is not confirmed."""
    return "hot" if difference.get("hot") else str(difference["kind"])


class _Lines(Report):
    """A report as it is in its file; a pass over all lines, for the pairs or the keys, checks that it is complete."""

    def __init__(self, path: Path, head: Mapping[str, Any], start: _Place) -> None:
        """Keep the head, which ends at `start`."""
        self.path = path
        self.head = head
        self._start = start

    @cached_property
    def sections(self) -> Sequence[Section]:
        sections: list[Section] = []
        listed: Counter[str] = Counter()
        for kind, line, place in self._entries():
            if kind == "pair":
                pair, counts = _pair(line, place)
                listed = Counter()
                sections.append(Section(pair, counts, listed, place.offset + len(line), place.line))
            elif kind == "accepted":
                last = sections[-1]
                start = (last.accepted_start, last.accepted_line) if last.accepted else (place.offset, place.line - 1)
                sections[-1] = replace(
                    last, accepted=last.accepted + 1, accepted_start=start[0], accepted_line=start[1]
                )
            else:
                match = _KIND.search(line)
                if match is None:
                    raise place.damaged("the kind of the difference is missing")
                listed["hot" if match[2] else match[1].decode()] += 1
        return sections

    def _entries(self) -> Iterator[tuple[str, bytes, _Place]]:
        place = replace(self._start)
        with _opened(self.path, place.offset) as file:
            for kind, line in _entries(file, place):
                yield kind, line, place

    def differences(self, section: Section, wanted: Wanted = lambda kind: True) -> Iterator[Mapping[str, Any]]:
        return self._listed(_Place(self.path, section.start, section.line), _DIFFERENCE, wanted)

    def accepted(self, section: Section) -> Iterator[Mapping[str, Any]]:
        if not section.accepted:
            return iter(())
        return self._listed(_Place(self.path, section.accepted_start, section.accepted_line), _ACCEPTED)

    def _listed(
        self, place: _Place, beginning: bytes, wanted: Wanted = lambda kind: True
    ) -> Iterator[Mapping[str, Any]]:
        with _opened(self.path, place.offset) as file:
            for line in file:
                place.line += 1
                if not line.startswith(beginning):
                    return
                match = _KIND.search(line)
                if match is None or wanted("hot" if match[2] else match[1].decode()):
                    yield _parsed(line, place)
                place.offset += len(line)

    def keys(self) -> Iterator[Keyed]:
        names, nodes = self._names()
        scan: Any = json.JSONDecoder(parse_constant=str).scan_once  # type: ignore[attr-defined]
        plain, width, pair = _plain(names, nodes).match, len(names), ""
        for kind, line, place in self._entries():
            if kind == "pair":
                pair, _ = _pair(line, place)
            if kind != "difference":
                continue
            try:
                text = line.decode()
                # The rows, most of the line, are not parsed.
                if match := plain(text):
                    groups = match.groups()
                    found: Keyed = pair, groups[:width], groups[width:]
                else:
                    key, end = scan(text, len(_DIFFERENCE))
                    hashes = scan(text, end + 12)[0] if text.startswith(', "hashes": ', end) else {}
                    found = pair, tuple([key[name] for name in names]), _hashes(hashes, nodes)
                # No value is a bare `true`, so this is the field of the difference.
                if '"hot": true' in text:
                    found = *found[:2], (HOT,) * len(nodes)
            except (AttributeError, KeyError, TypeError, ValueError, StopIteration) as error:
                raise place.damaged(f"{type(error).__name__}: {error}") from None
            yield found

    def lines(self) -> Iterator[str]:
        # Nothing is printed of a file that is not complete.
        for _ in self._entries():
            pass
        place = _Place(self.path, 0, 0)
        with _opened(self.path, 0) as file:
            for line in file:
                place.line += 1
                if line.startswith((_DIFFERENCE, _ACCEPTED)):
                    _parsed(line, place)
                place.offset += len(line)
                yield line.decode()


_HEAD_END = b' "diffs": {\n'
_FORMAT_LINE = f' "format": {json.dumps(FORMAT)},\n'.encode()
_DIFFERENCE = b'   {"key": '
_ACCEPTED = b'   {"accepted": '
_LISTS = ("differences", "accepted_differences", "resolved_keys")
# Behind the hashes: within the key, a quote would be escaped.
_KIND = re.compile(rb'\}, "kind": "(\w+)"(, "hot": true)?')


@dataclass
class _Place:
    """The current line of a file: its offset in bytes and its number."""

    path: Path
    offset: int
    line: int

    def damaged(self, why: str) -> StoreError:
        return _cannot_read(self.path, f"line {self.line:,} (byte {self.offset:,}) is damaged: {why}")


def _head(file: IO[bytes], place: _Place) -> dict[str, Any] | None:
    """Return the head of a report whose lines are as trueup writes them, and move `place` behind it; or None."""
    lines = [file.readline(), file.readline()]
    if lines != [b"{\n", _FORMAT_LINE]:
        return None
    while (line := file.readline()) not in (_HEAD_END, b""):
        lines.append(line)
    first = file.readline()
    if first != b" }\n" and not (first.startswith(b'  "') and first.endswith(b"[\n")):
        # Reformatted, or truncated: the parser of the whole file decides.
        return None
    place.offset, place.line = file.tell() - len(first), len(lines) + 1
    try:
        head = json.loads(b"".join(lines).rstrip().rstrip(b",") + b"}", parse_constant=str)
    except ValueError:
        return None
    return head if "summary" in head else None


def _entries(file: IO[bytes], place: _Place) -> Iterator[tuple[str, bytes]]:
    """Yield the lines of pairs, of differences and of accepted ones, with `place` on them; raise if one is wrong."""
    # Whether the last entry of the current list was followed by a comma; None: there was none yet.
    comma: bool | None = None
    depth = "pairs"
    for line in file:
        place.line += 1
        if depth == "differences" and line.startswith(_DIFFERENCE) and comma is not False:
            comma = _comma(line, b"}", place)
            yield "difference", line
        elif depth == "accepted" and line.startswith(_ACCEPTED) and comma is not False:
            comma = _comma(line, b"}", place)
            yield "accepted", line
        elif depth == "resolved" and line.startswith(b"   [") and comma is not False:
            comma = _comma(line, b"]", place)
        elif depth in ("differences", "accepted", "resolved") and not comma and line in (b"  ]},\n", b"  ]}\n"):
            depth, comma = "pairs", line.endswith(b",\n")
        elif depth == "differences" and not comma and line == b'  ], "accepted_differences": [\n':
            depth, comma = "accepted", None
        elif depth in ("differences", "accepted") and not comma and line == b'  ], "resolved_keys": [\n':
            depth, comma = "resolved", None
        elif depth == "pairs" and line.startswith(b'  "') and comma is not False:
            yield "pair", line
            depth, comma = "differences", None
        elif (depth, line) == ("pairs", b" }\n") and not comma:
            depth = "end"
        elif (depth, line) == ("end", b"}\n"):
            depth = ""
        else:
            raise place.damaged("not a line of a report" if line.endswith(b"\n") else "the file is truncated")
        place.offset += len(line)
    if depth:
        raise _cannot_read(place.path, f"the file is truncated after line {place.line:,} (byte {place.offset:,})")


def _comma(line: bytes, end: bytes, place: _Place) -> bool:
    """Return whether an entry is followed by a comma."""
    if line.endswith(end + b",\n"):
        return True
    if not line.endswith(end + b"\n"):
        raise place.damaged("its end is missing" if line.endswith(b"\n") else "the file is truncated")
    return False


def _pair(line: bytes, place: _Place) -> tuple[str, dict[str, Any]]:
    try:
        ((pair, counts),) = json.loads(b"{" + line.strip() + b"]}}", parse_constant=str).items()
        del counts["differences"]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise place.damaged(str(error)) from None
    return pair, counts


def _parsed(line: bytes, place: _Place) -> dict[str, Any]:
    try:
        difference = json.loads(line.strip().removesuffix(b","), parse_constant=str)
    except ValueError as error:
        raise place.damaged(str(error)) from None
    if not isinstance(difference, dict):
        raise place.damaged("it is not a difference")
    return difference


@contextmanager
def _opened(path: Path, offset: int) -> Iterator[IO[bytes]]:
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            yield file
    except OSError as error:
        raise _cannot_read(path, error.strerror or "cannot be opened") from None


def _hashes(hashes: Mapping[str, str | None], nodes: tuple[str, ...]) -> tuple[str | None, ...]:
    return tuple([hashes.get(node, "") for node in nodes])


def _plain(names: tuple[str, ...], nodes: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern for lines without escapes (most lines); its groups are the key and the hashes."""
    key = ", ".join(re.escape(json.dumps(name)) + r': "([^"\\]*)"' for name in names)
    hashes = ", ".join(re.escape(json.dumps(node)) + r': (?:"(-?\d+)"|null)' for node in nodes)
    return re.compile(f'   {{"key": {{{key}}}, "hashes": {{{hashes}}}, ')


@contextmanager
def showing(path: Path) -> Iterator[None]:
    """Turn errors about missing or damaged parts of a report into a StoreError."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise _cannot_read(path, f"a part is missing or damaged ({type(error).__name__}: {error})") from error


def _cannot_read(path: Path, why: str, cure: str = "check the path, or run the diff again") -> StoreError:
    return StoreError(f"cannot read the report {path}: {why}", cure=cure)
