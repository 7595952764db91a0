"""Are the rows of some keys the same on both sides? First their hashes, then the columns of those that differ.

The target is always read before the source. So if the source had no newer change of a key when it was read, the target
was wrong when it was read: nothing can have been on its way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trueup.config.model import Node
from trueup.db.reader import Reader, borrow
from trueup.engine.work import Room
from trueup.rows.encode import LongValue, Value, same
from trueup.rows.fetch import Row, rows_by_key
from trueup.rows.keys import KeyValues
from trueup.verbs.validate.plan import Pair, is_float

Kind = Literal["missing", "extra", "changed"]
_RETRIES = 2


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
        return f"{len(self.keys)} keys of {self.pair.name}"


@dataclass(frozen=True)
class Mismatch:
    """A key on which the sides disagree: `missing` on the target, `extra` there, or `changed` in some columns."""

    key: KeyValues
    kind: Kind
    columns: tuple[str, ...]
    source_row: dict[str, Any] | None
    target_row: dict[str, Any] | None
    source_hash: int | None
    target_hash: int | None


@dataclass(frozen=True)
class Judged:
    """What came out of one task; keys that are not among `failed` are proven."""

    table: str
    keys: tuple[KeyValues, ...]
    failed: tuple[Mismatch, ...]


def judge(task: Check, room: Room) -> Iterator[Judged]:
    """Work on one task."""
    with (
        borrow(task.target, None, application=task.application, retries=_RETRIES) as target,
        borrow(task.source, None, application=task.application, retries=_RETRIES) as source,
    ):
        suspects = _differing(task, target, source)
        failed = tuple(_compared(task, suspects, target, source)) if suspects else ()
    room.take(200 * len(failed))
    yield Judged(task.pair.name, task.keys, failed)


def _differing(task: Check, target: Reader, source: Reader) -> list[KeyValues]:
    pair = task.pair
    theirs = rows_by_key(target, pair.target, task.keys, values=False, timeout=task.timeout)
    mine = rows_by_key(source, pair.source, task.keys, values=False, timeout=task.timeout)
    asked = set(task.keys)
    # A row that prints its key otherwise than the log does is compared under its own name.
    printed = mine.keys() - asked or theirs.keys() - asked
    others = [key for key in {**mine, **theirs} if key not in asked] if printed else []
    if not others and mine == theirs:
        return []
    return [key for key in (*task.keys, *others) if mine.get(key) != theirs.get(key)]


def _compared(task: Check, keys: Sequence[KeyValues], target: Reader, source: Reader) -> Iterator[Mismatch]:
    pair = task.pair
    theirs = rows_by_key(target, pair.detail, keys, values=True, timeout=task.timeout)
    mine = rows_by_key(source, pair.source, keys, values=True, timeout=task.timeout)
    for key in keys:
        found = _mismatch(pair, key, mine.get(key), theirs.get(key), task.tolerance)
        if found is not None:
            yield found


def _mismatch(pair: Pair, key: KeyValues, mine: Row | None, theirs: Row | None, tolerance: float) -> Mismatch | None:
    if mine is None and theirs is None:
        return None
    names = pair.source.column_names
    source_row = None if mine is None else _plain(names, mine.values or ())
    more = tuple(name for name, _ in pair.constants)
    target_row = None if theirs is None else _plain((*names, *more), theirs.values or ())
    source_hash = None if mine is None else mine.hash
    target_hash = None if theirs is None else theirs.hash
    kind: Kind = "missing" if theirs is None else "extra" if mine is None else "changed"
    columns: tuple[str, ...] = ()
    if mine is not None and theirs is not None:
        columns = _changed(pair, mine.values or (), theirs.values or (), tolerance)
        if not columns:
            return None
    return Mismatch(key, kind, columns, source_row, target_row, source_hash, target_hash)


def _changed(pair: Pair, mine: Sequence[Value], theirs: Sequence[Value], tolerance: float) -> tuple[str, ...]:
    found = []
    for at, column in enumerate(pair.source.columns):
        other = pair.target.columns[at]
        left, right = mine[at], theirs[at]
        lenient = other if other.encoding == "numeric" else column
        if same(lenient, left, right, pair.source.numeric):
            continue
        if tolerance and is_float(column) and is_float(other) and _near(left, right, tolerance):
            continue
        found.append(column.name)
    width = len(pair.source.columns)
    found += [name for at, (name, value) in enumerate(pair.constants, width) if theirs[at] != value]
    return tuple(found)


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
    """The keys of a table in tasks; a key is in one of them."""
    for at in range(0, len(keys), size):
        yield Check(pair, tuple(keys[at : at + size]), *nodes, application, timeout, tolerance)
