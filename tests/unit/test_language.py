"""Plain technical English: words that say too little, or only sound nice, appear in no text of the project."""

from __future__ import annotations

import io
import keyword
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOME = ROOT / "src" / "trueup"

# Pattern -> what to write instead.
BANNED = {
    r"mend(s|ed|ing)?": "fix, repair",
    r"told|tells": "reported, reports, returned, notified",
    r"heed(s|ed)?": "handle, apply",
    # Not the user account `nobody`.
    r"(some|no(?!body(?:\"$|, daemon))|any|every)body|whoever|whomever": "name the program, session, user or node",
    r"so many": "at most N, N",
    r"gives": "returns",
    r"carr(y|ies|ied) over|carries": "copies, sends, holds",
    r"lies|stands": "is",
    r"(did|does|do) not go well|goes? well": "failed",
    r"(is|are) not there": "does not exist, is missing",
    r"nor": "and not, or",
    r"be the only one|come close|let go": "name the lock or the condition",
    r"wants": "requires, needs",
}
_BANNED = re.compile(r"(?<![\w-])(?:" + "|".join(BANNED) + r")(?![\w-])", re.IGNORECASE)


def area(path: Path) -> str:
    """Return the package, verb or folder that a file belongs to."""
    if HOME not in path.parents:
        return path.relative_to(ROOT).parts[0]
    parts = path.relative_to(HOME).parts
    return "/".join(parts[: 2 if parts[0] == "verbs" else 1])


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line number and text: comments, strings and names of Python, all lines of other files."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from enumerate(source.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        if kind in ("COMMENT", "STRING", "FSTRING_MIDDLE"):
            yield from enumerate(token.string.splitlines(), token.start[0])
        elif kind == "NAME" and not keyword.iskeyword(token.string):
            yield token.start[0], re.sub(r"[\W_]+", " ", token.string)


def problems(path: Path) -> list[str]:
    """List the banned words of a file, with their lines."""
    return [
        f"{path.relative_to(ROOT)}:{line}: {word[0]}" for line, text in texts(path) for word in _BANNED.finditer(text)
    ]


FILES = sorted(
    path
    for pattern in (
        "src/**/*.py",
        "src/**/*.sql",
        "docs/**/*.md",
        "*.md",
        "src/**/*.j2",
        "src/**/*.js",
        "tests/**/*.py",
    )
    for path in ROOT.glob(pattern)
    if path != Path(__file__)
)


@pytest.mark.parametrize("name", sorted({area(path) for path in FILES}))
def test_texts_use_plain_words(name: str) -> None:
    found = [problem for path in FILES if area(path) == name for problem in problems(path)]
    assert found == []


@pytest.mark.parametrize(
    ("text", "count"),
    [("It mends rows; nobody is told.", 3), ("a standby node, a normal one", 0), ("is not there", 1), ("recommend", 0)],
)
def test_the_pattern_finds_words_and_not_their_parts(text: str, count: int) -> None:
    assert len(_BANNED.findall(text)) == count
