"""Converts Python values for the JSON columns of the store, and masks passwords."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time
from enum import Enum
from numbers import Integral, Real
from typing import Any

from trueup.config.secrets import mask

HIDDEN = "***"
# SQLite parses JSON up to a depth of 1000; a value that contains itself is cut off well before.
MAX_DEPTH = 64
_SECRET_NAME = re.compile(r"(^|[_.\-])(pg)?(password|passwd|passphrase|pwd|secret|token)$", re.IGNORECASE)


def to_json(value: Mapping[str, Any]) -> str:
    """Return the text of a JSON column for a value that is already plain."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def from_json(text: str) -> dict[str, Any]:
    """Parse a JSON column. Invalid text is returned under the key `unreadable`, so that a list never fails on it."""
    try:
        value = json.loads(text, parse_constant=str)
    except (ValueError, TypeError, RecursionError):
        return {"unreadable": text}
    return value if isinstance(value, dict) else {"unreadable": value}


def plain_mapping(value: Mapping[str, object]) -> dict[str, Any]:
    """Return a copy of a mapping that contains only JSON types, with passwords masked."""
    return _plain_mapping(value, 0)


def utf8(text: str) -> str:
    """Return the text with lone surrogates, which occur in file names and arguments, escaped."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def safe_text(text: str) -> str:
    """Return the text with passwords masked and lone surrogates escaped."""
    # Masked here even if the callers have masked it already.
    return mask(utf8(text))


def _plain(value: object, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return _plain(value.value, depth + 1)
    if isinstance(value, str):
        return safe_text(value)
    if isinstance(value, Integral | Real):
        return _plain_number(value)
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if depth >= MAX_DEPTH:
        return "…"
    if isinstance(value, Mapping):
        return _plain_mapping(value, depth)
    if is_dataclass(value) and not isinstance(value, type):
        return _plain_mapping({field.name: getattr(value, field.name) for field in fields(value)}, depth)
    if isinstance(value, set | frozenset):
        return sorted((_plain(item, depth + 1) for item in value), key=str)
    if isinstance(value, Iterable):
        return [_plain(item, depth + 1) for item in value]
    return safe_text(str(value))


def _plain_mapping(value: Mapping[Any, object], depth: int) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, item in value.items():
        name = safe_text(str(key))
        # A bare password can be recognized only by the name of its key.
        is_secret = bool(_SECRET_NAME.search(name)) and bool(item) and not isinstance(item, bool)
        plain[name] = HIDDEN if is_secret else _plain(item, depth + 1)
    return plain


def _plain_number(value: Integral | Real) -> int | float | str:
    if isinstance(value, Integral):
        return int(value)
    number = float(value)
    # JSON has no NaN, and SQLite's json_extract fails on a document that contains one.
    return number if math.isfinite(number) else str(number)
