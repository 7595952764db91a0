"""A row as a JSON object: exact, since numbers and JSON columns are put in as the server wrote them."""

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
    """Writes rows of one table as JSON objects of one line."""

    def __init__(self, source: SourceTable) -> None:
        kinds = dict(source.columns)
        self._json = {name for name, kind in kinds.items() if type_from_sql(kind).json == "document"}
        self._numeric = {name for name, kind in kinds.items() if type_from_sql(kind).json == "number"}

    def text(self, row: Mapping[str, Any], **more: Any) -> str:
        """The object; `more` are members that are not in the row."""
        members = [f"{_dump(name)}:{self._value(name, value)}" for name, value in row.items()]
        members += [f"{_dump(name)}:{_dump(value)}" for name, value in more.items()]
        return "{" + ",".join(members) + "}"

    def _value(self, name: str, value: Any) -> str:
        if isinstance(value, str):
            if name in self._json:
                # A line end is a blank there: within a text it would be escaped.
                return value.translate(_LINE_ENDS)
            if name in self._numeric and _NUMBER.fullmatch(value):
                return value
        if isinstance(value, float) and not math.isfinite(value):
            value = str(value)
        return _dump(value)


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
