"""Compare the rows of differing blocks in this process, without Spark; memory is bounded by partitions on disk.

Rows of the same key are in the same partition on all nodes. One partition at a time is in memory.
"""

from __future__ import annotations

import gc
import pickle
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trueup.errors import StoreError
from trueup.nodes.arrow_columns import buffers
from trueup.nodes.arrow_hash import Hashes
from trueup.nodes.base import LocalNode
from trueup.nodes.rows import CompareRows
from trueup.report.json_file import cure_for
from trueup.rows.align import Difference, pack, unpack
from trueup.task.compare.spool import unnamed_file
from trueup.task.together import together
from trueup.verbs.compare.request import CompareRun

if TYPE_CHECKING:
    from trueup.nodes.base import EncodedRows

    _Read = Callable[[LocalNode], Iterator[EncodedRows]]

_SCHEMA = pa.schema([("k", pa.large_binary()), ("v", pa.large_binary())])
# Rows of all nodes that a partition has on average, if there are not more than the most partitions.
_ROWS = 200_000
_PARTITIONS = (32, 400)
_PACKED = 200
# Bytes of the rows of a node that are kept in memory.
WAITING_BYTES = 32 * 1024 * 1024
# Bytes of a key that select its partition: numpy hashes many short values fast, but not a few long ones.
_KEY_BYTES = 1024


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
    """The rows of one node: in memory or, if they are many, by partition in files."""

    folder: Path
    partitions: int
    stack: ExitStack
    _files: list[IO[bytes]] = field(default_factory=list)
    _waiting: list[pa.RecordBatch] = field(default_factory=list)
    _size: int = 0

    @property
    def is_small(self) -> bool:
        """Whether all rows are in memory."""
        return not self._files

    def read(self, batches: Iterator[EncodedRows]) -> None:
        """Keep all rows."""
        for keys, rows in batches:
            batch = pa.record_batch([column.cast(pa.large_binary()) for column in (keys, rows)], schema=_SCHEMA)
            self._waiting.append(batch)
            self._size += batch.nbytes
            if self._size >= WAITING_BYTES:
                self.flush()

    def rows(self) -> pa.Table:
        """Return all rows, which are in memory."""
        return pa.Table.from_batches(self._waiting, _SCHEMA)

    def partition(self, number: int) -> pa.Table:
        """Return the rows of a partition, of files."""
        file = self._files[number]
        end = file.tell()
        file.seek(0)
        batches = []
        while file.tell() < end:
            batches.append(pa.ipc.read_record_batch(pa.py_buffer(pickle.load(file)), _SCHEMA))
        file.close()
        return pa.Table.from_batches(batches, _SCHEMA)

    def flush(self) -> None:
        """Write the rows that are in memory to files."""
        if not self._files:
            self._files = [self.stack.enter_context(unnamed_file(self.folder)) for _ in range(self.partitions)]
        table = self.rows().combine_chunks()
        self._waiting.clear()
        self._size = 0
        for batch in table.to_batches():
            numbers = _partitions_of(batch.column(0), self.partitions)
            order = np.argsort(numbers, kind="stable")
            ends = np.searchsorted(numbers[order], np.arange(self.partitions + 1))
            ordered = batch.take(pa.array(order))
            for number, (start, end) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)):
                if end > start:
                    rows = ordered.slice(start, end - start).serialize().to_pybytes()
                    _write(self._files[number], rows, self.folder)


def _partitions_of(keys: pa.Array, partitions: int) -> Any:
    """Return the partition of each key: the same on all nodes, whatever the other keys of a batch are."""
    hashes = Hashes(len(keys), 1)
    hashes.add_bytes(*buffers(pc.binary_slice(keys, 0, _KEY_BYTES)))
    return hashes.found() % np.uint64(partitions)


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
    with _no_collection():
        if all(side.is_small for side in sides):
            _keep(run, [side.rows() for side in sides], compare, found)
            return found
        for side in sides:
            side.flush()
        for number in range(partitions):
            _keep(run, [side.partition(number) for side in sides], compare, found)
    return found


@contextmanager
def _no_collection() -> Iterator[None]:
    """Let Python look for no cycles: there are none in differences, and a look at all of them takes long."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _keep(run: CompareRun, sides: Sequence[pa.Table], compare: CompareRows, found: LocalFound) -> None:
    """Compare rows: those that all nodes have equally often are equal, others are aligned by key."""
    by_key: dict[bytes, list[tuple[bytes, list[int]]]] = defaultdict(list)
    for (key, row), counts in _unequal(sides).items():
        by_key[key].append((row, counts))
    batch: list[Difference] = []
    keys: list[bytes] = []
    for key, lines in by_key.items():
        differences = list(compare.differences(lines))
        batch += differences
        keys += [key] * bool(differences)
        if len(batch) >= _PACKED:
            found.add(batch, keys)
            batch, keys = [], []
            # Raises if a stop was requested.
            run.wait(0)
    if batch:
        found.add(batch, keys)


def _unequal(sides: Sequence[pa.Table]) -> dict[tuple[bytes, bytes], list[int]]:
    """Return the keys and rows that the nodes do not have equally often, and how often each node has them."""
    found: dict[tuple[bytes, bytes], list[int]] = {}
    is_unique = all(pc.count_distinct(side.column(1)).as_py() == side.num_rows for side in sides)
    rows = [side.column(1).combine_chunks() for side in sides]
    for number, side in enumerate(sides):
        if is_unique:
            # Those that all nodes have are equal: no Python per row.
            others = (pc.is_in(rows[number], other) for place, other in enumerate(rows) if place != number)
            side = side.filter(pc.invert(reduce(pc.and_, others)))
        for line in zip(*(column.to_pylist() for column in side.columns), strict=True):
            found.setdefault(line, [0] * len(sides))[number] += 1
    return {line: counts for line, counts in found.items() if len({*counts}) > 1}


def _write(file: IO[bytes], value: object, folder: Path) -> None:
    try:
        pickle.dump(value, file, pickle.HIGHEST_PROTOCOL)
    except OSError as error:
        raise StoreError(f"cannot write to {folder}: {error.strerror}", cure=cure_for(error)) from None
