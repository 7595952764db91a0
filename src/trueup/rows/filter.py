"""The filter is one expression: read as PostgreSQL's scanner reads it, before it meets any statement of ours."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from psycopg import sql

from trueup.db.node import error_from_server
from trueup.errors import QueryError
from trueup.rows.keys import source, where
from trueup.rows.spec import TableSpec

if TYPE_CHECKING:
    from trueup.config.model import Node
    from trueup.db.connection import Connection

# For PostgreSQL every character beyond ASCII is a letter, blanks and currency signs too.
_START = r"[A-Za-z_\x80-\U0010ffff]"
_MORE = r"[A-Za-z0-9_\x80-\U0010ffff]"

# Text a bracket or semicolon may hide in (strings, quoted names, dollar quotes, comments), and words and numbers,
# for an E or a $ within one of them begins nothing.
_TOKEN = re.compile(
    rf"""
    (?P<comment>--[^\n\r]*)
  | (?P<escaped>[eE]'(?:[^'\\]|\\.|'')*'(?!'))                       # E'…' knows backslashes
  | (?P<string>'(?:[^']|'')*'(?!'))
  | (?P<name>"(?:[^"]|"")*"(?!"))
  | (?P<dollar>\$(?P<tag>(?:{_START}{_MORE}*)?)\$.*?\$(?P=tag)\$)
  | (?P<word>{_START}(?:{_MORE}|\$)*)
  | (?P<number>[0-9](?:{_MORE}|\.)*)
    """,
    re.VERBOSE | re.DOTALL,
)
# Behind an E'…': a string in a later line would be its continuation, and know backslashes too.
_GOES_ON = re.compile(r"(?:[ \t\f\v]|--[^\n\r]*)*[\n\r](?:\s|--[^\n\r]*)*'")
_NOT_CLOSED = {"'": "a quote is not closed", '"': "a quote is not closed", "$": "a dollar quote is not closed"}


def problem_with(text: str) -> str | None:
    """Why this cannot be one expression in brackets, or None if it may be one; the server has the last word."""
    if "\0" in text:
        return "it holds a NUL character"
    depth = at = 0
    is_empty = True
    while at < len(text):
        end, problem = _next(text, at)
        if problem:
            return problem
        token, at = text[at:end], end
        if token == ";":
            return "it holds more than one statement"
        depth += {"(": 1, ")": -1}.get(token, 0)
        if depth < 0:
            return "a bracket closes that was never opened"
        is_empty = is_empty and (token.isspace() or token.startswith(("--", "/*")))
    if is_empty:
        return "it is empty"
    return "a bracket is not closed" if depth else None


def refusal(connection: Connection, node: Node, spec: TableSpec) -> str | None:
    """What the server says against the spec's filter, or None if it can be asked that way."""
    try:
        connection.execute(sql.SQL("EXPLAIN SELECT 1 FROM {}{}").format(source(spec), where(spec)), binary=True)
    except Exception as error:
        refused = error_from_server(error, node)
        # Our own brackets stand around the filter, and the search path is ours: say what is meant by it.
        hint = {
            "42601": " (it must be one complete expression)",
            "42883": " (write functions and operators with their schema: public.f(x))",
            "42704": " (write types with their schema: x::public.mood)",
        }.get(refused.sqlstate if isinstance(refused, QueryError) else "", "")
        return f"{refused.message}{hint}"
    return None


def _next(text: str, at: int) -> tuple[int, str | None]:
    """The end of the token that begins here, or what is wrong with it."""
    if text.startswith("/*", at):
        return _end_of_comment(text, at)
    found = _TOKEN.match(text, at)
    if found is None:
        return at + 1, _NOT_CLOSED.get(text[at])
    end = found.end()
    follows = text[end : end + 1]
    if found["escaped"] and _GOES_ON.match(text, end):
        return end, "an E'…' string goes on in the next line: write it as one string"
    if found["word"] in ("e", "E") and follows == "'":
        return end, "a quote is not closed"
    if found["number"] and follows and follows in "'$":
        return end, "a number runs into a quote"
    return end, None


def _end_of_comment(text: str, at: int) -> tuple[int, str | None]:
    """The end of a block comment; they nest."""
    depth = 0
    while at < len(text):
        if text.startswith("/*", at):
            depth += 1
            at += 2
        elif text.startswith("*/", at):
            depth -= 1
            at += 2
            if depth == 0:
                return at, None
        else:
            at += 1
    return at, "a comment is not closed"
