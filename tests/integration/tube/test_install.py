"""Install, upgrade, uninstall; add and remove tubes and tables on a live system."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import psycopg
import pytest

from support.tube import TubeDatabase
from trueup.api.tube import Tube
from trueup.capture.triggers import install
from trueup.errors import CheckFailed, ConfigError, QueryError

SQL = Path(install.__file__).parent / "sql"


def test_every_function_has_a_file_and_a_comment(tube_db: TubeDatabase) -> None:
    found = tube_db.run(
        "SELECT proname, obj_description(oid, 'pg_proc') FROM pg_proc WHERE pronamespace = 'tube'::regnamespace"
    )
    assert sorted(f"{name}.sql" for name, _ in found) == sorted(install.function_files())
    assert [name for name, comment in found if not comment] == []
    for file in SQL.glob("tube_*.sql"):
        text = file.read_text(encoding="utf-8")
        assert len(re.findall("^CREATE OR REPLACE FUNCTION", text, re.MULTILINE)) == 1, file
        assert re.search(rf"FUNCTION @schema@\.{file.stem}\(", text), file
        assert "SET search_path = pg_catalog, pg_temp" in text, file


def test_installed_again_and_upgraded_in_place(tube_db: TubeDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    tube_db.run("CREATE TABLE items (id int PRIMARY KEY)")
    tube_db.tube.attach("items", shard=1)
    tube_db.run("INSERT INTO items VALUES (1)")
    again = tube_db.install()
    assert (again.before, again.version) == (11, 11)
    # An old function with other arguments, one that was removed, and an old trigger function.
    tube_db.run("""DROP FUNCTION tube.tube_stats();
                 CREATE FUNCTION tube.tube_stats(a int) RETURNS int LANGUAGE sql AS 'SELECT 1';
                 CREATE FUNCTION tube.tube_old() RETURNS int LANGUAGE sql AS 'SELECT 1';
                 CREATE OR REPLACE FUNCTION tube.touch_1() RETURNS trigger LANGUAGE plpgsql
                 AS 'BEGIN RETURN NULL; END'""")
    # Former triggers, without old rows.
    tube_db.run("""CREATE OR REPLACE TRIGGER tube_t_update AFTER UPDATE ON items REFERENCING NEW TABLE AS new_rows
                 FOR EACH STATEMENT EXECUTE FUNCTION tube.touch_1();
                 CREATE TRIGGER tube_t_key AFTER UPDATE ON items FOR EACH ROW WHEN (OLD.id <> NEW.id)
                 EXECUTE FUNCTION tube.touch_1_row();
                 ALTER TABLE items ENABLE ALWAYS TRIGGER tube_t_update, ENABLE ALWAYS TRIGGER tube_t_key""")
    # Of version 1, which had no workers and no dead letters.
    tube_db.run(
        "UPDATE tube.installation SET version = 1; DROP TABLE tube.workers, tube.dead_letters;"
        " ALTER TABLE tube.sources DROP COLUMN storage, DROP COLUMN incomplete, DROP COLUMN incomplete_at"
    )
    monkeypatch.setattr(install, "VERSION", 12)
    monkeypatch.setattr(
        install, "MIGRATIONS", {**install.MIGRATIONS, 12: "ALTER TABLE @schema@.tubes ADD COLUMN extra int"}
    )
    done = tube_db.install()
    assert (done.before, done.version) == (1, 12)
    assert tube_db.run("SELECT version, upgraded_at IS NOT NULL, tube.tube_version() FROM tube.installation") == [
        (12, True, 12)
    ]
    assert (tube_db.tube.stats()[0].dead_letters, tube_db.tube.dead_letters()) == (0, [])
    assert tube_db.run("SELECT count(extra) FROM tube.tubes") == [(0,)]
    tube_db.run("INSERT INTO items VALUES (2)")
    assert tube_db.ids() == [1, 2]
    tube_db.run("UPDATE items SET id = 3 WHERE id = 2")
    assert tube_db.ids() == [2, 3]
    assert tube_db.run("SELECT tgname::text, tgenabled::text FROM pg_trigger WHERE NOT tgisinternal ORDER BY 1") == [
        (f"tube_t_{event}", "A") for event in ("delete", "insert", "truncate", "update")
    ]
    assert tube_db.run("SELECT to_regproc('tube.tube_old')") == [(None,)]
    monkeypatch.setattr(install, "VERSION", 11)
    with pytest.raises(CheckFailed, match="have version 12; this trueup supports 11"):
        tube_db.install()


def test_uninstall(tube_db: TubeDatabase) -> None:
    tube_db.run("CREATE TABLE items (id int PRIMARY KEY)")
    tube_db.tube.attach("items", shard=1)
    tube_db.run("INSERT INTO items VALUES (1)")
    with pytest.raises(CheckFailed, match="1 waiting pod in"):
        tube_db.uninstall()
    with pytest.raises(CheckFailed, match="1 waiting pod in the tube t would"):
        tube_db.tube.drop()
    assert tube_db.uninstall(force=True) == 1
    assert tube_db.uninstall() == 0
    tube_db.run("INSERT INTO items VALUES (2)")
    assert tube_db.run("SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal") == [(0,)]
    with pytest.raises(CheckFailed, match="not installed") as caught:
        tube_db.tubes()
    assert caught.value.cure == "run trueup tube install node"


def test_install_into_another_schema(tube_db: TubeDatabase) -> None:
    tube_db.run(
        "CREATE TABLE items (id int PRIMARY KEY); CREATE SCHEMA empty;"
        " CREATE SCHEMA taken; CREATE TABLE taken.x (a int)"
    )
    Tube.install(tube_db.database.uri, schema="empty")
    with Tube("t", tube_db.database.uri, schema="empty") as tube:
        tube.ensure()
        tube.attach("items", shard=1)
        tube_db.tube.attach("items", shard=2)
        tube_db.run("INSERT INTO items VALUES (1); UPDATE items SET id = 2")
        assert sorted({key for pod in tube.claim() for key in pod.ids}) == tube_db.ids() == [1, 2]
    Tube.uninstall(tube_db.database.uri, schema="empty", force=True)
    tube_db.run("INSERT INTO items VALUES (3)")
    assert tube_db.ids() == [3]
    with pytest.raises(CheckFailed, match="contains other objects"):
        Tube.install(tube_db.database.uri, schema="taken")
    for name in ("Tube", "a b", "pg_x", "x" * 16, "1x", ""):
        with pytest.raises(ConfigError, match="invalid schema name"):
            Tube("t", tube_db.database.uri, schema=name)


def test_dropping_the_schema_fails_no_write(tube_db: TubeDatabase) -> None:
    tube_db.run("CREATE TABLE items (id int PRIMARY KEY)")
    tube_db.tube.attach("items", shard=1)
    tube_db.run("DROP SCHEMA tube CASCADE; INSERT INTO items VALUES (1)")


def test_tubes_by_name(tube_db: TubeDatabase) -> None:
    for name in ("T", "1", "a b", "x" * 31, "a;b"):
        with pytest.raises(QueryError, match="invalid name"):
            tube_db.of(name).ensure()
    with pytest.raises(QueryError, match="the tube 'nothing' does not exist"):
        tube_db.of("nothing").attach("tube.tubes", shard=1)
    assert tube_db.of("nothing").drop() is False
    with pytest.raises(CheckFailed, match="the number of partitions 0 is out of range"):
        tube_db.tube.ensure(partitions=0)


def test_what_is_not_given_stays_as_it_is(tube_db: TubeDatabase) -> None:
    tube_db.run(
        "CREATE TABLE parent (id int PRIMARY KEY, n int); CREATE TABLE items (PRIMARY KEY (id)) INHERITS (parent);"
        " CREATE FUNCTION even(n int) RETURNS bool LANGUAGE sql IMMUTABLE RETURN n % 2 = 0"
    )
    tube = tube_db.of("kept")
    made = tube.ensure(partitions=3, predicate="public.even(n)", allow_functions=["public.even"])
    assert (made.is_new, made.partitions, made.pod_size, made.changed) == (True, 3, 250, ())
    tube.attach("items", shard=4, predicate="n > 0", capture="row")
    assert tube.ensure().changed == ()
    assert tube.ensure(pod_size=100).changed == ("pod_size: 250 -> 100",)
    again = tube.attach("items")
    assert (again.shard, again.predicate, again.capture) == (4, "n > 0", "row")
    tube_db.run("INSERT INTO items VALUES (1, 1), (2, 2), (3, -2)")
    assert [pod.ids for pod in tube.claim(1)] == [(2,)]
    assert tube.attach("items", predicate="").predicate is None
    assert tube.ensure(predicate="").changed == ("predicate: public.even(n) -> none",)
    info = tube.info()
    assert info is not None
    assert (info.partitions, info.predicate, info.pod_size, info.tables[0].predicate) == (3, None, 100, None)
    tube_db.run("INSERT INTO items VALUES (5, -1)")
    assert [pod.ids for pod in tube.claim(1)] == [(2,), (5,)]


@pytest.mark.parametrize(
    ("table", "shard"),
    [("public.orders_0012", 12), ("sh0042.users", 42), ("sh7.users_7", 7), ("sh1.users_2", None), ("v2.a3b", 2)],
)
def test_shards_by_name(tube_db: TubeDatabase, table: str, shard: int | None) -> None:
    tube_db.run(f"CREATE SCHEMA IF NOT EXISTS {table.split('.')[0]}; CREATE TABLE {table} (id int PRIMARY KEY)")
    if shard is None:
        with pytest.raises(QueryError, match="different numbers"):
            tube_db.tube.attach(table)
    else:
        assert tube_db.tube.attach(table).shard == shard


def test_attach_and_detach_can_be_repeated(tube_db: TubeDatabase) -> None:
    tube_db.run("CREATE TABLE items (id int PRIMARY KEY)")
    first = tube_db.tube.attach("items", shard=1)
    assert tube_db.tube.attach("items", shard=1) == first
    # Without a shard, an attached table keeps its own.
    assert tube_db.tube.attach("items") == first
    with pytest.raises(QueryError, match="with another shard"):
        tube_db.tube.attach("items", shard=2)
    tube_db.run("INSERT INTO items VALUES (1)")
    assert [tube_db.tube.detach("items") for _ in range(2)] == [True, False]
    tube_db.run("INSERT INTO items VALUES (2)")
    again = tube_db.tube.attach("items", shard=2)
    assert (again.source, again.shard) == (first.source, 2)
    tube_db.run("INSERT INTO items VALUES (3)")
    # Waiting touches get the new shard: see test_another_shard_in_another_partition.
    assert [(pod.source, pod.shard, pod.ids) for pod in tube_db.take()] == [(1, 2, (1,)), (1, 2, (3,))]
    with pytest.raises(CheckFailed, match=r"the table public.itmes does not exist \(did you mean public.items\?\)"):
        tube_db.tube.detach("itmes")


def test_problems_are_listed(tube_db: TubeDatabase) -> None:
    tube_db.run(
        "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY);"
        " CREATE TABLE c (id int PRIMARY KEY, n int)"
    )
    for table in ("a", "b", "c"):
        tube_db.tube.attach(table, shard=1)
    tube_db.run("DROP TABLE a; ALTER TABLE b DISABLE TRIGGER tube_t_insert; ALTER TABLE c DROP CONSTRAINT c_pkey")
    problems = {each.table: each.problem for each in tube_db.tubes()[0].tables}
    assert "does not exist" in (problems["public.a"] or "")
    assert "disabled" in (problems["public.b"] or "")
    assert "no key" in (problems["public.c"] or "")
    assert tube_db.tube.detach("a")


def test_attach_waits_for_an_open_writer_and_names_it(tube_db: TubeDatabase) -> None:
    tube_db.run("CREATE TABLE items (id int PRIMARY KEY)")
    with psycopg.connect(tube_db.database.uri, application_name="slow") as writer:
        writer.execute("INSERT INTO items VALUES (1)")
        with pytest.raises(
            QueryError, match=rf"process {writer.info.backend_pid} \(postgres, slow\) uses public.items"
        ):
            tube_db.tube.attach("items", shard=1, timeout=0.1)
        # No session waits between the attempts, and a failed attempt is rolled back.
        tube_db.run("SET lock_timeout = '10s'; INSERT INTO items VALUES (2)")
        thread = threading.Thread(target=tube_db.tube.attach, args=("items",), kwargs={"shard": 1})
        thread.start()
        _wait_for_attempt(tube_db)
    thread.join()
    tube_db.run("INSERT INTO items VALUES (3)")
    assert tube_db.ids() == [3]


def _wait_for_attempt(tube_db: TubeDatabase) -> None:
    while not tube_db.run(
        "SELECT FROM pg_stat_activity WHERE query LIKE '%tube_table_ensure_attached%' AND pid <> pg_backend_pid()"
    ):
        pass


def test_no_write_is_lost_while_a_table_is_attached(tube_db: TubeDatabase) -> None:
    """Concurrent writes while a table is attached and backfilled: every row is touched."""
    tube_db.run("CREATE TABLE items (id serial PRIMARY KEY)")
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(tube_db.database.uri, autocommit=True) as connection:
            while not stop.is_set():
                connection.execute("INSERT INTO items DEFAULT VALUES")

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    tube_db.tube.attach("items", shard=1)
    tube_db.tube.backfill("items")
    stop.set()
    for thread in threads:
        thread.join()
    assert tube_db.ids() == [row[0] for row in tube_db.run("SELECT id FROM items ORDER BY id")]
