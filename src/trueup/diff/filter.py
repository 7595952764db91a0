"""The filter is one expression: looked at before it meets any statement of ours."""

from __future__ import annotations

import re

# Text a bracket or semicolon may hide in: strings, quoted names, dollar quotes, comments.
_OPAQUE = re.compile(
    r"""
    [eE]'(?:[^'\\]|\\.|'')*'        # E'…' knows backslashes
  | '(?:[^']|'')*'
  | "(?:[^"]|"")*"
  | (?<![\w$])\$(?P<tag>[^\W\d]\w*|)\$.*?\$(?P=tag)\$
  | --[^\n]*
    """,
    re.VERBOSE | re.DOTALL,
)


def problem_with(text: str) -> str | None:
    """Why this cannot be one expression in brackets, or None if it may be one; the server has the last word."""
    if "\0" in text:
        return "it holds a NUL character"
    rest, problem = _without_comments(text)
    if problem:
        return problem
    if not rest.strip():
        return "it is empty"
    depth = 0
    for char in rest:
        if char in "'\"":
            return "a quote is not closed"
        if char == ";":
            return "it holds more than one statement"
        depth += {"(": 1, ")": -1}.get(char, 0)
        if depth < 0:
            return "a bracket closes that was never opened"
    return "a bracket is not closed" if depth else None


def _without_comments(text: str) -> tuple[str, str | None]:
    """The text with strings, names and comments blanked out; block comments nest."""
    out: list[str] = []
    at = 0
    while at < len(text):
        if text.startswith("/*", at):
            end = _end_of_comment(text, at)
            if end is None:
                return "", "a comment is not closed"
            at = end
            continue
        opaque = _OPAQUE.match(text, at)
        if opaque and not (text[at] in "eE" and at and (text[at - 1].isalnum() or text[at - 1] in "_$")):
            out.append(" x ")
            at = opaque.end()
            continue
        if (
            text.startswith("$", at)
            and re.match(r"\$([^\W\d]\w*|)\$", text[at:])
            and not (at and (text[at - 1].isalnum() or text[at - 1] in "_$"))
        ):
            return "", "a dollar quote is not closed"
        out.append(text[at])
        at += 1
    return "".join(out), None


def _end_of_comment(text: str, at: int) -> int | None:
    depth = 0
    while at < len(text):
        if text.startswith("/*", at):
            depth += 1
            at += 2
        elif text.startswith("*/", at):
            depth -= 1
            at += 2
            if depth == 0:
                return at
        else:
            at += 1
    return None
