"""What goes into the JSON columns: any Python value, made plain, and without passwords."""

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

HIDDEN = "***"
# SQLite reads JSON to a depth of 1000; a value that contains itself must end long before that.
MAX_DEPTH = 64
_SECRET_NAME = re.compile(r"(^|[_.\-])(pg)?(password|passwd|passphrase|pwd|secret|token)$", re.IGNORECASE)


def to_json(value: Mapping[str, Any]) -> str:
    """The text for a JSON column. The value must be plain already."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def from_json(text: str) -> dict[str, Any]:
    """What `to_json` wrote. A text damaged by another hand is shown as it is: it must not block a list."""
    try:
        value = json.loads(text, parse_constant=str)
    except (ValueError, TypeError, RecursionError):
        return {"unreadable": text}
    return value if isinstance(value, dict) else {"unreadable": value}


def plain_mapping(value: Mapping[str, object]) -> dict[str, Any]:
    """A mapping of which everything is plain JSON and nothing looks like a password."""
    return _plain_mapping(value, 0)


def utf8(text: str) -> str:
    """The text, fit to be written: file names and program arguments may hold halves of surrogate pairs."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def safe_text(text: str) -> str:
    """The text without passwords, and fit to be written."""
    # The last line of defence, so it is here and not with the callers. Late: only writers need it.
    from trueup.config.secrets import mask

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
        # A password that stands alone looks like any text: only its name gives it away.
        is_secret = bool(_SECRET_NAME.search(name)) and bool(item) and not isinstance(item, bool)
        plain[name] = HIDDEN if is_secret else _plain(item, depth + 1)
    return plain


def _plain_number(value: Integral | Real) -> int | float | str:
    if isinstance(value, Integral):
        return int(value)
    number = float(value)
    # JSON knows no NaN; SQLite's json_extract fails on the whole document when it meets one.
    return number if math.isfinite(number) else str(number)
