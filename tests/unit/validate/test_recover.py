"""What a validation does after an error, with a validator that only counts its calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from psycopg.pq import TransactionStatus

from trueup.config.model import Node
from trueup.errors import CheckFailed, NodeError, QueryError, TrueupError
from trueup.verbs.validate.recover import Recovery

LOST = NodeError("the connection was lost", node="n1")


class Counting:
    """A validator whose `open` raises the given errors, one per call."""

    def __init__(self, *failures: TrueupError) -> None:
        self.failures = list(failures)
        self.opened = 0
        self.wanted = ""
        info = SimpleNamespace(transaction_status=TransactionStatus.IDLE)
        meta = SimpleNamespace(connection=SimpleNamespace(info=info), rows=lambda *a, **k: [])
        self.sessions = SimpleNamespace(name="v", meta=meta, log=lambda text: None, reload=lambda: self)

    def close(self) -> None:
        """Close nothing."""

    def open(self) -> None:
        """Count, and fail if a failure is left."""
        self.opened += 1
        if self.failures:
            raise self.failures.pop(0)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trueup.verbs.validate.recover.time.sleep", lambda seconds: None)


def _recovery(validator: Any) -> Recovery:
    return Recovery(validator, Node("n2", "postgresql://n2"))


def test_no_round_runs_before_everything_is_open_again() -> None:
    validator = Counting(LOST, CheckFailed(["the lock is held"]), LOST)
    _recovery(validator).wait_and_reopen(LOST)
    assert validator.opened == 4


def test_an_error_that_does_not_pass_is_raised() -> None:
    wrong = QueryError("no such column", node="n1", sqlstate="42703")
    with pytest.raises(QueryError):
        _recovery(Counting()).wait_and_reopen(wrong)
    with pytest.raises(QueryError):
        _recovery(Counting(wrong)).wait_and_reopen(LOST)


def test_a_lock_that_stays_held_is_an_error() -> None:
    validator = Counting(*[CheckFailed(["the lock is held"])] * 20)
    with pytest.raises(CheckFailed):
        _recovery(validator).wait_and_reopen(LOST)
    assert 3 < validator.opened < 20


def test_a_stop_request_ends_the_waiting() -> None:
    validator = Counting(*[LOST] * 20)
    validator.wanted = "stop"
    _recovery(validator).wait_and_reopen(LOST)
    assert validator.opened == 0
