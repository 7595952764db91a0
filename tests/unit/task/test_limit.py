"""The limit of differences: what a re-check finds beyond it is listed, unless the first look was cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from trueup.rows.align import Difference, Group
from trueup.rows.spec import ColumnSpec, TableSpec
from trueup.task.compare.lines import Lines
from trueup.task.compare.model import Found
from trueup.task.compare.spool import Spool
from trueup.task.compare.state import State

PAIR = ("a", "b")
KEYLESS = TableSpec("public", "t", (), (ColumnSpec("v", '"pg_catalog"."text"', "text"),))


def _row(mark: int, copies: int) -> Difference:
    """Return a row of a keyless table that `a` has this many times, and `b` not at all."""
    return Difference((str(mark),), PAIR, (Group(("a",), mark, ("v",), copies), Group(("b",), None, None, 0)))


@pytest.mark.parametrize(("first", "listed", "is_cut"), [([1, 1, 1], 3, False), ([1, 1, 1, 2, 1], 1, True)])
def test_a_row_with_more_copies_at_a_recheck_hides_no_other(
    tmp_path: Path, first: list[int], listed: int, is_cut: bool
) -> None:
    state = State(PAIR, 5, Spool(tmp_path))
    state.add(Found(tuple(_row(mark, copies) for mark, copies in enumerate(first))))
    before = state.take_suspects(Spool(tmp_path))
    # At the re-check the first row has ten copies, more than the limit.
    state.keep([_row(int(known.key[0]), 10 if known.key == ("0",) else 1) for known in before])
    assert state.kinds[PAIR]["missing"] == 10 + listed - 1
    assert len(list(Lines(KEYLESS, PAIR).of(iter(state.suspects), state.limit(PAIR)))) == listed
    assert bool(state.cut[PAIR]) == is_cut
    before.close()
    state.suspects.close()
