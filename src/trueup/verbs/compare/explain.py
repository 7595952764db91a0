"""Explain a comparison without running it: which columns are compared, as what, and why."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from trueup.config.visible import as_lines
from trueup.nodes.base import ComparedColumn, Plan
from trueup.verbs.compare.prepare import prepared
from trueup.verbs.compare.request import CompareRequest, Session


@dataclass(frozen=True)
class ExplainedColumn:
    """How one column is compared."""

    name: str
    is_key: bool
    # Per node: the name of the column there, and its type.
    types: dict[str, str]
    compared_as: str
    how: str
    rule: str = ""


@dataclass(frozen=True)
class Explanation:
    """How a table is compared, column by column."""

    table: str
    columns: tuple[ExplainedColumn, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the explanation as a JSON object."""
        return asdict(self)

    def as_text(self) -> str:
        """Return the explanation as text, one line per column."""
        key = [column.name for column in self.columns if column.is_key]
        lines = [f"{self.table}: key {', '.join(key) or 'none: rows as a multiset'}"]
        for column in self.columns:
            types = ", ".join(f"{node} {kind}" for node, kind in column.types.items())
            rule = f"; rule: {column.rule}" if column.rule else ""
            lines.append(f"  {column.name}: as {column.compared_as} ({types}): {column.how}{rule}")
        return as_lines(lines)


def explain(request: CompareRequest) -> Explanation:
    """Return how the table of a request is compared; raise CheckFailed if it cannot be. No rows are read."""
    with ExitStack() as stack:
        session = Session(request, stack)
        _, plan, _ = prepared(request, session, "trueup explain", stack)
        columns = tuple(_explained(column, plan) for column in plan.columns)
    return Explanation(request.table.table, columns)


def _explained(column: ComparedColumn, plan: Plan) -> ExplainedColumn:
    types = {node: own.type if own.name == column.name else f"{own.name} {own.type}" for node, own in column.on.items()}
    is_key, rule = column.name in plan.key_names, str(column.rule) if column.rule else ""
    return ExplainedColumn(column.name, is_key, types, column.kind, _how(column), rule)


def _how(column: ComparedColumn) -> str:
    if column.is_exact:
        return "equal digests are equal values, and different ones differ"
    if column.kind == "json":
        return "digests of texts; documents of differing blocks are compared as values"
    if column.parsed:
        return f"digests of texts; those of differing blocks are parsed as {column.parsed}"
    return "values of differing blocks are compared by the rule"
