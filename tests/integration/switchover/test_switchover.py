"""Whole switchovers: proofs, rollback, and every refusal."""

from __future__ import annotations

import re
import threading
import time
from typing import Any

import psycopg
import pytest

from support.fixtures import Databases
from support.switchover import Moving, begin, wait_until
from trueup.errors import CheckFailed, TrueupError
from trueup.verbs.switchover import pause as pauses
from trueup.verbs.switchover.finish import Finish, finish
from trueup.verbs.switchover.gate import GateClosed
from trueup.verbs.switchover.phases import PAUSE, Budget, BudgetSpent
from trueup.verbs.switchover.ready import Ready
from trueup.verbs.switchover.status import status, status_text
from trueup.verbs.sync import round as round_of_sync
from trueup.verbs.sync import state
from trueup.verbs.sync.link import Link


def test_a_rollback_loses_no_write(moving: Moving) -> None:
    view = "CREATE MATERIALIZED VIEW latest AS SELECT max(id) AS id FROM people"
    for database in (moving.old, moving.new):
        database.execute(f"{view}; CREATE UNIQUE INDEX ON latest (id)")
    # A table without statistics.
    unknown = "SET allow_system_table_mods = on; UPDATE pg_class SET reltuples = -1 WHERE relname = 'places'"
    moving.new.execute(unknown)
    moving.old.execute("INSERT INTO people (name) VALUES ('before')")
    outcome = moving.execute()
    assert outcome.source == "old"
    assert set(PAUSE) <= set(outcome.milliseconds)
    assert 0 < outcome.pause_ms < 60_000
    assert moving.differences() == []
    assert moving.new.execute("SELECT id FROM latest") == moving.new.execute("SELECT max(id) FROM people")
    assert moving.new.execute("SELECT reltuples FROM pg_class WHERE relname = 'places'") == [(100,)]
    assert moving.accepts_writes("DELETE FROM visits") == ["new"]
    moving.new.execute(
        "INSERT INTO people (name) SELECT 'new' || g FROM generate_series(1, 500) g;"
        " UPDATE visits SET price = price + 1 WHERE id <= 400; DELETE FROM visits WHERE id > 900;"
        " UPDATE people SET name = '' WHERE id = 1; UPDATE people SET name = 'p1' WHERE id = 2;"
        " UPDATE people SET name = 'p2' WHERE id = 1;"
        " UPDATE places SET b = b + 1000 WHERE b <= 10; SELECT nextval('lonely');"
        " UPDATE notes SET note = 'm', person = NULL WHERE person < 5; INSERT INTO notes SELECT * FROM notes LIMIT 99;"
        " DELETE FROM notes WHERE ctid = (SELECT max(ctid) FROM notes)"
    )
    assert "new is in use since" in moving.execute().already
    # A sync that is run all the same must not reset sequences.
    for go in (moving.run_sync, moving.drop_sync):
        with pytest.raises(CheckFailed, match=r"moved to new|needs the sync"):
            go()
    assert moving.new.execute("SELECT last_value FROM lonely") == [(4,)]
    before = moving.new.execute("SELECT count(*), sum(price) FROM visits")
    back = moving.rollback(proof="keys")
    assert back.action == "rollback"
    assert back.remarks == ("not refreshed on old: public.latest",)
    assert moving.old.execute("SELECT count(*), sum(price) FROM visits") == before
    assert moving.old.execute("SELECT last_value FROM lonely") == [(4,)]
    assert moving.differences() == []
    assert moving.accepts_writes("DELETE FROM visits") == ["old"]
    # Again: no stale entries were left in a log.
    moving.old.execute("UPDATE people SET name = 'last' WHERE name = 'p7'; TRUNCATE places")
    moving.old.execute("TRUNCATE notes; INSERT INTO notes VALUES (now()), (now()), (now())")
    moving.execute(proof="keys")
    assert moving.differences() == []
    text = status_text(status(moving.request()))
    assert "main: new is in use (moved)" in text
    assert 0 < text.index("fence ") < text.index("final round ") < text.index("gate ")
    ended = finish(moving.request(), Finish(reopen_old=True))
    assert ended.in_use == "new"
    for database in (moving.old, moving.new):
        left = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'trueup%'"
        assert database.execute(left) == [(0,)]
        assert database.execute("SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal") == [(0,)]


def test_a_wrong_row_of_the_final_round_is_found_in_the_pause(moving: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --proof keys, the keys of the final round are compared inside of the pause."""
    apply_rows, pause = round_of_sync.apply_rows, pauses.pause
    is_paused = threading.Event()

    def spoiled(link: Link, *arguments: Any) -> Any:
        applied = apply_rows(link, *arguments)
        if is_paused.is_set():
            with state.writing(link.target, link.name, link.epoch):
                link.target.execute("UPDATE public.people SET name = name || '!' WHERE id = 5")
        return applied

    def with_a_change(*arguments: Any) -> Any:
        is_paused.set()
        moving.old.execute("UPDATE people SET name = name || '.' WHERE id IN (5, 6)")
        return pause(*arguments)

    monkeypatch.setattr(round_of_sync, "apply_rows", spoiled)
    monkeypatch.setattr(pauses, "pause", with_a_change)
    with pytest.raises(GateClosed, match=r"rows equal: public\.people: rows of the last round differ"):
        moving.execute(proof="keys")
    assert moving.accepts_writes("DELETE FROM visits") == ["old"]
    monkeypatch.setattr(round_of_sync, "apply_rows", apply_rows)
    assert moving.execute(proof="keys").keys == 2
    assert moving.differences() == []


def test_the_server_ends_a_pause_that_hangs(moving: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    """If trueup hangs inside of the pause, writers continue when the budget is spent."""

    def hang(self: Ready) -> None:
        moving.old.execute("SET lock_timeout = '60s'; UPDATE people SET name = 'went on' WHERE id = 9")

    monkeypatch.setattr(Ready, "set_sequences", hang)
    with pytest.raises(BudgetSpent, match="gate"):
        moving.execute(budget=8.0)
    assert moving.accepts_writes("DELETE FROM visits") == ["old"]
    assert moving.old.execute("SELECT name FROM people WHERE id = 9") == [("went on",)]
    # Too short even for the locks before the pause: the server ends these sessions.
    with pytest.raises(BudgetSpent, match=r"the budget of 0\.002 s was spent"):
        moving.execute(budget=0.002)
    assert moving.accepts_writes("DELETE FROM visits") == ["old"]

    def lose_session(self: Ready, budget: Budget) -> None:
        time.sleep(2 * budget.seconds)
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    # The reason of the server may not arrive.
    monkeypatch.setattr(Ready, "hold_tables", lose_session)
    with pytest.raises(BudgetSpent, match=r"the budget of 0\.002 s was spent"):
        moving.execute(budget=0.002)


def test_a_transaction_longer_than_the_budget_releases_everything(moving: Moving) -> None:
    with psycopg.connect(moving.old.uri, application_name="lunch") as client:
        moving.execute(proof="keys")
        moving.rollback(proof="keys")  # the pointer and the guards exist
        client.execute("UPDATE people SET name = 'held' WHERE id = 3")
        with pytest.raises(BudgetSpent, match="lunch") as caught:
            moving.execute(budget=4.0)
        assert "--budget" in caught.value.cure
        moving.old.execute("UPDATE people SET name = 'others go on' WHERE id = 4")
        assert moving.accepts_writes("DELETE FROM visits") == ["old"]
        client.commit()
    # The second attempt needs no reset.
    moving.execute()
    assert moving.new.execute("SELECT name FROM people WHERE id IN (3, 4) ORDER BY id") == [
        ("held",),
        ("others go on",),
    ]
    assert moving.differences() == []


def test_the_gate_names_every_failed_condition(moving: Moving) -> None:
    """Each condition alone: nothing is switched, the old database accepts writes, and after a fix it works."""

    def refused(words: str, kind: type[TrueupError] = GateClosed, **options: Any) -> None:
        with pytest.raises(kind, match=words):
            moving.execute(**options)
        assert moving.accepts_writes("DELETE FROM visits") == ["old"]
        # The text of an error may contain values of rows, and the phase is shown to everyone who may see the status.
        ((phase,),) = moving.old.execute("SELECT phase FROM trueup.switchover")
        reason = r"the gate was closed \([a-z ,]+\)|the budget was spent|the error is in the task [0-9a-f-]+"
        assert re.fullmatch(f"not switched: ({reason})", phase)

    moving.execute()
    moving.rollback()
    as_sync = f"{moving.as_sync()} SET session_replication_role = replica;"
    # A row that differs, with each proof.
    moving.new.execute(f"{as_sync} UPDATE visits SET price = 1.00 WHERE id = 8")
    refused("rows equal: public.visits", proof="digest")
    refused("rows equal: public.visits", proof="keys")
    moving.new.execute(f"{as_sync} UPDATE visits SET price = 8 / 8.0 WHERE id = 8")
    # A foreign key that is broken in both databases, so that rows are equal.
    for database in (moving.old, moving.new):
        silenced = as_sync if database is moving.new else "SET session_replication_role = replica;"
        database.execute(f"{silenced} INSERT INTO visits (id, person) OVERRIDING SYSTEM VALUE VALUES (7777, 777)")
    refused("foreign keys valid: visits_person_fkey of public.visits", proof="digest")
    refused("visits_person_fkey of public.visits", proof="keys")
    moving.old.execute("DELETE FROM visits WHERE person = 777")
    # The schema: a constraint, a table that is not in the sync, a column.
    moving.new.execute("ALTER TABLE places ADD CHECK (b > 0)")
    refused("schema equal: constraint public.places.places_b_check is missing on old")
    moving.new.execute("ALTER TABLE places DROP CONSTRAINT places_b_check")
    moving.both("CREATE TABLE late (id int PRIMARY KEY)")
    refused("public.late: it was created after the sync was started", CheckFailed)
    moving.both("DROP TABLE late")
    moving.old.execute("ALTER TABLE places ADD COLUMN more int")
    # A table that the sync has set aside: the rows of the others arrive, and the switchover is refused.
    moving.old.execute("UPDATE places SET more = 1; UPDATE visits SET price = 2 WHERE id = 8")
    moving.run_sync()
    assert moving.new.execute("SELECT price::text FROM visits WHERE id = 8") == [("2",)]
    aside = "SELECT aside->0->>'where', jsonb_array_length(aside) FROM trueup.syncs"
    assert moving.new.execute(aside) == [("public.places", 1)]
    refused(r"public\.places: column more does not exist on the target", CheckFailed)
    moving.old.execute("ALTER TABLE places DROP COLUMN more")
    moving.old.execute("BEGIN; CREATE TABLE x (); PREPARE TRANSACTION 'forgotten'")
    refused("no prepared transactions: forgotten of postgres", budget=1.0)
    moving.old.execute("ROLLBACK PREPARED 'forgotten'")
    moving.execute()
    assert moving.differences() == []


def test_a_writer_without_the_pointer_loses_nothing(moving: Moving) -> None:
    """Without trueup.connect a writer waits during the pause and then gets an error; its commits are not lost."""
    committed: list[int] = []
    ended: list[BaseException] = []

    def write() -> None:
        number = 0
        with psycopg.connect(moving.old.uri, autocommit=True) as connection:
            try:
                while True:
                    number += 1
                    with connection.transaction():
                        connection.execute("INSERT INTO places VALUES ('w', %s, '')", (number,))
                        connection.execute("UPDATE visits SET price = price + 1 WHERE id = %s", (1 + number % 900,))
                    committed.append(number)
            except psycopg.Error as error:
                ended.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    wait_until(lambda: len(committed) > 50)
    moving.execute(proof="keys", close_keys=5000)
    thread.join(60)
    assert isinstance(ended[0], psycopg.errors.ReadOnlySqlTransaction)
    assert "new is in use" in str(ended[0])
    assert [row[0] for row in moving.new.execute("SELECT b FROM places WHERE a = 'w' ORDER BY 1")] == committed
    assert moving.differences() == []


def test_names_with_percent_signs_and_braces(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    pause = pauses.pause

    def with_changes(*arguments: Any) -> Any:
        old.execute("""INSERT INTO "child %b" VALUES (2, 'b'); DELETE FROM "50% {off}" WHERE "v{0}" LIKE '1%'""")
        return pause(*arguments)

    old, new = databases(2)
    for database in (old, new):
        database.execute("""CREATE TYPE "kind%s" AS ENUM ('a', 'b'); CREATE DOMAIN "part{}%" AS int;
            CREATE TABLE "50% {off}" ("id%(x)s" "kind%s" PRIMARY KEY, "v{0}" text UNIQUE);
            CREATE TABLE "child %b"
                ("{a}" "part{}%", "k%" "kind%s" REFERENCES "50% {off}", PRIMARY KEY ("{a}", "k%"))""")
    tables = ('"50% {off}"', '"child %b"')
    old.execute("""INSERT INTO "50% {off}" VALUES ('a', '1'), ('b', '2'); INSERT INTO "child %b" VALUES (1, 'a')""")
    moving = begin(old, new)
    old.execute("""UPDATE "50% {off}" SET "v{0}" = "v{0}" || '%s {}'; DELETE FROM "child %b" """)
    moving.run_sync()
    assert moving.differences(tables) == []
    with monkeypatch.context() as patch:
        patch.setattr(pauses, "pause", with_changes)
        assert moving.execute(proof="keys").keys == 2
    new.execute("""INSERT INTO "child %b" VALUES (3, 'b'); TRUNCATE "child %b" """)
    moving.rollback(proof="keys")
    assert moving.differences(tables) == []
