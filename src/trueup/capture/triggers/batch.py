"""A batch: pods claimed together, with each key once, its table, its shard and its newest operation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone

from trueup.capture.triggers.document import Mark
from trueup.capture.triggers.model import Pod
from trueup.capture.triggers.shape import Shape

# A parsed key: an integer, or the texts of the key columns.
Key = int | tuple[str, ...]
# Source -> (shard, key) -> operation.
Keys = dict[int, dict[tuple[int, Key], str]]
_INTEGER = re.compile(r"-?[0-9]{1,19}")


@dataclass(frozen=True)
class Refused:
    """A key that could not be delivered, as text, and the error; another attempt of an unreadable key is useless."""

    source: int
    shard: int
    key: str
    op: str
    error: str
    is_unreadable: bool = False


class UnreadableKey(ValueError):
    """The text of a key is not one of the key of its table; the message is the reason."""


@dataclass
class Batch:
    """Keys that are enriched, written and acknowledged together."""

    keys: Keys
    mark: Mark
    # Per partition: the pods to delete when all keys are written, and the number of keys in them.
    numbers: dict[int, list[int]] = field(default_factory=dict)
    touches: dict[int, int] = field(default_factory=dict)
    controls: list[tuple[int, Pod]] = field(default_factory=list)
    unreadable: list[Refused] = field(default_factory=list)
    # Table -> number of its keys that are left out: it has another key since, and a backfill has touched all rows.
    superseded: dict[str, int] = field(default_factory=dict)

    def without_superseded(self, shapes: Mapping[int, Shape]) -> Mapping[int, Shape]:
        """Leave out the keys of superseded sources; return the shapes."""
        for source in [source for source in self.keys if shapes[source].is_superseded]:
            table = shapes[source].table
            self.superseded[table] = self.superseded.get(table, 0) + len(self.keys.pop(source))
        return shapes

    @property
    def size(self) -> int:
        """Return the number of keys."""
        return sum(len(keys) for keys in self.keys.values())

    @property
    def pods(self) -> list[int]:
        """Return the numbers of all pods of the batch, including control pods."""
        return [seq for numbers in self.numbers.values() for seq in numbers] + [pod.seq for _, pod in self.controls]


def batch_of(claimed: Sequence[tuple[int, Pod]], shapes: Mapping[int, Shape]) -> Batch:
    """Build a batch from (partition, pod). Unreadable keys are listed apart, superseded ones are left out."""
    batch = Batch({}, _oldest([pod for _, pod in claimed if not pod.is_control]))
    # In the order of the numbers, so that the newest operation of a key wins.
    for partition, pod in sorted(claimed, key=lambda item: item[1].seq):
        if pod.is_control:
            batch.controls.append((partition, pod))
            continue
        batch.numbers.setdefault(partition, []).append(pod.seq)
        batch.touches[partition] = batch.touches.get(partition, 0) + pod.size
        if pod.source not in shapes:
            batch.unreadable += _all_refused(pod, f"the tube has no table with the number {pod.source}")
            continue
        if shapes[pod.source].is_detached and (problem := shapes[pod.source].problem):
            # Its pods do not wait for a cure, because the tube does not follow the table any more.
            batch.unreadable += _all_refused(pod, f"{shapes[pod.source].table} is detached: {problem}")
            continue
        operations = batch.keys.setdefault(pod.source, {})
        shard, op = pod.shard, pod.op
        for key in _keys(pod, shapes[pod.source], batch.unreadable):
            operations[shard, key] = op
    batch.without_superseded(shapes)
    for source, operations in batch.keys.items():
        if shapes[source].shard_sql is None:
            batch.keys[source] = _each_key_once(operations)
    return batch


def _each_key_once(operations: dict[tuple[int, Key], str]) -> dict[tuple[int, Key], str]:
    """Return the keys of a table with a fixed shard, which is another one since it was attached again, in one shard.

    Sinks identify the rows of such a table by the key alone.
    """
    if len({shard for shard, _ in operations}) < 2:
        return operations
    newest = {key: shard for shard, key in operations}
    return {(shard, key): operations[shard, key] for key, shard in newest.items()}


def _keys(pod: Pod, shape: Shape, unreadable: list[Refused]) -> Iterable[Key]:
    """Return the keys of a pod, without those that cannot be read."""
    raw: Sequence[int | str | None] = (*pod.ids, *(pod.keys or ()))
    unreadable += [
        Refused(pod.source, pod.shard, key, pod.op, "the key is not a text in UTF-8", is_unreadable=True)
        for key in pod.undecodable
    ]
    if None not in raw and shape.relation is not None:
        if shape.is_integer and not pod.keys:
            return pod.ids
        if len(shape.key) == 1 and not shape.is_integer:
            return [(str(key),) for key in raw]
    keys: list[Key] = []
    for key in raw:
        try:
            keys.append(parsed(key, shape))
        except UnreadableKey as error:
            text = "NULL" if key is None else str(key)
            unreadable.append(Refused(pod.source, pod.shard, text, pod.op, str(error), is_unreadable=True))
    return keys


def _all_refused(pod: Pod, reason: str) -> list[Refused]:
    raw = (*pod.ids, *(pod.keys or ()), *pod.undecodable)
    return [Refused(pod.source, pod.shard, str(key), pod.op, reason, is_unreadable=True) for key in raw]


def parsed(key: int | str | None, shape: Shape) -> Key:
    """Return a key of a pod or a dead letter in the form of the current key of its table.

    Raise UnreadableKey if it has another form: triggers and `tube touch` write no such keys, unless a key column
    became NULL.
    """
    if key is None:
        raise UnreadableKey("the key is NULL")
    text = str(key)
    if shape.relation is None:
        return (text,)
    if shape.is_integer:
        if not _INTEGER.fullmatch(text) or not -(2**63) <= int(text) < 2**63:
            raise UnreadableKey(f"the key is not an integer, unlike the column {shape.key[0]}")
        return int(text)
    if len(shape.key) == 1:
        return (text,)
    try:
        parts = json.loads(text) if isinstance(key, str) else None
    except ValueError:
        parts = None
    if not isinstance(parts, list) or len(parts) != len(shape.key) or not all(isinstance(part, str) for part in parts):
        raise UnreadableKey(f"the key is not a JSON array of the texts of {len(shape.key)} columns")
    return tuple(parts)


def written(key: object) -> str:
    """Return a key, an integer or a tuple of texts, as it is stored in pods and dead letters."""
    if not isinstance(key, tuple):
        return str(key)
    return str(key[0]) if len(key) == 1 else json.dumps([str(part) for part in key], ensure_ascii=False)


def texts(key: Key) -> tuple[str, ...]:
    """Return a key as it is stored in documents."""
    return (str(key),) if isinstance(key, int) else key


def places(sizes: Mapping[int, int], parts: int) -> dict[int, int]:
    """Assign each shard to one of `parts` parts: the largest shard first, each to the part with the fewest keys."""
    loads = [0] * parts
    part_of: dict[int, int] = {}
    for shard in sorted(sizes, key=lambda shard: -sizes[shard]):
        part_of[shard] = loads.index(min(loads))
        loads[part_of[shard]] += sizes[shard]
    return part_of


def _oldest(pods: Sequence[Pod]) -> Mark:
    """Return the mark of the oldest pod. A mark that is too old is safe: the document is only rewritten once more."""
    if not pods:
        return Mark(0, datetime.now(timezone.utc))
    return Mark(min(pod.seq for pod in pods), min(pod.at for pod in pods))
