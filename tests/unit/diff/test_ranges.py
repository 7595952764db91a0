"""Where blocks are cut into units."""

from __future__ import annotations

from trueup.verbs.diff.ranges import evenly

MOST = 2**63 - 1


def _cuts(*keys: int) -> list[tuple[str, ...]]:
    return [(str(key),) for key in keys]


def test_blocks_of_whole_numbers_are_cut_evenly_and_the_last_as_the_one_before() -> None:
    assert list(evenly(_cuts(0, 100, 400), 4, MOST)) == [
        (("25",), ("50",), ("75",)),
        (("175",), ("250",), ("325",)),
        (("475",), ("550",), ("625",)),
    ]


def test_narrow_blocks_are_not_cut() -> None:
    assert list(evenly(_cuts(-5, -3, 97), 4, MOST)) == [
        (),
        (("22",), ("47",), ("72",)),
        (("122",), ("147",), ("172",)),
    ]
    assert list(evenly(_cuts(7), 4, MOST)) == [()]
    assert list(evenly(_cuts(7, 8), 1, MOST)) == [(), ()]


def test_no_cut_is_outside_of_the_type() -> None:
    assert list(evenly(_cuts(0, 32000), 4, 32767))[1] == ()
    first, last = evenly(_cuts(-(2**63), 2**63 - 3), 2, MOST)
    assert (first, last) == ((("-2",),), ())
