"""The parts of a copy, and when rounds end."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from trueup.verbs.sync.copy import Pages, cut
from trueup.verbs.sync.model import Round
from trueup.verbs.sync.totals import Totals, Until


def test_the_parts_of_a_table_have_no_gap() -> None:
    rng = random.Random(1)
    for _ in range(500):
        pages, step = rng.randrange(0, 60), rng.randrange(1, 20)
        done: list[Pages] = []
        for _ in range(rng.randrange(4)):
            some = cut(done, pages, step)
            done += rng.sample(some, min(len(some), rng.randrange(1, 3)))
            pages, step = pages + rng.randrange(0, 30), rng.randrange(1, 20)
        left = cut(done, pages, step)
        edges = sorted([*done, *left], key=lambda each: each[0])
        assert edges[0][0] == 0
        assert all(end == following for (_, end), (following, _) in pairwise(edges))
        assert edges[-1][1] is None


@pytest.mark.parametrize(
    ("until", "last", "is_last"),
    [
        (Until(), Round(), True),
        (Until(keys=10), Round(keys=11), False),
        (Until(keys=10), Round(keys=10, pending=1), False),
        (Until(seconds=0.5), Round(milliseconds=501), False),
        (Until(follow=True), Round(), False),
        (Until(once=True), Round(keys=10**6, pending=10**6), True),
    ],
)
def test_when_rounds_end(until: Until, last: Round, is_last: bool) -> None:
    assert until.is_reached(last) == is_last


def test_totals_are_sums_and_the_last_round() -> None:
    totals = Totals().plus(Round(keys=3, rows=2, lag=9.0), 1.0).plus(Round(keys=1, rows=1, pending=4), 2.0)
    assert totals.as_json() == {
        "rounds": 2,
        "keys": 4,
        "lag_seconds": 0.0,
        "pending_keys": 4,
        "keys_per_second": 2.0,
        "last_round_ms": 0.0,
        "aside": [],
    }
    assert totals.text() == "2 rounds, 4 keys (2/s): lag 0.0 s, 4 keys pending, last round 0 ms"
