"""The offset of a batch: the numbers of its pods per partition, so that a replay after a crash is the same batch.

Numbers are not in commit order, so an offset cannot mean "all lower numbers": it lists the pods of its batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from trueup.capture.triggers.readers import Mark


@dataclass(frozen=True)
class Offset:
    """The pods of one batch per partition; `batch` is its number."""

    batch: int = 0
    pods: dict[int, tuple[int, ...]] = field(default_factory=dict)
    # The round of the batch: after a restore of the source, other pods may have these numbers.
    mark: Mark = field(default_factory=Mark)

    def as_json(self) -> dict[str, Any]:
        """Return the offset as it is stored in the checkpoint."""
        pods = {str(partition): packed(seqs) for partition, seqs in self.pods.items()}
        return {"batch": self.batch, "pods": pods, "round": self.mark.round, "token": self.mark.token}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Offset:
        """Parse an offset of the checkpoint."""
        mark = Mark(int(value.get("round", 0)), str(value.get("token", "")))
        return cls(int(value["batch"]), {int(name): unpacked(text) for name, text in value["pods"].items()}, mark)


def packed(numbers: Iterable[int]) -> str:
    """Return numbers as runs: `3-7,9`."""
    ordered = sorted(numbers)
    if not ordered:
        return ""
    runs = [[ordered[0], ordered[0]]]
    for before, seq in pairwise(ordered):
        if seq == before + 1:
            runs[-1][1] = seq
        else:
            runs.append([seq, seq])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def unpacked(text: str) -> tuple[int, ...]:
    """Parse runs of numbers: `3-7,9`."""
    numbers: list[int] = []
    for run in filter(None, text.split(",")):
        first, _, last = run.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers)
