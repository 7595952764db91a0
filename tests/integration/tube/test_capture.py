"""Every kind of write is captured, with exactly its keys, and no write fails because of a tube."""

from __future__ import annotations

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.tube import TubeDatabase
from trueup.errors import QueryError, TrueupError

ITEMS = "CREATE TABLE items (id bigint PRIMARY KEY, name text, n int);"


@pytest.fixture
def items(tube_db: TubeDatabase) -> TubeDatabase:
    tube_db.run(ITEMS)
    tube_db.tube.attach("items", shard=7)
    return tube_db


def test_600_rows_make_three_pods(items: TubeDatabase) -> None:
    items.run("INSERT INTO items SELECT g FROM generate_series(1, 600) g")
    pods = items.take()
    assert [(pod.op, pod.shard, len(pod.ids)) for pod in pods] == [("I", 7, 250), ("I", 7, 250), ("I", 7, 100)]
    assert [key for pod in pods for key in pod.ids] == list(range(1, 601))
    assert all(pod.keys is None and pod.payload is None for pod in pods)
    items.run("UPDATE items SET n = 1; DELETE FROM items WHERE id <= 250")
    assert [(pod.op, len(pod.ids)) for pod in items.take()] == [("U", 250), ("U", 250), ("U", 100), ("D", 250)]


def test_statements_without_rows_create_no_pods(items: TubeDatabase) -> None:
    items.run("UPDATE items SET n = 1; DELETE FROM items; INSERT INTO items SELECT 1 WHERE false")
    assert items.pods() == []


def test_a_key_update_touches_both_keys(items: TubeDatabase) -> None:
    items.run("INSERT INTO items SELECT g FROM generate_series(1, 300) g")
    items.take()
    items.run("UPDATE items SET id = id + 1000 WHERE id IN (1, 2)")
    assert items.ids() == [1, 2, 1001, 1002]
    items.run("UPDATE items SET id = id - 100000")
    pods = items.take()
    keys = [key for pod in pods for key in pod.ids]
    # A bulk update writes full pods, not one pod per former key.
    assert (len(keys), len(set(keys)), len(pods)) == (600, 600, 3)
    # The type of the key can be changed while the table is attached.
    items.run("ALTER TABLE items ALTER id TYPE bigint; UPDATE items SET id = 5000000000 WHERE id = -99700")
    assert items.ids() == [-99700, 5000000000]


def test_truncate_is_a_control_pod(items: TubeDatabase) -> None:
    items.run("INSERT INTO items VALUES (1); TRUNCATE items")
    pod = items.take()[-1]
    assert (pod.op, pod.ids, pod.is_control) == ("X", (), True)
    assert pod.message["type"] == "truncate"
    assert (pod.message["table"], pod.message["shards"]) == ("public.items", 7)
    assert pod.message["start_seq"] < pod.seq


def test_on_conflict_merge_copy_and_cte(items: TubeDatabase) -> None:
    items.run("INSERT INTO items VALUES (1), (2)")
    items.take()
    items.run("INSERT INTO items VALUES (1), (3) ON CONFLICT (id) DO UPDATE SET n = 5")
    assert sorted((pod.op, pod.ids) for pod in items.take()) == [("I", (3,)), ("U", (1,))]
    items.run("INSERT INTO items VALUES (1), (4) ON CONFLICT DO NOTHING")
    assert items.ids() == [4]
    items.run("""MERGE INTO items i USING (VALUES (1), (2), (9)) v(id) ON v.id = i.id
                 WHEN MATCHED AND v.id = 1 THEN DELETE WHEN MATCHED THEN UPDATE SET n = 3
                 WHEN NOT MATCHED THEN INSERT VALUES (v.id)""")
    assert sorted((pod.op, pod.ids) for pod in items.take()) == [("D", (1,)), ("I", (9,)), ("U", (2,))]
    items.run("WITH gone AS (DELETE FROM items WHERE id = 9 RETURNING id) INSERT INTO items SELECT id + 1 FROM gone")
    assert items.ids() == [9, 10]
    with (
        psycopg.connect(items.database.uri) as connection,
        connection.cursor() as cursor,
        cursor.copy("COPY items (id) FROM STDIN") as copy,
    ):
        for key in range(100, 400):
            copy.write_row((key,))
    assert [len(pod.ids) for pod in items.take()] == [250, 50]


def test_cascades(tube_db: TubeDatabase) -> None:
    tube_db.run("""CREATE TABLE a (id int PRIMARY KEY);
                 CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a ON DELETE CASCADE ON UPDATE CASCADE);
                 INSERT INTO a VALUES (1), (2); INSERT INTO b VALUES (10, 1), (11, 1), (12, 2)""")
    tube_db.tube.attach("b", shard=1)
    tube_db.run("DELETE FROM a WHERE id = 1")
    assert tube_db.ids() == [10, 11]
    tube_db.run("UPDATE a SET id = 5")
    assert tube_db.ids() == [12]
    tube_db.run("TRUNCATE a CASCADE")
    assert [pod.op for pod in tube_db.take()] == ["X"]


@pytest.mark.parametrize(
    ("columns", "values", "key", "expected"),
    [
        ("k smallint PRIMARY KEY", "(7)", None, [7]),
        (
            "k uuid PRIMARY KEY",
            "('A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11')",
            "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
            None,
        ),
        ("k text PRIMARY KEY", "('a \"b\", {c}')", 'a "b", {c}', None),
        ("k timestamptz PRIMARY KEY", "('2026-01-01 12:00:00.5+02')", "2026-01-01 10:00:00.5+00", None),
        ("k float8 PRIMARY KEY", "(0.1)", "0.1", None),
        ("k bytea PRIMARY KEY", "('\\xff00')", "\\xff00", None),
        ("a int, k text, PRIMARY KEY (k, a)", "(1, 'x\"y')", '["x\\"y", "1"]', None),
        ("k int NOT NULL UNIQUE", "(3)", None, [3]),
    ],
)
def test_keys_of_every_kind(
    tube_db: TubeDatabase, columns: str, values: str, key: str | None, expected: list[int] | None
) -> None:
    tube_db.run(f"CREATE TABLE kinds ({columns}, other int)")
    tube_db.tube.attach("kinds", shard=1)
    pinned = "SET TimeZone = 'Asia/Tokyo'; SET DateStyle = 'German'; SET extra_float_digits = -3;"
    pinned += " SET bytea_output = 'escape';"
    tube_db.run(f"{pinned} INSERT INTO kinds VALUES {values}; UPDATE kinds SET other = 1; DELETE FROM kinds")
    pods = tube_db.take()
    assert [pod.op for pod in pods] == ["I", "U", "D"]
    assert {pod.ids for pod in pods} == {tuple(expected or ())}
    assert {pod.keys for pod in pods} == {None if key is None else (key,)}


def test_600_text_keys_make_three_pods(tube_db: TubeDatabase) -> None:
    tube_db.run("CREATE TABLE words (w text PRIMARY KEY)")
    tube_db.tube.attach("words", shard=1)
    tube_db.run("INSERT INTO words SELECT 'w' || g FROM generate_series(1, 600) g")
    assert [len(pod.keys or ()) for pod in tube_db.pods()] == [250, 250, 100]
    assert len(tube_db.keys()) == 600
    tube_db.run("UPDATE words SET w = 'x' || w WHERE w IN ('w1', 'w2')")
    assert tube_db.keys() == ["w1", "w2", "xw1", "xw2"]


def test_a_row_that_leaves_the_predicate_is_touched(tube_db: TubeDatabase) -> None:
    tube_db.run(ITEMS + "CREATE TABLE others (id int PRIMARY KEY, n int, live boolean)")
    tube_db.tube.ensure(predicate="n > 0 -- those that count")
    tube_db.tube.attach("items", shard=1, predicate="name <> 'draft'")
    tube_db.tube.attach("others", shard=2)
    tube_db.run("INSERT INTO items VALUES (1, 'a', 1), (2, 'draft', 1), (3, 'a', 0), (4, NULL, 1)")
    assert tube_db.ids() == [1]
    tube_db.run("UPDATE items SET n = 0 WHERE id = 1")
    assert tube_db.ids() == [1]
    tube_db.run("UPDATE items SET n = 0")
    assert tube_db.ids() == []
    tube_db.run("UPDATE items SET n = 2, name = 'b' WHERE id IN (2, 3); DELETE FROM items WHERE id IN (1, 2)")
    assert tube_db.ids() == [2, 3]
    tube_db.run("INSERT INTO others VALUES (5, 5), (6, 0)")
    assert tube_db.ids() == [5]


def test_a_later_predicate_is_applied_to_old_and_new_rows(items: TubeDatabase) -> None:
    items.run("INSERT INTO items VALUES (1, 'a', 1), (2, 'a', 0)")
    items.take()
    items.tube.attach("items", shard=7, predicate="n > 0")
    items.run("UPDATE items SET n = n - 1")
    assert items.ids() == [1]
    items.tube.attach("items", shard=7, predicate="")
    items.run("UPDATE items SET id = id + 10")
    assert items.ids() == [1, 2, 11, 12]


def test_routing_by_row(tube_db: TubeDatabase) -> None:
    tube_db.run("CREATE TABLE docs (id int PRIMARY KEY, tenant int)")
    tube_db.tube.attach("docs", routing="tenant * 10")
    tube_db.run("INSERT INTO docs SELECT g, g % 3 FROM generate_series(1, 900) g")
    assert sorted((pod.shard, len(pod.ids)) for pod in tube_db.take()) == sorted(
        [(s, n) for s in (0, 10, 20) for n in (250, 50)]
    )
    tube_db.run("UPDATE docs SET tenant = 9 WHERE id = 3")
    assert sorted((pod.shard, pod.ids) for pod in tube_db.take()) == [(0, (3,)), (90, (3,))]
    tube_db.run("DELETE FROM docs WHERE id = 3; INSERT INTO docs VALUES (1000, NULL)")
    assert [(pod.op, pod.shard, pod.ids) for pod in tube_db.take()] == [("D", 90, (3,)), ("I", 0, (1000,))]
    tube_db.run("TRUNCATE docs")
    assert [pod.message["shards"] for pod in tube_db.take()] == ["all"]


def test_1000_shards(tube_db: TubeDatabase) -> None:
    tube_db.of("many").ensure(partitions=3)
    tube_db.run("CREATE TABLE docs (id int PRIMARY KEY, tenant int)")
    tube_db.of("many").attach("docs", routing="tenant")
    tube_db.run("INSERT INTO docs SELECT g, g % 1000 FROM generate_series(1, 5000) g; TRUNCATE docs")
    seen = set()
    for partition in range(3):
        pods = tube_db.take("many", partition)
        assert {pod.shard % 3 for pod in pods} == {partition}
        assert sum(pod.op == "X" for pod in pods) == 1
        seen |= {pod.shard for pod in pods}
    assert seen == set(range(1000))


def test_two_tubes_on_one_table(items: TubeDatabase) -> None:
    items.of("u").ensure(predicate="n = 1")
    items.of("u").attach("items", shard=3)
    items.run("INSERT INTO items VALUES (1, 'a', 1), (2, 'a', 2)")
    assert (items.ids("t"), items.ids("u")) == ([1, 2], [1])
    items.of("u").drop(force=True)
    items.run("UPDATE items SET n = 5")
    assert items.ids("t") == [1, 2]


def test_names_that_need_quotes(tube_db: TubeDatabase) -> None:
    tube_db.run('CREATE SCHEMA "Sh 12"; CREATE TABLE "Sh 12"."Odd ""{key}""" ("{where} Id" int PRIMARY KEY, "_op" int)')
    attached = tube_db.tube.attach('"Sh 12"."Odd ""{key}"""', predicate="\"_op\" = 1 AND '{key}%' <> 'x'")
    assert attached.shard == 12
    tube_db.run('INSERT INTO "Sh 12"."Odd ""{key}""" VALUES (1, 1), (2, 2)')
    assert tube_db.ids() == [1]
    tube_db.run('UPDATE "Sh 12"."Odd ""{key}""" SET "{where} Id" = 5 WHERE "_op" = 1')
    assert tube_db.ids() == [1, 5]


def test_replica_role_and_read_only_roles(items: TubeDatabase) -> None:
    """Repaired rows are captured; writers need no privilege on the tube, and the search path has no effect."""
    items.run("SET session_replication_role = replica; INSERT INTO items VALUES (1); UPDATE items SET id = 2")
    assert items.ids() == [1, 2]
    items.run("""CREATE SCHEMA evil;
                 CREATE FUNCTION evil.cardinality(anyarray) RETURNS int LANGUAGE sql AS 'SELECT 1/0';
                 CREATE ROLE plain LOGIN; GRANT USAGE ON SCHEMA public, evil TO plain; GRANT ALL ON items TO plain""")
    try:
        items.run("SET ROLE plain; SET search_path = evil, pg_catalog, public; INSERT INTO public.items VALUES (3)")
        assert items.ids() == [3]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            items.run("SET ROLE plain; SELECT * FROM tube.pods_t")
    finally:
        items.run("DROP OWNED BY plain; DROP ROLE plain")


def test_isolation_levels_and_prepared_transactions(items: TubeDatabase) -> None:
    for number, level in enumerate(("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")):
        items.run(f"BEGIN ISOLATION LEVEL {level}; INSERT INTO items VALUES ({number}); COMMIT")
    assert items.ids() == [0, 1, 2]
    items.run("BEGIN; INSERT INTO items VALUES (50); PREPARE TRANSACTION 'held'")
    assert items.pods() == []
    items.run("COMMIT PREPARED 'held'")
    assert items.ids() == [50]


def test_writes_of_a_backfill_session_are_queued_last(items: TubeDatabase) -> None:
    items.run("SET application_name = 'nightly backfill 3'; INSERT INTO items VALUES (1)")
    items.run("INSERT INTO items VALUES (2)")
    assert [(pod.op, pod.ids) for pod in items.take()] == [("I", (2,)), ("B", (1,))]


@pytest.mark.parametrize("rows", [1, 600])
def test_a_failing_predicate_fails_no_write(tube_db: TubeDatabase, rows: int) -> None:
    tube_db.run(ITEMS)
    tube_db.tube.attach("items", shard=1, predicate="10 / n > 0")
    tube_db.run(f"INSERT INTO items SELECT g, 'a', g - 1 FROM generate_series(1, {rows}) g")
    tube_db.run("UPDATE items SET name = 'b'")
    pods = tube_db.take()
    troubles = [pod for pod in pods if pod.op == "!"]
    assert [pod.message["lost"] for pod in troubles] == [False]
    assert troubles[0].message["error"] == "division by zero"
    assert sorted({key for pod in pods for key in pod.ids}) == list(range(1, rows + 1))


def test_a_failing_routing_fails_no_write(tube_db: TubeDatabase) -> None:
    tube_db.run(ITEMS)
    tube_db.tube.attach("items", routing="name::int")
    tube_db.run("INSERT INTO items VALUES (1, '5'), (2, 'x')")
    *pods, trouble = tube_db.take()
    assert sorted((pod.shard, pod.ids) for pod in pods) == [(0, (1, 2))]
    assert trouble.message["lost"] is True
    assert tube_db.tube.stats()[0].troubles == 0


def test_a_renamed_key_column_loses_nothing(items: TubeDatabase) -> None:
    items.run("INSERT INTO items VALUES (1); ALTER TABLE items RENAME id TO key; INSERT INTO items VALUES (2)")
    items.run("UPDATE items SET key = 3 WHERE key = 1; DELETE FROM items WHERE key = 2")
    pods = items.take()
    assert sorted({key for pod in pods for key in pod.ids}) == [1, 2, 3]
    assert [pod.message["lost"] for pod in pods if pod.op == "!"] == [False]
    items.tube.attach("items", shard=7)
    items.run("INSERT INTO items VALUES (9)")
    assert [(pod.op, pod.ids) for pod in items.take()] == [("I", (9,))]


def test_a_dropped_key_column_is_reported(items: TubeDatabase) -> None:
    items.run("ALTER TABLE items DROP COLUMN id; INSERT INTO items VALUES ('a', 1); UPDATE items SET n = 3")
    assert [(pod.op, pod.message["lost"]) for pod in items.pods()] == [("!", True)]
    assert items.tube.stats()[0].troubles == 1
    assert "key" in (items.tubes()[0].tables[0].problem or "")


def test_a_dropped_text_key_fails_no_write(tube_db: TubeDatabase) -> None:
    tube_db.run("CREATE TABLE words (w text PRIMARY KEY, n int)")
    tube_db.tube.attach("words", shard=1)
    tube_db.run("ALTER TABLE words DROP COLUMN w; INSERT INTO words VALUES (1); DELETE FROM words")
    assert [(pod.op, pod.message["lost"]) for pod in tube_db.pods()] == [("!", True)]


def test_a_huge_statement(items: TubeDatabase) -> None:
    """A statement with more keys than are held in memory at once."""
    items.run("UPDATE tube.tubes SET pod_size = 10000")
    items.run("SELECT tube.tube_trigger_functions(source) FROM tube.sources")
    items.run("INSERT INTO items SELECT g FROM generate_series(1, 1000100) g")
    assert items.run("SELECT count(*), sum(cardinality(ids)), max(cardinality(ids)) FROM tube.pods_t") == [
        (101, 1000100, 10000)
    ]


def test_tables_that_cannot_be_captured_are_refused(tube_db: TubeDatabase) -> None:
    tube_db.run("""CREATE TABLE keyless (a int); CREATE VIEW v AS SELECT 1 AS id;
                 CREATE MATERIALIZED VIEW m AS SELECT 1 AS id;
                 CREATE UNLOGGED TABLE u (id int PRIMARY KEY); CREATE TABLE up (id int PRIMARY KEY);
                 CREATE TABLE down (PRIMARY KEY (id)) INHERITS (up); CREATE SEQUENCE s;
                 CREATE TABLE plain (id int PRIMARY KEY);
                 CREATE TABLE nullable (id int UNIQUE)""")
    for table, why in (
        ("keyless", "no key"),
        ("nullable", "no key"),
        ("v", "a view"),
        ("m", "a materialized view"),
        ("s", "a sequence"),
        ("u", "unlogged"),
        ("up", "inherit from it"),
        ("down", "inherits from another"),
        ("tube.tubes", "a table of the tubes"),
        ("pg_catalog.pg_class", "a system table"),
    ):
        with pytest.raises(QueryError, match=why) as caught:
            tube_db.tube.attach(table, shard=1)
        assert caught.value.cure, table
    for options, why in (
        ({}, "contains no number"),
        ({"shard": 1, "routing": "id"}, "cannot be combined"),
        ({"shard": 1, "predicate": "nothing = 1"}, "nothing"),
        ({"shard": 1, "predicate": "id ="}, "syntax"),
        ({"routing": "now()"}, "cannot cast"),
        ({"shard": 1, "capture": "all"}, "statement"),
    ):
        with pytest.raises(TrueupError, match=why):
            tube_db.tube.attach("plain", **options)
    assert tube_db.tubes()[0].tables == ()
    assert tube_db.run("SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal") == [(0,)]


def test_an_inheriting_table_can_be_captured_row_by_row(tube_db: TubeDatabase) -> None:
    tube_db.run("CREATE TABLE up (id int PRIMARY KEY, n int); CREATE TABLE down (PRIMARY KEY (id)) INHERITS (up)")
    tube_db.tube.attach("down", shard=1, capture="row")
    tube_db.run("INSERT INTO down VALUES (1), (2); UPDATE up SET n = 1; DELETE FROM up WHERE id = 1; TRUNCATE up")
    assert [pod.op for pod in tube_db.take()] == ["I", "I", "U", "U", "D", "X"]


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    st.lists(
        st.tuples(st.sampled_from(["insert", "update", "move", "delete"]), st.integers(1, 12), st.integers(1, 12)),
        max_size=8,
    )
)
def test_every_changed_key_is_touched(items: TubeDatabase, steps: list[tuple[str, int, int]]) -> None:
    """All keys that differ between two states are touched, after any sequence of statements."""
    items.run("TRUNCATE items; INSERT INTO items SELECT g, 'a', 0 FROM generate_series(1, 5) g")
    items.take()
    before = dict(items.run("SELECT id, (name, n)::text FROM items"))
    for kind, low, width in steps:
        high = low + width
        items.run(
            {
                "insert": f"INSERT INTO items SELECT g, 'b', {low} FROM generate_series({low}, {high}) g"
                " ON CONFLICT (id) DO UPDATE SET n = items.n + 1",
                "update": f"UPDATE items SET name = name || 'x' WHERE id BETWEEN {low} AND {high}",
                "move": f"UPDATE items SET id = id + 100 WHERE id BETWEEN {low} AND {high}"
                " AND NOT EXISTS (SELECT FROM items o WHERE o.id = items.id + 100)",
                "delete": f"DELETE FROM items WHERE id BETWEEN {low} AND {high}",
            }[kind]
        )
    after = dict(items.run("SELECT id, (name, n)::text FROM items"))
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    assert changed <= set(items.ids())
