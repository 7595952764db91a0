"""The canonical form of values and rows: exact, unambiguous, and printed as PostgreSQL prints."""

from __future__ import annotations

import hashlib
import math
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.nodes.rows import CompareRows
from trueup.rows.canonical import FORMS, decode_row, encode, encode_row, shown, text_of
from trueup.rows.classes import common_class, is_equal, is_key_class, parsed_class
from trueup.rows.encode import LongValue
from trueup.rows.rules import NO_RULE, Rule, rule_from
from trueup.rows.spec import ValueClass

KINDS: list[ValueClass] = list(FORMS)
FIELDS = st.lists(st.tuples(st.sampled_from(KINDS), st.none() | st.binary(max_size=5)), max_size=4)


@given(FIELDS, FIELDS)
def test_different_rows_have_different_encodings(
    one: list[tuple[ValueClass, bytes | None]], other: list[tuple[ValueClass, bytes | None]]
) -> None:
    rows = [encode_row([kind for kind, _ in row], [value for _, value in row]) for row in (one, other)]
    assert decode_row(rows[0]) == [value for _, value in one]
    forms = [[(FORMS[kind].number, value) for kind, value in row] for row in (one, other)]
    assert (rows[0] == rows[1]) == (forms[0] == forms[1])


@pytest.mark.parametrize("data", [b"", b"\0\0\0\1", encode_row(["int"], [b"12345678"])[:-1], encode_row([], []) + b"x"])
def test_damaged_rows_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not an encoded row"):
        decode_row(data)


@given(st.dates())
def test_dates_are_printed_as_iso(day: date) -> None:
    assert text_of("date", encode("date", day)) == day.isoformat()


@given(st.datetimes())
def test_times_are_printed_as_postgresql_prints_them(moment: datetime) -> None:
    text = text_of("timestamp", encode("timestamp", moment))
    assert datetime.fromisoformat(text.ljust(26, "0") if "." in text else text) == moment
    assert text_of("instant", encode("instant", moment.replace(tzinfo=timezone.utc))) == f"{text}+00"


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4), st.integers(0, 3))
def test_decimals_have_one_form_per_value(number: Decimal, zeros: int) -> None:
    data = encode("decimal", number)
    assert Decimal(data.decode()) == number
    assert encode("decimal", Decimal(f"{number:f}{'0' * zeros}")) == data
    assert data == b"0" or (not data.startswith((b"-0e", b"00")) and b"e" not in data.lower())


def test_printed_values() -> None:
    assert text_of("date", (2**31 - 1).to_bytes(4, "big", signed=True)) == "infinity"
    assert text_of("date", (-730_120).to_bytes(4, "big", signed=True)) == "0001-12-31 BC"
    assert text_of("timestamp", (-(2**63)).to_bytes(8, "big", signed=True)) == "-infinity"
    assert text_of("time", encode("time", time(1, 2, 3, 40))) == "01:02:03.00004"
    assert text_of("float", encode("float", -math.inf)) == "-Infinity"
    assert text_of("float", encode("float", 1.0)) == "1"
    assert text_of("bytes", b"\xde\xad") == "\\xdead"
    assert shown("text", b"x" * 11, 10) == LongValue(11, hashlib.sha256(b"x" * 11).hexdigest())
    assert shown("text", None, 10) is None


@pytest.mark.parametrize(
    ("kinds", "common", "is_key"),
    [
        (["int", "int"], "int", True),
        (["bool", "int"], "int", True),
        (["int", "decimal"], "decimal", True),
        (["text", "char"], "char", True),
        (["text", "json"], "json", False),
        (["uuid", "text"], "text", True),
        (["instant", "text"], "text", False),
        (["timestamp", "instant"], None, False),
        (["float", "decimal"], None, False),
        (["bytes", "text"], None, False),
        (["int", "decimal", "text"], None, False),
    ],
)
def test_columns_of_different_types(kinds: list[ValueClass], common: str | None, is_key: bool) -> None:
    assert common_class(kinds) == common
    assert is_key_class(kinds) == is_key
    if common == "text":
        assert parsed_class(kinds) == kinds[0]


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ('{"a": 1, "b": [1.0, null]}', '{"b":[1,null],"a":1e0}', True),
        ("[1, 2]", "[2, 1]", False),
        ("[true]", "[1]", False),
        ('"1"', "1", False),
        ('"\\u00e9"', '"\u00e9"', True),
        ("0.1", "0.10000000000000001", False),
        ("{", "{ ", False),
        ("NaN", "NaN ", False),
        ('{"a": 1, "a": 2}', '{"a": 2}', False),
        ('{"a": 1, "a": 2}', '{"a":1,"a":2}', True),
        ("{}", "[]", False),
        (None, "null", False),
    ],
)
def test_documents_are_equal_by_value(one: str | None, other: str | None, equal: bool) -> None:
    left, right = (None if text is None else text.encode() for text in (one, other))
    assert is_equal("json", None, left, right) == equal


@pytest.mark.parametrize(
    ("kind", "one", "other", "equal"),
    [
        ("decimal", "1.50", "1.5", True),
        ("decimal", "NaN", "nan", True),
        ("int", "007", "7", True),
        ("int", "7", "7a", False),
        ("int", "ab", "AB", False),
        ("int", "1", "\u0661", False),
        ("int", "1", "1e999999999", False),
        ("float", "10", "1_0", False),
        ("date", "soon", " soon", False),
        ("bool", "true", "1", True),
        ("bool", "true", "yes", False),
        ("float", "1e+16", "1.0E16", True),
        ("uuid", "6F9619FF-8B86-D011-B42D-00CF4FC964FF", "6f9619ff8b86d011b42d00cf4fc964ff", True),
        ("timestamp", "2024-02-29 12:00:00", "2024-02-29T12:00:00.000", True),
        ("timestamp", "2024-02-29 12:00:00", "2024-02-29 12:00:00+00", False),
        ("instant", "2024-02-29 12:00:00+00", "2024-02-29T13:00:00+01:00", True),
        ("instant", "2024-02-29 12:00:00+00", "2024-02-29 12:00:00.0000001+00", False),
        ("date", "2024-02-29", "2024-02-30", False),
        ("time", "12:00:00", "12:00", True),
    ],
)
def test_texts_are_parsed_as_the_other_class(kind: ValueClass, one: str, other: str, equal: bool) -> None:
    assert is_equal("text", kind, one.encode(), other.encode()) == equal
    assert is_equal("text", None, one.encode(), other.encode()) is False


@given(st.datetimes(min_value=datetime(1900, 1, 1)), st.integers(-14, 14))
def test_zones_of_printed_times_are_understood(moment: datetime, hours: int) -> None:
    zone = timezone(timedelta(hours=hours))
    utc = text_of("instant", encode("instant", moment.replace(tzinfo=zone)))
    assert is_equal("text", "instant", utc.encode(), moment.replace(tzinfo=zone).isoformat(" ").encode())


@pytest.mark.parametrize(
    ("rule", "one", "other", "equal"),
    [
        ({"absolute": 1}, "123456789012345678901234567890123", "123456789012345678901234567890124", True),
        ({"absolute": 1}, "123456789012345678901234567890123.1", "123456789012345678901234567890124.2", False),
        ({"scale": 10}, "12345678901234567890.12345678901", "12345678901234567890.12345678902", True),
        ({"relative": 1}, "1", "1e999999999", False),
        ({"absolute": 1}, "NaN", "NaN", True),
        ({"absolute": 1}, "Infinity", "-Infinity", False),
    ],
)
def test_rules_of_numbers_are_exact(rule: dict[str, Any], one: str, other: str, equal: bool) -> None:
    assert is_equal("decimal", None, one.encode(), other.encode(), rule_from(rule)) == equal


def test_a_tolerance_groups_only_nodes_that_are_all_equal() -> None:
    rows = [encode_row(["int", "int"], [encode("int", 1), encode("int", value)], b"seed") for value in (1, 0, 2)]
    compare = CompareRows(("a", "b", "c"), ("int", "int"), (None, None), (NO_RULE, rule_from({"absolute": 1})), 1, 99)
    found = list(compare.differences([(row, [int(own is row) for own in rows]) for row in rows]))
    assert [group.nodes for group in found[0].groups] == [("a", "b"), ("c",)]


def test_rules_do_not_make_bytes_that_are_no_text_equal() -> None:
    # Shown with an escape, the first would look like the second.
    one, other = b"a\xff", b"a\\xff"
    assert not Rule(trim=True).is_equal("text", one, other)
    assert shown("text", one, 100) != shown("text", other, 100)
    assert shown("text", one, 100) == LongValue(2, hashlib.sha256(one).hexdigest())
    # The text of a time that is none is not a number of microseconds.
    assert not Rule(unit="day").is_equal("timestamp", b"2024-00-15 10:00:00", b"2024-00-15 10:00:01")
