"""Messages that are stored in a database: its encoding may lack characters of errors of other systems."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from psycopg.types.json import Jsonb

from trueup.db.connection import Connection

# Parameters of statements that are messages, or lists of messages.
_MESSAGES = ("reason", "remarks")


def storable(connection: Connection, message: str) -> str:
    """Return a message in characters that every encoding has; others are escaped (`\\u2026`), except in UTF8.

    A message must not fail the statement that stores it. The texts of rows and names are never changed in this way.
    """
    # No text of PostgreSQL has a zero byte.
    message = message.replace("\x00", "\\x00")
    encoding = "utf-8" if connection.info.parameter_status("server_encoding") == "UTF8" else "ascii"
    return message.encode(encoding, "backslashreplace").decode(encoding)


def storable_values(connection: Connection, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values that are stored as JSON, with their texts as `storable` returns them."""
    return {name: storable(connection, value) if isinstance(value, str) else value for name, value in values.items()}


def with_storable(connection: Connection, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a statement with `reason` and `remarks` as `storable` returns them."""
    changed = {
        name: storable(connection, value)
        if isinstance(value, str)
        else [storable(connection, message) for message in value]
        for name, value in values.items()
        if name in _MESSAGES
    }
    return {**values, **changed}


def as_json(value: Mapping[str, Any] | list[Any]) -> Jsonb:
    """Wrap a value for a column of type jsonb. Characters are not escaped: the server converts them to its encoding."""
    return Jsonb(value, dumps=lambda content: json.dumps(content, ensure_ascii=False))
