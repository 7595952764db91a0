"""Check that a text is one SQL expression, by the rules of PostgreSQL's scanner, before a statement contains it."""

from __future__ import annotations

import re
from collections.abc import Iterator

# For PostgreSQL every character beyond ASCII is a letter, including blanks and currency signs. Written as what is not
# a letter: a set of all characters takes 13 ms to compile, in every process.
_START = r"[^\x00-@\[-\^`{-\x7f]"
_MORE = r"[^\x00-/:-@\[-\^`{-\x7f]"

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
# Built-in types whose values are written as `date '2026-01-01'`; a name without schema is always the built-in type.
_TYPED = re.compile(
    "date|time|timetz|timestamp|timestamptz|interval|numeric|decimal|int|integer|bigint|smallint|int2|int4|int8"
    "|real|float|float4|float8|text|varchar|char|bpchar|name|bool|boolean|bytea|json|jsonb|jsonpath|uuid|inet|cidr"
    "|macaddr|macaddr8|bit|varbit|money|xml|oid|regclass|regtype|regproc|regrole|pg_lsn|point|box|tsquery|tsvector"
)
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


def with_parameters(text: str) -> str:
    """Return the text with a parameter instead of each string, except in `date '…'` and the like.

    The server reads the value of a string while it parses, which for a type that contains a domain runs its checks; for
    a parameter it only looks up the type.
    """
    pieces: list[str] = []
    count, before, is_adjacent = 0, ["", "", ""], False
    for token in _tokens(text):
        if token.isspace() or token.startswith(("--", "/*")):
            pieces.append(token)
            is_adjacent = False
            continue
        if _is_string(token) and not _has_built_in_type(before, is_adjacent):
            count += 1
            # With blanks: a name may contain a $.
            pieces.append(f" ${count} ")
        else:
            pieces.append(token)
        before, is_adjacent = [*before[1:], token.lower()], True
    return "".join(pieces)


def has_qualified_name(text: str) -> bool:
    """Return whether the text may name an object of a schema: whether it has a dot outside of strings and numbers."""
    return "." in _tokens(text)


def _tokens(text: str) -> Iterator[str]:
    """Yield the tokens of a text without problems; blanks and signs are tokens of one character."""
    position = 0
    while position < len(text):
        end, _ = _next(text, position)
        yield text[position:end]
        position = end


def _is_string(token: str) -> bool:
    return token.endswith("'") or (len(token) > 1 and token.startswith("$") and token.endswith("$"))


def _has_built_in_type(before: list[str], is_adjacent: bool) -> bool:
    """Return whether the three words before a string are a built-in type, or the letter of a bit string (B'101')."""
    if before[1:] == ["time", "zone"]:
        return before[0] in ("with", "without")
    return bool(_TYPED.fullmatch(before[2]) and before[1] != ".") or (is_adjacent and before[2] in ("b", "x", "n"))


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
