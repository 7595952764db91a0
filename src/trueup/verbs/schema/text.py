"""The result as text: one line per object, with its differences."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trueup.config.visible import as_lines
from trueup.db.schema import SchemaDifference
from trueup.verbs.schema.model import SchemaResult, full_name

_MEANING = {
    "MATCH": "all definitions are the same",
    "DIFFER": "the definitions differ",
    "INCOMPLETE": "not everything could be read; nothing is proven",
}
# Maximum changed lines of a long definition; the JSON contains all of them.
_MAX_LINES = 20


def result_text(result: SchemaResult) -> str:
    """Return the result as text."""
    lines = [f"{result.verdict}: schema of {', '.join(result.nodes)}: {_MEANING[result.verdict]}"]
    count = ", ".join(f"{number:,} on {node}" for node, number in result.objects.items())
    lines.append(f"  objects: {count}; {result.seconds:.1f} s")
    lines += [f"  note: {remark}" for remark in result.remarks]
    lines += [f"  not compared: {reason}" for reason in result.incomplete]
    for difference in result.differences:
        if difference.how != "unreadable":
            lines += ["  " + line for line in _lines(difference)]
    return as_lines(lines)


def _lines(difference: SchemaDifference) -> Iterator[str]:
    label = f"{difference.kind} {full_name(difference)}"
    if difference.how == "missing":
        yield f"{label}: missing on {', '.join(difference.nodes)}"
        return
    short = {fact: values for fact, values in difference.facts.items() if not _is_long(values)}
    values_text = "; ".join(f"{fact}: {_by_node(values)}" for fact, values in short.items())
    yield f"{label}: {values_text or ', '.join(difference.facts)}" + (
        f" ({difference.remark})" if difference.remark else ""
    )
    for fact, values in difference.facts.items():
        if fact not in short:
            yield from (f"  {line}" for line in _long(fact, values))


def _is_long(values: Mapping[str, Any]) -> bool:
    return any(isinstance(value, str) and ("\n" in value or len(value) > 200) for value in values.values())


def _by_node(values: Mapping[str, Any]) -> str:
    """Return each value once, with the nodes that have it."""
    nodes: dict[str, list[str]] = {}
    for node, value in values.items():
        nodes.setdefault(_value(value), []).append(node)
    return ", ".join(f"{value} on {' and '.join(names)}" for value, names in nodes.items())


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return f"({', '.join(map(_value, value))})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_value(part)}" for name, part in value.items()) + "}"
    return str(value)


def _long(fact: str, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines in which the text of another node differs from the first node."""
    (first, text), *others = values.items()
    for node, other in others:
        if other != text:
            yield f"{fact}, {first} (-) and {node} (+):"
            yield from _cut([line for line in _changes(text, other) if not line.startswith(("---", "+++", "@@"))])


def _changes(one: Any, other: Any) -> list[str]:
    # Split at "\n" only: a difference in line ends is a difference.
    left, right = (str(text or "").split("\n") for text in (one, other))
    return [repr(line)[1:-1] for line in difflib.unified_diff(left, right, n=0, lineterm="")]


def _cut(lines: Sequence[str]) -> Iterator[str]:
    yield from (f"  {line}" for line in lines[:_MAX_LINES])
    if len(lines) > _MAX_LINES:
        yield f"  … and {len(lines) - _MAX_LINES} more lines (see --json)"
