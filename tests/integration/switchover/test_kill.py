"""SIGKILL in every phase: both databases never accept writes at once, and the same command completes the switchover."""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

import trueup
from support.fixtures import Databases, FreshServer
from support.standby import WAITING, name_missing_standby
from support.switchover import SCHEMA, Moving, begin, killed, wait_until
from trueup.db.connection import Connection
from trueup.db.node import connect
from trueup.errors import CheckFailed, TrueupError
from trueup.testing.postgres import Database
from trueup.verbs.switchover import ending, pointer
from trueup.verbs.switchover.finish import Finish, finish
from trueup.verbs.switchover.phases import AFTER, FENCE, FINAL_ROUND, GATE, OPEN, POINTER, PREPARE, SEQUENCES
from trueup.verbs.switchover.status import status

WRITE = "INSERT INTO places VALUES ('k', 0, '')"


# A trigger that would add rows if it fired when the sync writes.
TRIGGER = """
CREATE FUNCTION counted() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN INSERT INTO public.places SELECT ''t'', count(*), NEW.name FROM public.places; RETURN NEW; END';
CREATE TRIGGER always AFTER INSERT OR UPDATE ON people FOR EACH ROW EXECUTE FUNCTION counted();
ALTER TABLE people ENABLE ALWAYS TRIGGER always
"""


def fires(database: Database) -> bool:
    return database.execute("SELECT tgenabled::text FROM pg_trigger WHERE tgname = 'always'") == [("A",)]


@pytest.mark.parametrize("back", [False, True], ids=["there", "back"])
def test_a_kill_in_every_phase(moving: Moving, back: bool) -> None:
    moving.both(TRIGGER)
    moving.prepare()
    action = moving.execute
    before, after, written = "old", "new", moving.old
    if back:
        moving.execute()
        action, before, after, written = moving.rollback, "new", "old", moving.new
    for number, phase in enumerate((PREPARE, FENCE, FINAL_ROUND, SEQUENCES, GATE, POINTER)):
        written.execute("UPDATE people SET name = name || '.' WHERE id % 7 = 1; SELECT nextval('lonely')")
        killed(lambda number=number: action(proof=("keys", "digest")[number % 2]), phase)
        assert moving.accepts_writes(WRITE) == [before], phase
        assert fires(written), phase
    seen = status(moving.request())
    assert seen.in_use == before
    assert "died before its decision" in seen.phase
    written.execute("INSERT INTO people (name) VALUES ('the last word')")
    killed(action, OPEN)
    # Decided, but not open: neither accepts writes, until an application that follows the pointer opens it.
    assert moving.accepts_writes(WRITE) == []
    assert "decided, not open" in status(moving.request()).phase
    with pytest.raises(TrueupError, match=r"decided|neither"):
        ending.abort(moving.request())
    assert moving.differences() == []
    if back:
        with trueup.connect([moving.old.uri, moving.new.uri]) as db:
            db.execute(WRITE)
        assert moving.old.execute("SELECT count(*) FROM places WHERE a = 'k'") == [(1,)]
    outcome = action()
    assert "an earlier call made the decision" in outcome.remarks[0]
    assert moving.accepts_writes("DELETE FROM visits") == [after]
    assert fires(moving.old if back else moving.new)
    assert f"{after} is in use since" in action().already
    # Killed before the report is written: the same command completes it.
    undo = moving.execute if back else moving.rollback
    killed(undo, AFTER)
    assert moving.accepts_writes("DELETE FROM visits") == [before]
    assert undo().remarks
    assert moving.differences() == []
    assert fires(written)


def test_a_crash_that_takes_back_the_opening(moving: Moving) -> None:
    """The opening does not wait for the disk of the new server; the same command opens it again."""
    moving.prepare()
    moving.execute()
    ((token,),) = moving.old.execute("SELECT token FROM trueup.switchover")
    closed = "UPDATE trueup.switchover SET state = 'use_next', token_hash = sha256(convert_to(%s, 'UTF8'))"
    moving.new.execute(closed, [token])
    assert moving.accepts_writes(WRITE) == []
    assert "decided, not open" in status(moving.request()).phase
    assert "it is open now" in moving.execute().remarks[0]
    assert moving.accepts_writes(WRITE) == ["new"]
    assert "new is in use since" in moving.execute().already


def test_abort_and_reset(moving: Moving) -> None:
    """`abort` ends a switchover that waits for a client; `reset` removes everything; both can be called at any time."""
    request = moving.request()
    assert ending.abort(request).done == ("no switchover was running",)
    ending.reset(request)
    moving.prepare()
    ending.reset(request)
    assert moving.old.execute("SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'trueup_guard%'") == [(0,)]
    moving.prepare()
    with psycopg.connect(moving.old.uri) as client:
        client.execute("UPDATE visits SET price = 0 WHERE id = 1")
        process = multiprocessing.get_context("fork").Process(target=_run_and_exit, args=(moving.execute,))
        process.start()
        # Other locks are waited for before.
        waiting = "SELECT 1 FROM pg_locks WHERE relation = 'trueup.switchover_lock'::regclass AND NOT granted"
        wait_until(lambda: moving.old.execute(waiting) != [])
        seen = status(request)
        assert seen.phase == "preparing"
        assert any("waits for the exclusive lock of applications" in str(held) for held in seen.first.locks)
        with pytest.raises(CheckFailed, match="another switchover is running"):
            moving.execute()
        with pytest.raises(CheckFailed, match="is running"):
            ending.reset(request)
        done = ending.abort(request)
        assert done.in_use == "old"
        assert any("ended 1 session" in each for each in done.done)
        process.join(60)
        client.commit()
    assert moving.accepts_writes(WRITE) == ["old"]
    moving.execute()
    for again in (ending.reset, ending.abort):
        if again is ending.reset:
            with pytest.raises(CheckFailed, match="new is in use"):
                again(request)
        else:
            assert again(request).in_use == "new"
    assert moving.accepts_writes("DELETE FROM visits") == ["new"]
    kept = finish(request)
    assert kept.in_use == "new"
    assert moving.accepts_writes("DELETE FROM visits") == ["new"]
    assert moving.new.execute("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'trueup%'") == [(0,)]
    finish(request, Finish(reopen_old=True))
    assert moving.accepts_writes("DELETE FROM visits") == ["old", "new"]


def _run_and_exit(action: Callable[[], object]) -> None:
    try:
        action()
    finally:
        os._exit(0)


def test_a_commit_that_waits_for_a_standby_is_looked_up_at_its_end(
    fresh_server: FreshServer, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks while the commit of the decision waits: the session is ended, then the pointer is read."""
    server = fresh_server(name="standby")
    old, (new,) = server.create_database("old"), databases(1)
    for database in (old, new):
        database.execute(SCHEMA)
    moving = begin(old, new)
    moving.prepare()
    original = pointer.decide
    broken: list[str] = []

    def decide(connection: Connection, *arguments: Any) -> None:
        original(connection, *arguments)
        name_missing_standby(old)
        threading.Thread(target=break_connection, args=(os.dup(connection.fileno()),)).start()

    def break_connection(number: int) -> None:
        wait_until(lambda: old.execute(WAITING) != [])
        broken.extend(query for (query,) in old.execute(WAITING))
        with socket.socket(fileno=number) as client:
            client.shutdown(socket.SHUT_RDWR)

    monkeypatch.setattr(pointer, "decide", decide)
    assert moving.execute().target == "new"
    assert old.execute(WAITING) == []
    (commit,) = broken
    assert commit.endswith("COMMIT")
    assert moving.accepts_writes(WRITE) == ["new"]


def test_a_lost_answer_to_the_commit_is_looked_up(moving: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection breaks during the commit of the decision: the pointer shows whether it was committed."""

    original = pointer.decide

    def breaking(*, decided: bool) -> None:
        def decide(connection: Connection, *arguments: Any) -> None:
            original(connection, *arguments)
            if decided:
                connection.execute("COMMIT")
            with connect(moving.second, application="test") as other:
                other.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))

        monkeypatch.setattr(pointer, "decide", decide)

    breaking(decided=False)
    with pytest.raises(TrueupError):
        moving.execute()
    assert moving.accepts_writes(WRITE) == ["old"]
    breaking(decided=True)
    assert moving.execute().target == "new"
    assert moving.accepts_writes(WRITE) == ["new"]
