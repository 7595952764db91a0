"""Pods that were claimed together become one batch: each key once, with its table, shard and newest operation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone

from trueup.capture.triggers.document import Mark
from trueup.capture.triggers.model import Pod

# A key as pods have it, parsed: an integer, or the texts of its columns.
Key = int | tuple[str, ...]
# Source -> (shard, key) -> operation.
Keys = dict[int, dict[tuple[int, Key], str]]


@dataclass
class Batch:
    """What is enriched, written and acknowledged together."""

    keys: Keys
    mark: Mark
    # The pods to delete when all is written, and how many keys they name, by partition.
    numbers: dict[int, list[int]] = field(default_factory=dict)
    touches: dict[int, int] = field(default_factory=dict)
    controls: list[tuple[int, Pod]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """How many keys."""
        return sum(len(keys) for keys in self.keys.values())

    @property
    def pods(self) -> list[int]:
        """All pods that this batch works on, control pods too."""
        return [seq for numbers in self.numbers.values() for seq in numbers] + [pod.seq for _, pod in self.controls]


def batch_of(claimed: Sequence[tuple[int, Pod]], composite: set[int]) -> Batch:
    """A batch of (partition, pod); `composite` are the sources whose keys have several columns."""
    batch = Batch({}, _oldest([pod for _, pod in claimed if not pod.is_control]))
    # The newest last, so that its operation stays.
    for partition, pod in sorted(claimed, key=lambda each: each[1].seq):
        if pod.is_control:
            batch.controls.append((partition, pod))
            continue
        batch.numbers.setdefault(partition, []).append(pod.seq)
        batch.touches[partition] = batch.touches.get(partition, 0) + len(pod.ids) + len(pod.keys or ())
        found = batch.keys.setdefault(pod.source, {})
        shard, op = pod.shard, pod.op
        for key in pod.ids or parsed(pod.keys or (), is_composite=pod.source in composite):
            found[shard, key] = op
    return batch


def parsed(keys: Iterable[str], *, is_composite: bool) -> Iterable[tuple[str, ...]]:
    """Keys that are no integers, as the texts of their columns."""
    return (tuple(json.loads(key)) for key in keys) if is_composite else ((key,) for key in keys)


def written(key: Key) -> str:
    """A key as a pod and a dead letter have it."""
    if isinstance(key, int):
        return str(key)
    return key[0] if len(key) == 1 else json.dumps(key, ensure_ascii=False)


def texts(key: Key) -> tuple[str, ...]:
    """A key as a document has it."""
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
    """Of its oldest pod: what is touched once too often by the garbage collection is only rewritten."""
    if not pods:
        return Mark(0, datetime.now(timezone.utc))
    return Mark(min(pod.seq for pod in pods), min(pod.at for pod in pods))
