"""Text for a terminal, a log or a page: what others wrote cannot move the cursor, hide text, or add a line.

Names of tables, messages of servers and documents of other people are texts that their authors chose. Every text passes
`visible` on its way out; `as_lines` makes a text of lines, each of which stays one line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

# Control characters in ASCII, except the white space of JSON.
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def visible(value: Any) -> Any:
    """Return the text with control and direction characters, except line feeds, written as escapes."""
    if type(value) is not str or value.isprintable():
        return value
    return "\n".join(map(one_line, value.split("\n")))


def one_line(text: str) -> str:
    """Return a text with control and direction characters written as escapes, line feeds too."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def as_lines(lines: Iterable[str]) -> str:
    """Return lines as a text; a line feed inside of one is written as an escape."""
    return "\n".join(map(one_line, lines))


def visible_json(text: str) -> str:
    """Return JSON of any program with the same values, and without control characters."""
    if text.isascii() and not _CONTROLS.search(text):
        return text
    return "".join(char if char.isprintable() or char in "\n\r\t" else _json_escape(char) for char in text)


def _json_escape(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else json.dumps(char)[1:-1]
