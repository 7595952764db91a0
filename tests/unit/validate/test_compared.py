"""Changes of the target whose keys were compared afterwards need no comparison of their own."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from trueup.capture.log.visible import Snapshot
from trueup.errors import NodeError
from trueup.verbs.validate.pending import Touch
from trueup.verbs.validate.proving import target
from trueup.verbs.validate.proving.compared import ComparedKeys, Moment
from trueup.verbs.validate.proving.target import TargetCapture
from trueup.verbs.validate.validator import Validator

TABLE = "public.t"


def _moment(number: int, end: int, *running: int, position: int = 0) -> Moment:
    return Moment(number, Snapshot(end, frozenset(running)), position)


def test_a_snapshot_sees_what_was_committed_before_it_also_when_numbers_wrap_around() -> None:
    snapshot = Snapshot(100, frozenset({90}))
    assert [snapshot.sees(xid) for xid in (99, 90, 100, 101, 0xFFFFFFF0)] == [True, False, False, False, True]


def test_only_a_comparison_after_a_change_was_visible_counts_and_only_of_equal_rows() -> None:
    compared = ComparedKeys()
    compared.add(_moment(1, 100, 90), {TABLE: [("1",), ("2",)]}, [(TABLE, ("2",))])
    assert compared.has(TABLE, ("1",), 99, 0)
    # Not visible at that time; another table; a row that differed.
    assert not compared.has(TABLE, ("1",), 90, 0)
    assert not compared.has(TABLE, ("1",), 100, 0)
    assert not compared.has("public.u", ("1",), 99, 0)
    assert not compared.has(TABLE, ("2",), 99, 0)
    # A row that differed and prints its key otherwise: it may be any of them.
    compared.forget()
    compared.add(_moment(2, 100), {TABLE: [("1",)]}, [(TABLE, ("1.0",))])
    assert not compared.has(TABLE, ("1",), 99, 0)


def test_pods_have_no_transaction_and_count_from_the_next_moment_on() -> None:
    compared = ComparedKeys()
    compared.add(_moment(1, 100), {TABLE: [("1",)]}, [])
    assert compared.has(TABLE, ("1",), 0, 0)
    assert not compared.has(TABLE, ("1",), 0, 1)


def test_what_the_rest_of_the_log_does_not_need_is_forgotten() -> None:
    compared = ComparedKeys()
    compared.add(_moment(1, 100, position=10), {TABLE: [("1",)]}, [])
    compared.add(_moment(2, 100, position=20), {TABLE: [("2",)]}, [])
    compared.forget_before(10)
    assert not compared.has(TABLE, ("1",), 99, 0)
    assert compared.has(TABLE, ("2",), 99, 0)
    # Memory is bounded.
    compared.add(_moment(3, 100, position=30), {TABLE: [(str(number),) for number in range(1000, 201_000)]}, [])
    assert not compared.has(TABLE, ("2",), 99, 0)


def test_the_moment_is_from_before_the_rows_are_read() -> None:
    order: list[str] = []
    validator: Any = Validator.__new__(Validator)
    validator.capture = SimpleNamespace(moment=lambda: order.append("moment"))
    validator.checker = SimpleNamespace(
        start=lambda *arguments: order.append("read"), postpone_unseen=lambda entries: None
    )
    validator.scrubber = SimpleNamespace(touch=lambda touches: None)
    validator.sessions = SimpleNamespace(source=None, source_errors=nullcontext)
    validator.positions = SimpleNamespace(applied=0)
    validator._next_check(None, {TABLE: {("1",): Touch("update", 1, 1, 0, None)}})
    assert order == ["moment", "read"]


def test_changes_that_are_found_after_a_comparison_are_not_judged_by_it() -> None:
    capture: Any = TargetCapture.__new__(TargetCapture)
    pulled = SimpleNamespace(coverage=SimpleNamespace(warnings=()))
    capture._changes = SimpleNamespace(pull=lambda start, at_once: pulled, found=lambda pulled: {})
    capture.check, capture._note = lambda: None, lambda captured: None
    capture.compared, capture._pulled, capture.read = ComparedKeys(), None, 0
    capture.compared._number = 1
    capture.compared.add(_moment(1, 100), {TABLE: [("1",)]}, [])
    capture.pull()
    assert not capture.compared.has(TABLE, ("1",), 0, capture._since)

    def fail(*arguments: object) -> None:
        raise NodeError("no answer")

    # The sessions are opened again, maybe with another server.
    capture._sessions, capture._changes.begin = SimpleNamespace(meta=None, name="v"), fail
    with pytest.raises(NodeError):
        capture.open(None, None, 0)
    assert not capture.compared.has(TABLE, ("1",), 99, 0)


def test_a_change_that_is_not_visible_yet_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its transaction may wait for a synchronous standby: the row that is read would be the old one."""
    monkeypatch.setattr(target, "wait_until_visible", lambda connection, xids: xids)
    capture: Any = TargetCapture.__new__(TargetCapture)
    capture._sessions = SimpleNamespace(target=None, target_errors=nullcontext)
    assert not capture._check({TABLE: {("1",): Touch("update", 1, 1, 5, None)}}, 0)
