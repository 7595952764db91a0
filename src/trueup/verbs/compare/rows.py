"""Compare the rows of differing blocks, on Spark or in this process, and keep the differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Union

from trueup.engine.local_rows import local_rows
from trueup.errors import CheckFailed
from trueup.rows.align import Difference, unpack
from trueup.task.compare.model import NOWHERE
from trueup.task.compare.model import Found as Answer
from trueup.verbs.compare.prepare import inexact
from trueup.verbs.compare.request import CompareRun

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Encoded keys: in a list or, on Spark, in a frame.
Keys = Union[list[bytes], "DataFrame"]


class Found(Protocol):
    """The differences between the rows of some blocks or keys."""

    def batches(self) -> Iterator[tuple[list[Difference], bytes]]:
        """Yield the differences in batches, also packed."""

    def keys(self) -> Keys:
        """Return the encoded keys of the differences."""


@dataclass(frozen=True)
class SparkFound:
    """Differences that Spark has computed."""

    frame: DataFrame

    def batches(self) -> Iterator[tuple[list[Difference], bytes]]:
        """Yield the differences; one partition at a time is in memory."""
        for row in local_rows(self.frame.select("packed")):
            packed = bytes(row[0])
            yield unpack(packed), packed

    def keys(self) -> DataFrame:
        """Return the encoded keys of the differences."""
        return self.frame.selectExpr("explode(keys) AS k").distinct()


@contextmanager
def compared_blocks(run: CompareRun, blocks: Mapping[int, int]) -> Iterator[Found]:
    """Yield the differences of these blocks, computed once; per block, its rows on all nodes together."""
    if run.is_local:
        # Not above: the import of Arrow takes longer than many a command.
        from trueup.verbs.compare.local_rows import local_blocks

        with local_blocks(run, blocks, sum(blocks.values())) as found:
            yield found
        return
    session = run.session()
    with _on_spark(run, {node.name: node.rows(session, run.plan, blocks) for node in run.nodes}) as computed:
        yield computed


@contextmanager
def compared_keys(run: CompareRun, keys: Keys) -> Iterator[Found]:
    """Yield the differences of the current rows with these keys, computed once."""
    if isinstance(keys, list):
        from trueup.verbs.compare.local_rows import local_keys

        with local_keys(run, keys) as found:
            yield found
        return
    session = run.session()
    with _on_spark(run, {node.name: node.rows_of(session, run.plan, keys) for node in run.nodes}) as computed:
        yield computed


@contextmanager
def _on_spark(run: CompareRun, frames: Mapping[str, DataFrame]) -> Iterator[SparkFound]:
    from pyspark import StorageLevel

    from trueup.nodes.spark_rows import differing_rows

    kept = differing_rows(frames, run.plan, run.request.settings.long_value).persist(StorageLevel.DISK_ONLY)
    try:
        # All partitions at once: an iterator computes one after the other.
        kept.count()
        yield SparkFound(kept)
    finally:
        kept.unpersist()


def keep(run: CompareRun, found: Found) -> None:
    """Keep the differences, up to the limit."""
    for batch, packed in found.batches():
        run.state.add(Answer(tuple(batch), origin=NOWHERE), packed)
    if run.state.suspects.count and not run.plan.key and not run.plan.is_exact:
        # Rows without a key are matched by their bytes.
        run.state.stopped = CheckFailed([inexact(run.plan)], cure="choose a key with --key")
    # Which block a difference is in is not known. Bytes of equal values may differ, and rows may change between two
    # looks without a snapshot.
    if run.state.suspects.count or not (run.plan.is_exact and run.is_held):
        run.state.unexplained.clear()
