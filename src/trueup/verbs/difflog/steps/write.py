"""Writes all outputs of a run from files of the frame, in one pass: the task of an executor, or of the driver.

Executors get this module with their tasks, as `rows`. A task that runs twice writes files of other names; only those
that it returns are part of an output.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trueup.verbs.difflog.steps.columns import Glue, LogColumns, StateColumns, StepColumns
from trueup.verbs.difflog.steps.rows import Columns, named, new_states, old_states, signed, states, widened

# The outputs that are not of a source or a span; and the rows of the frame that a task has read.
OLD, NEW, WIDE = "old", "new", "wide"
READ = "read"
# An INSERT of one file into ClickHouse is atomic up to about a million rows.
ROWS_PER_FILE = 500_000
# What a task holds in memory: rows of the frame, and rows of each output that are not written yet.
ROWS_AT_A_TIME, BYTES_AT_A_TIME = 65_536, 16 * 2**20
ROWS_PER_GROUP, BYTES_PER_GROUP = 125_000, 16 * 2**20


@dataclass(frozen=True)
class Span:
    """States that begin at a step: those that it changed, or others, because their files begin there."""

    # The number of the step.
    number: int
    step: StepColumns
    is_change: bool
    # Later steps: the column that says whether the step changes a state, and its number. Then the last possible end.
    later: tuple[tuple[str, int], ...]
    limit: int

    @property
    def ends(self) -> list[int]:
        """The steps before which a state of the span may end."""
        return [*[number for _, number in self.later], self.limit]


@dataclass(frozen=True)
class OutputPlan:
    """What is written from a frame."""

    # The columns of the frame, in the order of its files, which may have more.
    names: tuple[str, ...]
    log: LogColumns
    # The states before the first step, and after the last one.
    first: StateColumns
    last: StateColumns
    steps: Mapping[str, StepColumns]
    # The source of the rows of the fast supplier.
    entity: str
    glue: Glue
    spans: tuple[Span, ...]
    # The columns of the wide log, each with a column of the frame that has its type; "" if every step has it.
    wide: Mapping[str, str]
    # What Spark writes into the footers, by output.
    footers: Mapping[str, Mapping[str, str]]


def signed_of(source: str) -> str:
    """Return the name of the signed log of a step."""
    return f"signed/{source}"


def span_of(span: Span, end: int) -> str:
    """Return the name of the states of a span that end before this step."""
    return f"span/{span.number}-{'changed' if span.is_change else 'others'}-{end}"


@dataclass(frozen=True)
class Written:
    """A file that a task has written: the output that it belongs to, its path in the folder, and its rows.

    One without a path has the number of rows that the task has read.
    """

    output: str
    path: str
    rows: int


def write_files(paths: Sequence[str], plan: OutputPlan, folder: str) -> list[Written]:
    """Write the rows of all outputs for these files of the frame into a folder, and return the files."""
    token = uuid.uuid4().hex
    outputs: dict[str, Output] = {}
    read = 0
    try:
        for frame in batches(paths, plan.names):
            read += frame.num_rows
            for name, columns in _rows(frame, plan):
                if name not in outputs:
                    outputs[name] = Output(name, folder, token, plan.footers[name])
                outputs[name].add(columns)
        for output in outputs.values():
            output.close()
    except BaseException:
        for output in outputs.values():
            output.give_up()
        raise
    return [Written(READ, "", read), *[written for output in outputs.values() for written in output.written]]


def batches(paths: Sequence[str], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files of the frame, in parts of limited size."""
    for path in paths:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_rows_at_a_time(file), columns=[f"c{n}" for n in range(len(names))]):
                yield named(batch, names)


def _rows_at_a_time(file: pq.ParquetFile) -> int:
    """Return how many rows of a file are processed together: fewer if they are long."""
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    longest = max((group.total_byte_size // max(group.num_rows, 1) for group in groups), default=0)
    return max(1, min(ROWS_AT_A_TIME, BYTES_AT_A_TIME // max(longest, 1)))


def _rows(frame: pa.RecordBatch, plan: OutputPlan) -> Iterator[tuple[str, Columns]]:
    """Yield the rows of each output for rows of the frame."""
    yield OLD, old_states(frame.filter(frame.column(plan.first.fast).is_valid()), plan.first, plan.log, plan.glue)
    yield NEW, new_states(frame.filter(frame.column(plan.last.fast).is_valid()), plan.last, plan.log, plan.glue)
    for source, step in plan.steps.items():
        rows = signed(frame, step, plan.log)
        yield signed_of(source), rows.columns
        wide = widened(rows, plan.glue, of_visits=source == plan.entity)
        yield WIDE, {name: _column(wide, name, frame, column, len(rows.rows)) for name, column in plan.wide.items()}
    for span in plan.spans:
        yield from _of_span(frame, span, plan.log)


def _column(columns: Columns, name: str, frame: pa.RecordBatch, column: str, count: int) -> pa.Array:
    """Return a column of the wide log; a step without it has NULL."""
    return columns[name] if name in columns else pa.nulls(count, frame.schema.field(column).type)


def _of_span(frame: pa.RecordBatch, span: Span, log: LogColumns) -> Iterator[tuple[str, Columns]]:
    """Yield the states of a span, by the step at which they end."""
    changed = _true(frame, span.step.applied)
    known = frame.column(span.step.after.fast).is_valid().to_numpy(zero_copy_only=False)
    begins = changed if span.is_change else ~changed & known
    end = np.full(frame.num_rows, span.limit)
    for applied, number in reversed(span.later):
        end = np.where(_true(frame, applied), number, end)
    for number in span.ends:
        rows = frame.filter(pa.array(begins & (end == number)))
        yield span_of(span, number), states(rows, span.step.after, log)


def _true(frame: pa.RecordBatch, column: str) -> np.ndarray:
    values: np.ndarray = frame.column(column).fill_null(False).to_numpy(zero_copy_only=False)
    return values


class Output:
    """The files of one output that one task writes: opened when it has rows, of limited size."""

    def __init__(self, name: str, folder: str, token: str, footer: Mapping[str, str]) -> None:
        self.name = name
        self.folder = folder
        self.token = token
        self.footer = dict(footer)
        self.written: list[Written] = []
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._file: pq.ParquetWriter | None = None
        self._path = ""
        self._rows = 0

    def add(self, columns: Columns) -> None:
        """Add rows; they are written in groups."""
        batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        if batch.num_rows:
            self._waiting.append(batch)
            self._waiting_rows += batch.num_rows
            self._waiting_bytes += batch.nbytes
        if self._waiting_rows >= ROWS_PER_GROUP or self._waiting_bytes >= BYTES_PER_GROUP:
            self._write()

    def close(self) -> None:
        """Write what waits, and complete the file."""
        self._write()
        self._complete()

    def give_up(self) -> None:
        """Close the file after an error, which is the one to report."""
        with suppress(Exception):
            self._complete()

    def _write(self) -> None:
        table = pa.Table.from_batches(self._waiting) if self._waiting else None
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        while table is not None and table.num_rows:
            part = table.slice(0, ROWS_PER_FILE - self._rows)
            table = table.slice(part.num_rows)
            if self._file is None:
                self._open(part.schema)
            assert self._file is not None
            self._file.write_table(part)
            self._rows += part.num_rows
            if self._rows == ROWS_PER_FILE:
                self._complete()

    def _open(self, schema: pa.Schema) -> None:
        os.makedirs(os.path.join(self.folder, self.name), exist_ok=True)
        self._path = f"{self.name}/part-{self.token}-{len(self.written):05d}.snappy.parquet"
        self._file = pq.ParquetWriter(
            os.path.join(self.folder, self._path),
            schema,
            compression="snappy",
            store_schema=False,
            store_decimal_as_integer=True,
        )
        self._file.add_key_value_metadata(self.footer)

    def _complete(self) -> None:
        if self._file is not None:
            self._file.close()
            self.written.append(Written(self.name, self._path, self._rows))
        self._file, self._rows = None, 0
