"""The answer for people: a line an object, and what changed in it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trueup.db.schema import SchemaDifference
from trueup.verbs.schema.model import SchemaResult, full_name

_MEANING = {
    "MATCH": "all definitions were read and are the same",
    "DIFFER": "the definitions differ",
    "INCOMPLETE": "not everything could be read; nothing is proven",
}
# Lines of a long text that changed; the JSON has all of it.
_MOST_LINES = 20


def result_text(result: SchemaResult) -> str:
    """The whole answer."""
    lines = [f"{result.verdict}: schema of {', '.join(result.nodes)}: {_MEANING[result.verdict]}"]
    count = ", ".join(f"{number:,} on {node}" for node, number in result.objects.items())
    lines.append(f"  objects: {count}; {result.seconds:.1f} s")
    lines += [f"  note: {remark}" for remark in result.remarks]
    lines += [f"  not compared: {reason}" for reason in result.incomplete]
    for difference in result.differences:
        if difference.how != "unreadable":
            lines += ["  " + line for line in _lines(difference)]
    return "\n".join(lines)


def _lines(difference: SchemaDifference) -> Iterator[str]:
    what = f"{difference.kind} {full_name(difference)}"
    if difference.how == "missing":
        yield f"{what}: missing on {', '.join(difference.nodes)}"
        return
    short = {fact: values for fact, values in difference.facts.items() if not _is_long(values)}
    told = "; ".join(f"{fact}: {_by_node(values)}" for fact, values in short.items())
    yield f"{what}: {told or ', '.join(difference.facts)}" + (f" ({difference.remark})" if difference.remark else "")
    for fact, values in difference.facts.items():
        if fact not in short:
            yield from (f"  {line}" for line in _long(fact, values))


def _is_long(values: Mapping[str, Any]) -> bool:
    return any(isinstance(value, str) and ("\n" in value or len(value) > 200) for value in values.values())


def _by_node(values: Mapping[str, Any]) -> str:
    """Each value once, with the nodes that have it."""
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
    """The lines in which a text of the other nodes is not that of the first."""
    (first, text), *others = values.items()
    for node, other in others:
        if other != text:
            yield f"{fact}, {first} (-) and {node} (+):"
            yield from _cut([line for line in _changes(text, other) if not line.startswith(("---", "+++", "@@"))])


def _changes(one: Any, other: Any) -> list[str]:
    # With their ends: a line that ends differently is another one.
    left, right = (str(text or "").split("\n") for text in (one, other))
    return [repr(line)[1:-1] for line in difflib.unified_diff(left, right, n=0, lineterm="")]


def _cut(lines: Sequence[str]) -> Iterator[str]:
    yield from (f"  {line}" for line in lines[:_MOST_LINES])
    if len(lines) > _MOST_LINES:
        yield f"  … and {len(lines) - _MOST_LINES} lines more (--output json has them)"
