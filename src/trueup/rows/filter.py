"""Check that a filter is one SQL expression, by the rules of PostgreSQL's scanner, before a statement contains it."""

from __future__ import annotations

import re

from psycopg import sql

from trueup.config.model import Node
from trueup.db.connection import Connection
from trueup.db.node import error_from_server
from trueup.errors import QueryError
from trueup.rows.keys import source, where
from trueup.rows.spec import TableSpec

# For PostgreSQL every character beyond ASCII is a letter, including blanks and currency signs.
_START = r"[A-Za-z_\x80-\U0010ffff]"
_MORE = r"[A-Za-z0-9_\x80-\U0010ffff]"

# Tokens that may contain a bracket or semicolon (strings, quoted names, dollar quotes, comments), and words and
# numbers, because an E or a $ inside one of them does not start a string.
_TOKEN = re.compile(
    rf"""
    (?P<comment>--[^\n\r]*)
  | (?P<escaped>[eE]'(?:[^'\\]|\\.|'')*'(?!'))                       # E'…' has backslash escapes
  | (?P<string>'(?:[^']|'')*'(?!'))
  | (?P<name>"(?:[^"]|"")*"(?!"))
  | (?P<dollar>\$(?P<tag>(?:{_START}{_MORE}*)?)\$.*?\$(?P=tag)\$)
  | (?P<word>{_START}(?:{_MORE}|\$)*)
  | (?P<number>[0-9](?:{_MORE}|\.)*)
    """,
    re.VERBOSE | re.DOTALL,
)
# After an E'…': a string in a later line continues it, and has backslash escapes too.
_GOES_ON = re.compile(r"(?:[ \t\f\v]|--[^\n\r]*)*[\n\r](?:\s|--[^\n\r]*)*'")
_NOT_CLOSED = {"'": "a quote is not closed", '"': "a quote is not closed", "$": "a dollar quote is not closed"}


def problem_with(text: str) -> str | None:
    """Return why the text cannot be one expression in brackets, or None; the server may still reject it."""
    if "\0" in text:
        return "it contains a NUL character"
    depth = position = 0
    is_empty = True
    while position < len(text):
        end, problem = _next(text, position)
        if problem:
            return problem
        token, position = text[position:end], end
        if token == ";":
            return "it contains more than one statement"
        depth += {"(": 1, ")": -1}.get(token, 0)
        if depth < 0:
            return "a closing bracket has no opening bracket"
        is_empty = is_empty and (token.isspace() or token.startswith(("--", "/*")))
    if is_empty:
        return "it is empty"
    return "a bracket is not closed" if depth else None


def refusal(connection: Connection, node: Node, spec: TableSpec) -> str | None:
    """Return why the server rejects the filter of the spec, or None if it accepts it."""
    try:
        connection.execute(sql.SQL("EXPLAIN SELECT 1 FROM {}{}").format(source(spec), where(spec)), binary=True)
    except Exception as error:
        rejected = error_from_server(error, node)
        # The statement puts the filter into brackets and sets the search path: explain errors that come from that.
        hint = {
            "42601": " (it must be one complete expression)",
            "42883": " (write functions and operators with their schema: public.f(x))",
            "42704": " (write types with their schema: x::public.mood)",
        }.get(rejected.sqlstate if isinstance(rejected, QueryError) else "", "")
        return f"{rejected.message}{hint}"
    return None


def _next(text: str, position: int) -> tuple[int, str | None]:
    """Return the end of the token that starts at this position, and the problem with it, if any."""
    if text.startswith("/*", position):
        return _end_of_comment(text, position)
    match = _TOKEN.match(text, position)
    if match is None:
        return position + 1, _NOT_CLOSED.get(text[position])
    end = match.end()
    follows = text[end : end + 1]
    if match["escaped"] and _GOES_ON.match(text, end):
        return end, "an E'…' string continues in the next line: write it as one string"
    if match["word"] in ("e", "E") and follows == "'":
        return end, "a quote is not closed"
    if match["number"] and follows and follows in "'$":
        return end, "a number is directly followed by a quote"
    return end, None


def _end_of_comment(text: str, position: int) -> tuple[int, str | None]:
    """Return the end of a block comment, which may contain other comments."""
    depth = 0
    while position < len(text):
        if text.startswith("/*", position):
            depth += 1
            position += 2
        elif text.startswith("*/", position):
            depth -= 1
            position += 2
            if depth == 0:
                return position, None
        else:
            position += 1
    return position, "a comment is not closed"
