"""What travels between the driver and the Python workers of a cluster, and what is said when that goes wrong.

The envelope is opened only by the trueup that closed it: another version might read the same bytes as other tasks.
"""

from __future__ import annotations

import gc
import importlib
import pickle
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from trueup import __version__
from trueup.config.secrets import mask
from trueup.engine.work import Room, Work, perform
from trueup.errors import EngineError

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_BYTES = 512 * 1024
_NEEDED = ("psycopg",)
INSTALL = "install the same trueup for the Python of the executors (docs/clusters.md), or use --engine local"


class Slice:
    """What a Python worker runs: the tasks of its slice, results as Arrow batches of pickled objects."""

    def __init__(self, version: str, work: bytes, deals: Sequence[bytes]) -> None:
        self.version = version
        self.work = work
        self.deals = deals

    @classmethod
    def of(cls, work: Work[Any], deals: Sequence[Sequence[Any]], *, keep: bool) -> Slice:
        """The tasks of a wave, a list for each slice; sessions with the nodes are kept for the next wave or not."""
        return cls(__version__, _packed((work, keep)), [_packed(deal) for deal in deals])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        wrong = _reason_to_refuse(self.version)
        if wrong:
            # As a result, for an error would be tried again three times.
            yield _batch([wrong.encode()])
            return
        _settle()
        work, keep = _unpacked(self.work)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _results(work, _unpacked(self.deals[number]))
        if not keep:
            from trueup.db.reader import close_idle

            close_idle()


def _packed(contents: Any) -> bytes:
    # Compressed: smaller, and an address cannot be read in what Spark may show or write of a function.
    return zlib.compress(pickle.dumps(contents, pickle.HIGHEST_PROTOCOL), 1)


def _unpacked(contents: bytes) -> Any:
    return pickle.loads(zlib.decompress(contents))


def opened(result: bytes) -> Any:
    """A result on the driver; a worker that refused the work is an error."""
    # A pickle never begins like this.
    if result.startswith(_REFUSED.encode()):
        raise EngineError(result.decode(), cure=INSTALL)
    return pickle.loads(result)


def failed_job(error: Exception) -> EngineError:
    """Why a Spark job failed, in words that lead to the cure."""
    text = str(error)
    if "No module named 'trueup" in text:
        return EngineError("trueup is not installed on the executors", cure=INSTALL)
    if "PYTHON_VERSION_MISMATCH" in text:
        mine = f"{sys.version_info.major}.{sys.version_info.minor}"
        return EngineError(
            f"the executors run another Python than this one ({mine})",
            cure="set spark.pyspark.python (or PYSPARK_PYTHON) to the same version on the executors",
        )
    # The last error of a traceback is the cause; around it stand Spark's own words.
    causes = re.findall(r"^\s*((?:\w+\.)*\w*(?:Error|Exception)\b: .+)$", text, re.MULTILINE)
    first = next((line for line in text.splitlines() if line.strip()), "")
    return EngineError(
        mask(f"the Spark job failed: {causes[-1] if causes else f'{type(error).__name__}: {first.strip()}'}"),
        cure="look at the executors' logs, or try --engine local",
    )


_REFUSED = "the executors "


def _reason_to_refuse(version: str) -> str:
    if version != __version__:
        return f"{_REFUSED}have trueup {__version__}, and this is trueup {version}"
    for name in _NEEDED:
        try:
            importlib.import_module(name)
        except ImportError as error:
            return f"{_REFUSED}lack the package {name}, which trueup needs ({error})"
    return ""


def _results(work: Work[Any], tasks: Sequence[Any]) -> Iterator[pa.RecordBatch]:
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
    if waiting:
        yield _batch(waiting)


def _batch(results: list[bytes]) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.array(results, pa.binary())], ["result"])


_settled = False


def _settle() -> None:
    """Once a worker: Spark collects all garbage after every slice, which is slow with a large import behind us."""
    global _settled
    if not _settled:
        gc.freeze()
        _settled = True
