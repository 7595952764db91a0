"""Probe whether nodes compute canonical bytes: sample values of each class, compared with the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import Any

from trueup.errors import CheckFailed
from trueup.nodes.base import ComparedNode, Plan
from trueup.rows.canonical import encode, encode_row, hash_row
from trueup.rows.classes import is_printed
from trueup.rows.spec import ValueClass

_UTC = timezone.utc
# Per class, values at which implementations differ: signs, ends of ranges, trailing zeros, other planes of Unicode.
SAMPLES: Mapping[ValueClass, Sequence[Any]] = {
    "bool": (True, False),
    "int": (0, 1, -1, 2**31, -(2**63), 2**63 - 1),
    "decimal": (Decimal("0.00"), Decimal("-0.50"), Decimal("3000.1"), Decimal("12345678901234567890.123456789")),
    "float": (0.0, -0.0, 1.1, -3.5e-310, 1.7976931348623157e308, 0.1 + 0.2, float("inf"), float("-inf"), float("nan")),
    "text": ("", "text", "a\u00e9\u4e2d\U0001f600 \n'\\"),
    "char": ("", "a", "a b"),
    "bytes": (b"", b"\x00\xff\xde"),
    "date": (date(1970, 1, 1), date(1582, 10, 4), date(9999, 12, 31)),
    "timestamp": (datetime(2024, 2, 29, 12, 34, 56, 789012), datetime(1883, 11, 18, 12, 3, 57), datetime(1, 1, 1)),
    "instant": (
        datetime(2024, 2, 29, 12, 34, 56, 789012, tzinfo=_UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=_UTC),
    ),
    "time": (time(0), time(12, 34, 56, 789012)),
    "uuid": ("6f9619ff-8b86-d011-b42d-00cf4fc964ff",),
    "json": ('{"a": [1, null]}',),
}


def expected(kind: ValueClass, seed: bytes) -> list[str]:
    """Return the md5 of encoded rows with each sample of a class and, last, NULL."""
    values = [encode(kind, sample) for sample in SAMPLES[kind]]
    return [_md5(encode_row([kind], [value], seed)) for value in (*values, None)]


def _md5(data: bytes) -> str:
    high, low = hash_row(data)
    return f"{high:016x}{low:016x}"


def wrong_classes(node: ComparedNode, plan: Plan) -> list[ValueClass]:
    """Return the classes of the plan that a node does not compute as the reference."""
    kinds = tuple(dict.fromkeys((*plan.kinds, "text")))
    computed = node.probe(kinds, plan.seed)
    return [kind for kind in kinds if list(computed[kind]) != expected(kind, plan.seed)]


def without_wrong(plan: Plan, found: Mapping[str, Sequence[ValueClass]]) -> tuple[Plan, tuple[str, ...]]:
    """Return the plan with columns as texts whose class a node computes in another way; and remarks.

    Raises CheckFailed if values of such a class cannot be compared as texts, which are parsed where they differ.
    """
    wrong: dict[ValueClass, list[str]] = {}
    for node, kinds in found.items():
        for kind in kinds:
            wrong.setdefault(kind, []).append(node)
    keys = {column.kind for column in plan.columns[: plan.key]}
    reasons = [
        f"node {', '.join(names)}: values of the class {kind} do not have their canonical form on this server"
        for kind, names in wrong.items()
        if kind in keys or (kind in plan.kinds and not is_printed(kind)) or "text" in wrong
    ]
    if reasons:
        raise CheckFailed(reasons, cure="leave columns of this class out with --exclude-columns, and report a defect")
    columns = tuple(replace(column, kind="text") if column.kind in wrong else column for column in plan.columns)
    remarks = tuple(
        f"{column.name} is compared as text, and by value where texts differ: {', '.join(wrong[column.kind])} computes"
        f" other bytes of the class {column.kind}"
        for column in plan.columns
        if column.kind in wrong
    )
    return replace(plan, columns=columns), remarks
