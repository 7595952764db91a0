"""A switchover or a sync that another process has taken over writes nothing more: no row, no sequence, no token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from support.switchover import Moving
from trueup.db.node import pin
from trueup.errors import CheckFailed
from trueup.verbs.switchover import decision
from trueup.verbs.switchover.ready import Ready
from trueup.verbs.sync import state
from trueup.verbs.sync.runner import Runner

SEQUENCE = "SELECT last_value FROM lonely"
TOKEN = "SELECT token_hash FROM trueup.switchover"


def test_a_switchover_that_was_taken_over_writes_nothing(moving: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    moving.execute()
    moving.rollback()

    def take_over() -> None:
        moving.new.execute("UPDATE trueup.syncs SET epoch = epoch + 1")

    def refused(owner: type[Any], method: str, *, after: bool) -> None:
        original: Callable[..., Any] = getattr(owner, method)

        def taken_over(self: Any) -> None:
            if after:
                original(self)
            moving.old.execute("SELECT setval('lonely', 50000)")
            take_over()
            if not after:
                original(self)

        before = moving.new.execute(SEQUENCE), moving.new.execute(TOKEN)
        with monkeypatch.context() as patch:
            patch.setattr(owner, method, taken_over)
            with pytest.raises(CheckFailed, match="another process has taken over the sync main"):
                moving.execute()
        after_token = moving.new.execute(TOKEN)
        assert moving.new.execute(SEQUENCE) == before[0]
        assert not after or after_token == before[1]
        assert moving.accepts_writes("DELETE FROM visits") == ["old"]

    # In the pause, the values of sequences; before it, the token that will open the database.
    refused(Ready, "set_sequences", after=False)
    moving.old.execute("SELECT setval('lonely', 1)")
    refused(Runner, "copy_sequences", after=True)
    _opened_in_the_meantime(moving, monkeypatch)


def _opened_in_the_meantime(moving: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync that takes over just before a database is opened cannot write to it afterwards."""
    open_target, epochs = decision.open_target, []

    def opened(*arguments: Any) -> None:
        with psycopg.connect(moving.new.uri, autocommit=True) as connection:
            epochs.append(state.take_over(connection, "main"))
        open_target(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(decision, "open_target", opened)
        moving.execute()
    assert moving.accepts_writes("DELETE FROM visits") == ["new"]
    with psycopg.connect(moving.new.uri, autocommit=True) as connection:
        pin(connection, read_only=False)
        with pytest.raises(CheckFailed, match="has taken over"), state.writing(connection, "main", epochs[0]):
            connection.execute("SELECT setval('public.lonely', 7)")
        with pytest.raises(CheckFailed, match="has taken over"):
            state.set_phase(connection, "main", epochs[0], "copied")
    assert moving.differences() == []
