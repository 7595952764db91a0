"""The offset of a batch: exactly its pods, by number and partition, so that a replay after a crash is the same batch.

Numbers are not in the order of commits, so no offset is "all below": each names its own pods, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any


@dataclass(frozen=True)
class Offset:
    """The pods of one batch by partition; `batch` tells it from all others."""

    batch: int = 0
    pods: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """As Spark writes it into its checkpoint."""
        return {"batch": self.batch, "pods": {str(each): packed(numbers) for each, numbers in self.pods.items()}}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Offset:
        """As it was."""
        return cls(int(value["batch"]), {int(each): unpacked(text) for each, text in value["pods"].items()})

    @property
    def numbers(self) -> list[int]:
        """All of them."""
        return [seq for numbers in self.pods.values() for seq in numbers]


def packed(numbers: Iterable[int]) -> str:
    """`3-7,9`: pods mostly come in runs."""
    found = sorted(numbers)
    if not found:
        return ""
    runs = [[found[0], found[0]]]
    for before, seq in pairwise(found):
        if seq == before + 1:
            runs[-1][1] = seq
        else:
            runs.append([seq, seq])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def unpacked(text: str) -> tuple[int, ...]:
    """The numbers of `3-7,9`."""
    numbers: list[int] = []
    for run in filter(None, text.split(",")):
        first, _, last = run.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers)
