"""The canonical form of values: exact bytes per class of values, independent of the kind of node.

docs/design/canonical.md defines the forms. The functions here are the reference: kinds of nodes compute the same bytes
with their own functions, and are probed against them before the first block is compared.
"""

from __future__ import annotations

import hashlib
import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import Any

from trueup.rows.encode import LongValue, Value, trim_scale
from trueup.rows.spec import ValueClass


@dataclass(frozen=True)
class Form:
    """How values of a class are written: the number of the form in an encoded row, and its size (0: any)."""

    number: int
    size: int = 0


# The numbers are the OIDs of the PostgreSQL types whose binary form it is, because PostgreSQL's `record_send` writes
# them.
_TEXT = Form(25)
FORMS: dict[ValueClass, Form] = {
    "bool": Form(16, 1),
    "int": Form(20, 8),
    "decimal": _TEXT,
    "float": Form(701, 8),
    "text": _TEXT,
    "char": _TEXT,
    "bytes": Form(17),
    "date": Form(1082, 4),
    "timestamp": Form(1114, 8),
    "instant": Form(1184, 8),
    "time": Form(1083, 8),
    "uuid": Form(2950, 16),
    "json": _TEXT,
}
SEED = FORMS["bytes"]
NULL = b"\xff\xff\xff\xff"
NAN = bytes.fromhex("7ff8000000000000")
# The first day of the canonical calendar, in days since 1970, and its first microsecond.
EPOCH_DAYS = 10957
EPOCH_MICROS = EPOCH_DAYS * 86_400_000_000
_INT, _LONG = struct.Struct(">i"), struct.Struct(">q")
# The length of a field, after the number of its form.
_HEAD = struct.Struct(">4xi")
_DAY = 86_400_000_000
_FIRST_DAY, _LAST_DAY = -(2**31), 2**31 - 1
_FIRST, _LAST = -(2**63), 2**63 - 1


def encode(kind: ValueClass, value: Any) -> bytes:
    """Return the canonical bytes of a Python value that is not None."""
    data: bytes = _ENCODE[kind](value)
    return data


def _moment(value: datetime) -> bytes:
    zone = timezone.utc if value.tzinfo else None
    delta = value - datetime(2000, 1, 1, tzinfo=zone)
    return _LONG.pack((delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds)


def _float(value: float) -> bytes:
    return NAN if value != value else struct.pack(">d", value)


def _time(value: time) -> bytes:
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return _LONG.pack(seconds * 1_000_000 + value.microsecond)


def _decimal(value: Decimal | int) -> bytes:
    text = trim_scale(f"{value:f}") if isinstance(value, Decimal) else str(value)
    return (text[1:] if text == "-0" else text).encode()


_ENCODE: dict[ValueClass, Any] = {
    "bool": lambda value: b"\1" if value else b"\0",
    "int": _LONG.pack,
    "decimal": _decimal,
    "float": _float,
    "text": lambda value: value.encode(),
    "char": lambda value: value.rstrip(" ").encode(),
    "bytes": bytes,
    "date": lambda value: _INT.pack((value - date(2000, 1, 1)).days),
    "timestamp": _moment,
    "instant": _moment,
    "time": _time,
    "uuid": lambda value: uuid.UUID(value).bytes,
    "json": lambda value: value.encode(),
}


def encode_row(kinds: Sequence[ValueClass], values: Sequence[bytes | None], seed: bytes | None = None) -> bytes:
    """Return a row: the number of fields, then number of the form, length and bytes of each field."""
    parts = [_INT.pack(len(values) + (seed is not None))]
    if seed is not None:
        parts += [_INT.pack(SEED.number), _INT.pack(len(seed)), seed]
    for kind, value in zip(kinds, values, strict=True):
        parts.append(_INT.pack(FORMS[kind].number))
        parts += [NULL] if value is None else [_INT.pack(len(value)), value]
    return b"".join(parts)


def decode_row(data: bytes) -> list[bytes | None]:
    """Return the fields of an encoded row; raises ValueError if it is not one."""
    fields = list[bytes | None]()
    unpack = _HEAD.unpack_from
    try:
        (count,) = _INT.unpack_from(data)
        place = 4
        for _ in range(count):
            length = unpack(data, place)[0]
            place += 8
            if length < 0:
                fields.append(None)
            else:
                end = place + length
                fields.append(data[place:end])
                place = end
    except struct.error:
        place = -1
    if place != len(data):
        raise ValueError("not an encoded row")
    return fields


def hash_row(data: bytes) -> tuple[int, int]:
    """Return the two 64-bit halves of the md5 of an encoded row, as unsigned numbers."""
    digest = hashlib.md5(data, usedforsecurity=False).digest()
    return int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big")


def shown(kind: ValueClass, data: bytes | None, long_value: int) -> Value:
    """Return canonical bytes as text for a report; a long value, and a text that is none, as length and sha256."""
    if data is None:
        return None
    if len(data) > long_value or (FORMS[kind] is _TEXT and not _is_utf8(data)):
        return LongValue(len(data), hashlib.sha256(data).hexdigest())
    return text_of(kind, data)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def text_of(kind: ValueClass, data: bytes) -> str:
    """Return canonical bytes as PostgreSQL prints the value in a session with fixed settings."""
    if kind in ("date", "timestamp", "instant", "time"):
        return _time_text(kind, data)
    if kind == "bool":
        return "true" if data == b"\1" else "false"
    if kind == "int":
        return str(_LONG.unpack(data)[0])
    if kind == "float":
        return _float_text(struct.unpack(">d", data)[0])
    if kind == "bytes":
        return "\\x" + data.hex()
    if kind == "uuid":
        return str(uuid.UUID(bytes=data))
    return data.decode("utf-8", "backslashreplace")


def _float_text(value: float) -> str:
    if value != value:
        return "NaN"
    text = repr(value)
    return text.replace("inf", "Infinity").removesuffix(".0")


def _time_text(kind: ValueClass, data: bytes) -> str:
    if len(data) != FORMS[kind].size:
        # MySQL has dates that are none, such as 0000-00-00: their form is their text.
        return data.decode("utf-8", "backslashreplace")
    if kind == "date":
        (days,) = _INT.unpack(data)
        return _infinite(days, _FIRST_DAY, _LAST_DAY) or _with_era(*_civil(days))
    (micros,) = _LONG.unpack(data)
    if kind == "time":
        return _clock(micros)
    infinite = _infinite(micros, _FIRST, _LAST)
    if infinite:
        return infinite
    days, rest = divmod(micros, _DAY)
    day, era = _civil(days)
    zone = "+00" if kind == "instant" else ""
    return _with_era(f"{day} {_clock(rest)}{zone}", era)


def _infinite(value: int, first: int, last: int) -> str:
    return "infinity" if value == last else "-infinity" if value == first else ""


def _with_era(text: str, era: str) -> str:
    return f"{text} {era}" if era else text


def _clock(micros: int) -> str:
    seconds, fraction = divmod(micros, 1_000_000)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{fraction:06}".rstrip("0") if fraction else text


def _civil(days: int) -> tuple[str, str]:
    """Return a day since 2000-01-01 as year-month-day, and its era: Python's dates end in the years 1 and 9999."""
    # Days since 0000-03-01 of the proleptic Gregorian calendar, in eras of 400 years.
    era, day = divmod(days + EPOCH_DAYS + 719_468, 146_097)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day_of_month = day - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    year = year + era * 400 + (month <= 2)
    return f"{year if year > 0 else 1 - year:04}-{month:02}-{day_of_month:02}", "" if year > 0 else "BC"
