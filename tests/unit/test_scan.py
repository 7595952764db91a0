"""An accepted filter stays inside its brackets, with any quotes and comments."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trueup.db.scan import problem_with

GOOD = [
    "id < 5",
    "name = 'it''s (fine;'",
    "name = E'it\\'s (fine;'",
    '"a)b" = 1',
    "name = $$)$$ OR name = $x$ $$ ) $x$",
    "id > 0 /* ) ; /* nested ) */ */",
    "id > 0 -- ) ;",
    "id > 0 -- )\nAND id < 9",
    "(id > 0) AND (name IN ('a', 'b'))",
    "a$$ = 1 AND b$$ = 2",
    "price > 1.5e3 AND n < 1_000",
    "true",
    "(SELECT true)",
    "tag LIKE '%\\'",
    "U&'\\0041' = name",
    "größe = '5'",
]

BAD = {
    "": "empty",
    " \n\t": "empty",
    "-- only a comment": "empty",
    "/* only a comment */": "empty",
    "true; DROP TABLE x": "more than one statement",
    "true) ; DROP TABLE x; --": "a closing bracket has no opening bracket",
    "1=1) OR (1=1": "a closing bracket has no opening bracket",
    "(1=1": "not closed",
    "name = 'open": "quote is not closed",
    'na"me = 1': "quote is not closed",
    "name = $$open": "dollar quote is not closed",
    "name = $a$ open $b$": "dollar quote is not closed",
    "true /* open": "comment is not closed",
    "true /* /* */": "comment is not closed",
    "true\0": "NUL",
    "name = E'\\'": "quote is not closed",
    # In PostgreSQL a carriage return ends a line comment.
    "true -- \r) OR (true": "a closing bracket has no opening bracket",
    # A string that is continued in a new line has the rules of the first part: here backslashes are escapes.
    "name = E'a'\n'\\'' ) OR ( 1=1 --'": "continues in the next line",
    "name = E'a' -- c\n '\\'' ) OR ( 1=1 --'": "continues in the next line",
    # Every character beyond ASCII is a letter: here of a tag, and of a name.
    "'x' <> $€$ ( $€$ ) OR ( true OR 'y' <> $€$ ) $€$": "a closing bracket has no opening bracket",
    "€$$ ) OR ( a$$ = 1": "a closing bracket has no opening bracket",
    "€E'\\' ) OR ('": "a closing bracket has no opening bracket",
    "1$$ ( $$ )": "directly followed by a quote",
    "1e'\\''": "directly followed by a quote",
}


@pytest.mark.parametrize("text", GOOD)
def test_an_expression_is_accepted(text: str) -> None:
    assert problem_with(text) is None


@pytest.mark.parametrize(("text", "why"), BAD.items())
def test_anything_else_is_rejected_with_a_reason(text: str, why: str) -> None:
    assert why in (problem_with(text) or "")


def escapes(text: str) -> str | None:
    """Return the problem when PostgreSQL scans `(\\n` + text + `\\n)`: a state machine based on its scan.l."""
    at, depth = 0, 1
    scanned = text + "\n"
    while at < len(scanned):
        char, two = scanned[at], scanned[at : at + 2]
        if two == "--":
            while scanned[at] not in "\n\r":
                at += 1
        elif two == "/*":
            nested, at = 1, at + 2
            while nested:
                if at >= len(scanned):
                    return "unterminated comment"
                step = {"/*": 1, "*/": -1}.get(scanned[at : at + 2], 0)
                nested += step
                at += 2 if step else 1
        elif two in ("e'", "E'") or char in "'\"":
            end = _end_of_quoted(scanned, at)
            if end is None:
                return "unterminated quote"
            at = end
        elif _letter(char):
            while at < len(scanned) and (_letter(scanned[at]) or scanned[at] in "0123456789$"):
                if scanned[at] in "eE" and scanned[at + 1 : at + 2] == "'" and not _inside_word(scanned, at):
                    break
                at += 1
        elif char == "$" and (tag := _dollar(scanned, at)):
            end_of = scanned.find(tag, at + len(tag))
            if end_of < 0:
                return "unterminated dollar quote"
            at = end_of + len(tag)
        else:
            if char == ";":
                return "ends the statement"
            depth += {"(": 1, ")": -1}.get(char, 0)
            if depth < 1:
                return "closes the outer bracket"
            at += 1
    return None if depth == 1 else "leaves a bracket open"


def _letter(char: str) -> bool:
    return char == "_" or (char.isascii() and char.isalpha()) or ord(char) > 127


def _inside_word(text: str, at: int) -> bool:
    return at > 0 and (_letter(text[at - 1]) or text[at - 1] in "0123456789$")


def _dollar(text: str, at: int) -> str | None:
    end = text.find("$", at + 1)
    tag = text[at + 1 : end] if end > 0 else "?"
    fits = all(_letter(char) or (number and char in "0123456789") for number, char in enumerate(tag))
    return text[at : end + 1] if fits else None


def _end_of_quoted(text: str, at: int) -> int | None:
    """Return the end of '…', "…" or E'…', with its continuation in later lines."""
    escaped = text[at] in "eE"
    at += escaped
    quote, at = text[at], at + 1
    while at < len(text):
        if escaped and text[at] == "\\":
            at += 2
        elif text[at] != quote:
            at += 1
        elif text[at + 1 : at + 2] == quote:
            at += 2
        else:
            at += 1
            follows = _continued(text, at) if quote == "'" else None
            if follows is None:
                return at
            at = follows
    return None


def _continued(text: str, at: int) -> int | None:
    """Return the position after the quote that continues a string, after blanks, comments and a line break."""
    broken = False
    while at < len(text):
        if text[at] in " \t\n\r\f\v":
            broken = broken or text[at] in "\n\r"
            at += 1
        elif text.startswith("--", at):
            while at < len(text) and text[at] not in "\n\r":
                at += 1
        else:
            return at + 1 if broken and text[at] == "'" else None
    return None


PIECES = st.sampled_from(
    [
        *("'", "''", '"', "$$", "$a$", "$", "\\", "E'", "e", "(", ")", ";", "--", "/*", "*/"),
        *("\n", "\r", " ", "a", "1", "€", "é", "=", "&", "U&", "*"),
    ]
)


@given(st.lists(PIECES, max_size=14).map("".join))
@settings(max_examples=3000, deadline=None)
@example("true -- \r) OR (true")
@example("E'a'\n'\\'' ) OR ( 1=1 --'")
@example("$€$ ( $€$ ) OR ( $€$ ) $€$")
@example("E'''\\'")
def test_an_accepted_filter_never_leaves_its_brackets(text: str) -> None:
    if problem_with(text) is None:
        assert escapes(text) is None


@given(st.text(max_size=40))
@settings(max_examples=500, deadline=None)
def test_any_text_has_a_result(text: str) -> None:
    if problem_with(text) is None:
        assert escapes(text) is None


@pytest.mark.parametrize("text", [text for text in BAD if "number" not in BAD[text] and "empty" not in BAD[text]])
def test_the_oracle_rejects_bad_filters(text: str) -> None:
    known = "NUL" in BAD[text] or "followed by a quote" in BAD[text]
    assert known or escapes(text) is not None
