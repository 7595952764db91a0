"""Tables without a key: the target has the same rows, each as often as the source, whatever a writer does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.sync import Pair
from trueup.engine.progress import Silent
from trueup.engine.work import Room
from trueup.testing.postgres import Database
from trueup.verbs.sync import large, members, plan, round
from trueup.verbs.sync.copy import Job
from trueup.verbs.sync.large import KeyTask
from trueup.verbs.sync.link import open_link
from trueup.verbs.sync.runner import Runner
from trueup.verbs.sync_ddl.change_tables import add

# Rows of which no column is hashed, a unique value that may be NULL, partitions, odd names.
TABLES = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE bag (a int, b text, at timestamptz, f float8, i interval, x bytea,
    twice int GENERATED ALWAYS AS (a * 2) STORED);
CREATE TABLE moods (m mood);
CREATE TABLE codes (code text UNIQUE, n int);
CREATE TABLE parts (a int, "b%s {key}" text) PARTITION BY LIST (a);
CREATE TABLE parts_0 PARTITION OF parts FOR VALUES IN (0, 1, NULL); CREATE TABLE parts_d PARTITION OF parts DEFAULT;
"""
NAMES = ["bag", "moods", "codes", "parts"]
# What the hash of a row must not depend on.
HOSTILE = """
SET search_path = evil, public; SET datestyle = 'SQL, DMY'; SET timezone = 'Asia/Kolkata';
SET intervalstyle = 'iso_8601';
SET extra_float_digits = -15; SET bytea_output = 'escape'; SET transform_null_equals = on; SET array_nulls = off;
"""
EVIL = """
CREATE SCHEMA evil;
CREATE FUNCTION evil.hash_record_extended(record, int8) RETURNS int8
    LANGUAGE plpgsql AS 'BEGIN RETURN 1; END';
"""
WRITES = (
    "INSERT INTO bag VALUES ({a}, '{b}', '2026-01-0{n}', {n} / 3.0, '{n} days', 'x{n}'), ({a}, '', NULL, 0, NULL, '')",
    "INSERT INTO bag (a, b, at, f) SELECT a, b, at, f FROM bag LIMIT {n}",
    "UPDATE bag SET a = {a} WHERE a IS NOT DISTINCT FROM {b}::int",
    "UPDATE bag SET b = b, at = at + interval '{n} h', f = -f, i = i * {n} WHERE a = {a}",
    "DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE a IS NOT DISTINCT FROM {a}::int)",
    "DELETE FROM bag WHERE b = '{b}'",
    "INSERT INTO moods VALUES ('sad'), ('ok'), (NULL)",
    "UPDATE moods SET m = 'ok' WHERE ctid = (SELECT max(ctid) FROM moods)",
    "DELETE FROM moods WHERE ctid = (SELECT min(ctid) FROM moods)",
    "INSERT INTO codes VALUES (NULL, {a}), ('c{b}', {n}) ON CONFLICT DO NOTHING",
    "UPDATE codes SET code = NULL WHERE code = 'c1'; UPDATE codes SET code = 'c1' WHERE code = 'c2'",
    "INSERT INTO parts VALUES ({a}, '{n}'), ({b}, NULL)",
    "UPDATE parts SET a = {b} WHERE a IS NOT DISTINCT FROM {a}::int",
    "DELETE FROM parts WHERE a = {b}",
    "TRUNCATE bag, moods; INSERT INTO bag VALUES ({a})",
    "TRUNCATE parts_0; INSERT INTO parts VALUES (0)",
)


@pytest.fixture
def synced(pair: Pair) -> Pair:
    pair.both(TABLES)
    pair.source.execute(EVIL)
    pair.source.execute(
        "INSERT INTO bag (a, b) VALUES (1, 'x'), (1, 'x'), (NULL, NULL); INSERT INTO parts VALUES (NULL), (5), (5)"
    )
    pair.start()
    pair.check_equal(NAMES)
    return pair


def write(database: Database, statements: list[str]) -> None:
    with psycopg.connect(database.uri, autocommit=True) as connection:
        connection.execute(HOSTILE)
        for statement in statements:
            connection.execute(statement)


VALUES = st.sampled_from(["NULL", "0", "1", "2", "3", "4"])
STATEMENT = st.builds(
    lambda text, a, b, n: text.format(a=a, b=b, n=n), st.sampled_from(WRITES), VALUES, VALUES, st.integers(1, 9)
)


def test_random_changes_in_every_kind_of_round(synced: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        open_link(synced.request.source, synced.request.target, "main") as link,
        Runner(link, synced.request, Silent()) as runner,
    ):

        @settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(st.lists(STATEMENT, min_size=1, max_size=6), st.sampled_from(["small", "large", "one by one", "many"]))
        def run(statements: list[str], kind: str) -> None:
            with monkeypatch.context() as patch:
                if kind == "large":
                    patch.setattr(round, "SMALL", 0)
                if kind == "many":
                    # More rows than fit into one value: the round is repeated over tasks.
                    patch.setattr(round, "SMALL_BYTES", 0)
                    patch.setattr(round, "is_small", lambda link, changes, limit: limit > 0)
                for statement in [[one] for one in statements] if kind == "one by one" else [statements]:
                    write(synced.source, statement)
                    while not runner.round().is_empty:
                        pass
                synced.check_equal(NAMES)

        run()


def test_two_attempts_of_a_task_insert_the_rows_once(synced: Pair) -> None:
    """No unique index refuses the rows of a second attempt: it waits for the end of the first one."""
    synced.source.execute("INSERT INTO bag SELECT 7, 'seven' FROM generate_series(1, 5)")
    synced.run()
    with (
        open_link(synced.request.source, synced.request.target, "main") as link,
        Runner(link, synced.request, Silent()),
        ThreadPoolExecutor(1) as threads,
    ):
        link.source.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        ((snapshot,),) = link.source.execute("SELECT pg_export_snapshot()").fetchall()
        job = Job("main", link.source_node, link.target_node, snapshot, link.application, link.epoch, recorded=False)
        bags = [table for table in link.tables if table.name[1] == "bag"]
        (table,) = members.with_shapes(bags, members.shapes(link.target, [bag.quoted_name for bag in bags]))
        with psycopg.connect(synced.target.uri) as first:
            first.execute(
                "DELETE FROM bag WHERE b = 'seven'; INSERT INTO bag SELECT 7, 'seven' FROM generate_series(1, 5)"
            )
            second = threads.submit(large.run_task, KeyTask(job, table, None, insert=True), Room())
            waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = to_regclass('bag')"
            while synced.target.execute(waits) == [(0,)]:
                assert not second.done()
        assert [copied.rows for copied in second.result()] == [8]
    synced.check_equal(NAMES)


def test_what_the_plan_says_of_tables_without_a_key(synced: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "LARGE_KEYLESS", 1)
    assert any("public.bag has no key: each round" in remark for remark in synced.plan().remarks)
    # A key that appears or disappears: the table is set aside, because its numbers in the change log mean other rows.
    synced.source.execute("INSERT INTO codes VALUES ('x', 1)")
    synced.run()
    for change in ("ADD PRIMARY KEY (n)", "DROP CONSTRAINT codes_pkey, ALTER n DROP NOT NULL"):
        synced.source.execute("UPDATE codes SET code = code || 'y'")
        synced.both(f"ALTER TABLE codes {change}")
        (problem,) = synced.run().aside
        assert problem.where == "public.codes"
        assert [*map(str, add(synced.request, ["codes"]))] == ["public.codes"]
        synced.run()
        synced.check_equal(NAMES)
    # Only one side has a key; the other encoding.
    synced.target.execute("ALTER TABLE codes ADD PRIMARY KEY (n)")
    problems = [problem.what for problem in synced.plan().problems]
    assert "it has no key on the source, and the key (n) on the target" in problems
    synced.target.execute("ALTER TABLE codes DROP CONSTRAINT codes_pkey; ALTER TABLE codes ALTER n DROP NOT NULL")
    monkeypatch.setattr(plan, "same_row_ids", lambda connections: False)
    assert {problem.where for problem in synced.plan().problems} == {f"public.{name}" for name in NAMES}


def test_a_key_in_which_rows_may_have_null_is_none(pair: Pair) -> None:
    if pair.source.execute("SELECT current_setting('server_version_num')::int >= 180000") == [(False,)]:
        # NOT NULL is always valid there.
        return
    not_valid = "ALTER TABLE {0} ADD CONSTRAINT n NOT NULL k NOT VALID"
    pair.both("CREATE TABLE t (k int UNIQUE, v text); CREATE TABLE late (k int NOT NULL UNIQUE, v text)")
    pair.source.execute("INSERT INTO t VALUES (NULL, 'first'), (1, 'one'); INSERT INTO late VALUES (1, 'one')")
    pair.both(not_valid.format("t"))
    pair.start()
    # The constraint holds for rows that are written: the first row cannot be copied, and the table is set aside.
    assert [problem.where for problem in pair.known().aside] == ["public.t"]
    pair.source.execute("UPDATE t SET v = v || '!' WHERE k = 1; DELETE FROM t WHERE k IS NULL")
    pair.source.execute("ALTER TABLE late ALTER k DROP NOT NULL; INSERT INTO late VALUES (NULL, 'null')")
    pair.source.execute(not_valid.format("late"))
    (problem,) = pair.run(once=True).aside
    assert problem.where == "public.late"
    assert problem.what == "it has no key on the source, and the key (k) on the target"
    pair.check_equal(["t"])
