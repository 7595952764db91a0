"""Install, again, upgrade, remove; tubes and tables come and go on a live system."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

import trueup
from trueup.api.tube import open as open_tubes
from trueup.capture.triggers import install
from trueup.errors import CheckFailed, ConfigError, QueryError

SQL = Path(install.__file__).parent / "sql"


def test_every_function_has_a_file_and_a_comment(place: Any) -> None:
    found = place.run(
        "SELECT proname, obj_description(oid, 'pg_proc') FROM pg_proc WHERE pronamespace = 'tube'::regnamespace"
    )
    assert sorted(f"{name}.sql" for name, _ in found) == sorted(install.function_files())
    assert [name for name, comment in found if not comment] == []
    for file in SQL.glob("tube_*.sql"):
        text = file.read_text(encoding="utf-8")
        assert len(re.findall("^CREATE OR REPLACE FUNCTION", text, re.MULTILINE)) == 1, file
        assert re.search(rf"FUNCTION @schema@\.{file.stem}\(", text), file
        assert "SET search_path = pg_catalog, pg_temp" in text, file


def test_installed_again_and_upgraded_in_place(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    place.run("CREATE TABLE items (id int PRIMARY KEY)")
    place.tubes.attach("t", "items", shard=1)
    place.run("INSERT INTO items VALUES (1)")
    again = place.tubes.install()
    assert (again.before, again.version) == (2, 2)
    # An old function with other arguments, one that is no more, and an old trigger function.
    place.run("""DROP FUNCTION tube.tube_stats();
                 CREATE FUNCTION tube.tube_stats(a int) RETURNS int LANGUAGE sql AS 'SELECT 1';
                 CREATE FUNCTION tube.tube_old() RETURNS int LANGUAGE sql AS 'SELECT 1';
                 CREATE OR REPLACE FUNCTION tube.touch_1() RETURNS trigger LANGUAGE plpgsql
                 AS 'BEGIN RETURN NULL; END'""")
    # Of version 1, which had no workers and no dead letters.
    place.run("UPDATE tube.installation SET version = 1; DROP TABLE tube.workers, tube.dead_letters")
    monkeypatch.setattr(install, "VERSION", 3)
    monkeypatch.setattr(install, "MIGRATIONS", {3: "ALTER TABLE @schema@.tubes ADD COLUMN extra int"})
    done = place.tubes.install()
    assert (done.before, done.version) == (1, 3)
    assert place.run("SELECT version, upgraded_at IS NOT NULL, tube.tube_version() FROM tube.installation") == [
        (3, True, 3)
    ]
    assert (place.tubes.stats()[0].dead_letters, place.tubes.dead_letters("t")) == (0, [])
    assert place.run("SELECT count(extra) FROM tube.tubes") == [(0,)]
    place.run("INSERT INTO items VALUES (2)")
    assert place.ids() == [1, 2]
    assert place.run("SELECT to_regproc('tube.tube_old')") == [(None,)]
    monkeypatch.setattr(install, "VERSION", 2)
    with pytest.raises(CheckFailed, match="of version 3; this trueup knows 2"):
        place.tubes.install()


def test_removed(place: Any) -> None:
    place.run("CREATE TABLE items (id int PRIMARY KEY)")
    place.tubes.attach("t", "items", shard=1)
    place.run("INSERT INTO items VALUES (1)")
    with pytest.raises(CheckFailed, match="1 pods wait"):
        place.tubes.uninstall()
    with pytest.raises(CheckFailed, match="1 pods are waiting in the tube t"):
        place.tubes.drop("t")
    assert place.tubes.uninstall(force=True) == 1
    assert place.tubes.uninstall() == 0
    place.run("INSERT INTO items VALUES (2)")
    assert place.run("SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal") == [(0,)]
    with pytest.raises(CheckFailed, match="not installed") as caught:
        place.tubes.list()
    assert caught.value.cure == "trueup tube install node"


def test_a_schema_of_its_own(place: Any) -> None:
    place.run(
        "CREATE TABLE items (id int PRIMARY KEY); CREATE SCHEMA empty;"
        " CREATE SCHEMA taken; CREATE TABLE taken.x (a int)"
    )
    with open_tubes(place.database.uri, schema="empty") as tubes:
        tubes.install()
        tubes.ensure("t")
        tubes.attach("t", "items", shard=1)
        place.tubes.attach("t", "items", shard=2)
        place.run("INSERT INTO items VALUES (1); UPDATE items SET id = 2")
        assert sorted({key for pod in tubes.claim("t") for key in pod.ids}) == place.ids() == [1, 2]
        tubes.uninstall(force=True)
    place.run("INSERT INTO items VALUES (3)")
    assert place.ids() == [3]
    with open_tubes(place.database.uri, schema="taken") as tubes, pytest.raises(CheckFailed, match="other things"):
        tubes.install()
    for name in ("Tube", "a b", "pg_x", "x" * 16, "1x", ""):
        with pytest.raises(ConfigError, match="cannot be the schema"):
            open_tubes(place.database.uri, schema=name)


def test_dropping_the_schema_by_hand_stops_no_write(place: Any) -> None:
    place.run("CREATE TABLE items (id int PRIMARY KEY)")
    place.tubes.attach("t", "items", shard=1)
    place.run("DROP SCHEMA tube CASCADE; INSERT INTO items VALUES (1)")


def test_tubes_by_name(place: Any) -> None:
    for name in ("T", "1", "a b", "x" * 31, "a;b", None):
        with pytest.raises(QueryError, match="cannot be the name"):
            place.tubes.ensure(name)
    with pytest.raises(QueryError, match="there is no tube 'nothing'"):
        place.tubes.attach("nothing", "tube.tubes", shard=1)
    assert place.tubes.drop("nothing") is False
    with pytest.raises(QueryError):
        place.tubes.ensure("t", partitions=0)


@pytest.mark.parametrize(
    ("table", "shard"),
    [("public.orders_0012", 12), ("sh0042.users", 42), ("sh7.users_7", 7), ("sh1.users_2", None), ("v2.a3b", 2)],
)
def test_shards_by_name(place: Any, table: str, shard: int | None) -> None:
    place.run(f"CREATE SCHEMA IF NOT EXISTS {table.split('.')[0]}; CREATE TABLE {table} (id int PRIMARY KEY)")
    if shard is None:
        with pytest.raises(QueryError, match="different numbers"):
            place.tubes.attach("t", table)
    else:
        assert place.tubes.attach("t", table).shard == shard


def test_attached_twice_detached_twice(place: Any) -> None:
    place.run("CREATE TABLE items (id int PRIMARY KEY)")
    first = place.tubes.attach("t", "items", shard=1)
    assert place.tubes.attach("t", "items", shard=1) == first
    with pytest.raises(QueryError, match="with another shard"):
        place.tubes.attach("t", "items", shard=2)
    place.run("INSERT INTO items VALUES (1)")
    assert [place.tubes.detach("t", "items") for _ in range(2)] == [True, False]
    place.run("INSERT INTO items VALUES (2)")
    again = place.tubes.attach("t", "items", shard=2)
    assert (again.source, again.shard) == (first.source, 2)
    place.run("INSERT INTO items VALUES (3)")
    assert [(pod.source, pod.shard, pod.ids) for pod in place.take()] == [(1, 1, (1,)), (1, 2, (3,))]
    with pytest.raises(CheckFailed, match=r"there is no table public.itmes \(did you mean public.items\?\)"):
        place.tubes.detach("t", "itmes")


def test_problems_are_listed(place: Any) -> None:
    place.run(
        "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY);"
        " CREATE TABLE c (id int PRIMARY KEY, n int)"
    )
    for table in ("a", "b", "c"):
        place.tubes.attach("t", table, shard=1)
    oid = place.run("SELECT 'a'::regclass::oid::text")[0][0]
    place.run("DROP TABLE a; ALTER TABLE b DISABLE TRIGGER tube_t_insert; ALTER TABLE c DROP CONSTRAINT c_pkey")
    problems = {each.table: each.problem for each in place.tubes.list()[0].tables}
    assert "gone" in (problems[oid] or "")
    assert "disabled" in (problems["public.b"] or "")
    assert "no key" in (problems["public.c"] or "")
    assert place.tubes.detach("t", oid)


def test_an_open_writer_holds_up_attaching_and_is_named(place: Any) -> None:
    place.run("CREATE TABLE items (id int PRIMARY KEY)")
    with psycopg.connect(place.database.uri, application_name="slow") as writer:
        writer.execute("INSERT INTO items VALUES (1)")
        with pytest.raises(
            QueryError, match=rf"process {writer.info.backend_pid} \(postgres, slow\) uses public.items"
        ):
            place.tubes.attach("t", "items", shard=1, patience=0.1)
        # Nobody waits behind us between the attempts, and what was tried is undone.
        place.run("SET lock_timeout = '10s'; INSERT INTO items VALUES (2)")
        thread = threading.Thread(target=place.tubes.attach, args=("t", "items"), kwargs={"shard": 1})
        thread.start()
        _wait_for_attempt(place)
    thread.join()
    place.run("INSERT INTO items VALUES (3)")
    assert place.ids() == [3]


def _wait_for_attempt(place: Any) -> None:
    while not place.run(
        "SELECT FROM pg_stat_activity WHERE query LIKE '%tube_table_ensure_attached%' AND pid <> pg_backend_pid()"
    ):
        pass


def test_writers_that_began_before_lose_nothing(place: Any) -> None:
    """Writes go on all the time while a table is attached and backfilled: every row is touched."""
    place.run("CREATE TABLE items (id serial PRIMARY KEY)")
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(place.database.uri, autocommit=True) as connection:
            while not stop.is_set():
                connection.execute("INSERT INTO items DEFAULT VALUES")

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    place.tubes.attach("t", "items", shard=1)
    place.tubes.backfill("t", "items")
    stop.set()
    for thread in threads:
        thread.join()
    assert place.ids() == [row[0] for row in place.run("SELECT id FROM items ORDER BY id")]


def test_the_module_has_the_names(place: Any) -> None:
    assert trueup.tube.VERSION == install.VERSION
    for name in trueup.tube.__all__:
        assert getattr(trueup.tube, name) is not None
