"""The hashes of a report in few bytes: what was added is read back, and a text that is no hash is unknown."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trueup.report.json_reader import HOT
from trueup.task.past import UNKNOWN, Hashes

HASH = st.one_of(st.integers(-(2**63), 2**63 - 1).map(str), st.none(), st.just(UNKNOWN), st.just(HOT))
ROWS = st.integers(2, 3).flatmap(lambda nodes: st.lists(st.tuples(*[HASH] * nodes), max_size=6))


@given(ROWS, st.integers(-7, 7), st.integers(-7, 7))
def test_hashes_are_read_back(rows: list[tuple[str | None, ...]], start: int, end: int) -> None:
    hashes = Hashes()
    for row in rows:
        hashes.append(row)
    assert list(hashes) == rows
    assert hashes[start:end] == tuple(rows[start:end])
    if rows:
        hashes.set_hot(len(rows) - 1)
        assert hashes[-1] == (HOT,) * len(rows[0])
        assert hashes[:-1] == tuple(rows[:-1])


def test_a_text_that_is_no_hash_is_unknown() -> None:
    hashes = Hashes()
    hashes.append(("x", str(2**63)))
    assert hashes[0] == (UNKNOWN, UNKNOWN)
