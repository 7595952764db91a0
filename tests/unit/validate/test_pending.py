"""The rules when a differing row is an error and when a changing row is proven, without a database."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from trueup.verbs.validate.judge import Mismatch
from trueup.verbs.validate.pending import Entry, Touch, key_text, key_values

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
DELAY = timedelta(seconds=10)


def _at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def _touch(lsn: int) -> Touch:
    return Touch("update", lsn, lsn, lsn, START)


def _found(source: int | None, target: int | None) -> Mismatch:
    digests = (None if row is None else f"{row}" for row in (source, target))
    return Mismatch(("1",), "changed", ("v",), {}, {}, *digests)


def _failed(entry: Entry, mark: int, seconds: float, source: int = 1, target: int = 2) -> Entry:
    after = entry.failed(_found(source, target), mark, _at(seconds), DELAY)
    assert after is not None
    return after


def test_an_error_needs_the_delay_and_all_earlier_changes() -> None:
    entry = _failed(Entry.of("t", ("1",), _touch(100)), mark=110, seconds=0)
    assert not entry.is_error(10_000, DELAY)
    entry = _failed(entry, mark=120, seconds=11)
    # Wrong for long enough, but it may have changed between the position that was read and the check.
    assert not entry.is_error(119, DELAY)
    assert entry.is_error(120, DELAY)
    # The mark does not move, else the errors of a slow syncer would never be found.
    entry = _failed(entry, mark=130, seconds=12)
    assert entry.is_error(120, DELAY)


def test_a_newer_change_restarts_the_delay() -> None:
    entry = _failed(Entry.of("t", ("1",), _touch(100)), mark=110, seconds=0)
    entry = entry.touched(_touch(115))
    assert entry.is_hot
    assert (entry.first_lsn, entry.last_lsn) == (100, 115)
    entry = _failed(entry, mark=120, seconds=11)
    assert not entry.is_error(10_000, DELAY)
    # An older change that is read again after a crash has no effect.
    assert entry.touched(_touch(115)) is entry


@pytest.mark.parametrize("op", ["scrub", "target"])
def test_a_row_that_differed_before_a_change_stays_at_its_position(op: str) -> None:
    """A marker between the two positions is not validated before the row is decided."""
    entry = _failed(Entry.of("t", ("1",), Touch(op, 100, 100, 0, None)), mark=110, seconds=0)
    entry = entry.touched(_touch(200))
    assert (entry.op, entry.first_lsn, entry.last_lsn) == ("update", 100, 200)
    assert _failed(entry, mark=210, seconds=1).first_lsn == 100


def test_a_hot_row_is_proven_when_the_target_has_an_earlier_source_row() -> None:
    entry = _failed(Entry.of("t", ("1",), _touch(100)), mark=0, seconds=0, source=41, target=40)
    entry = _failed(entry.touched(_touch(200)), mark=0, seconds=1, source=42, target=40)
    entry = _failed(entry.touched(_touch(300)), mark=0, seconds=2, source=43, target=41)
    # 41 is the state after change 100: that one is proven, 200 and 300 are not.
    assert entry.first_lsn == 101
    entry = _failed(entry, mark=0, seconds=3, source=44, target=42)
    assert entry.first_lsn == 201
    # A state from before a change proves nothing about it.
    assert _failed(entry, mark=0, seconds=4, source=44, target=41).first_lsn == 201
    assert entry.failed(_found(45, 43), 0, _at(5), DELAY) is None


def test_keys_are_restored_from_the_meta_database() -> None:
    for key in (("1",), ("a\tb", 'c"\\', "é😀", ""), ("[1]",)):
        assert key_values(key_text(key)) == key


def test_behind_the_cut_over_another_source_row_restarts_the_delay() -> None:
    entry = _failed(Entry.of("t", ("1",), _touch(100)), mark=110, seconds=0, source=1)
    entry = _failed(entry.compared_by_digest(_found(1, 9)), mark=120, seconds=11, source=1, target=9)
    assert entry.is_error(120, DELAY)
    # Another row, and back: neither is the row of the check before.
    for seconds, row in ((12, 2), (13, 1)):
        entry = entry.compared_by_digest(_found(row, 9))
        assert entry.is_hot
        entry = _failed(entry, mark=120 + seconds, seconds=seconds, source=row, target=9)
        assert not entry.is_error(10_000, DELAY)
    # It stays as it is, and is an error after the delay.
    entry = _failed(entry.compared_by_digest(_found(1, 9)), mark=150, seconds=24, source=1, target=9)
    assert entry.is_error(150, DELAY)
