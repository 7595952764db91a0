"""A batch: pods claimed together, with each key once, its table, its shard and its newest operation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone

from trueup.capture.triggers.document import Mark
from trueup.capture.triggers.model import Pod

# A parsed key: an integer, or the texts of the key columns.
Key = int | tuple[str, ...]
# Source -> (shard, key) -> operation.
Keys = dict[int, dict[tuple[int, Key], str]]


@dataclass
class Batch:
    """Keys that are enriched, written and acknowledged together."""

    keys: Keys
    mark: Mark
    # Per partition: the pods to delete when all keys are written, and the number of keys in them.
    numbers: dict[int, list[int]] = field(default_factory=dict)
    touches: dict[int, int] = field(default_factory=dict)
    controls: list[tuple[int, Pod]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Return the number of keys."""
        return sum(len(keys) for keys in self.keys.values())

    @property
    def pods(self) -> list[int]:
        """Return the numbers of all pods of the batch, including control pods."""
        return [seq for numbers in self.numbers.values() for seq in numbers] + [pod.seq for _, pod in self.controls]


def batch_of(claimed: Sequence[tuple[int, Pod]], composite: set[int]) -> Batch:
    """Build a batch from (partition, pod); `composite` are the sources whose key has several columns."""
    batch = Batch({}, _oldest([pod for _, pod in claimed if not pod.is_control]))
    # In the order of the numbers, so that the newest operation of a key wins.
    for partition, pod in sorted(claimed, key=lambda item: item[1].seq):
        if pod.is_control:
            batch.controls.append((partition, pod))
            continue
        batch.numbers.setdefault(partition, []).append(pod.seq)
        batch.touches[partition] = batch.touches.get(partition, 0) + pod.size
        operations = batch.keys.setdefault(pod.source, {})
        shard, op = pod.shard, pod.op
        for key in pod.ids or parsed(pod.keys or (), is_composite=pod.source in composite):
            operations[shard, key] = op
    return batch


def parsed(keys: Iterable[str], *, is_composite: bool) -> Iterable[tuple[str, ...]]:
    """Parse keys that are not integers into the texts of their columns."""
    return (tuple(json.loads(key)) for key in keys) if is_composite else ((key,) for key in keys)


def written(key: Key) -> str:
    """Return a key as it is stored in pods and dead letters."""
    if isinstance(key, int):
        return str(key)
    return key[0] if len(key) == 1 else json.dumps(key, ensure_ascii=False)


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
