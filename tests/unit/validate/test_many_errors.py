"""Thousands of errors do not hold back a validation."""

from __future__ import annotations

from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trueup.engine.local import LocalEngine
from trueup.rows.keys import KeyValues
from trueup.verbs.validate import row_errors
from trueup.verbs.validate.checks import Checker
from trueup.verbs.validate.judge import Mismatch
from trueup.verbs.validate.meta import Meta
from trueup.verbs.validate.pending import Entry, Touch
from trueup.verbs.validate.sessions import Sessions
from trueup.verbs.validate.tables import Tables

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


class _Meta:
    """Records the names of the statements; each one takes a second of a clock."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.seconds = 0.0

    def rows(self, statement: str, *_: Any, **__: Any) -> list[dict[str, Any]]:
        self.statements.append(statement)
        self.seconds += 1
        return []


def test_errors_are_written_by_one_statement() -> None:
    meta = _Meta()
    keys: list[KeyValues] = [(str(number),) for number in range(100)]
    wrong = {("t", key): Mismatch(key, "missing", (), {"id": key[0]}, None, "1", None) for key in keys}
    touch = Touch("insert", 1, 1, 1, NOW)
    found = [("t", Entry.of("t", key, touch), wrong["t", key]) for key in keys]
    row_errors.add(cast(Meta, meta), "v", found, NOW)
    row_errors.still_wrong(cast(Meta, meta), "v", wrong, NOW)
    assert meta.statements == ["add_error", "still"]


def test_checks_of_errors_use_a_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    meta = _Meta()
    monkeypatch.setattr("trueup.verbs.validate.checks.time", SimpleNamespace(monotonic=lambda: meta.seconds))
    sessions = SimpleNamespace(name="v", meta=meta, settings=SimpleNamespace(check_interval=1.0, page=5_000))
    engine = LocalEngine(1)
    checker = Checker(cast(Sessions, sessions), cast(Tables, SimpleNamespace(pairs={})), engine)
    try:
        checker.check_errors()
        # It took a second, so the next one is not due for three times as long; pending rows are checked meanwhile.
        meta.seconds += 2.9
        checker.check_errors()
        assert meta.statements == ["errors_to_check"]
        meta.seconds += 0.2
        checker.check_errors()
        assert meta.statements == ["errors_to_check"] * 2
    finally:
        checker.close()
        engine.close()
