"""The answer of a comparison of schemas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trueup.db.schema import SchemaDifference
from trueup.report.model import EXIT_CODES, Verdict


@dataclass(frozen=True)
class SchemaResult:
    """What is not the same on all nodes; MATCH only if every object could be read on each of them."""

    verdict: Verdict
    nodes: tuple[str, ...]
    # How many objects there are, on each node.
    objects: Mapping[str, int]
    differences: tuple[SchemaDifference, ...]
    remarks: tuple[str, ...]
    seconds: float
    task_id: str

    @property
    def exit_code(self) -> int:
        """As diff(1): 0 equal, 1 different, 2 trouble or anything not looked at."""
        return EXIT_CODES[self.verdict]

    @property
    def incomplete(self) -> tuple[str, ...]:
        """What could not be looked at, one reason a line."""
        return tuple(
            f"node {', '.join(each.nodes)}: {_what(each)}: {each.remark}"
            for each in self.differences
            if each.how == "unreadable"
        )

    def as_json(self) -> dict[str, Any]:
        """The whole answer as one JSON object."""
        return {**asdict(self), "incomplete": list(self.incomplete)}

    def summary(self) -> dict[str, Any]:
        """What the task store keeps: which objects differ and how, without their definitions."""
        counts = Counter(each.how for each in self.differences)
        return {
            "verdict": self.verdict,
            "nodes": list(self.nodes),
            "objects": dict(self.objects),
            "missing": counts["missing"],
            "changed": counts["changed"],
            "incomplete": list(self.incomplete),
            "differences": [
                {"object": _what(each), "how": each.how, "nodes": ", ".join(each.nodes), "in": ", ".join(each.facts)}
                for each in self.differences
            ],
        }


def _what(difference: SchemaDifference) -> str:
    if difference.name == "*":
        return difference.kind
    return f"{difference.kind} {full_name(difference)}"


def full_name(difference: SchemaDifference) -> str:
    """`public.orders.total`; extensions and schemas stand in no schema."""
    from trueup.db.names import display_part

    return f"{display_part(difference.schema)}.{difference.name}" if difference.schema else difference.name
