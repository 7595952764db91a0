"""Marks of rows: exactly the differences between two sides are found."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from trueup.rows.marks import Marks, differing_marks, hashes_of, sorted_marks

NUMBER = st.integers(-(2**63), 2**63 - 1)
# Few keys and few hashes, so that the sides have many in common; and arbitrary ones.
SIDE = st.one_of(st.dictionaries(st.integers(-5, 5), st.integers(0, 2)), st.dictionaries(NUMBER, NUMBER, max_size=20))


def _marks(side: dict[int, int], order: list[int]) -> Marks:
    keys = sorted(side, key=lambda key: order[key % len(order)])
    packed = [struct.pack(f">{len(keys)}q", *numbers) for numbers in (keys, [side[key] for key in keys])]
    return sorted_marks(*packed)


@given(st.lists(SIDE, min_size=2, max_size=4), st.permutations(range(7)))
def test_exactly_the_differences_are_found(sides: list[dict[int, int]], order: list[int]) -> None:
    every = {key for side in sides for key in side}
    expected = sorted(key for key in every if len({side.get(key) for side in sides}) > 1)
    marks = [_marks(side, order) for side in sides]
    assert not any(side.has_twins for side in marks)
    found = differing_marks(marks)
    assert found.tolist() == expected
    for side, packed in zip(sides, marks, strict=True):
        assert hashes_of(packed, found) == [side.get(key) for key in expected]


@given(st.lists(NUMBER, min_size=1, max_size=20))
def test_duplicate_marks_are_detected(keys: list[int]) -> None:
    packed = struct.pack(f">{len(keys)}q", *keys)
    assert sorted_marks(packed, packed).has_twins == (len(set(keys)) < len(keys))
