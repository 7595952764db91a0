"""The order in which the tables of a repair are written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trueup.db.foreign_keys import ForeignKey
from trueup.verbs.repair.order import write_order

NAMES = [("s", name) for name in "abcdef"]
pairs = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES), st.booleans()), max_size=12)


def key(child: tuple[str, str], parent: tuple[str, str], *, deferrable: bool = False) -> ForeignKey:
    return ForeignKey(
        f"{child[1]}_{parent[1]}", child, parent, child, parent, ("p",), ("id",), ("=",), ("int4",), ("int4",),
        deferrable, True, False, "a", "a", False,
    )  # fmt: skip


def test_parents_come_first_and_a_cycle_that_cannot_be_deferred_is_named() -> None:
    a, b, c, d = NAMES[:4]
    chain = [key(a, b), key(b, c), key(a, a)]
    assert write_order([a, b, c], chain, {a, b, c}, set()).tables == (c, b, a)
    cycle = [key(a, b), key(b, a), key(d, a)]
    order = write_order([a, b, c, d], cycle, {a, b}, set())
    assert order.stuck == ((a, b),)
    (reason,) = order.reasons(cycle)
    assert "s.a, s.b refer to each other" in reason
    assert "(a_b, b_a)" in reason
    # Rows are inserted into one of them only: those first.
    assert write_order([a, b], cycle, {b}, {a}).tables == (b, a)
    assert write_order([a, b], cycle, {b}, {a}).stuck == ()
    # One key of the cycle can wait: the other one determines the order.
    assert write_order([a, b], [key(a, b, deferrable=True), key(b, a)], {a, b}, {a, b}).tables == (a, b)
    assert write_order([a, b], [key(a, b), key(b, a, deferrable=True)], {a, b}, {a, b}).tables == (b, a)


@given(pairs)
def test_every_key_that_cannot_wait_is_kept(drawn: list[tuple[tuple[str, str], tuple[str, str], bool]]) -> None:
    keys = [key(child, parent, deferrable=deferrable) for child, parent, deferrable in drawn]
    order = write_order(NAMES, keys, set(NAMES), set(NAMES))
    assert sorted(order.tables) == NAMES
    place = order.tables.index
    stuck = [set(group) for group in order.stuck]
    for each in keys:
        is_stuck = any({each.child, each.parent} <= group for group in stuck)
        if not (each.deferrable or each.child == each.parent or is_stuck):
            assert place(each.parent) < place(each.child)
