"""The rows of the outputs of a step, from rows of the frame: Arrow batches in, columns out, without a loop over rows.

Executors get this module, `blocks` and `columns` with their tasks, so that trueup need not be installed there: they
import nothing but Arrow and numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from trueup.verbs.difflog.model import DELETED, FAST, SIGN, SINCE, SLOW, VERSION
from trueup.verbs.difflog.steps.blocks import BLOCKS, EMPTY, FASTER, KNOWN, MERGED, OLD, UNKNOWN
from trueup.verbs.difflog.steps.columns import Glue, LogColumns, StateColumns, StepColumns

BLOCK = "Block"
Columns = dict[str, pa.Array]
# Where a value of the fast supplier comes from: nowhere, the old state, or the newest visit.
_NOWHERE, _FROM_OLD, _FROM_NEW = 0, 1, 2


def named(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Return rows of the frame with the names of its columns, and types that allow NULL everywhere.

    Values of one column come from several columns of the frame, whose types must be equal.
    """
    arrays = [column if column.type == (kind := _nullable(column.type)) else column.cast(kind) for column in batch]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def _nullable(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_map(kind):
        return pa.map_(_nullable(kind.key_type), _nullable(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _nullable(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _nullable(one.type)) for one in kind])
    return kind


@dataclass(frozen=True)
class Signed:
    """The signed rows of a step, and what is needed to add the columns of the fast supplier."""

    # The rows of the frame that the step changes.
    applied: pa.RecordBatch
    columns: Columns
    # Of each signed row: the row of `applied`, the number of its block, and its versions.
    rows: Any
    blocks: Any
    slow: Any
    fast: Any


def signed(frame: pa.RecordBatch, step: StepColumns, log: LogColumns) -> Signed:
    """Return the signed log of a step for rows of the frame: the blocks of a key one after the other."""
    applied = frame.filter(frame.column(step.applied))
    old_fast, has_old = _numbers(applied.column(step.before.fast))
    new_fast, has_new = _numbers(applied.column(step.after.fast))
    old_slow, _ = _numbers(applied.column(step.before.slow))
    both = has_old & has_new
    when = {KNOWN: both & (old_fast <= new_fast), FASTER: both & (old_fast < new_fast), UNKNOWN: ~has_old}
    gone = {OLD: _flags(applied.column(step.before.deleted)), MERGED: _flags(applied.column(step.after.deleted))}
    written = [when[block.when] & ~gone[block.unless] if block.unless else when[block.when] for block in BLOCKS]
    rows, places = np.nonzero(np.stack(written, axis=1))
    slow = np.array([block.plus for block in BLOCKS], np.int64)[places]
    slow += np.where(np.array([block.after_old for block in BLOCKS])[places], old_slow[rows], 0)
    fast = np.where(np.array([block.fast == OLD for block in BLOCKS])[places], old_fast[rows], new_fast[rows])
    if len(slow) and int(slow.max()) * log.multiplier + int(fast.max()) > np.iinfo(np.int64).max:
        raise OverflowError(
            f"slow version {slow.max()} times the multiplier {log.multiplier} is too large for a version"
        )
    numbers = np.array([block.number for block in BLOCKS], np.int32)[places]
    every = pa.array(rows)
    columns = {name: applied.column(name).take(every) for name in log.key}
    columns |= {
        SIGN: pa.array(np.array([block.sign for block in BLOCKS], np.int8)[places]),
        SLOW: pa.array(slow),
        log.fast_version: pa.array(fast),
        VERSION: pa.array(log.multiplier * slow + fast),
        BLOCK: pa.array(numbers),
    }
    # The states of the blocks are taken from the columns before and after the step, one after the other.
    is_old, is_empty = (np.array([block.state == kind for block in BLOCKS])[places] for kind in (OLD, EMPTY))
    same = pa.array(rows, mask=is_empty)
    merged = pa.array(rows, mask=is_empty | is_old)
    either = pa.array(np.where(is_old, rows, rows + applied.num_rows), mask=is_empty)
    for name, after in step.after.columns.items():
        before = step.before.columns.get(name)
        if before == after:
            columns[name] = applied.column(after).take(same)
        elif before is None:
            columns[name] = applied.column(after).take(merged)
        else:
            columns[name] = pa.concat_arrays([applied.column(before), applied.column(after)]).take(either)
    return Signed(applied, columns, rows, numbers, slow, fast)


def signed_columns(frame: pa.RecordBatch, step: StepColumns, log: LogColumns) -> Columns:
    """Return the columns of the signed log of a step for rows of the frame."""
    return signed(frame, step, log).columns


def widened(signed: Signed, glue: Glue, *, of_visits: bool) -> Columns:
    """Return the signed rows with the dropped columns. Compensations have the values of the fast supplier.

    A row that cancels a state has the values of that state: in the step of the visits those before it. A compensation
    has the values of exactly its version, or none.
    """
    old, has_old = _numbers(signed.applied.column(glue.old_version))
    new, has_new = _numbers(signed.applied.column(glue.new_version))
    rows, fast = signed.rows, signed.fast
    exact = np.where((fast == old[rows]) & has_old[rows], _FROM_OLD, _NOWHERE)
    exact = np.where((fast == new[rows]) & has_new[rows], _FROM_NEW, exact)
    place = _newest(old, has_old, new, has_new)[rows]
    if of_visits:
        place = np.where(signed.blocks == 1, _FROM_OLD, place)
    compensation = signed.slow == 0
    place = np.where(compensation, exact, place)
    columns = {name: values for name, values in signed.columns.items() if name != BLOCK}
    for name in glue.names:
        if name in columns and name in glue.kept:
            values = _supplied(signed.applied, glue, name, rows, np.where(compensation, place, _NOWHERE))
            columns[name] = _where(compensation, values, columns[name])
        elif name not in columns:
            columns[name] = _supplied(signed.applied, glue, name, rows, place)
    return columns


def states(frame: pa.RecordBatch, names: StateColumns, log: LogColumns) -> Columns:
    """Return the states in these columns of the frame, under their own names."""
    return _states(frame, names, log, {})


def old_states(frame: pa.RecordBatch, names: StateColumns, log: LogColumns, glue: Glue) -> Columns:
    """Return the states before a run, with the values of the fast supplier."""
    old, has_old = _numbers(frame.column(glue.old_version))
    place = np.full(frame.num_rows, _FROM_OLD)
    return _states(frame, names, log, {FAST: (old, has_old)}) | _fast(frame, glue, place, has_old)


def new_states(frame: pa.RecordBatch, names: StateColumns, log: LogColumns, glue: Glue) -> Columns:
    """Return the states after a run, with the newest values of the fast supplier."""
    old, has_old = _numbers(frame.column(glue.old_version))
    new, has_new = _numbers(frame.column(glue.new_version))
    newest = np.where(has_new & (~has_old | (new > old)), new, old)
    known = has_old | has_new
    place = _newest(old, has_old, new, has_new)
    return _states(frame, names, log, {FAST: (newest, known)}) | _fast(frame, glue, place, known)


def _states(
    frame: pa.RecordBatch, names: StateColumns, log: LogColumns, versions: Mapping[str, tuple[Any, Any]]
) -> Columns:
    """Return states; `versions` are further fast versions for the column `Since`, and whether they are known."""
    fast, _ = _numbers(frame.column(names.fast))
    older = {}
    for name, column in names.since.items():
        version, known = _numbers(frame.column(column))
        older[name] = version, known & _valid(frame.column(names.columns[name]))
    older |= versions
    entries = {DELETED: _numbers(frame.column(names.cleared))}
    entries |= {name: (version, known & (version < fast)) for name, (version, known) in older.items()}
    columns = {name: frame.column(name) for name in log.key}
    columns |= {
        log.fast_version: frame.column(names.fast),
        SLOW: frame.column(names.slow),
        DELETED: pa.array(_flags(frame.column(names.deleted))),
        SINCE: _known_versions(entries, frame.num_rows),
    }
    return columns | {name: frame.column(column) for name, column in names.columns.items()}


def _known_versions(entries: Mapping[str, tuple[Any, Any]], count: int) -> pa.Array:
    """Return the known entries of each row as a map; most rows have none."""
    known = np.stack([is_known for _, is_known in entries.values()], axis=1)
    values = np.stack([version for version, _ in entries.values()], axis=1)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(known.sum(axis=1), out=offsets[1:])
    rows, places = np.nonzero(known)
    keys = pa.array(list(entries), pa.string()).take(pa.array(places))
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, pa.array(values[rows, places], pa.int64()))


def _fast(frame: pa.RecordBatch, glue: Glue, place: Any, known: Any) -> Columns:
    """Return the column `Fast`: the values of the fast supplier as a struct, NULL if none are known."""
    if not glue.names:
        return {}
    rows = np.arange(frame.num_rows)
    values = [_supplied(frame, glue, name, rows, place) for name in glue.names]
    return {FAST: pa.StructArray.from_arrays(values, names=list(glue.names), mask=pa.array(~known))}


def _newest(old: Any, has_old: Any, new: Any, has_new: Any) -> Any:
    """Return where the values of the newest version come from."""
    return np.where(has_new & (~has_old | (new >= old)), _FROM_NEW, _FROM_OLD)


def _supplied(frame: pa.RecordBatch, glue: Glue, name: str, rows: Any, place: Any) -> pa.Array:
    """Return a value of the fast supplier for rows of the frame, each from its place."""
    if name not in glue.old or name not in glue.new:
        wanted = _FROM_OLD if name in glue.old else _FROM_NEW
        return frame.column(glue.place(name)).take(pa.array(rows, mask=place != wanted))
    old, new = frame.column(glue.old_name(name)), frame.column(glue.new_name(name))
    index = np.where(place == _FROM_OLD, rows, rows + frame.num_rows)
    return pa.concat_arrays([old, new]).take(pa.array(index, mask=place == _NOWHERE))


def _where(condition: Any, one: pa.Array, other: pa.Array) -> pa.Array:
    """Return the values of `one` where the condition holds, else those of `other`; of any type."""
    index = np.arange(len(condition))
    return pa.concat_arrays([one, other]).take(pa.array(np.where(condition, index, index + len(one))))


def _numbers(column: pa.Array) -> tuple[Any, Any]:
    """Return the values of a column of integers, 0 for NULL, and which are not NULL."""
    return column.fill_null(0).to_numpy(zero_copy_only=False), _valid(column)


def _valid(column: pa.Array) -> Any:
    return column.is_valid().to_numpy(zero_copy_only=False)


def _flags(column: pa.Array) -> Any:
    """Return a column of booleans, false for NULL."""
    return column.fill_null(False).to_numpy(zero_copy_only=False)
