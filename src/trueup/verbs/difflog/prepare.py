"""Checks all inputs of a run and computes its frame, before the run is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from trueup.engine.bulk_session import changed_settings
from trueup.errors import CheckFailed
from trueup.verbs.difflog import chunks, input_checks, value_checks
from trueup.verbs.difflog.counts import Counts, count_refused
from trueup.verbs.difflog.frame import run_frame
from trueup.verbs.difflog.manifest import Run, Runs
from trueup.verbs.difflog.model import DiffLogConfig
from trueup.verbs.difflog.outputs import Outputs, check_table
from trueup.verbs.difflog.record import LogRecord
from trueup.verbs.difflog.state import StateTable
from trueup.verbs.difflog.stored import StoredFrame, discard_frame

# Arrays of updates are collected from sorted rows: a hash table of them would be sorted after its first 128 keys.
SORTED = {"spark.sql.execution.useObjectHashAggregateExec": "false"}


@contextmanager
def prepared(
    session: SparkSession, difflog: DiffLogConfig, table: StateTable, runs: Runs, current: Run, record: LogRecord
) -> Iterator[Outputs]:
    """Check all inputs, compute the frame, and only then record the run: what fails before leaves nothing behind."""
    with value_checks.input_errors(current):
        is_new = not current.is_recorded
        if is_new:
            input_checks.check_all_read(difflog, runs.work, runs.files())
            names, schema = current.facts["chunks"], table.schema()
            current.facts["files"] = input_checks.check_chunk_sets(difflog, runs.work, names, schema)
        else:
            input_checks.check_unchanged(difflog, runs.work, current.facts["files"], current.number)
        updates = _read_updates(session, difflog, runs, current.facts)
        updates = chunks.typed_keys(difflog, updates, table.schema())
        try:
            with changed_settings(session, SORTED):
                frame = run_frame(session, difflog, table, current, updates)
                stored = value_checks.check_values(difflog, updates, frame)
            stored = replace(stored, counts=_with_refused(difflog, stored, current.facts))
            outputs = Outputs(session, difflog, current, stored)
            check_table(difflog, outputs.wide_schema)
            if is_new:
                record.write(table, runs)
                current.begin()
            yield outputs
        finally:
            discard_frame(runs.work)


def _with_refused(difflog: DiffLogConfig, stored: StoredFrame, facts: dict[str, Any]) -> Counts:
    """Add the numbers of refused rows; they are counted only if the frame has fewer updates than the files."""
    if not facts["late_from"] and stored.counts.updates == chunks.row_count(difflog, facts):
        return stored.counts
    return replace(stored.counts, refused=count_refused(stored.frame.refused))


def _read_updates(
    session: SparkSession, difflog: DiffLogConfig, runs: Runs, facts: dict[str, Any]
) -> dict[str, DataFrame]:
    """Read the updates per source: those of the chunk sets, and late rows of earlier runs that are joined now."""
    late = [runs.folder / f"{number:06d}" / "late" for number in facts["late_from"]]
    updates = {}
    for source in chunks.sources(difflog):
        frames = [chunks.read_source(session, difflog, runs.work, facts["chunks"], source)]
        frames += [chunks.read_late(session, folder / source) for folder in late]
        present = [frame for frame in frames if frame is not None]
        if present:
            updates[source] = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), present)
    if not updates:
        raise CheckFailed([f"{folder} with late rows does not exist" for folder in late], cure="restore the folder")
    return updates
