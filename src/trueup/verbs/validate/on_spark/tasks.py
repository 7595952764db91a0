"""What the Python workers of Spark run: they judge the keys of a partition. A key is in one partition only."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from trueup.capture.log.visible import wait_until_visible
from trueup.config.model import Node
from trueup.db.node import connect
from trueup.db.reader import close_idle
from trueup.engine.work import Room, perform
from trueup.errors import TrueupError
from trueup.verbs.validate.batch import Touches, without_hidden
from trueup.verbs.validate.checks import MAX_KEYS_PER_TASK, collected
from trueup.verbs.validate.judge import Mismatch, judge, tasks_of
from trueup.verbs.validate.pending import Entry, TableKey, Touch
from trueup.verbs.validate.plan import Pair

if TYPE_CHECKING:
    import pyarrow as pa

RESULT = "result binary"


class Part:
    """The result of one task: at most MAX_KEYS_PER_TASK keys, so that the driver never holds those of a whole batch."""

    def __init__(self) -> None:
        self.touches: Touches = {}
        self.failed: dict[TableKey, Mismatch] = {}
        # Keys of transactions that are not visible yet.
        self.unseen: list[Entry] = []


class JudgeKeys:
    """The function that Spark calls for each partition; with `with_proven`, the result contains the equal keys too."""

    def __init__(
        self,
        pairs: dict[str, Pair],
        nodes: tuple[Node, Node],
        application: str,
        timeout: float,
        tolerance: float,
        *,
        with_proven: bool,
    ) -> None:
        self._pickled = pickle.dumps((pairs, nodes, application, timeout, tolerance, with_proven))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the results; an error is a result too, because Spark would run a failed task three more times."""
        import pyarrow as pa

        def row(result: Part | TrueupError) -> pa.RecordBatch:
            return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(result)], pa.binary())], ["result"])

        try:
            for part in self._judged(batches):
                yield row(part)
        except TrueupError as error:
            yield row(error)
        finally:
            close_idle()

    def _judged(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Part]:
        pairs, nodes, application, timeout, tolerance, with_proven = pickle.loads(self._pickled)
        touches = _touches(batches, pairs)
        xids = {touch.xid for keys in touches.values() for touch in keys.values()}
        if not xids:
            return
        connection = connect(nodes[0], application=application)
        try:
            hidden = wait_until_visible(connection, xids)
        finally:
            connection.close()
        part = Part()
        touches, part.unseen = without_hidden(touches, hidden)
        yield part
        for table, keys in touches.items():
            for task in tasks_of(
                pairs[table], list(keys), size=MAX_KEYS_PER_TASK, nodes=nodes, application=application,
                timeout=timeout, tolerance=tolerance,
            ):  # fmt: skip
                part = Part()
                part.failed = collected(perform(judge, task, Room()))
                failed = [key for _, key in part.failed]
                # A failed row that prints its key otherwise than the log does belongs to any of the keys.
                all_keys = with_proven or any(key not in keys for key in failed)
                part.touches[table] = {key: keys[key] for key in (task.keys if all_keys else failed)}
                yield part


def _touches(batches: Iterator[pa.RecordBatch], pairs: Mapping[str, Pair]) -> Touches:
    normal = {name: pair.normal() for name, pair in pairs.items()}
    touches: Touches = {}
    for batch in batches:
        columns = [batch.column(place).to_pylist() for place in range(batch.num_columns)]
        for table, key, first, position, xid, op, moment in zip(*columns, strict=True):
            if table in normal:
                touches.setdefault(table, {})[normal[table](tuple(key))] = Touch(op, first, position, xid, moment)
    return touches
