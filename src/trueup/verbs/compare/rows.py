"""Compare the rows of differing blocks on Spark, and keep the differences."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trueup.engine.local_rows import local_rows
from trueup.errors import CheckFailed
from trueup.rows.align import Difference, unpack
from trueup.task.compare.model import NOWHERE, Found
from trueup.verbs.compare.prepare import inexact
from trueup.verbs.compare.request import CompareRun

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@contextmanager
def compared_blocks(run: CompareRun, blocks: Collection[int]) -> Iterator[DataFrame]:
    """Yield the differences of these blocks, computed once."""
    from trueup.nodes.rows import differing_rows

    session = run.session()
    frames = {node.name: node.rows(session, run.plan, blocks) for node in run.nodes}
    with _computed(differing_rows(frames, run.plan, run.request.settings.long_value)) as found:
        yield found


@contextmanager
def compared_keys(run: CompareRun, keys: DataFrame) -> Iterator[DataFrame]:
    """Yield the differences of the current rows with these keys, computed once."""
    from trueup.nodes.rows import differing_rows

    session = run.session()
    frames = {node.name: node.rows_of(session, run.plan, keys) for node in run.nodes}
    with _computed(differing_rows(frames, run.plan, run.request.settings.long_value)) as found:
        yield found


@contextmanager
def _computed(found: DataFrame) -> Iterator[DataFrame]:
    from pyspark import StorageLevel

    kept = found.persist(StorageLevel.DISK_ONLY)
    try:
        # All partitions at once: an iterator computes one after the other.
        kept.count()
        yield kept
    finally:
        kept.unpersist()


def differences(found: DataFrame) -> Iterator[tuple[list[Difference], bytes]]:
    """Yield the differences in batches, also packed; one partition at a time is in memory."""
    for row in local_rows(found.select("packed")):
        packed = bytes(row[0])
        yield unpack(packed), packed


def keep(run: CompareRun, found: DataFrame) -> None:
    """Keep the differences, up to the limit."""
    for batch, packed in differences(found):
        run.state.add(Found(tuple(batch), origin=NOWHERE), packed)
    if run.state.suspects.count and not run.plan.key and not run.plan.is_exact:
        # Rows without a key are matched by their bytes.
        run.state.stopped = CheckFailed([inexact(run.plan)], cure="choose a key with --key")
    # Which block a difference is in is not known. Bytes of equal values may differ, and rows may change between two
    # looks without a snapshot.
    if run.state.suspects.count or not (run.plan.is_exact and run.is_held):
        run.state.unexplained.clear()
