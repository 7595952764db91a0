"""The statements that make the labels of an enum equal."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.verbs.sync_ddl.labels import label_statements

_ADD = re.compile(r"ALTER TYPE t ADD VALUE '(\w+)'(?: (AFTER|BEFORE) '(\w+)')?")
_RENAME = re.compile(r"ALTER TYPE t RENAME VALUE '(\w+)' TO '(\w+)'")


def run(labels: list[str], text: str) -> list[str]:
    """Return the labels after a statement, as PostgreSQL does it."""
    if found := _RENAME.fullmatch(text):
        assert found[1] in labels
        assert found[2] not in labels
        return [found[2] if label == found[1] else label for label in labels]
    found = _ADD.fullmatch(text)
    assert found
    assert found[1] not in labels
    place = len(labels) if found[3] is None else labels.index(found[3]) + (found[2] == "AFTER")
    return [*labels[:place], found[1], *labels[place:]]


LABELS = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=6)


@given(LABELS, LABELS)
def test_the_statements_make_all_labels_equal_or_there_are_none(present: list[str], wanted: list[str]) -> None:
    statements = label_statements("t", present, wanted)
    labels = list(present)
    for statement in statements:
        labels = run(labels, statement.text)
    assert labels == wanted or not statements
    # What a running sync applies by itself refers to no label that is renamed first.
    labels = list(present)
    for statement in statements:
        if not statement.drops:
            labels = run(labels, statement.text)


@pytest.mark.parametrize(
    ("present", "wanted", "is_clear"),
    [
        *[("ab", "axb", True), ("ab", "xyab", True), ("ab", "cb", True), ("", "ab", True)],
        *[("ab", "ba", False), ("abc", "ac", False), ("ab", "xyb", False)],
    ],
)
def test_what_is_clear(present: str, wanted: str, is_clear: bool) -> None:
    assert bool(label_statements("t", list(present), list(wanted))) == is_clear
