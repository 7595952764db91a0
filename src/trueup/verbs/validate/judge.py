"""Compares the rows of some keys on both nodes: first their hashes, then the columns of rows whose hashes differ.

The target is always read before the source. So if the source has no newer change of a key up to the moment it was read,
the target was wrong when it was read, and no change of this key was in flight.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trueup.config.model import Node
from trueup.config.wording import counted
from trueup.db.reader import Reader, borrow
from trueup.engine.work import Room
from trueup.rows.encode import LongValue, Value, same, trim_scale
from trueup.rows.fetch import Row, rows_by_key
from trueup.rows.keys import KeyValues
from trueup.rows.spec import with_new_seed
from trueup.verbs.validate.plan import Pair, is_float

Kind = Literal["missing", "extra", "changed"]
RETRIES = 2


@dataclass(frozen=True)
class Check:
    """One task: some keys of one table."""

    pair: Pair
    keys: tuple[KeyValues, ...]
    source: Node
    target: Node
    application: str
    timeout: float
    tolerance: float = 0.0

    def __str__(self) -> str:
        return f"{counted(len(self.keys), 'key')} of {self.pair.name}"


@dataclass(frozen=True)
class Mismatch:
    """A key whose rows differ: `missing` on the target, `extra` there, or `changed` in some columns."""

    key: KeyValues
    kind: Kind
    columns: tuple[str, ...]
    source_row: dict[str, Any] | None
    target_row: dict[str, Any] | None
    # SHA-256 of the compared values, equal for equal rows: later checks compare them with those of earlier ones.
    source_digest: str | None
    target_digest: str | None


@dataclass(frozen=True)
class Judged:
    """The result of one task; keys that are not in `failed` are equal on both nodes."""

    table: str
    keys: tuple[KeyValues, ...]
    failed: tuple[Mismatch, ...]


def judge(task: Check, room: Room) -> Iterator[Judged]:
    """Compare the keys of one task."""
    with (
        borrow(task.target, None, application=task.application, retries=RETRIES) as target,
        borrow(task.source, None, application=task.application, retries=RETRIES) as source,
    ):
        suspects = _differing(task, target, source)
        failed = tuple(_compared(task, suspects, target, source)) if suspects else ()
    room.take(200 * len(failed))
    yield Judged(task.pair.name, task.keys, failed)


def _differing(task: Check, target: Reader, source: Reader) -> list[KeyValues]:
    """Return the keys whose row hashes differ, with a seed that is not known before the rows are read."""
    one, other = with_new_seed(task.pair.source, task.pair.target)
    target_rows = rows_by_key(target, other, task.keys, values=False, timeout=task.timeout)
    source_rows = rows_by_key(source, one, task.keys, values=False, timeout=task.timeout)
    if source_rows == target_rows:
        return []
    # A row may print its key otherwise than the log does. It is compared under the key that it prints.
    keys = dict.fromkeys((*task.keys, *source_rows, *target_rows))
    return [key for key in keys if source_rows.get(key) != target_rows.get(key)]


def _compared(task: Check, keys: Sequence[KeyValues], target: Reader, source: Reader) -> Iterator[Mismatch]:
    """Yield the keys whose values differ."""
    pair = task.pair
    one, other = with_new_seed(pair.source, pair.detail)
    target_rows = rows_by_key(target, other, keys, values=True, timeout=task.timeout)
    source_rows = rows_by_key(source, one, keys, values=True, timeout=task.timeout)
    for key in keys:
        mismatch = _mismatch(pair, key, source_rows.get(key), target_rows.get(key), task.tolerance)
        if mismatch is not None:
            yield mismatch


def _mismatch(pair: Pair, key: KeyValues, source: Row | None, target: Row | None, tolerance: float) -> Mismatch | None:
    if source is None and target is None:
        return None
    kind: Kind = "missing" if target is None else "extra" if source is None else "changed"
    columns: tuple[str, ...] = ()
    if source is not None and target is not None:
        columns = _changed(pair, source.values or (), target.values or (), tolerance)
        if not columns:
            return None
    names = pair.source.column_names
    constants = tuple(name for name, _ in pair.constants)
    return Mismatch(
        key,
        kind,
        columns,
        None if source is None else _plain(names, source.values or ()),
        None if target is None else _plain((*names, *constants), target.values or ()),
        _digest(pair, source),
        _digest(pair, target),
    )


def _digest(pair: Pair, row: Row | None) -> str | None:
    """Return the SHA-256 of the compared values of a row, and of constants that are wrong: equal for equal rows."""
    if row is None:
        return None
    parts: list[Any] = []
    for column, other, value in zip(pair.source.columns, pair.target.columns, row.values or (), strict=False):
        if isinstance(value, LongValue):
            parts.append([value.length, value.sha256])
        elif value is not None and "numeric" in (column.encoding, other.encoding) and pair.source.numeric == "value":
            parts.append(trim_scale(value))
        else:
            parts.append(value)
    # A row of the source has none.
    constants = (row.values or ())[len(pair.source.columns) :]
    parts += [
        [name, str(value)]
        for (name, expected), value in zip(pair.constants, constants, strict=False)
        if value != expected
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _changed(pair: Pair, source: Sequence[Value], target: Sequence[Value], tolerance: float) -> tuple[str, ...]:
    """Return the names of the columns whose values differ."""
    names = []
    for column, other, left, right in zip(pair.source.columns, pair.target.columns, source, target, strict=False):
        lenient = other if other.encoding == "numeric" else column
        if same(lenient, left, right, pair.source.numeric):
            continue
        if tolerance and is_float(column) and is_float(other) and _near(left, right, tolerance):
            continue
        names.append(column.name)
    constants = zip(pair.constants, target[len(pair.source.columns) :], strict=True)
    return (*names, *(name for (name, expected), value in constants if value != expected))


def _near(left: Value, right: Value, tolerance: float) -> bool:
    if not isinstance(left, str) or not isinstance(right, str):
        return False
    return math.isclose(float(left), float(right), rel_tol=tolerance, abs_tol=0.0)


def _plain(names: Sequence[str], values: Sequence[Value]) -> dict[str, Any]:
    return {
        name: {"length": value.length, "sha256": value.sha256} if isinstance(value, LongValue) else value
        for name, value in zip(names, values, strict=True)
    }


def tasks_of(
    pair: Pair,
    keys: Sequence[KeyValues],
    *,
    size: int,
    nodes: tuple[Node, Node],
    application: str,
    timeout: float,
    tolerance: float,
) -> Iterator[Check]:
    """Split the keys of a table into tasks of at most `size` keys."""
    for first in range(0, len(keys), size):
        yield Check(pair, tuple(keys[first : first + size]), *nodes, application, timeout, tolerance)
