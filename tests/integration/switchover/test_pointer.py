"""Pointer, guards and fence on plain tables: never two databases accept writes, and every writer is guarded."""

from __future__ import annotations

import threading

import psycopg
import pytest

import trueup
from support.fixtures import Databases
from support.pointer import AS_SYNC, NAMES, TOKEN, WAITING, admin, fenced, move
from support.switchover import wait_until
from trueup.errors import ConfigError, QueryError
from trueup.testing.postgres import Database
from trueup.verbs.switchover import guard, pointer
from trueup.verbs.switchover.phases import BudgetSpent


def refused(database: Database, statement: str) -> str:
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction) as caught:
        database.execute(statement)
    return str(caught.value)


WRITES = [
    "INSERT INTO public.t VALUES (7, 7)",
    "UPDATE public.t SET v = 9 WHERE id = 1",
    "DELETE FROM public.t WHERE id = 1",
    "TRUNCATE public.t",
    "INSERT INTO public.p1 VALUES (1, 1)",
    "MERGE INTO public.t USING (SELECT 1 AS i) s ON t.id = s.i WHEN MATCHED THEN DELETE",
    "SET session_replication_role = replica; DELETE FROM public.t",
    "WITH gone AS (DELETE FROM public.t RETURNING *) SELECT * FROM gone",
]


def test_only_one_database_accepts_writes(pair: tuple[Database, Database]) -> None:
    old, new = pair
    for statement in WRITES:
        assert "old is in use" in refused(new, statement)
    old.execute("BEGIN; DELETE FROM public.t WHERE id = 2; ROLLBACK")
    move(old, new)
    for statement in WRITES:
        message = refused(old, statement)
        assert "does not accept writes: new is in use" in message
        assert f"dbname={new.name}" in message
    with (
        psycopg.connect(old.uri) as connection,
        pytest.raises(psycopg.errors.ReadOnlySqlTransaction),
        connection.cursor().copy("COPY public.t FROM STDIN") as copy,
    ):
        copy.write("5\t5\n")
    for statement in WRITES:
        new.execute(f"BEGIN; {statement}; ROLLBACK")
    # A sync may write only to the database that is not in use.
    assert "must not write to it" in refused(new, f"{AS_SYNC} DELETE FROM public.t")
    old.execute(f"{AS_SYNC} DELETE FROM public.t WHERE id = 2")


def test_an_old_snapshot_does_not_write_after_the_decision(pair: tuple[Database, Database]) -> None:
    old, new = pair
    with psycopg.connect(old.uri) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT * FROM public.t")
        move(old, new)
        with pytest.raises(psycopg.errors.SerializationFailure, match="decided after"):
            connection.execute("UPDATE public.t SET v = 3 WHERE id = 1")
    # With no decision in between, such a transaction writes.
    with psycopg.connect(new.uri) as connection:
        connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        connection.execute("UPDATE public.t SET v = 3 WHERE id = 1")


def test_the_fence_waits_for_writers_and_names_them(pair: tuple[Database, Database]) -> None:
    """A transaction that has written continues, a new one waits, and one that does not end is named."""
    old, _ = pair
    with psycopg.connect(old.uri, application_name="slowcoach") as writer:
        writer.execute("INSERT INTO public.t VALUES (10, 1)")
        with pytest.raises(BudgetSpent, match="slowcoach"), fenced(old, 0.3):
            pass
        old.execute("INSERT INTO public.t VALUES (11, 1)")  # all is released
        up = threading.Event()
        done: list[int] = []

        def hold() -> None:
            with fenced(old):
                up.set()
                done.extend(old.execute("SELECT id FROM public.t WHERE id = 10")[0])
                wait_until(lambda: old.execute(WAITING) != [])
                done.extend(old.execute("SELECT count(*) FROM public.t WHERE id = 12")[0])

        thread = threading.Thread(target=hold)
        thread.start()
        wait_until(lambda: old.execute(WAITING) != [])
        writer.execute("INSERT INTO public.p1 VALUES (1, 1); UPDATE public.t SET v = 0 WHERE id = 10")
        assert not up.is_set()
        writer.commit()
        assert up.wait(60)
        old.execute("INSERT INTO public.t VALUES (12, 1)")  # waits, and is then committed
        thread.join()
    assert done == [10, 0]
    old.execute("BEGIN; INSERT INTO public.t VALUES (13, 1); PREPARE TRANSACTION 'left_behind'")
    with pytest.raises(BudgetSpent, match="left_behind"), fenced(old, 0.3):
        pass
    old.execute("ROLLBACK PREPARED 'left_behind'")


def test_a_guard_without_a_lock_is_an_error(pair: tuple[Database, Database]) -> None:
    old, _ = pair
    with psycopg.connect(old.uri) as reader, admin(old) as connection:
        assert guard.remove(connection, "main", timeout=10) == 3
        reader.execute("UPDATE public.t SET v = 1")
        with pytest.raises(QueryError, match=r"node n, public\.t: .*is locked by process .*idle in transaction"):
            guard.install(connection, NAMES, "main", timeout=0.3)
        reader.rollback()
        connection.execute("ALTER TABLE public.p DISABLE TRIGGER USER")
        assert guard.install(connection, NAMES, "main", timeout=10) >= 1
        assert guard.unguarded(connection, NAMES, "main") == []


@pytest.mark.parametrize(
    "definition",
    [
        "BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON public.t WHEN (false) EXECUTE FUNCTION {0}('main')",
        "BEFORE INSERT ON public.t EXECUTE FUNCTION {0}('main')",
        "BEFORE INSERT OR UPDATE OF id OR DELETE OR TRUNCATE ON public.t EXECUTE FUNCTION {0}('main')",
        "BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON public.t EXECUTE FUNCTION {0}('other')",
    ],
)
def test_a_guard_that_its_owner_replaced(pair: tuple[Database, Database], definition: str) -> None:
    """It has the name, the function and the state of a guard, and lets writes pass."""
    old, _ = pair
    name = guard.trigger("main")
    statement = definition.format("trueup.switchover_guard")
    old.execute(f"CREATE OR REPLACE TRIGGER {name} {statement}; ALTER TABLE public.t ENABLE ALWAYS TRIGGER {name}")
    with admin(old) as connection:
        assert guard.unguarded(connection, NAMES, "main") == [("public", "t")]
        assert guard.install(connection, NAMES, "main", timeout=10) == 1
        assert guard.unguarded(connection, NAMES, "main") == []


def test_applications_follow_the_pointer(pair: tuple[Database, Database]) -> None:
    """Clients that write all the time see a delay, and no write is lost, in both directions."""
    old, new = pair
    stop = threading.Event()
    written: list[list[tuple[int, str]]] = [[], [], []]
    errors: list[BaseException] = []

    def work(number: int) -> None:
        key = number * 1_000_000
        try:
            with trueup.connect(old.uri) as db:
                while not stop.is_set():
                    key += 1
                    with db.transaction() as connection:
                        connection.execute("INSERT INTO public.t VALUES (%s, 0)", (key,))
                    written[number - 1].append((key, db.address.rpartition("/")[2].rstrip(")")))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()

    def wait_for_more() -> None:
        counts = [len(keys) for keys in written]
        wait_until(lambda: bool(errors) or all(len(keys) > c + 20 for keys, c in zip(written, counts, strict=True)))

    for first, second in ((old, new), (new, old)):
        wait_for_more()
        move(first, second)
    wait_for_more()
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors
    for database in (old, new):
        keys = {key for some in written for key, name in some if name == database.name}
        assert keys
        assert {row[0] for row in database.execute("SELECT id FROM public.t WHERE id > 1000000")} == keys


@pytest.mark.parametrize("setting", ["statement_timeout", "lock_timeout"])
def test_an_application_whose_time_out_ends_in_the_pause(pair: tuple[Database, Database], setting: str) -> None:
    """The time-out is an error for that transaction; the next ones work with the same session."""
    old, new = pair
    # All statements of the session have this limit.
    with trueup.connect(old.uri, options=f"-c {setting}=1000") as db:
        db.execute("INSERT INTO public.t VALUES (10, 0)")
        ((process,),) = db.execute("SELECT pg_backend_pid()")
        with fenced(old):
            for _ in range(2):
                with pytest.raises(QueryError, match="timeout"):
                    db.execute("INSERT INTO public.t VALUES (11, 0)")
            assert old.execute("SELECT state FROM pg_stat_activity WHERE pid = %s", [process]) == [("idle",)]
        db.execute("INSERT INTO public.t VALUES (12, 0)")
        assert db.execute("SELECT pg_backend_pid()") == [(process,)]
        move(old, new)
        db.execute("INSERT INTO public.t VALUES (13, 0)")
    assert [row[0] for row in old.execute("SELECT id FROM public.t WHERE id > 9 ORDER BY 1")] == [10, 12]
    assert new.execute("SELECT id FROM public.t WHERE id > 9") == [(13,)]


def test_an_application_opens_the_database_after_a_killed_switchover(pair: tuple[Database, Database]) -> None:
    old, new = pair
    with admin(new) as connection:
        pointer.expect_token(connection, "main", TOKEN)
        assert not pointer.open_database(connection, "main", "a guess")
    with fenced(old) as fence:
        pointer.decide(fence.connection, "main", "one", TOKEN)
        fence.connection.execute("COMMIT")
    # It is not open: neither accepts writes of sessions that do not follow the pointer.
    assert "is in use" in refused(old, WRITES[0])
    assert "is in use" in refused(new, WRITES[0])
    with trueup.connect([old.uri, new.uri]) as db:
        db.execute("INSERT INTO public.t VALUES (%s, 1)", (21,))
        assert new.name in db.address
    assert new.execute("SELECT count(*) FROM public.t WHERE id = 21") == [(1,)]
    new.execute(WRITES[0])
    # The token cannot be used twice.
    move(new, old)
    with admin(new) as connection:
        assert not pointer.open_database(connection, "main", TOKEN)


def test_connect_reports_a_missing_pointer(pair: tuple[Database, Database], databases: Databases) -> None:
    old, new = pair
    with admin(old) as connection:
        assert guard.remove(connection, "main", timeout=5) == 3
        guard.remove_pointer(connection, "main", timeout=5)
        assert connection.execute("SELECT to_regnamespace('trueup')").fetchone() == (None,)
    with trueup.connect(old.uri) as db, pytest.raises(ConfigError, match="has no pointer"):
        db.execute("SELECT 1")
    # Pointers that refer to each other end in an error, after `wait` seconds.
    with trueup.connect(new.uri, wait=0.2, nodes={"old": new.uri}) as db, pytest.raises(trueup.NodeError):
        db.execute("SELECT 1")
