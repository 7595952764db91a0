"""Install, upgrade, uninstall; add and remove tubes and tables on a live system."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import psycopg
import pytest

from support.tube import Place
from trueup.api.tube import Tube
from trueup.capture.triggers import install
from trueup.errors import CheckFailed, ConfigError, QueryError

SQL = Path(install.__file__).parent / "sql"


def test_every_function_has_a_file_and_a_comment(place: Place) -> None:
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


def test_installed_again_and_upgraded_in_place(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.run("CREATE TABLE items (id int PRIMARY KEY)")
    place.tube.attach("items", shard=1)
    place.run("INSERT INTO items VALUES (1)")
    again = place.install()
    assert (again.before, again.version) == (3, 3)
    # An old function with other arguments, one that was removed, and an old trigger function.
    place.run("""DROP FUNCTION tube.tube_stats();
                 CREATE FUNCTION tube.tube_stats(a int) RETURNS int LANGUAGE sql AS 'SELECT 1';
                 CREATE FUNCTION tube.tube_old() RETURNS int LANGUAGE sql AS 'SELECT 1';
                 CREATE OR REPLACE FUNCTION tube.touch_1() RETURNS trigger LANGUAGE plpgsql
                 AS 'BEGIN RETURN NULL; END'""")
    # Of version 1, which had no workers and no dead letters.
    place.run("UPDATE tube.installation SET version = 1; DROP TABLE tube.workers, tube.dead_letters")
    monkeypatch.setattr(install, "VERSION", 4)
    monkeypatch.setattr(install, "MIGRATIONS", {4: "ALTER TABLE @schema@.tubes ADD COLUMN extra int"})
    done = place.install()
    assert (done.before, done.version) == (1, 4)
    assert place.run("SELECT version, upgraded_at IS NOT NULL, tube.tube_version() FROM tube.installation") == [
        (4, True, 4)
    ]
    assert (place.tube.stats()[0].dead_letters, place.tube.dead_letters()) == (0, [])
    assert place.run("SELECT count(extra) FROM tube.tubes") == [(0,)]
    place.run("INSERT INTO items VALUES (2)")
    assert place.ids() == [1, 2]
    assert place.run("SELECT to_regproc('tube.tube_old')") == [(None,)]
    monkeypatch.setattr(install, "VERSION", 3)
    with pytest.raises(CheckFailed, match="have version 4; this trueup supports 3"):
        place.install()


def test_uninstall(place: Place) -> None:
    place.run("CREATE TABLE items (id int PRIMARY KEY)")
    place.tube.attach("items", shard=1)
    place.run("INSERT INTO items VALUES (1)")
    with pytest.raises(CheckFailed, match="1 pods are waiting"):
        place.uninstall()
    with pytest.raises(CheckFailed, match="1 pods are waiting in the tube t"):
        place.tube.drop()
    assert place.uninstall(force=True) == 1
    assert place.uninstall() == 0
    place.run("INSERT INTO items VALUES (2)")
    assert place.run("SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal") == [(0,)]
    with pytest.raises(CheckFailed, match="not installed") as caught:
        place.tubes()
    assert caught.value.cure == "run trueup tube install node"


def test_install_into_another_schema(place: Place) -> None:
    place.run(
        "CREATE TABLE items (id int PRIMARY KEY); CREATE SCHEMA empty;"
        " CREATE SCHEMA taken; CREATE TABLE taken.x (a int)"
    )
    Tube.install(place.database.uri, schema="empty")
    with Tube("t", place.database.uri, schema="empty") as tube:
        tube.ensure()
        tube.attach("items", shard=1)
        place.tube.attach("items", shard=2)
        place.run("INSERT INTO items VALUES (1); UPDATE items SET id = 2")
        assert sorted({key for pod in tube.claim() for key in pod.ids}) == place.ids() == [1, 2]
    Tube.uninstall(place.database.uri, schema="empty", force=True)
    place.run("INSERT INTO items VALUES (3)")
    assert place.ids() == [3]
    with pytest.raises(CheckFailed, match="contains other objects"):
        Tube.install(place.database.uri, schema="taken")
    for name in ("Tube", "a b", "pg_x", "x" * 16, "1x", ""):
        with pytest.raises(ConfigError, match="invalid schema name"):
            Tube("t", place.database.uri, schema=name)


def test_dropping_the_schema_fails_no_write(place: Place) -> None:
    place.run("CREATE TABLE items (id int PRIMARY KEY)")
    place.tube.attach("items", shard=1)
    place.run("DROP SCHEMA tube CASCADE; INSERT INTO items VALUES (1)")


def test_tubes_by_name(place: Place) -> None:
    for name in ("T", "1", "a b", "x" * 31, "a;b"):
        with pytest.raises(QueryError, match="invalid name"):
            place.of(name).ensure()
    with pytest.raises(QueryError, match="the tube 'nothing' does not exist"):
        place.of("nothing").attach("tube.tubes", shard=1)
    assert place.of("nothing").drop() is False
    with pytest.raises(QueryError):
        place.tube.ensure(partitions=0)


@pytest.mark.parametrize(
    ("table", "shard"),
    [("public.orders_0012", 12), ("sh0042.users", 42), ("sh7.users_7", 7), ("sh1.users_2", None), ("v2.a3b", 2)],
)
def test_shards_by_name(place: Place, table: str, shard: int | None) -> None:
    place.run(f"CREATE SCHEMA IF NOT EXISTS {table.split('.')[0]}; CREATE TABLE {table} (id int PRIMARY KEY)")
    if shard is None:
        with pytest.raises(QueryError, match="different numbers"):
            place.tube.attach(table)
    else:
        assert place.tube.attach(table).shard == shard


def test_attach_and_detach_can_be_repeated(place: Place) -> None:
    place.run("CREATE TABLE items (id int PRIMARY KEY)")
    first = place.tube.attach("items", shard=1)
    assert place.tube.attach("items", shard=1) == first
    with pytest.raises(QueryError, match="with another shard"):
        place.tube.attach("items", shard=2)
    place.run("INSERT INTO items VALUES (1)")
    assert [place.tube.detach("items") for _ in range(2)] == [True, False]
    place.run("INSERT INTO items VALUES (2)")
    again = place.tube.attach("items", shard=2)
    assert (again.source, again.shard) == (first.source, 2)
    place.run("INSERT INTO items VALUES (3)")
    assert [(pod.source, pod.shard, pod.ids) for pod in place.take()] == [(1, 1, (1,)), (1, 2, (3,))]
    with pytest.raises(CheckFailed, match=r"the table public.itmes does not exist \(did you mean public.items\?\)"):
        place.tube.detach("itmes")


def test_problems_are_listed(place: Place) -> None:
    place.run(
        "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY);"
        " CREATE TABLE c (id int PRIMARY KEY, n int)"
    )
    for table in ("a", "b", "c"):
        place.tube.attach(table, shard=1)
    oid = place.run("SELECT 'a'::regclass::oid::text")[0][0]
    place.run("DROP TABLE a; ALTER TABLE b DISABLE TRIGGER tube_t_insert; ALTER TABLE c DROP CONSTRAINT c_pkey")
    problems = {each.table: each.problem for each in place.tubes()[0].tables}
    assert "does not exist" in (problems[oid] or "")
    assert "disabled" in (problems["public.b"] or "")
    assert "no key" in (problems["public.c"] or "")
    assert place.tube.detach(oid)


def test_attach_waits_for_an_open_writer_and_names_it(place: Place) -> None:
    place.run("CREATE TABLE items (id int PRIMARY KEY)")
    with psycopg.connect(place.database.uri, application_name="slow") as writer:
        writer.execute("INSERT INTO items VALUES (1)")
        with pytest.raises(
            QueryError, match=rf"process {writer.info.backend_pid} \(postgres, slow\) uses public.items"
        ):
            place.tube.attach("items", shard=1, timeout=0.1)
        # No session waits between the attempts, and a failed attempt is rolled back.
        place.run("SET lock_timeout = '10s'; INSERT INTO items VALUES (2)")
        thread = threading.Thread(target=place.tube.attach, args=("items",), kwargs={"shard": 1})
        thread.start()
        _wait_for_attempt(place)
    thread.join()
    place.run("INSERT INTO items VALUES (3)")
    assert place.ids() == [3]


def _wait_for_attempt(place: Place) -> None:
    while not place.run(
        "SELECT FROM pg_stat_activity WHERE query LIKE '%tube_table_ensure_attached%' AND pid <> pg_backend_pid()"
    ):
        pass


def test_no_write_is_lost_while_a_table_is_attached(place: Place) -> None:
    """Concurrent writes while a table is attached and backfilled: every row is touched."""
    place.run("CREATE TABLE items (id serial PRIMARY KEY)")
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(place.database.uri, autocommit=True) as connection:
            while not stop.is_set():
                connection.execute("INSERT INTO items DEFAULT VALUES")

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    place.tube.attach("items", shard=1)
    place.tube.backfill("items")
    stop.set()
    for thread in threads:
        thread.join()
    assert place.ids() == [row[0] for row in place.run("SELECT id FROM items ORDER BY id")]
