"""Which class two or more columns are compared as, and when two canonical values that differ in bytes are equal.

A digest may be finer than equality: equal bytes always mean equal values. Where values can be equal although their
bytes differ (JSON, texts of other types), the rows of a differing block are compared by `is_equal`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any

from trueup.rows.canonical import encode, text_of
from trueup.rows.encode import LongValue, Value
from trueup.rows.rules import NO_RULE, TIMES, Rule, is_writable
from trueup.rows.spec import ValueClass

# Classes that a node prints in the same way as PostgreSQL does, or that are parsed when rows are compared.
_PRINTED: tuple[ValueClass, ...] = ("bool", "int", "decimal", "float", "date", "timestamp", "instant", "time", "uuid")
_TEXTS: frozenset[ValueClass] = frozenset({"text", "char"})
# Classes with one printed form, so that keys can be matched by it.
_PRINTED_KEYS: tuple[ValueClass, ...] = ("int", "date", "uuid")


def common_class(kinds: Collection[ValueClass]) -> ValueClass | None:
    """Return the class in which values of these classes are compared without loss, or None."""
    distinct = set(kinds)
    if len(distinct) == 1:
        return next(iter(distinct))
    if distinct <= {"bool", "int"}:
        return "int"
    if distinct <= {"bool", "int", "decimal"}:
        return "decimal"
    if distinct == {"text", "char"}:
        return "char"
    if distinct == {"text", "json"}:
        return "json"
    others = distinct - _TEXTS
    if distinct & _TEXTS and len(others) == 1 and next(iter(others)) in _PRINTED:
        return "text"
    return None


def is_key_class(kinds: Collection[ValueClass]) -> bool:
    """Return whether rows can be matched by the bytes of such a column: equal values have equal bytes."""
    common = common_class(kinds)
    if common is None or common == "json":
        return False
    others = set(kinds) - _TEXTS
    return common != "text" or not others or next(iter(others)) in _PRINTED_KEYS


def parsed_class(kinds: Collection[ValueClass]) -> ValueClass | None:
    """Return the class as which the texts of columns of these classes are parsed when they are compared as texts."""
    others = set(kinds) - _TEXTS
    return next(iter(others)) if len(others) == 1 and others <= {*_PRINTED} else None


def is_printed(kind: ValueClass) -> bool:
    """Return whether values of a class can be compared as texts, which are parsed where they differ."""
    return kind in _PRINTED


def type_text(kind: ValueClass, parsed: ValueClass | None) -> str:
    """Return the type of a `ColumnSpec` for a class of values."""
    return f"{kind}:{parsed}" if parsed else kind


def same_text(type_name: str, left: Value, right: Value, rule: Rule) -> bool:
    """Return whether two values of a report are equal, by the type of their `ColumnSpec` and a rule."""
    if isinstance(left, LongValue) or isinstance(right, LongValue):
        return left == right
    kind, _, parsed = type_name.partition(":")
    data = [None if text is None else text.encode() for text in (left, right)]
    if kind == "json":
        return is_equal("json", None, data[0], data[1], rule)
    if rule and rule.is_equal(parsed or kind, *(_time_bytes(kind, value) for value in data)):  # type: ignore[arg-type]
        return True
    return is_equal(kind, parsed or None, *data)  # type: ignore[arg-type]


def _time_bytes(kind: str, data: bytes | None) -> bytes | None:
    """Return the canonical bytes of a printed time; other values as they are."""
    return _parse(kind, data) if data is not None and kind in TIMES else data


def is_equal(
    kind: ValueClass, parsed: ValueClass | None, left: bytes | None, right: bytes | None, rule: Rule = NO_RULE
) -> bool:
    """Return whether two canonical values are equal."""
    if left == right:
        return True
    if rule and rule.is_equal(parsed or kind, *(_printed_number(kind, parsed, value) for value in (left, right))):
        return True
    if left is None or right is None:
        return False
    if kind == "json":
        one, other = _json(left), _json(right)
        return bool(one == other) or (rule.set and _is_same_set(one, other))
    if kind == "text" and parsed is not None:
        parsed_left, parsed_right = _parse(parsed, left), _parse(parsed, right)
        return parsed_left is not None and parsed_left == parsed_right
    return False


def _printed_number(kind: ValueClass, parsed: ValueClass | None, data: bytes | None) -> bytes | None:
    """Return a number as text; other values as they are."""
    return text_of(kind, data).encode() if data is not None and kind in ("int", "float") else data


def _json(data: bytes) -> Any:
    """Return a JSON value in a form that can be compared: numbers by value, objects without the order of their keys."""
    try:
        return json.loads(
            data, parse_int=_number, parse_float=_number, parse_constant=_no_constant, object_pairs_hook=_object
        )
    except (ValueError, RecursionError, InvalidOperation):
        # Not JSON: equal to the same bytes only.
        return data


def _is_same_set(one: Any, other: Any) -> bool:
    """Return whether two arrays have the same elements, in any order and number."""
    if not (isinstance(one, list) and isinstance(other, list)):
        return False
    return all(any(left == right for right in two) for first, two in ((one, other), (other, one)) for left in first)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _number(text: str) -> Any:
    # Not equal to True, which is 1 in Python.
    return "number", Decimal(text)


def _object(pairs: list[tuple[str, Any]]) -> Any:
    # Which of two values with the same name counts depends on the reader.
    names = dict(pairs)
    return names if len(names) == len(pairs) else pairs


_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_NO_NUMBER = re.compile(r"nan|[+-]?inf(inity)?", re.IGNORECASE)
_DAY = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_MOMENT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,6})0*)?)?\s?(Z|[+-]\d\d(?::?\d\d)?)?", re.ASCII
)
_CLOCK = re.compile(r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,6})0*)?)?", re.ASCII)
_TRUTH = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


def _parse(kind: ValueClass, data: bytes) -> bytes | None:
    """Return the canonical bytes of a printed value, or None if it is not a value of the class."""
    try:
        return _parsed(kind, data.decode().strip())
    except (ValueError, InvalidOperation, OverflowError):
        return None


def _parsed(kind: ValueClass, text: str) -> bytes | None:
    if kind == "bool":
        return encode("bool", _TRUTH[text.lower()]) if text.lower() in _TRUTH else None
    if kind in ("int", "decimal", "float") and not (_NUMBER.fullmatch(text) or _NO_NUMBER.fullmatch(text)):
        return None
    if kind in ("int", "decimal"):
        number = Decimal(text)
        return encode("decimal", number) if is_writable(number) else None
    if kind == "float":
        return encode("float", float(text))
    if kind == "uuid":
        return encode("uuid", text)
    if kind == "date":
        match = _DAY.fullmatch(text)
        return encode("date", date(*map(int, match.groups()))) if match else None
    if kind == "time":
        match = _CLOCK.fullmatch(text)
        return encode("time", time(*_clock(*match.groups()))) if match else None
    match = _MOMENT.fullmatch(text)
    if not match:
        return None
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    if (zone is not None) != (kind == "instant"):
        return None
    value = datetime(int(year), int(month), int(day), *_clock(hour, minute, second, fraction))
    return encode(kind, datetime.fromisoformat(f"{value.isoformat()}{_zone(zone)}") if zone else value)


def _clock(hour: str, minute: str, second: str | None, fraction: str | None) -> tuple[int, int, int, int]:
    return int(hour), int(minute), int(second or 0), int((fraction or "").ljust(6, "0"))


def _zone(text: str) -> str:
    digits = text[1:].replace(":", "")
    return "+00:00" if text == "Z" else f"{text[0]}{digits[:2]}:{digits[2:] or '00'}"
