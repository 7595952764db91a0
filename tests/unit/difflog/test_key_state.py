"""The state of one key, computed in plain Python: what a proof finds if a run has computed another one."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import Row

from trueup.verbs.difflog_ends.key_state import HAS_STATE, NO_STATE, KeyRules, differing_columns

NAN = float("nan")
RULES = KeyRules(
    sources=("visit", "conv"),
    columns={"visit": ("dur",), "conv": ("tag", "sum", "min", "max", "list", "set", "best", "t", "real")},
    ids={"conv": ("event",)},
    all_columns={"visit": ("F", "dur", "ua"), "conv": ("event", "F", "tag", "sum")},
    rules={
        "dur": ("replace", ""),
        **{"tag": ("replace", ""), "sum": ("sum", ""), "min": ("min", ""), "max": ("max", "")},
        **{"list": ("append", ""), "set": ("union", ""), "best": ("last", "t"), "real": ("sum", "")},
    },
    floats=frozenset({"real"}),
    supplied=("dur", "ua"),
    version_name="F",
    deleted_name="IsDeleted",
    fast_name="Fast",
    has_deletions=True,
    ttl_days=0,
    ttl_column="",
    ttl_is_time=False,
    ttl_in_key=False,
    runs={1: (0, False, ()), 2: (0, False, ()), 3: (0, True, (1, 2))},
    skipped=frozenset({"expression"}),
)


def _row(run: int, fast: int, *, gone: bool = False, tie: int = 0, **values: Any) -> Row:
    return Row(run=run, fast=fast, gone=gone, position=None, tie=tie, values=Row(F=fast, **values))


def _state(fast: int, slow: int, since: dict[str, int], supplied: Any = None, *, gone: bool = False, **v: Any) -> Row:
    pairs = [Row(key=name, value=version) for name, version in since.items()]
    every = dict.fromkeys((*RULES.columns["visit"], *RULES.columns["conv"])) | v
    ours = Row(**supplied) if supplied is not None else None
    return Row(run=0, fast=fast, slow=slow, deleted=gone, since=pairs, values=Row(**every), supplied=ours)


def _differing(found: Row | None, visits: list[Row], conv: list[Row], base: Row | None = None) -> list[str]:
    return differing_columns(RULES, base, {"visit": visits, "conv": conv}, found)


FIRST: dict[str, Any] = {"dur": 1, "ua": "a"}
SECOND: dict[str, Any] = {"dur": None, "ua": "b"}


MERGED: dict[str, Any] = {
    **{"dur": 1, "tag": "new", "sum": 10, "min": 1, "max": 4, "list": [2, 1], "set": [2, 3, 1]},
    **{"best": "late", "t": 9},
}


@pytest.mark.parametrize("together", [True, False])
def test_a_late_row_replaces_no_newer_value(together: bool) -> None:
    """In the same run as the newer row, or in a later one that rejoins it."""
    visits = [_row(1, 1, **FIRST), _row(2, 3, **SECOND)]
    newer: dict[str, Any] = {
        "tag": "new",
        "best": "late",
        "t": 9,
        "sum": 5,
        "min": 4,
        "max": 4,
        "list": [1],
        "set": [1, 2],
    }
    older: dict[str, Any] = {
        "tag": "old",
        "best": "early",
        "t": 1,
        "sum": 5,
        "min": 1,
        "max": 1,
        "list": [2],
        "set": [2, 3],
    }
    run = 2 if together else 3
    conv = [_row(2, 3, event=1, **newer), _row(run, 2, event=2, **older)]
    # Only one row of the same id counts.
    conv.append(_row(run, 2, event=2, tag="first", best="first", t=0, sum=1))
    slow = 3 if together else 4
    assert _differing(_state(3, slow, {"dur": 1}, SECOND, **MERGED), visits, conv) == []
    wrong: dict[str, Any] = {"dur": 2, "tag": "old", "sum": 11, "min": 4, "max": 1, "list": [1, 2], "set": [1, 2, 3]}
    wrong |= {"best": "early", "t": 1}
    assert wrong.keys() == MERGED.keys()
    for name, value in wrong.items():
        found = _state(3, slow, {"dur": 1}, SECOND, **(MERGED | {name: value}), expression=1)
        assert _differing(found, visits, conv) == [name]
    versions = _state(2, 9, {}, {"dur": 2, "ua": "b"}, **MERGED)
    assert _differing(versions, visits, conv) == ["F", "Fast.dur", "Since", "SlowVersion"]


def test_a_deleted_visit_that_came_back() -> None:
    visits = [_row(1, 1, **FIRST), _row(2, 1, gone=True, dur=None, ua=None), _row(2, 2, **SECOND)]
    conv = [_row(1, 1, event=1, tag="gone"), _row(2, 1, event=2, tag="gone too"), _row(2, 2, event=3, tag="back")]
    back = _state(2, 4, {"IsDeleted": 1}, SECOND, tag="back")
    assert _differing(back, visits, conv) == []
    lost = _state(2, 3, {"IsDeleted": 2}, SECOND, gone=True)
    assert _differing(lost, visits, conv) == ["IsDeleted", "Since", "SlowVersion", "tag"]
    assert _differing(None, visits, conv) == [NO_STATE]
    # A row of the side log waits until the visit is back.
    waits = [_row(1, 2, gone=True, dur=None, ua=None)]
    deleted = _state(2, 1, {"IsDeleted": 2}, {"dur": None, "ua": None}, gone=True)
    assert _differing(deleted, waits, [_row(2, 3, event=1, tag="x")]) == []
    again = _state(3, 3, {"IsDeleted": 2}, FIRST, dur=1, tag="x")
    assert _differing(again, [*waits, _row(3, 3, **FIRST)], [_row(2, 3, event=1, tag="x")]) == []


def test_numbers_are_added_as_spark_does() -> None:
    conv = [_row(1, 1, tie=n, event=n, real=0.1, sum=Decimal("1e20"), max=NAN, min=NAN) for n in range(3)]
    found = _state(1, 1, {}, real=0.30000001192092896, sum=Decimal("3e20"), max=NAN, min=NAN)
    assert _differing(found, [], conv) == []


def test_the_states_before_the_first_run() -> None:
    base = Row(**(_state(5, 7, {"tag": 2, "Fast": 4}, FIRST, tag="old", sum=1, dur=1).asDict() | {"run": 2}))
    conv = [_row(2, 5, event=1, tag="new", sum=2)]
    assert _differing(_state(5, 8, {"Fast": 4}, FIRST, tag="new", sum=3, dur=1), [], conv, base) == []
    assert _differing(_state(5, 8, {"Fast": 4}, FIRST, tag="old", sum=3, dur=1), [], conv, base) == ["tag"]
    # Before its first run the key had no state: the base is of a later run.
    later = [_row(1, 5, event=9, tag="first"), *conv]
    assert _differing(_state(5, 2, {}, None, tag="new", sum=2), [], later, base) == []


def test_rows_of_an_expired_state_wait() -> None:
    from dataclasses import replace

    days = {1: (10, False, ()), 2: (50, False, ()), 3: (50, False, ())}
    rules = replace(RULES, ttl_days=30, ttl_column="ua", runs=days)
    visits = [_row(1, 1, dur=1, ua=10)]
    conv = [_row(2, 1, event=1, tag="x")]
    rows = {"visit": visits, "conv": conv}
    assert differing_columns(rules, None, rows, None) == []
    found = _state(1, 2, {}, {"dur": 1, "ua": 10}, tag="x", dur=1)
    assert differing_columns(rules, None, rows, found) == [HAS_STATE]
    # A file that no run has replaced may still contain it.
    kept = _state(1, 1, {}, {"dur": 1, "ua": 10}, dur=1)
    assert differing_columns(rules, None, {"visit": visits}, kept) == []
    assert differing_columns(rules, None, {"visit": visits}, None) == []
