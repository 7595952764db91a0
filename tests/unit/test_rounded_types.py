"""Which types of a target round or cut the values of a source column without an error."""

from __future__ import annotations

import pytest

from trueup.sinks.postgres_target import rounds


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("numeric(9,4)", "numeric(9,2)", True),
        ("numeric", "numeric(9,2)", True),
        ("numeric(9,2)", "numeric(9)", True),
        ("numeric(9,2)", "numeric(7,2)", False),
        ("numeric(9,2)", "numeric", False),
        ("numeric(9,-2)", "numeric(9)", False),
        ("numeric(9,4)[]", "numeric(9,2)[]", True),
        ("timestamp without time zone", "timestamp(0) without time zone", True),
        ("timestamp(0) with time zone", "timestamp(3) with time zone", False),
        ("timestamp with time zone", "date", True),
        ("timestamp with time zone", "timestamp without time zone", True),
        ("timestamp without time zone", "timestamp with time zone", False),
        ("double precision", "real", True),
        ("bigint", "double precision", True),
        ("integer", "bigint", False),
        ("character varying(9)", "character varying(7)", False),
        ("public.mood", "text", False),
    ],
)
def test_rounds(source: str, target: str, expected: bool) -> None:
    assert rounds(source, target) is expected
