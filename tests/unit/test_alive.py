"""A server that does not answer: which sessions are cut."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from trueup.db import alive
from trueup.db.connection import NodeConnection


@pytest.mark.parametrize(("waits_since", "is_cut"), [(1.0, True), (2.0, False), (None, False)])
def test_a_session_that_had_an_answer_meanwhile_is_kept(
    monkeypatch: pytest.MonkeyPatch, waits_since: float | None, is_cut: bool
) -> None:
    session = cast(NodeConnection, SimpleNamespace(waits_since=waits_since, cut_because=""))
    cuts: list[object] = []
    monkeypatch.setattr(alive, "answers", lambda _: False)
    monkeypatch.setattr(alive, "cut", cuts.append)
    alive.cut_silent(("host", 5432), [(session, 1.0)], {})
    assert cuts == ([session] if is_cut else [])
    assert bool(session.cut_because) == is_cut
