"""Numbers of keys: every value is in the range of its block, on Arrow; limits of types."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.nodes.arrow_columns import block_numbers
from trueup.nodes.base import KeyBlocks
from trueup.nodes.key_numbers import is_possible, text_of_number
from trueup.rows.spec import ValueClass

NAIVE = datetime(2000, 1, 1)
AWARE = datetime(2000, 1, 1, tzinfo=timezone.utc)
KINDS: dict[ValueClass, tuple[pa.DataType, Any, Any]] = {
    "date": (pa.date32(), st.dates(), lambda number: date(2000, 1, 1) + timedelta(number)),
    "timestamp": (pa.timestamp("us"), st.datetimes(), lambda number: NAIVE + timedelta(microseconds=number)),
    "instant": (
        pa.timestamp("us", "UTC"),
        st.datetimes(timezones=st.just(timezone.utc)),
        lambda number: AWARE + timedelta(microseconds=number),
    ),
    "decimal": (pa.decimal128(38, 3), st.decimals(-(10**33), 10**33, places=3, allow_nan=False), Decimal),
}


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_values_are_in_the_range_of_their_block(kind: ValueClass, data: st.DataObject) -> None:
    arrow, values, value_of = KINDS[kind]
    keys = data.draw(st.lists(values, min_size=1, max_size=20))
    blocks = KeyBlocks("k", data.draw(st.integers(-(10**5), 10**5)), data.draw(st.integers(1, 10**5)), 4, kind)
    numbers = block_numbers(blocks, pa.array(keys, arrow), None).tolist()
    for key, number in zip(keys, numbers, strict=True):
        start, end = blocks.range_of(number)
        assert start is None or value_of(start) <= key
        assert end is None or key < value_of(end)


def test_texts_of_numbers() -> None:
    assert text_of_number("date", 366) == "2001-01-01"
    assert text_of_number("instant", -1) == "1999-12-31 23:59:59.999999+00"
    assert text_of_number("uuid", 2**62) == "80000000-0000-0000-0000-000000000000"
    assert text_of_number("decimal", -5) == "-5"
    assert not is_possible("date", -(2**31), 0)
    assert not is_possible("uuid", 0, 2**63)
    assert is_possible("int", 0, 2**63)
