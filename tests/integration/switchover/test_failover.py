"""A server of a switchover that goes back: what it lost is named, and nothing is opened without it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from support.fixtures import FreshServer
from support.servers import Backup, fail_over, wait_for_replay
from support.switchover import ROWS, SCHEMA, Moving, begin
from trueup.config.model import Node
from trueup.errors import CheckFailed, TrueupError
from trueup.testing.postgres import Server
from trueup.verbs.switchover import decision, ending
from trueup.verbs.switchover.fence import Fence
from trueup.verbs.switchover.finish import finish
from trueup.verbs.switchover.rounds import Rounds
from trueup.verbs.switchover.status import status, status_text
from trueup.verbs.sync.request import Scope, SyncRequest
from trueup.verbs.sync_ddl.accept import accept

WRITE = "DELETE FROM visits"


class Killed(BaseException):
    """Not caught by the code of a switchover."""


@pytest.fixture
def servers(fresh_server: FreshServer) -> Iterator[tuple[Server, Server, list[Backup]]]:
    """Two servers, and the backups to remove."""
    backups: list[Backup] = []
    yield fresh_server(name="first"), fresh_server(name="second"), backups
    for backup in backups:
        backup.remove()


def test_a_failover_of_either_server(
    servers: tuple[Server, Server, list[Backup]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, backups = servers
    old, new = first.create_database("shop"), second.create_database("shop")
    for database in (old, new):
        database.execute(SCHEMA)
    old.execute(ROWS)
    moving = begin(old, new)
    moving.prepare()
    backups.append(Backup(second))
    standby = backups[0].standby()
    try:
        after = _fail_over_after_the_decision(moving, second, standby, monkeypatch)
        # The new primary of the new database lacks the last row, and is not opened.
        assert after.new.execute("SELECT count(*) FROM places WHERE a = 'last'") == [(0,)]
        with pytest.raises(TrueupError, match="lacks the last changes") as refused:
            after.execute()
        assert after.accepts_writes(WRITE) == []
        # The cure: the old database is in use again, and the switchover is repeated.
        assert refused.value.cure is not None
        old.execute(refused.value.cure.partition("Run on old: ")[2].partition(";")[0])
        assert after.accepts_writes(WRITE) == ["old"]
        with pytest.raises(CheckFailed, match="new went back"):
            after.execute()
        after.new.execute(f"{after.as_sync()} INSERT INTO places VALUES ('last', 1, 'row')")
        assert "new went back" in accept(SyncRequest(after.first, after.second, Scope("main")))
        backups.append(Backup(first))
        after.execute()
        assert (after.accepts_writes(WRITE), after.differences()) == (["new"], [])
        backups[1].restore()
        _check_split(after)
    finally:
        standby.remove()


def _check_split(moving: Moving) -> None:
    """The old database lost the decision: no command can close it, and all of them say so."""
    assert moving.accepts_writes(WRITE) == ["old", "new"]
    assert "old and new are in use (both accept writes" in status_text(status(moving.request()))
    for verb in (moving.execute, moving.rollback, lambda: ending.reset(moving.request())):
        with pytest.raises(CheckFailed, match="both say that their database is in use"):
            verb()
    with pytest.raises(CheckFailed, match="both say that their database is in use"):
        finish(moving.request())
    # The cure.
    moving.old.execute("UPDATE trueup.switchover SET state = 'use_next'")
    assert moving.accepts_writes(WRITE) == ["new"]
    assert "new is in use (moved)" in status_text(status(moving.request()))


def _fail_over_after_the_decision(
    moving: Moving, second: Server, standby: Server, monkeypatch: pytest.MonkeyPatch
) -> Moving:
    """Decide while the standby of the new database lacks the final round; then it becomes the primary."""
    acquire, final = Fence.acquire, Rounds.final

    def write_and_acquire(self: Fence, budget: Any) -> None:
        moving.old.execute("INSERT INTO places VALUES ('last', 1, 'row')")
        acquire(self, budget)

    def final_without_the_standby(self: Rounds, *, held: bool) -> Any:
        wait_for_replay(second, standby)
        standby.stop()
        return final(self, held=held)

    def killed(*arguments: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Fence, "acquire", write_and_acquire)
        patch.setattr(Rounds, "final", final_without_the_standby)
        patch.setattr(decision, "open_target", killed)
        with pytest.raises(Killed):
            moving.execute()
    fail_over(second, standby)
    return replace(moving, new=standby.database("shop"), second=Node("new", standby.uri("shop")))
