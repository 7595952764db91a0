"""The number of concurrent tasks: a share of the cores, at least one, at most what a node allows."""

from __future__ import annotations

import pytest

from trueup.engine.slots import Share


@pytest.mark.parametrize(
    ("share", "cores", "slots"),
    [
        (Share(0.5), 8, 4),
        (Share(0.5), 1, 2),
        (Share(0.0), 64, 1),
        (Share(4.0), 2, 8),
        (Share(0.5, max_connections=3), 100, 2),
        (Share(1.0, max_connections=2), 3, 1),
        (Share(0.5, fixed=6), 2, 6),
        (Share(0.5, max_connections=5, fixed=6), 2, 4),
    ],
)
def test_the_slots_of_a_share(share: Share, cores: int, slots: int) -> None:
    assert share.of(cores) == slots
