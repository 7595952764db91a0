"""Which of several syncs of one name is meant: by the two databases, by their roles, and by what is left of a pair."""

from __future__ import annotations

import pytest

from trueup.config.model import Node
from trueup.errors import CheckFailed
from trueup.verbs.sync.identity.naming import Side, Trace, between, free_name, on_one, only

LOST = Node("n9", "postgresql://none/none")


def _names(found: list[Trace]) -> set[str]:
    return {trace.name for trace in found}


def test_the_direction_decides_before_the_way_back() -> None:
    """A sync in each direction, both with a way back: each database has a state and a change log of both."""
    first = Side("A", (Trace("main", "1", "B", True, True), Trace("main__000001", "2", "B", False, True)))
    second = Side("B", (Trace("main", "1", "A", False, True), Trace("main__000001", "2", "A", True, True)))
    assert (_names(between(first, second)), _names(between(second, first))) == ({"main"}, {"main__000001"})
    # Without a sync in the direction, the way back of the other one is meant.
    alone = Side("A", first.traces[:1]), Side("B", second.traces[:1])
    assert _names(between(alone[1], alone[0])) == {"main"}


def test_a_live_sync_comes_before_the_pointer_of_a_finished_switchover() -> None:
    closed, live = Trace("main", "1", "B", True, False, "n2"), Trace("main__000001", "2", "B", True, True)
    assert _names(between(Side("A", (closed, live)), Side("B", ()))) == {"main__000001"}
    assert _names(between(Side("A", (closed,)), Side("B", ()))) == {"main"}


def test_the_sync_identifies_servers_that_hide_their_identity() -> None:
    """Two syncs from one database into databases that look equal: only one of them is known on the other side."""
    source = Side("X", (Trace("main", "1", "X", True, True), Trace("main__000001", "2", "X", True, True)))
    assert _names(between(source, Side("X", (Trace("main__000001", "2", "X", False, True),)))) == {"main__000001"}


def test_of_a_lost_pair_the_name_of_the_node_decides_or_all_are_listed() -> None:
    known = Trace("main", "1", "B", True, True, "n9"), Trace("main__000001", "2", "C", True, True, "n3")
    assert only(on_one(Side("A", known), LOST, is_first=True), "main") == "main"
    unknown = on_one(Side("A", known), Node("n5", LOST.conninfo), is_first=True)
    with pytest.raises(CheckFailed, match=r"several syncs main: main \(with n9\), main__000001 \(with n3\)"):
        only(unknown, "main")
    assert only([], "main") == "main"


def test_a_name_is_free_or_gets_a_suffix_that_is_free() -> None:
    taken, other = Side("A", (Trace("main", "1", "B", True, True),)), Side("C", ())
    assert free_name("side", taken, other) == "side"
    suffixed = free_name("main", taken, other)
    assert suffixed == free_name("main", taken, other) != free_name("main", other, taken)
    again = free_name("main", taken, Side("C", (Trace(suffixed, "2", "D", False, True),)))
    assert again not in ("main", suffixed)
    long = "m" * 23
    with pytest.raises(CheckFailed, match="too long for a suffix"):
        free_name(long, Side("A", (Trace(long, "1", "B", True, True),)), other)
