"""Which block a changed key belongs to; where the order of keys is not known, all blocks are touched."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.errors import TrueupError
from trueup.proof.model import CertificateBlock, in_order
from trueup.proof.touched import Cuts
from trueup.rows.keys import Block, chain
from trueup.rows.spec import ColumnSpec, KeySpec


def _key(*types: str, order: str = "type") -> list[KeySpec]:
    names = [f'"pg_catalog"."{name}"' if "." not in name else name for name in types]
    return [KeySpec(ColumnSpec(f"c{n}", name, "native"), order) for n, name in enumerate(names)]  # type: ignore[arg-type]


def _cuts(key: list[KeySpec], starts: list[tuple[str, ...]]) -> Cuts:
    return Cuts(key, [CertificateBlock(block, is_touched=False, id=n) for n, block in enumerate(chain(starts))])


@given(st.sets(st.integers(-(10**18), 10**18)), st.lists(st.integers(-(10**18), 10**18)))
def test_the_blocks_of_integer_keys(edges: set[int], keys: list[int]) -> None:
    starts = sorted(edges)
    cuts = _cuts(_key("int8"), [(str(start),) for start in starts])
    expected = {sum(start <= key for start in starts) for key in keys}
    assert cuts.touched_by([(str(key),) for key in keys]) == expected
    # They are reported once.
    assert cuts.touched_by([(str(key),) for key in keys]) == set()
    assert cuts.touch_all() == set(range(len(starts) + 1)) - expected


@given(
    st.sets(st.tuples(st.decimals(allow_nan=False, allow_infinity=False, places=3), st.integers(0, 50)), max_size=20)
)
def test_keys_of_several_columns(edges: set[tuple[Decimal, int]]) -> None:
    starts = sorted(edges)
    cuts = _cuts(_key("numeric", "int4"), [(str(left), str(right)) for left, right in starts])
    for place, (left, right) in enumerate(starts):
        assert cuts.touched_by([(str(left), str(right))]) == {place + 1}


@pytest.mark.parametrize(
    ("key", "starts", "changed"),
    [
        (_key("text"), [("b",), ("c",)], ("a",)),
        (_key("public.citext"), [("b",)], ("a",)),
        (_key("text", order="bytes"), [("b",)], ("ä",)),
        (_key("date"), [("2024-01-01",)], ("infinity",)),
        (_key("numeric"), [("1",)], ("NaN",)),
        (_key("int4"), [("1",)], ("1", "2")),
        # The nodes order these otherwise than integers are: perhaps another type at the time.
        (_key("int4"), [("2",), ("1",)], ("3",)),
    ],
)
def test_all_blocks_are_touched_where_the_order_is_not_known(
    key: list[KeySpec], starts: list[tuple[str, ...]], changed: tuple[str, ...]
) -> None:
    assert _cuts(key, starts).touched_by([changed]) == set(range(len(starts) + 1))


def test_orders_that_are_known() -> None:
    assert _cuts(_key("text", order="bytes"), [("b",)]).touched_by([("B",)]) == {0}
    assert _cuts(_key("date"), [("2024-01-01",)]).touched_by([("2024-01-02",)]) == {1}
    assert _cuts(_key("uuid"), [("8" + "0" * 35,)]).touched_by([("f" + "0" * 35,)]) == {1}
    # A table of one block, whatever its key.
    assert _cuts(_key("text"), []).touched_by([("x",)]) == {0}


@given(st.sets(st.integers(0, 1000)), st.randoms(use_true_random=False))
def test_blocks_are_put_in_order(edges: set[int], random: object) -> None:
    blocks = [CertificateBlock(block) for block in chain([(str(edge),) for edge in sorted(edges)])]
    shuffled = list(blocks)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert in_order(shuffled) == blocks
    if len(blocks) > 1:
        with pytest.raises(TrueupError, match="cover all keys"):
            in_order(shuffled[1:])


def test_blocks_that_overlap() -> None:
    with pytest.raises(TrueupError, match="overlap"):
        in_order([CertificateBlock(Block(None, None)), CertificateBlock(Block(("5",), None))])
    assert in_order([]) == []
