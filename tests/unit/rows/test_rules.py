"""Rules that weaken the equality of a column: what is equal by each, and what is not."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from trueup.rows.rules import rule_from
from trueup.rows.spec import ValueClass


def _micros(number: int) -> bytes:
    return struct.pack(">q", number)


@pytest.mark.parametrize(
    ("values", "kind", "left", "right", "is_equal"),
    [
        # A part of the larger number.
        ({"relative": "0.1"}, "decimal", b"90", b"100", True),
        ({"relative": "0.1"}, "decimal", b"89.9", b"100", False),
        ({"absolute": "0.5"}, "decimal", b"1", b"1.5", True),
        ({"absolute": "0.5"}, "decimal", b"1", b"1.51", False),
        ({"scale": 1}, "decimal", b"1.25", b"1.3", True),
        ({"scale": 1}, "decimal", b"1.24", b"1.3", False),
        # To the nearest unit, not down.
        ({"unit": "s"}, "timestamp", _micros(1_500_000), _micros(2_000_000), True),
        ({"unit": "s"}, "timestamp", _micros(1_400_000), _micros(2_000_000), False),
        ({"trim": True}, "text", b" a", b"a ", True),
        ({"trim": True}, "text", b"A", b"a", False),
        ({"ignore_case": True}, "text", b"A", b"a", True),
        ({"normalize": True}, "text", "e\u0301".encode(), "\u00e9".encode(), True),
        ({"ignore_case": True}, "text", "e\u0301".encode(), "\u00e9".encode(), False),
        ({"null_is_empty": True}, "text", None, b"", True),
        ({"null_is_empty": True}, "text", None, b"a", False),
        # Other rules leave NULL as it is.
        ({"trim": True}, "text", None, b"", False),
        ({"absolute": "5"}, "decimal", None, b"0", False),
    ],
)
def test_equal_by_a_rule(
    values: dict[str, Any], kind: ValueClass, left: bytes | None, right: bytes | None, is_equal: bool
) -> None:
    rule = rule_from(values)
    assert rule.is_equal(kind, left, right) is is_equal
    assert rule.is_equal(kind, right, left) is is_equal
