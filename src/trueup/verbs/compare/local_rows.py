"""Compare the rows of differing blocks in this process, without Spark; memory is bounded by partitions on disk.

Rows of the same key are in the same partition on all nodes. One partition at a time is in memory.
"""

from __future__ import annotations

import pickle
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from trueup.errors import StoreError
from trueup.nodes.base import EncodedRows, LocalNode
from trueup.nodes.rows import CompareRows
from trueup.report.json_file import cure_for
from trueup.rows.align import Difference, pack, unpack
from trueup.task.compare.spool import unnamed_file
from trueup.task.together import together
from trueup.verbs.compare.request import CompareRun

# Rows of all nodes that a partition has on average, if there are not more than the most partitions.
_ROWS = 200_000
_PARTITIONS = (32, 400)
_PACKED = 200
# Bytes of the rows of a node that are kept in memory.
WAITING_BYTES = 32 * 1024 * 1024


@dataclass
class LocalFound:
    """Differences that were found, in a temporary file, and the encoded keys of each batch."""

    folder: Path
    _file: IO[bytes] = field(init=False)
    _count: int = 0

    def __post_init__(self) -> None:
        self._file = unnamed_file(self.folder)

    def add(self, found: Sequence[Difference], keys: Sequence[bytes]) -> None:
        """Append a batch."""
        _write(self._file, (pack(found), list(keys)), self.folder)
        self._count += 1

    def batches(self) -> Iterator[tuple[list[Difference], bytes]]:
        """Yield the differences in batches, also packed."""
        for packed, _ in self._read():
            yield unpack(packed), packed

    def keys(self) -> list[bytes]:
        """Return the encoded keys of all differences, each once."""
        return list(dict.fromkeys(key for _, keys in self._read() for key in keys))

    def _read(self) -> Iterator[tuple[bytes, list[bytes]]]:
        self._file.seek(0)
        for _ in range(self._count):
            yield pickle.load(self._file)

    def close(self) -> None:
        """Remove the file."""
        self._file.close()


@contextmanager
def local_blocks(run: CompareRun, blocks: Collection[int], rows: int) -> Iterator[LocalFound]:
    """Yield the differences of these blocks, which have about this many rows on all nodes together."""
    with ExitStack() as stack:
        yield _compared(run, lambda node: node.local_rows(run.plan, blocks), rows, stack)


@contextmanager
def local_keys(run: CompareRun, keys: Sequence[bytes]) -> Iterator[LocalFound]:
    """Yield the differences of the current rows with these keys."""
    with ExitStack() as stack:
        rows = len(keys) * len(run.nodes)
        yield _compared(run, lambda node: node.local_rows_of(run.plan, keys), rows, stack)


@dataclass
class _Side:
    """The rows of one node, by partition: in memory and, if they are many, in files."""

    folder: Path
    partitions: int
    stack: ExitStack
    _files: list[IO[bytes]] = field(default_factory=list)
    _waiting: dict[int, list[tuple[bytes, bytes]]] = field(default_factory=lambda: defaultdict(list))
    _size: int = 0

    def read(self, batches: Iterator[EncodedRows]) -> None:
        """Keep all rows."""
        for keys, rows in batches:
            for line in zip(keys, rows, strict=True):
                self._waiting[zlib.crc32(line[0]) % self.partitions].append(line)
                self._size += len(line[1])
            if self._size >= WAITING_BYTES:
                self._flush()

    def partition(self, number: int) -> Counter[tuple[bytes, bytes]]:
        """Return the rows of a partition, and how often each exists."""
        counted = Counter(self._waiting.pop(number, ()))
        if self._files:
            file = self._files[number]
            end = file.tell()
            file.seek(0)
            while file.tell() < end:
                counted.update(pickle.load(file))
            file.close()
        return counted

    def _flush(self) -> None:
        if not self._files:
            self._files = [self.stack.enter_context(unnamed_file(self.folder)) for _ in range(self.partitions)]
        for number, lines in self._waiting.items():
            _write(self._files[number], lines, self.folder)
        self._waiting.clear()
        self._size = 0


_Read = Callable[[LocalNode], Iterator[EncodedRows]]


def _compared(run: CompareRun, read: _Read, rows: int, stack: ExitStack) -> LocalFound:
    folder = Path(run.request.settings.report_dir or ".").absolute()
    partitions = max(_PARTITIONS[0], min(_PARTITIONS[1], rows // _ROWS))
    found = LocalFound(folder)
    stack.callback(found.close)
    nodes = [node for node in run.nodes if isinstance(node, LocalNode)]
    assert len(nodes) == len(run.nodes)
    sides = [_Side(folder, partitions, stack) for _ in nodes]

    def stop() -> None:
        for node in nodes:
            node.stop()

    together(list(zip(sides, nodes, strict=True)), lambda pair: pair[0].read(read(pair[1])), cancel=stop)
    plan = run.plan
    parsed, rules = tuple(zip(*((column.parsed, column.rule) for column in plan.columns), strict=True))
    names = tuple(node.name for node in nodes)
    compare = CompareRows(names, plan.kinds, parsed, rules, plan.key, run.request.settings.long_value)
    for number in range(partitions):
        _keep([side.partition(number) for side in sides], compare, found)
        run.wait(0)
    return found


def _keep(sides: Sequence[Counter[tuple[bytes, bytes]]], compare: CompareRows, found: LocalFound) -> None:
    """Compare one partition: rows that all nodes have equally often are equal, others are aligned by key."""
    first, *others = sides
    unequal = {line for other in others for line, _ in first.items() ^ other.items()}
    by_key: dict[bytes, list[tuple[bytes, list[int]]]] = defaultdict(list)
    for key, row in unequal:
        by_key[key].append((row, [side[key, row] for side in sides]))
    batch: list[Difference] = []
    keys: list[bytes] = []
    for key, lines in by_key.items():
        differences = list(compare.differences(lines))
        batch += differences
        keys += [key] * bool(differences)
        if len(batch) >= _PACKED:
            found.add(batch, keys)
            batch, keys = [], []
    if batch:
        found.add(batch, keys)


def _write(file: IO[bytes], value: object, folder: Path) -> None:
    try:
        pickle.dump(value, file, pickle.HIGHEST_PROTOCOL)
    except OSError as error:
        raise StoreError(f"cannot write to {folder}: {error.strerror}", cure=cure_for(error)) from None
