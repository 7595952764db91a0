"""The result of a comparison of schemas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trueup.db.names import display_part
from trueup.db.schema import SchemaDifference
from trueup.report.model import EXIT_CODES, Verdict


@dataclass(frozen=True)
class SchemaResult:
    """The objects that differ between nodes; MATCH only if all objects could be read on every node."""

    verdict: Verdict
    nodes: tuple[str, ...]
    # The number of objects per node.
    objects: Mapping[str, int]
    differences: tuple[SchemaDifference, ...]
    remarks: tuple[str, ...]
    seconds: float
    task_id: str

    @property
    def exit_code(self) -> int:
        """Return 0 if equal, 1 if different, 2 if an object could not be read."""
        return EXIT_CODES[self.verdict]

    @property
    def incomplete(self) -> tuple[str, ...]:
        """The objects that could not be read, one reason per entry."""
        return tuple(
            f"node {', '.join(difference.nodes)}: {_label(difference)}: {difference.remark}"
            for difference in self.differences
            if difference.how == "unreadable"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        return {**asdict(self), "incomplete": list(self.incomplete)}

    def summary(self) -> dict[str, Any]:
        """Return the summary for the task store: the objects that differ, without their definitions."""
        counts = Counter(difference.how for difference in self.differences)
        return {
            "verdict": self.verdict,
            "nodes": list(self.nodes),
            "objects": dict(self.objects),
            "missing": counts["missing"],
            "changed": counts["changed"],
            "incomplete": list(self.incomplete),
            "differences": [
                {
                    "object": _label(difference),
                    "how": difference.how,
                    "nodes": ", ".join(difference.nodes),
                    "in": ", ".join(difference.facts),
                }
                for difference in self.differences
            ],
        }


def _label(difference: SchemaDifference) -> str:
    if difference.name == "*":
        return difference.kind
    return f"{difference.kind} {full_name(difference)}"


def full_name(difference: SchemaDifference) -> str:
    """Return the qualified name, such as `public.orders.total`; extensions and schemas have no schema."""
    return f"{display_part(difference.schema)}.{difference.name}" if difference.schema else difference.name
