"""Keys of attached tables: they change, are renamed and restored, and pods with unreadable keys stop no tube."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.fixtures import Databases
from support.sqlite_sink import SqliteSink
from support.tube import TubeDatabase, restore
from trueup.api.tube import Tube
from trueup.errors import CheckFailed, QueryError
from trueup.sinks.base import Document, Mark, SourceTable
from trueup.testing.postgres import Database
from trueup.testing.processes import wait_until
from trueup.verbs.tube import aside
from trueup.verbs.tube.aside import Aside
from trueup.verbs.tube.model import Summary

MAX, MIN = 2**63 - 1, -(2**63)


class StrictSink(SqliteSink):
    """Refuses rows whose keys have another number of columns than the tables of the last setup."""

    def setup(self, tables: Sequence[SourceTable]) -> None:
        super().setup(tables)
        self.widths = {table.table: len(table.key) for table in tables}

    def write(self, batch: Sequence[Document], *, mark: Mark) -> None:
        present = [document for document in batch if document.row is not None]
        assert all(len(document.key) == self.widths[document.table] for document in present), "another key"
        super().write(batch, mark=mark)


@pytest.fixture
def sqlite_sink(tmp_path: Path) -> SqliteSink:
    return SqliteSink(str(tmp_path / "kept.db"))


@pytest.fixture
def words(tube_db: TubeDatabase) -> TubeDatabase:
    """A table with a key of two columns, and one with an integer key."""
    tube_db.run("""CREATE TABLE words (w text, n int, note text, PRIMARY KEY (w, n));
                   CREATE TABLE items (id int PRIMARY KEY, code text NOT NULL, part int NOT NULL DEFAULT 1)""")
    tube_db.tube.attach("words", shard=0)
    tube_db.tube.attach("items", shard=0)
    return tube_db


def empty(database: Database, sqlite_sink: SqliteSink, **options: Any) -> Summary:
    """Run a job until the tube is empty."""
    with Tube("t", database.uri) as tube:
        summary: Summary = tube.run(SqliteSink(sqlite_sink.path), until_empty=True, retry_pause=0.05, **options)
        return summary


def kept(sqlite_sink: SqliteSink, table: str) -> list[Any]:
    """Return the rows of the sink, sorted by key."""
    return [row for _, row in sorted(sqlite_sink.rows(f"public.{table}").items())]


def rows(database: Database, table: str, order: str) -> list[Any]:
    return [row for (row,) in database.execute(f"SELECT to_jsonb(r) FROM {table} r ORDER BY {order}")]


def test_key_columns_are_found_after_dump_and_restore(databases: Databases, sqlite_sink: SqliteSink) -> None:
    old, new = databases(2)
    tube_db = TubeDatabase(old)
    tube_db.install()
    tube_db.tube.ensure()
    # Other columns have the numbers of the key columns after the restore, and one of them is a key too.
    tube_db.run("""CREATE TABLE k (gone int, id int PRIMARY KEY, grp int NOT NULL UNIQUE);
                   CREATE TABLE pair (gone int, a text, b int, c int, PRIMARY KEY (b, a));
                   ALTER TABLE k DROP gone; ALTER TABLE pair DROP gone""")
    for table in ("k", "pair"):
        tube_db.tube.attach(table, shard=0)
    tube_db.run("""INSERT INTO k SELECT g, 1000 + g FROM generate_series(1, 10) g;
                   INSERT INTO pair SELECT 'a' || g % 3, g, g % 2 FROM generate_series(1, 9) g""")
    tube_db.close()
    restore(old, new)
    new.execute("INSERT INTO k VALUES (11, 0); UPDATE pair SET c = 7 WHERE b = 1")
    assert empty(new, sqlite_sink).refused == 0
    for table, order in (("k", "id::text"), ("pair", "b, a")):
        assert kept(sqlite_sink, table) == rows(new, table, order)
    restored = TubeDatabase(new)
    first, second = restored.tubes()[0].tables
    assert (first.key, second.key) == (("id",), ("b", "a"))
    for attached in (first, second):
        # What was changed after the dump, or before this check, is not known.
        assert "the database was restored or copied" in str(attached.problem)
        restored.tube.backfill(attached.table)
    assert empty(new, sqlite_sink).refused == 0
    assert [table.problem for table in restored.tubes()[0].tables] == [None, None]
    # From now on, the numbers are those of this database.
    new.execute("ALTER TABLE k RENAME id TO key; UPDATE k SET grp = grp + 5000")
    assert empty(new, sqlite_sink).refused == 0
    assert kept(sqlite_sink, "k") == rows(new, "k", "key::text")
    restored.close()


def test_columns_that_swap_their_names(words: TubeDatabase, sqlite_sink: SqliteSink) -> None:
    words.run("""ALTER TABLE items ADD other int UNIQUE;
                 INSERT INTO items SELECT g, 'c', 1, 100 + g FROM generate_series(1, 5) g""")
    empty(words.database, sqlite_sink)
    swap = """ALTER TABLE items RENAME id TO old; ALTER TABLE items RENAME other TO id;
              ALTER TABLE items RENAME old TO other; UPDATE items SET code = 'new' WHERE other < 3"""
    words.run(swap)
    # The trigger recorded other columns until the next check.
    assert "renamed" in (words.tubes()[0].tables[0].problem or "")
    empty(words.database, sqlite_sink)
    assert kept(sqlite_sink, "items") == rows(words.database, "items", "other")
    assert words.tubes()[0].tables[0].problem is None
    words.run("DELETE FROM items WHERE other = 1; INSERT INTO items (other, id, code) VALUES (9, 1, 'x')")
    empty(words.database, sqlite_sink)
    assert kept(sqlite_sink, "items") == rows(words.database, "items", "other")


NEW_KEYS = {
    "one more column": ("ALTER TABLE items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (id, part)", "id, part"),
    "another column": ("ALTER TABLE items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (code)", "code"),
    "one column less": ("ALTER TABLE words DROP CONSTRAINT words_pkey, ADD PRIMARY KEY (w)", "w"),
    "another order": ("ALTER TABLE words DROP CONSTRAINT words_pkey, ADD PRIMARY KEY (n, w)", "n, w"),
}


@pytest.mark.parametrize("change", NEW_KEYS)
def test_pods_of_the_former_key(words: TubeDatabase, sqlite_sink: SqliteSink, change: str) -> None:
    statement, key = NEW_KEYS[change]
    table = statement.split()[2]
    words.run("""INSERT INTO items SELECT g, 'c' || g FROM generate_series(1, 20) g;
                 INSERT INTO words SELECT 'w' || g, g FROM generate_series(1, 20) g""")
    empty(words.database, sqlite_sink)
    before = words.run(f"SELECT source FROM tube.sources WHERE \"table\" = '{table}'::regclass")[0][0]
    # Pods and a dead letter of the former key wait when the table gets another one.
    words.run(f"""UPDATE items SET code = 'd' || id WHERE id < 9; UPDATE words SET note = 'x' WHERE n < 9;
                  DELETE FROM {table} WHERE {"id" if table == "items" else "n"} > 18;
                  INSERT INTO tube.dead_letters VALUES ('t', {before}, 0, '19', 'U', 'refused', 5);
                  {statement}""")
    problems = {row.table: row.problem or "" for row in words.tubes()[0].tables}
    # The columns of the former key of words still identify a row.
    assert ("its key has changed" in problems[f"public.{table}"]) == (table == "items")
    attached = words.tube.attach(table, shard=0)
    assert attached.source > before
    assert attached.key == tuple(key.split(", "))
    assert (attached.problem, attached.backfill_is_scheduled) == (None, True)
    words.run(f"UPDATE {table} SET {'part = part + 1' if table == 'items' else 'note = note || n'}")
    summary = empty(words.database, sqlite_sink)
    assert (summary.refused, summary.troubles) == (0, 0)
    # The scheduled backfill has written all rows, and removed the documents of the former key.
    documents = sqlite_sink.rows(f"public.{table}")
    expected = words.run(
        f"SELECT ARRAY[{', '.join(f'{name}::text' for name in key.split(', '))}], to_jsonb(r) FROM {table} r"
    )
    assert documents == {(0, tuple(texts)): row for texts, row in expected}
    assert words.tube.dead_letters() == []
    assert words.pods() == []
    # The same key again: the table keeps its number.
    assert words.tube.attach(table, shard=0).source == attached.source
    words.tube.detach(table)
    assert words.tube.attach(table, shard=0).source == attached.source


def test_a_batch_in_flight_when_the_key_changes(
    words: TubeDatabase, sqlite_sink: SqliteSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[bool] = []
    check = Aside.check

    def counted(self: Aside) -> bool:
        checks.append(check(self))
        return checks[-1]

    monkeypatch.setattr(Aside, "check", counted)
    monkeypatch.setattr(aside, "CHECK_SECONDS", 0.0)
    words.run("INSERT INTO items SELECT g, 'c' || g FROM generate_series(1, 20) g")
    empty(words.database, sqlite_sink)
    sqlite_sink.fault("down")
    words.run("UPDATE items SET part = 2")
    stop = threading.Event()
    tube = Tube("t", words.database.uri)
    with ThreadPoolExecutor(1) as threads:
        job = threads.submit(tube.run, StrictSink(sqlite_sink.path), stop=stop)
        wait_until(lambda: any("down" in (row.waiting or "") for row in words.tube.stats()), 60)
        words.run("ALTER TABLE items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (code, id)")
        words.tube.attach("items", shard=0)
        words.run("UPDATE items SET part = 3 WHERE id < 5")
        # The job notices the new key while the batch with the former one waits.
        before = len(checks)
        assert wait_until(lambda: len(checks) > before + 1, 60)
        sqlite_sink.fault("down", None)
        expected = {(0, (row["code"], str(row["id"]))): row for row in rows(words.database, "items", "id")}
        is_equal = wait_until(lambda: sqlite_sink.rows("public.items") == expected, 60)
        stop.set()
        assert job.result().refused == 0
    tube.close()
    assert is_equal


def test_touched_keys_are_checked(words: TubeDatabase) -> None:
    words.run("""CREATE TABLE moments (at timestamptz PRIMARY KEY);
                 CREATE TABLE ids (id uuid PRIMARY KEY, n smallint UNIQUE NOT NULL)""")
    words.tube.attach("moments", shard=0)
    words.tube.attach("ids", routing="n")
    words.run("INSERT INTO ids VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 5)")
    words.take()
    refused: list[tuple[str, Any, str]] = [
        ("words", "foo", 'json: Token "foo" is invalid'),
        ("words", "5", "2 columns"),
        ("words", '["x"]', "2 columns"),
        ("words", '["x",1,2]', "2 columns"),
        ("words", '["x",null]', "NULL"),
        ("words", '["x",[1]]', "a text"),
        ("words", '["x","y"]', "integer"),
        ("words", None, "NULL"),
        ("items", "foo", "integer"),
        ("items", 2**40, "out of range"),
        ("items", None, "NULL"),
        ("moments", "soon", "timestamp"),
        ("ids", "foo", "uuid"),
    ]
    for table, key, reason in refused:
        with pytest.raises(QueryError, match=reason) as caught:
            words.tube.touch(table, [key])
        assert f"public.{table}" in str(caught.value)
        assert "install" not in (caught.value.cure or "")
    for query in ("SELECT NULL::int", "SELECT 'foo'", "SELECT 5::numeric ^ 30"):
        with pytest.raises(QueryError, match=r"public\.items"):
            words.tube.touch_query("items", query)
    for table, query, columns in (("items", "SELECT 0, 1", "key"), ("ids", "SELECT 0, 1, 2", "shard, key")):
        with pytest.raises(QueryError, match=f"exactly these columns: {columns}"):
            words.tube.touch_query(table, query)
    with pytest.raises(QueryError, match="division by zero"):
        words.tube.touch_query("items", "SELECT 1 / 0")
    with pytest.raises(QueryError, match="with shard 0, not 3"):
        words.tube.touch("items", [1], shard=3)
    with pytest.raises(QueryError, match="with shard 0, not 3"):
        words.tube.touch_query("items", "SELECT 1", shard=3)
    assert words.pods() == []
    # As the triggers write them.
    words.tube.touch("words", ['["x",1]', ("ä", "02")])
    words.tube.touch("moments", ["2026-01-02 03:04+02"])
    words.tube.touch("items", ["007"])
    words.tube.touch("ids", ["A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"])
    words.tube.touch_query("words", "SELECT json_build_array(w, n) FROM (VALUES ('y', 2)) v(w, n)")
    words.tube.touch_query("items", "SELECT 8.0")
    pods = [(pod.shard, pod.keys or pod.ids) for pod in words.take()]
    assert pods == [
        (0, ('["x", "1"]', '["ä", "2"]')),
        (0, ("2026-01-02 01:04:00+00",)),
        (0, (7,)),
        (5, ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",)),
        (0, ('["y", "2"]',)),
        (0, (8,)),
    ]


def test_unreadable_pods_are_parked(words: TubeDatabase, sqlite_sink: SqliteSink) -> None:
    """Pods that no function checked: keys that became NULL, or that were inserted by hand."""
    words.run("""CREATE TABLE ids (id uuid PRIMARY KEY)""")
    words.tube.attach("ids", shard=0)
    sources = dict(words.run("SELECT 'public.' || \"table\"::text, source FROM tube.sources"))
    for table, column, values in (
        ("public.words", "keys", """{foo,5,NULL,"[\\"x\\"]","[\\"x\\", null]","{}"}"""),
        ("public.items", "keys", "{foo,5,NULL}"),
        ("public.items", "ids", "{6,NULL}"),
        ("public.ids", "keys", "{foo,NULL}"),
        ("public.ids", "ids", "{7}"),
    ):
        words.run(
            f"INSERT INTO tube.pods_t (shard, source, op, {column}) VALUES (0, {sources[table]}, 'T', '{values}')"
        )
    words.run("""INSERT INTO items VALUES (5, 'a'), (6, 'b'); INSERT INTO words VALUES ('x', 1)""")
    summary = empty(words.database, sqlite_sink)
    letters = {(letter.table, letter.key): letter for letter in words.tube.dead_letters()}
    assert sorted(letters) == [
        ("public.ids", "7"),
        ("public.ids", "NULL"),
        ("public.ids", "foo"),
        ("public.items", "NULL"),
        ("public.items", "foo"),
        *(("public.words", key) for key in sorted(["foo", "5", "NULL", '["x"]', '["x", null]', "{}"])),
    ]
    assert (summary.parked, words.pods()) == (len(letters), [])
    assert all(letter.next_at is None for letter in letters.values())
    assert "2 columns" in letters["public.words", "foo"].error
    assert "NULL" in letters["public.items", "NULL"].error
    assert "uuid" in letters["public.ids", "foo"].error
    assert (kept(sqlite_sink, "items"), kept(sqlite_sink, "words")) == (
        rows(words.database, "items", "id"),
        rows(words.database, "words", "w"),
    )
    # Parked again.
    assert words.tube.retry_letters() == len(letters)
    empty(words.database, sqlite_sink)
    assert all(letter.next_at is None for letter in words.tube.dead_letters())
    assert len(words.tube.dead_letters()) == len(letters)


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 3), (3, 1)])
def test_truncate_before_a_change_of_partitions(
    tube_db: TubeDatabase, sqlite_sink: SqliteSink, before: int, after: int
) -> None:
    tube_db.tube.ensure(partitions=before)
    tube_db.run("CREATE TABLE docs (id int PRIMARY KEY, tenant bigint)")
    tube_db.tube.attach("docs", routing="tenant")
    tube_db.run("INSERT INTO docs SELECT g, g % 9 - 4 FROM generate_series(1, 1000) g")
    empty(tube_db.database, sqlite_sink)
    assert len(kept(sqlite_sink, "docs")) == 1000
    tube_db.run("TRUNCATE docs")
    tube_db.tube.backfill("docs")
    tube_db.tube.ensure(partitions=after)
    tube_db.run("INSERT INTO docs VALUES (1, 5)")
    empty(tube_db.database, sqlite_sink)
    assert kept(sqlite_sink, "docs") == [{"id": 1, "tenant": 5}]


def test_shards_at_the_ends_of_bigint(tube_db: TubeDatabase, sqlite_sink: SqliteSink) -> None:
    tube_db.tube.ensure(partitions=3)
    tube_db.run(
        "CREATE TABLE low (id int PRIMARY KEY); CREATE TABLE high (id int PRIMARY KEY);"
        " CREATE TABLE routed (id int PRIMARY KEY, shard bigint)"
    )
    tube_db.tube.attach("low", shard=MIN)
    tube_db.tube.attach("high", shard=MAX)
    tube_db.tube.attach("routed", routing="shard")
    tube_db.run(
        f"INSERT INTO low VALUES (1), (2); INSERT INTO high VALUES (1), (2);"
        f" INSERT INTO routed VALUES (1, {MAX}), (2, {MIN}); DELETE FROM low WHERE id = 2"
    )
    empty(tube_db.database, sqlite_sink)
    for table, shard in (("low", MIN), ("high", MAX)):
        tube_db.run(f"TRUNCATE {table}; INSERT INTO {table} VALUES (3)")
        tube_db.tube.touch(table, [4])
        tube_db.tube.backfill(table)
        tube_db.tube.backfill("routed", shard=shard)
    empty(tube_db.database, sqlite_sink)
    assert sorted(sqlite_sink.rows("public.low")) == [(MIN, ("3",))]
    assert sorted(sqlite_sink.rows("public.high")) == [(MAX, ("3",))]
    assert sorted(sqlite_sink.rows("public.routed")) == [(MIN, ("2",)), (MAX, ("1",))]
    attempts: list[Callable[[], object]] = [
        lambda: tube_db.tube.attach("low", shard=MAX + 1),
        lambda: tube_db.tube.touch("low", [1], shard=MIN - 1),
        lambda: tube_db.tube.backfill("routed", shard=MAX + 1),
        lambda: tube_db.tube.ensure(partitions=2**40),
        lambda: tube_db.tube.ensure(pod_size=2**31),
    ]
    for attempt in attempts:
        with pytest.raises(CheckFailed, match="is out of range") as caught:
            attempt()
        assert "use a number from" in (caught.value.cure or "")


def test_the_numbers_of_pods_start_again(words: TubeDatabase, sqlite_sink: SqliteSink) -> None:
    words.run(f"INSERT INTO items SELECT g, 'a' FROM generate_series(1, 5) g; SELECT setval('tube.pod_seq', {MAX} - 1)")
    words.run("INSERT INTO items VALUES (6, 'a')")
    words.run(
        "INSERT INTO items VALUES (7, 'a'); UPDATE items SET code = 'b' WHERE id < 3; DELETE FROM items WHERE id = 3"
    )
    numbers = [pod.seq for pod in words.pods()]
    assert (min(numbers), max(numbers)) == (1, MAX)
    empty(words.database, sqlite_sink)
    assert kept(sqlite_sink, "items") == rows(words.database, "items", "id")


def test_a_domain_over_a_domain_is_a_key(tube_db: TubeDatabase, sqlite_sink: SqliteSink) -> None:
    tube_db.run("""CREATE DOMAIN inner_text AS text CHECK (VALUE <> ''); CREATE DOMAIN outer_text AS inner_text;
                   CREATE DOMAIN inner_int AS int; CREATE DOMAIN outer_int AS inner_int CHECK (VALUE > 0);
                   CREATE TABLE by_text (k outer_text PRIMARY KEY); CREATE TABLE by_int (k outer_int PRIMARY KEY);
                   CREATE TABLE by_both (k outer_int, l outer_text, PRIMARY KEY (k, l))""")
    for table in ("by_text", "by_int", "by_both"):
        tube_db.tube.attach(table, shard=0)
    tube_db.run("""INSERT INTO by_text SELECT 'k' || g FROM generate_series(1, 300) g;
                   INSERT INTO by_int SELECT g FROM generate_series(1, 300) g;
                   INSERT INTO by_both SELECT g, 'k' || g FROM generate_series(1, 300) g""")
    assert {(pod.keys is None, pod.size) for pod in tube_db.pods()} == {
        (True, 250),
        (True, 50),
        (False, 250),
        (False, 50),
    }
    summary = empty(tube_db.database, sqlite_sink)
    assert (summary.refused, summary.written) == (0, 900)
    assert summary.batches < 5
    for table in ("by_text", "by_int", "by_both"):
        assert len(sqlite_sink.rows(f"public.{table}")) == 300
    # Pods with the texts of a key that is an integer now.
    tube_db.run("""CREATE TABLE changed (k text PRIMARY KEY)""")
    tube_db.tube.attach("changed", shard=0)
    tube_db.run("""INSERT INTO changed SELECT g FROM generate_series(1, 300) g;
                   ALTER TABLE changed ALTER k TYPE outer_int USING k::int""")
    summary = empty(tube_db.database, sqlite_sink)
    assert (summary.refused, summary.written, summary.batches) == (0, 300, 1)


def test_keys_whose_column_in_the_copy_is_text_or_no_scalar(tube_db: TubeDatabase, databases: Databases) -> None:
    # Types that the target does not know become text there, and an existing column may be text.
    types = {
        "padded": ("char(12)", "'k' || g"),
        "domain": ("outer_char", "'k' || g"),
        "truth": ("outer_bool", "g % 2 = 0"),
        "float": ("outer_float", "g * 1e20::float8"),
        "size": ("outer_numeric", "g + 0.5"),
        "list": ("int[]", "ARRAY[g, NULL]"),
        "pair": ("couple", "ROW(g, 'a, \"b')::couple"),
    }
    tube_db.run("""CREATE DOMAIN inner_char AS char(12); CREATE DOMAIN outer_char AS inner_char CHECK (VALUE <> 'x');
                   CREATE TYPE couple AS (a int, b text); CREATE DOMAIN outer_bool AS bool;
                   CREATE DOMAIN outer_float AS float8;
                   CREATE DOMAIN inner_numeric AS numeric(10, 2);
                   CREATE DOMAIN outer_numeric AS inner_numeric NOT NULL""")
    target = databases(1)[0]
    target.execute("CREATE TABLE padded (k text, l int, v text, trueup_shard bigint, PRIMARY KEY (k, l))")
    for table, (kind, value) in types.items():
        tube_db.run(f"CREATE TABLE {table} (v text DEFAULT 'v', k {kind}, l int, PRIMARY KEY (k, l))")
        tube_db.tube.attach(table, shard=0)
        tube_db.run(f"INSERT INTO {table} (k, l) SELECT {value}, g FROM generate_series(1, 300) g")
    summary = tube_db.tube.run(target.uri, until_empty=True)
    assert (summary.written, summary.refused, summary.dead_letters) == (2100, 0, 0)
    assert summary.batches < 8

    def check() -> None:
        for table in types:
            kept = f"SELECT k::text, l, v FROM {table} ORDER BY l"
            assert target.execute(kept) == tube_db.run(kept), table

    check()
    for table in types:
        tube_db.run(f"UPDATE {table} SET v = 'w' WHERE l > 100; DELETE FROM {table} WHERE l % 3 = 0")
        tube_db.run(f"UPDATE {table} SET l = l + 1000 WHERE l > 250")
    tube_db.tube.run(target.uri, until_empty=True)
    check()
    # A backfill removes documents whose key is not in the source.
    for table in types:
        tube_db.tube.backfill(table)
    summary = tube_db.tube.run(target.uri, until_empty=True)
    assert summary.removed == 0
    check()


def test_a_key_in_which_rows_may_have_null_is_none(tube_db: TubeDatabase, sqlite_sink: SqliteSink) -> None:
    if tube_db.run("SELECT current_setting('server_version_num')::int >= 180000") == [(False,)]:
        # NOT NULL is always valid there.
        return
    not_valid = "ALTER TABLE {0} ADD CONSTRAINT n NOT NULL k NOT VALID"
    tube_db.run("CREATE TABLE t (k int UNIQUE); INSERT INTO t VALUES (NULL), (1);" + not_valid.format("t"))
    with pytest.raises(QueryError, match="it has no key"):
        tube_db.tube.attach("t", shard=0)
    tube_db.run("CREATE TABLE late (k int NOT NULL UNIQUE); INSERT INTO late VALUES (1)")
    tube_db.tube.attach("late", shard=0)
    tube_db.run("ALTER TABLE late ALTER k DROP NOT NULL; INSERT INTO late VALUES (NULL);" + not_valid.format("late"))
    (problem,) = empty(tube_db.database, sqlite_sink).problems
    assert problem.startswith("public.late: ")
    assert "it has no key" in problem
