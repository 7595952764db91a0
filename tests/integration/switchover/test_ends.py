"""No dead ends: every verb in every state, a finished switchover, and servers that are lost or come back."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

import trueup
from support.fixtures import Databases, FreshServer
from support.repair import AtStage
from support.servers import Backup
from support.switchover import ROWS, SCHEMA, TABLES, Moving, begin
from trueup.db.connection import one_value
from trueup.errors import CheckFailed, ConfigError, NodeError, TrueupError
from trueup.report.repair import RepairResult
from trueup.testing.postgres import Database, Server
from trueup.verbs.switchover import ending
from trueup.verbs.switchover.finish import Finish, finish
from trueup.verbs.switchover.gate import GateClosed
from trueup.verbs.switchover.status import status, status_text
from trueup.verbs.sync import ending as sync_ending
from trueup.verbs.sync.link import open_link
from trueup.verbs.sync.request import Scope, SyncRequest
from trueup.verbs.sync.status import status as sync_status
from trueup.verbs.sync.text import status_text as sync_status_text
from trueup.verbs.sync_ddl.accept import accept

WRITE = "DELETE FROM visits"
LEFT = """
SELECT nspname FROM pg_namespace WHERE nspname LIKE 'trueup%'
UNION ALL SELECT tgname FROM pg_trigger WHERE NOT tgisinternal ORDER BY 1
"""


def sync_request(moving: Moving) -> SyncRequest:
    return SyncRequest(moving.first, moving.second, Scope("main"))


def seen(moving: Moving) -> str:
    """Return the first line of the status, which must agree with what both databases accept."""
    return status_text(status(moving.request())).partition("\n")[0]


def test_every_verb_says_what_is_done_already(moving: Moving) -> None:
    """Repeated verbs succeed and name the database in use; the others are refused, with a cure that works."""
    request = moving.request()
    # Synced, not prepared.
    assert seen(moving) == "main: old is in use (not prepared)"
    assert moving.rollback().already == "old is in use: no switchover was prepared"
    assert ending.reset(request).done == ("there was nothing to remove",)
    assert ending.abort(request).in_use == "old"
    # Prepared.
    moving.prepare()
    moving.prepare()
    assert seen(moving) == "main: old is in use (not moved)"
    assert "old is in use" in moving.rollback().already
    assert ending.abort(request).in_use == "old"
    # Moved.
    moving.execute()
    assert "new is in use since" in moving.execute().already
    assert sync_status_text(sync_status(sync_request(moving))).startswith(
        "sync main, 4 tables: applications were moved"
    )
    moving.prepare()
    assert seen(moving) == "main: new is in use (moved)"
    assert ending.abort(request).in_use == "new"
    assert ending.abort(request).done == ("no switchover was running",)
    # Finished: the old database stays closed, without a process of trueup.
    ended = finish(request)
    assert ended.in_use == "new"
    assert moving.accepts_writes(WRITE) == ["new"]
    assert moving.new.execute(LEFT) == []
    guards = [("trueup_guard_main",)] * len(TABLES)
    assert moving.old.execute(LEFT) == [("trueup",), ("trueup_app",), *guards]
    assert "old: stays closed to writes: 4 guards" in ended.done[-1]
    again = finish(request)
    assert (again.in_use, again.done[0]) == ("new", "the switchover of the sync main is finished already")
    assert seen(moving) == "main: new is in use (finished)"
    assert "the switchover is finished: new is in use" in moving.execute().already
    assert ending.abort(request).in_use == "new"
    for verb in (moving.rollback, lambda: ending.reset(request)):
        with pytest.raises(CheckFailed, match="is finished: new is in use, and old is closed"):
            verb()
    with pytest.raises(CheckFailed, match="the sync main into new does not exist"):
        moving.prepare()
    assert sync_ending.drop(sync_request(moving), timeout=10) == sync_ending.Dropped(False, False)
    # A partition or an ordinary role does not open it.
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="new is in use"):
        moving.old.execute("SET session_replication_role = replica; INSERT INTO places VALUES ('z', 1, '')")
    opened = finish(request, Finish(reopen_old=True))
    assert opened.in_use == "new"
    assert moving.old.execute(LEFT) == []
    assert moving.accepts_writes(WRITE) == ["old", "new"]
    nothing = finish(request)
    assert (nothing.in_use, len(nothing.done)) == ("", 1)
    assert "there is no sync main from old to new" in nothing.done[0]
    with pytest.raises(TrueupError, match="does not exist"):
        moving.rollback()


def test_a_killed_finish_is_continued(moving: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after the database in use was cleared: never open on both sides, and the status does not contradict."""

    def killed(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    moving.execute()
    with monkeypatch.context() as patch:
        patch.setattr("trueup.verbs.switchover.guard.remove_pointer", killed)
        with pytest.raises(KeyboardInterrupt):
            finish(moving.request())
    assert moving.accepts_writes(WRITE) == ["new"]
    assert seen(moving) == "main: new is in use (finished)"
    with pytest.raises(CheckFailed, match="is finished"):
        moving.rollback()
    assert finish(moving.request()).in_use == "new"
    assert moving.new.execute(LEFT) == []
    assert moving.accepts_writes(WRITE) == ["new"]


def test_drift_is_repaired_through_the_guard(moving: Moving) -> None:
    """A repair writes the closed database as the sync, never between two rounds, and only rows of the source."""
    moving.execute()
    moving.rollback()
    nodes = {"old": moving.old.uri, "new": moving.new.uri}
    as_sync = f"{moving.as_sync()} SET session_replication_role = replica;"

    def drift() -> str:
        moving.new.execute(
            f"{as_sync} UPDATE visits SET price = 99 WHERE id = 8; DELETE FROM visits WHERE id = 9;"
            " INSERT INTO visits (id, person) OVERRIDING SYSTEM VALUE VALUES (7777, 1)"
        )
        return trueup.diff("public.visits", nodes=nodes, recheck=0, engine="local").report

    def repair(report: str, act: Callable[[], object] = lambda: None, **options: Any) -> RepairResult:
        options = {"source_of_truth": "old", "execute": True, "engine": "local", **options}
        return trueup.repair(report, nodes=nodes, recheck=0, progress=AtStage("writing", act), **options)

    report = drift()
    with pytest.raises(GateClosed, match=r"rows equal: public\.visits"):
        moving.execute()
    assert not repair(report, execute=False).failed
    with pytest.raises(CheckFailed, match="only the sync main may write to this node"):
        repair(report, source_of_truth="", bidirectional=True)
    with (
        open_link(moving.first, moving.second, "main"),
        pytest.raises(CheckFailed, match="the sync main into new is running"),
    ):
        repair(report)

    def write_meanwhile() -> None:
        """The row that was read as 99 on the new side gets that value on the old one: a round would hide the repair."""
        moving.old.execute("UPDATE visits SET price = 99 WHERE id = 8; INSERT INTO places VALUES ('late', 1, '')")
        with pytest.raises(CheckFailed, match="the sync main is already running"):
            moving.run_sync()

    result = repair(report, write_meanwhile)
    assert not result.failed
    # What was written is not recorded for the way back, and the change of the source is still to be copied.
    assert moving.new.execute("SELECT count(*) FROM trueup_log.pods_main") == [(0,)]
    assert moving.new.execute("SELECT price FROM visits WHERE id = 8") == [(1,)]
    moving.run_sync()
    assert moving.differences() == []
    # The session with the lock is lost, and a sync runs: nothing is written with rows of before.
    report = drift()
    moving.old.execute("UPDATE visits SET price = 3 WHERE id = 8")

    def lose_the_lock() -> None:
        query = "SELECT pg_terminate_backend(h.pid, 10000) FROM trueup_log.holders h WHERE tube = 'main'"
        assert moving.old.execute(query) == [(True,)]
        moving.run_sync()

    failed = repair(report, lose_the_lock)
    assert "the sync main was started while the repair ran" in failed.failed["new"]
    assert moving.new.execute("SELECT price FROM visits WHERE id = 8") == [(3,)]
    assert not repair(report).failed
    assert moving.differences() == []
    moving.execute()
    assert moving.accepts_writes(WRITE) == ["new"]


def test_the_log_of_the_way_back_has_a_limit(moving: Moving) -> None:
    """At the limit nothing more is recorded, writes go on, and the way back is closed by name, in every session."""
    grow = "UPDATE visits SET price = price + 1 WHERE id <= 50"
    pods, limit = "SELECT count(*) FROM trueup_log.pods_main", 120_000
    moving.execute(way_back_limit=limit)
    with psycopg.connect(moving.new.uri) as slow, psycopg.connect(moving.new.uri, autocommit=True) as client:
        # It will not see the marks of others, and has to write its own.
        slow.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        slow.execute("SELECT 1 FROM places")
        for _ in range(2000):
            client.execute(grow)
            if one_value(client.execute("SELECT pg_relation_size('trueup_log.pods_main')")) > 0.85 * limit:
                break
        assert "WARNING: nearly full" in status_text(status(moving.request()))
        moving.run_sync_back()  # nothing is lost so far
        assert moving.new.execute(pods) == [(0,)]
        while not one_value(client.execute(f"{pods} WHERE op = '!'")):
            client.execute(grow)
        slow.execute("DELETE FROM places WHERE b = 2")
        slow.commit()
        ((count,),) = moving.new.execute(pods)
        assert moving.new.execute(f"{pods} WHERE op = '!'") == [(2,)]
        for statement in (grow, "TRUNCATE places", "INSERT INTO people (name) VALUES ('not recorded')"):
            client.execute(statement)
        assert moving.new.execute(pods) == [(count,)]
    text = status_text(status(moving.request()))
    assert "CLOSED since" in text
    assert "later changes are not in it" in text
    for go in (moving.rollback, moving.run_sync_back):
        with pytest.raises(CheckFailed, match="the change log main reached its maximum size at"):
            go()
    assert moving.accepts_writes(WRITE) == ["new"]
    assert finish(moving.request()).in_use == "new"


@pytest.fixture
def lost(fresh_server: FreshServer, databases: Databases) -> Iterator[tuple[Moving, Server, list[Backup]]]:
    """An old database on a server of its own, a synced new one, and the backups to remove."""
    server = fresh_server(name="lost")
    old, (new,) = server.create_database("shop"), databases(1)
    for database in (old, new):
        database.execute(SCHEMA)
    old.execute(ROWS)
    backups: list[Backup] = []
    yield begin(old, new), server, backups
    for backup in backups:
        backup.remove()


def lose(server: Server) -> None:
    """Stop the server, and remove its data."""
    server.kill()
    shutil.rmtree(server.data_dir)


def accepts(database: Database) -> bool:
    try:
        database.execute(f"BEGIN; {WRITE}; ROLLBACK")
    except psycopg.errors.ReadOnlySqlTransaction:
        return False
    return True


def test_the_old_server_is_lost_and_comes_back(lost: tuple[Moving, Server, list[Backup]]) -> None:
    moving, server, backups = lost
    request, without = moving.request(), Finish(without_old=True)
    moving.prepare()
    backups.append(Backup(server))
    moving.execute()
    backups.append(Backup(server))
    with pytest.raises(CheckFailed, match="--without-old: the database answers"):
        finish(request, without)
    lose(server)
    text = status_text(status(request))
    assert "main: new is in use (old does not answer" in text
    assert "old: does not answer:" in text
    assert "old does not answer, and was not checked" in ending.abort(request).done
    assert moving.execute().already.startswith("new is in use; old does not answer, and was not checked (")
    for move in (moving.rollback, moving.rehearse):
        with pytest.raises(TrueupError, match=r"connection|nothing to rehearse: new is in use"):
            move()
    with pytest.raises(NodeError) as refused:
        finish(request)
    assert "trueup switchover finish --without-old" in refused.value.cure
    with pytest.raises(NodeError) as refused:
        sync_ending.drop(sync_request(moving), timeout=5)
    assert "trueup sync drop --without-source" in refused.value.cure
    ended = finish(request, without)
    assert ended.in_use == "new"
    assert any("old: nothing was changed" in each for each in ended.done)
    with pytest.raises(CheckFailed, match="does not exist, and old does not answer") as gone:
        sync_status(sync_request(moving))
    assert "trueup switchover status shows which database is in use" in gone.value.cure
    # Nothing that fires or grows is left on the database in use.
    assert moving.new.execute(LEFT) == [("trueup",), ("trueup_app",)]
    assert accepts(moving.new)
    assert "finished already, without old" in finish(request, without).done[0]
    assert seen(moving) == "main: new is in use (finished; old does not answer)"
    # It comes back as it was: closed.
    backups[1].restore()
    assert not accepts(moving.old)
    assert seen(moving) == "main: new is in use (finished)"
    # It comes back from a backup that is older than the decision: it accepts writes, and `finish` closes it.
    backups[0].restore()
    assert accepts(moving.old)
    assert "old and new are in use (both accept writes: a node came back" in seen(moving)
    for verb in (moving.prepare, moving.execute, moving.rollback, moving.rehearse, lambda: ending.reset(request)):
        with pytest.raises(CheckFailed, match="new and old both accept writes") as split:
            verb()
        assert "close old: trueup switchover finish" in split.value.cure
    assert "old: accepted writes although new is in use: it is closed now" in finish(request).done[0]
    assert (accepts(moving.old), accepts(moving.new)) == (False, True)
    assert moving.new.execute(LEFT) == []
    assert seen(moving) == "main: new is in use (finished)"


def test_the_server_in_use_is_lost(lost: tuple[Moving, Server, list[Backup]]) -> None:
    """The copy is put into use only if the loss is accepted, and the lost server does not become a second database."""
    moving, server, backups = lost
    request = moving.request()
    moving.prepare()
    moving.run_sync()
    # The new database has what was committed until the applications left it.
    moving.execute()
    moving.rollback()
    ((left,),) = moving.new.execute(
        "SELECT to_char(decided_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') FROM trueup.switchover"
        " WHERE decided_at > (SELECT source_at FROM trueup.sync_mark)"
    )
    backups.append(Backup(server))
    lose(server)
    assert "main: old is in use (old does not answer" in seen(moving)
    shown = sync_status_text(sync_status(sync_request(moving)))
    assert "node old" in shown
    assert "the target equals the source as of" in shown
    assert "trueup sync drop --without-source" in shown
    with pytest.raises(CheckFailed, match="a switchover of the sync main is prepared") as refused:
        sync_ending.drop(sync_request(moving), timeout=5, without_source=True)
    assert "finish --without-old" in refused.value.cure
    with pytest.raises(CheckFailed, match="new is not in use: old was") as refused:
        finish(request, Finish(without_old=True))
    assert "--accept-loss" in refused.value.cure
    assert not accepts(moving.new)
    ended = finish(request, Finish(without_old=True, accept_loss=True))
    assert f"new: put into use. It has all commits up to {left} UTC" in ended.done[0]
    assert accepts(moving.new)
    backups[0].restore()
    assert "both accept writes" in seen(moving)
    finish(request)
    assert (accepts(moving.old), accepts(moving.new)) == (False, True)


def test_a_server_goes_back_behind_a_decision(lost: tuple[Moving, Server, list[Backup]]) -> None:
    """No command recommends, or does, what would overwrite the rows of the database in use."""
    moving, server, backups = lost
    request, nodes = moving.request(), {"old": moving.old.uri, "new": moving.new.uri}
    moving.prepare()
    backups.append(Backup(server))
    moving.execute()
    moving.new.execute("UPDATE people SET name = 'later' WHERE id = 1")
    backups.append(Backup(server))
    backups[0].restore()
    assert (accepts(moving.old), accepts(moving.new)) == (True, True)
    assert "both accept writes: a failover or a restore took back a decision" in seen(moving)
    moves = (moving.execute, moving.rollback, moving.rehearse, moving.prepare, lambda: ending.reset(request))
    for verb in (*moves, lambda: finish(request)):
        with pytest.raises(CheckFailed, match="both say that their database is in use") as refused:
            verb()
        assert "use_next" in refused.value.cure
    for call in (moving.run_sync, lambda: accept(sync_request(moving))):
        with pytest.raises(CheckFailed, match="old and new both accept writes"):
            call()
    assert "old and new both accept writes" in sync_status_text(sync_status(sync_request(moving)))
    report = str(trueup.diff("public.people", nodes=nodes, recheck=0, engine="local").report)
    with pytest.raises(CheckFailed, match="applications use this node") as refused:
        trueup.repair(report, nodes=nodes, source_of_truth="old", execute=True, recheck=0, engine="local")
    assert "--source-of-truth new" in refused.value.cure
    assert moving.new.execute("SELECT name FROM people WHERE id = 1") == [("later",)]
    # The same for the way back: the old server forgets that it was opened.
    backups[1].restore()
    moving.rollback()
    backups[1].restore()
    assert (accepts(moving.old), accepts(moving.new)) == (False, False)
    assert "decided, but old went back, and cannot be opened: see trueup switchover rollback" in seen(moving)
    with pytest.raises(CheckFailed, match="old is not in use yet: the move to it is decided") as refused:
        moving.execute()
    assert "trueup switchover rollback" in refused.value.cure
    with pytest.raises(CheckFailed, match="switched to old, but old went back"):
        moving.rollback()


def test_a_lost_target_does_not_keep_the_change_log(lost: tuple[Moving, Server, list[Backup]]) -> None:
    moving, server, _ = lost
    back = replace(moving, old=moving.new, new=moving.old, first=moving.second, second=moving.first)
    sync_ending.drop(sync_request(moving), timeout=5)
    moving.both("TRUNCATE people, visits, places, notes")
    moving = begin(back.old, back.new)
    request = moving.request()
    moving.prepare()
    lose(server)
    shown = sync_status_text(sync_status(sync_request(moving)))
    assert "change log: 0 keys" in shown
    assert "trueup sync drop --without-target" in shown
    with pytest.raises(CheckFailed, match="is prepared") as refused:
        sync_ending.drop(sync_request(moving), timeout=5, without_target=True)
    assert "finish --without-new" in refused.value.cure
    with pytest.raises(ConfigError, match="is not closed by a finished switchover"):
        finish(request, Finish(without_new=True, reopen_old=True))
    ended = finish(request, Finish(without_new=True))
    assert ended.in_use == "old"
    assert moving.old.execute(LEFT) == [("trueup",), ("trueup_app",)]
    assert sync_ending.drop(sync_request(moving), timeout=5, without_target=True).left == ""
