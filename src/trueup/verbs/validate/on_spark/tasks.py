"""What the Python workers of Spark run: they merge the changes of a partition by key, and judge the keys.

All changes of a key are in one partition.
"""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from trueup.capture.log.slot import lsn_number
from trueup.capture.log.visible import wait_until_visible
from trueup.config.model import Node
from trueup.db.reader import borrow, close_idle
from trueup.engine.envelope import unpacked
from trueup.engine.garbage import freeze_imports
from trueup.engine.sealed import unsealed
from trueup.engine.stalls import beat, beating
from trueup.engine.work import Room, perform
from trueup.errors import TrueupError
from trueup.proof.touched import Cuts
from trueup.verbs.validate.batch import UNCHECKED, Touches, without_hidden
from trueup.verbs.validate.checks import MAX_KEYS_PER_TASK, collected
from trueup.verbs.validate.judge import RETRIES, Mismatch, judge, tasks_of
from trueup.verbs.validate.pending import TRUNCATE, Entry, TableKey, Touch
from trueup.verbs.validate.plan import Pair

if TYPE_CHECKING:
    import pyarrow as pa

RESULT = "result binary"
# The columns of the stream that the tasks get.
COLUMNS = ("table", "op", "key", "position", "xid", "committed_at")
_KEYED = ("insert", "update", "delete")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Part:
    """A result: at most MAX_KEYS_PER_TASK keys, so that the driver never holds those of a whole batch."""

    def __init__(self) -> None:
        self.touches: Touches = {}
        self.failed: dict[TableKey, Mismatch] = {}
        # Keys of transactions that are not visible yet.
        self.unseen: list[Entry] = []
        # In the first part of a partition: its changes by table and operation, its truncated tables, the number of its
        # rows, and, if the last row of the batch is among them, the positions and the number of rows of the batch.
        self.counts: dict[str, Counter[str]] = {}
        self.truncated: dict[str, Touch] = {}
        # Also in the first part: the numbers of the blocks that its keys belong to.
        self.blocks: set[int] = set()
        self.rows = 0
        self.start = self.end = 0
        self.expected = 0


@dataclass(frozen=True)
class Judging:
    """What the tasks need to judge keys."""

    pairs: dict[str, Pair]
    # Changes before this position were counted already.
    start: int
    nodes: tuple[Node, Node]
    application: str
    timeout: float
    tolerance: float
    # Whether results contain the equal keys too.
    with_proven: bool
    # The blocks of tables that have untouched ones.
    cuts: dict[str, Cuts]
    # Rows per second and task; 0: no limit.
    max_rows: float = 0.0
    # Where it is recorded that keys were judged; '': nowhere.
    file: str = ""


class JudgeKeys:
    """The function that Spark calls for each partition."""

    def __init__(self, judging: bytes) -> None:
        # Packed and sealed.
        self._judging = judging

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the results; an error is a result too, because Spark would run a failed task three more times."""
        import pyarrow as pa

        def row(result: Part | TrueupError) -> pa.RecordBatch:
            return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(result)], pa.binary())], ["result"])

        freeze_imports()
        try:
            for part in _judged(unpacked(unsealed(self._judging)), batches):
                yield row(part)
        except TrueupError as error:
            yield row(error)
        finally:
            close_idle()


def _judged(judging: Judging, batches: Iterator[pa.RecordBatch]) -> Iterator[Part]:
    merged = _Merged(judging.pairs, judging.start)
    for batch in batches:
        *columns, times = batch.columns
        # Lists of numbers are made 50 times faster than lists of times, and a transaction has one time.
        for change in zip(*(column.to_pylist() for column in (*columns, times.cast("int64"))), strict=True):
            merged.add(*change)
    touches, part = merged.touches, merged.part
    for table, cuts in judging.cuts.items():
        part.blocks |= cuts.touched_by(touches.get(table, ()))
    xids = {touch.xid for keys in touches.values() for touch in keys.values()}
    if xids:
        # The session is used again to read rows.
        with borrow(judging.nodes[0], None, application=judging.application, retries=RETRIES) as source:
            hidden = wait_until_visible(source.session(), xids)
        touches, part.unseen = without_hidden(touches, hidden)
    yield part
    free_at = time.monotonic()
    for table, keys in touches.items():
        for task in tasks_of(
            judging.pairs[table], list(keys), size=MAX_KEYS_PER_TASK, nodes=judging.nodes,
            application=judging.application, timeout=judging.timeout, tolerance=judging.tolerance,
        ):  # fmt: skip
            with beating(judging.file):
                time.sleep(max(0.0, free_at - time.monotonic()))
            if judging.max_rows:
                free_at = max(free_at, time.monotonic()) + len(task.keys) / judging.max_rows
            part = Part()
            part.failed = collected(perform(judge, task, Room()))
            beat(judging.file)
            failed = [key for _, key in part.failed]
            # A failed row that prints its key otherwise than the log does belongs to any of the keys.
            all_keys = judging.with_proven or any(key not in keys for key in failed)
            part.touches[table] = {key: keys[key] for key in (task.keys if all_keys else failed)}
            yield part


class _Merged:
    """The changes of a partition, merged by key."""

    def __init__(self, pairs: Mapping[str, Pair], start: int) -> None:
        self._start = start
        self.touches: Touches = {}
        self.part = Part()
        self._normal = {name: pair.normal() for name, pair in pairs.items()}
        self._last = 0, _EPOCH

    def add(self, table: str, op: str, key: list[Any], position: int, xid: int, micros: int) -> None:
        part = self.part
        if op == "position":
            part.start, part.end, part.expected = lsn_number(table), position, xid
            return
        part.rows += 1
        if op not in (*_KEYED, TRUNCATE) or position < self._start:
            return
        counts = part.counts.setdefault(table, Counter())
        if table not in self._normal or (op != TRUNCATE and not key):
            counts[UNCHECKED] += 1
            return
        counts[op] += 1
        touched = part.truncated if op == TRUNCATE else self.touches.setdefault(table, {})
        place: Any = table if op == TRUNCATE else self._normal[table](tuple(key))
        moment = self._time(micros)
        before = touched.get(place)
        if before is None:
            touched[place] = Touch(op, position, position, xid, moment)
        elif position >= before.last_lsn:
            touched[place] = Touch(op, before.first_lsn, position, xid, moment)
        else:
            touched[place] = Touch(before.op, min(before.first_lsn, position), before.last_lsn, before.xid, before.at)

    def _time(self, micros: int) -> datetime:
        if micros != self._last[0]:
            self._last = micros, _EPOCH + timedelta(microseconds=micros)
        return self._last[1]
