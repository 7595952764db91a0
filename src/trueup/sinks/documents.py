"""Rows as JSON objects. Numbers and JSON columns are inserted as PostgreSQL wrote them, so they are exact."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from trueup.rows.types import type_from_sql
from trueup.sinks.base import SourceTable

_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_LINE_ENDS = str.maketrans("\r\n", "  ")


class JsonRows:
    """Writes the rows of one table as JSON objects in one line."""

    def __init__(self, source: SourceTable) -> None:
        kinds = dict(source.columns)
        self._json = {name for name, kind in kinds.items() if type_from_sql(kind).json == "document"}
        self._numeric = {name for name, kind in kinds.items() if type_from_sql(kind).json == "number"}

    def text(self, row: Mapping[str, Any], **more: Any) -> str:
        """Return the object; `more` are additional members."""
        members = [f"{_dump(name)}:{self._value(name, value)}" for name, value in row.items()]
        members += [f"{_dump(name)}:{_dump(value)}" for name, value in more.items()]
        return "{" + ",".join(members) + "}"

    def _value(self, name: str, value: Any) -> str:
        if isinstance(value, str):
            if name in self._json:
                # A line break is white space here: inside strings it is escaped.
                return value.translate(_LINE_ENDS)
            if name in self._numeric and _NUMBER.fullmatch(value):
                return value
        if isinstance(value, float) and not math.isfinite(value):
            value = str(value)
        return _dump(value)


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
