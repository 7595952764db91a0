"""The text format of COPY: fields, rows as lines, and keys as the fields that identify a row.

A field is the bytes between two tabs, escaped as COPY does it. Values are not converted to Python values, so a row
arrives on another node exactly as the first node wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from trueup.rows.keys import KeyValues

NULL = b"\\N"
_ESCAPES = str.maketrans({"\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"})
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
_UNESCAPED = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


def field_of(value: str | None) -> bytes:
    """Return a value as a field."""
    return NULL if value is None else value.translate(_ESCAPES).encode()


def text_of_field(field: bytes) -> str | None:
    """Return the value of a field, as the node printed it."""
    if field == NULL:
        return None
    if b"\\" not in field:
        return field.decode()
    return _ESCAPED.sub(lambda match: _UNESCAPED.get(match[1], match[1]), field).decode()


def split(line: bytes) -> list[bytes]:
    """Return the fields of a line."""
    return line[:-1].split(b"\t")


def join(fields: Sequence[bytes]) -> bytes:
    """Return fields as a line."""
    return b"\t".join(fields) + b"\n"


def key_id(key: KeyValues) -> bytes:
    """Return a key as its fields: the id of a row."""
    if len(key) == 1:
        # Most keys are numbers or UUIDs: a check costs less than a translation.
        return key[0].encode() if key[0].isalnum() else key[0].translate(_ESCAPES).encode()
    return "\t".join([value.translate(_ESCAPES) for value in key]).encode()


def key_ids(keys: Sequence[KeyValues]) -> list[bytes]:
    """Return the ids of many keys."""
    if keys and len(keys[0]) == 1:
        return [value.encode() if value.isalnum() else key_id((value,)) for (value,) in keys]
    return [key_id(key) for key in keys]


def key_of(fields: bytes) -> KeyValues:
    """Return the key of an id that `key_id` wrote."""
    return tuple(text_of_field(field) or "" for field in fields.split(b"\t"))
