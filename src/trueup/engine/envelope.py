"""What the driver and the Python workers of a cluster exchange, and the errors when that fails.

A worker with another version of trueup refuses the tasks: it could read the same bytes as other tasks.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from trueup import __version__
from trueup.db.reader import close_idle
from trueup.engine.failures import INSTALL, REFUSED
from trueup.engine.garbage import freeze_imports
from trueup.engine.sealed import remove, sealed, unsealed
from trueup.engine.stalls import beat
from trueup.engine.work import Finished, Room, Work, check_finished, perform
from trueup.errors import EngineError

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_BYTES = 512 * 1024
# The mark, as a worker packs it.
FINISHED = pickle.dumps(Finished(), pickle.HIGHEST_PROTOCOL)


class Slice:
    """What a Python worker runs: the tasks of its slice; answers are Arrow batches of pickled objects."""

    def __init__(self, version: str, contents: bytes, slices: int, file: str = "") -> None:
        self.version = version
        # The work and the deals, or the file that has them.
        self.contents = contents
        self.slices = slices
        self.file = file

    @classmethod
    def of(cls, work: Work[Any], deals: Sequence[Sequence[Any]], *, keep: bool, file: str = "") -> Slice:
        """Pack the tasks of a wave, one list per slice; `keep` the sessions with the nodes for the next wave.

        The end of each task is recorded in `file`, if there is one. When the job has ended, `close` it.
        """
        contents = pickle.dumps((packed((work, keep)), [packed(deal) for deal in deals]), pickle.HIGHEST_PROTOCOL)
        return cls(__version__, sealed(contents), len(deals), file)

    def close(self) -> None:
        """Remove the file of the contents, if there is one."""
        remove(self.contents)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reason = _reason_to_refuse(self.version)
        if reason:
            # As an answer: Spark would retry an error three times.
            yield _batch([reason.encode()])
            return
        freeze_imports()
        packed_work, deals = pickle.loads(unsealed(self.contents))
        work, keep = unpacked(packed_work)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _results(work, unpacked(deals[number]), self.file)
        if not keep:
            close_idle()


def packed(contents: Any) -> bytes:
    """Pickle what is sent to workers."""
    # Compressed: smaller, and no address is readable where Spark shows or logs a function.
    return zlib.compress(pickle.dumps(contents, pickle.HIGHEST_PROTOCOL), 1)


def unpacked(contents: bytes) -> Any:
    """Return what `packed` has pickled."""
    return pickle.loads(zlib.decompress(contents))


def check_complete(results: Sequence[bytes], tasks: int) -> None:
    """Raise if one of this many tasks is not finished, or was refused."""
    for result in results:
        if result.startswith(REFUSED.encode()):
            opened(result)
    check_finished(results.count(FINISHED), tasks)


def opened(result: bytes) -> Any:
    """Return an answer on the driver; raise if the worker refused the tasks."""
    # No pickle starts with this text.
    if result.startswith(REFUSED.encode()):
        raise EngineError(result.decode(), cure=INSTALL)
    return pickle.loads(result)


def _reason_to_refuse(version: str) -> str:
    if version != __version__:
        return f"{REFUSED}have trueup {__version__}, the driver has trueup {version}"
    return ""


def _results(work: Work[Any], tasks: Sequence[Any], file: str) -> Iterator[pa.RecordBatch]:
    room = Room()
    waiting: list[bytes] = []
    size = 0
    for task in tasks:
        for result in perform(work, task, room):
            data = pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
            waiting.append(data)
            size += len(data)
            if size > _BATCH_BYTES:
                yield _batch(waiting)
                waiting, size = [], 0
        beat(file)
    if waiting:
        yield _batch(waiting)


def _batch(results: list[bytes]) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.array(results, pa.binary())], ["result"])
