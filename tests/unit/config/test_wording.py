"""Wording of messages."""

from __future__ import annotations

import pytest

from trueup.config.wording import counted


@pytest.mark.parametrize(
    ("number", "what", "text"),
    [
        (0, "row", "0 rows"),
        (1, "row", "1 row"),
        (1200, "row", "1,200 rows"),
        (2, "key", "2 keys"),
        (2, "entry", "2 entries"),
    ],
)
def test_a_number_with_its_noun(number: int, what: str, text: str) -> None:
    assert counted(number, what) == text
