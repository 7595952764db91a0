"""A validation of PostgreSQL's replication: wrong rows are reported, rows in flight are not."""

from __future__ import annotations

import threading
import time

from support.fixtures import both_engines
from support.standby import missing_standby
from support.validate import Copy
from trueup.api.validate import Validation
from trueup.capture.log.slot import SlotLost

WIDE = """
    CREATE TABLE items (id int PRIMARY KEY, name text, price numeric, at timestamptz, doc jsonb, raw bytea, x float8);
    CREATE TABLE pairs (a text, b boolean, at timestamptz, n numeric, v text, PRIMARY KEY (a, b, at, n));
"""
INSERT = """INSERT INTO items SELECT i, 'item ' || i, i / 4.0,
    '2024-03-10 01:30+00'::timestamptz + i * interval '1 hour', jsonb_build_object('n', i), int4send(i), i / 3.0
    FROM generate_series({}, {}) i"""


@both_engines
def test_every_change_is_counted_and_every_wrong_row_is_named(engine: str, copy: Copy) -> None:
    copy.both(WIDE)
    copy.replicate()
    copy.spoil(
        "items",
        "IF TG_OP = 'DELETE' THEN IF OLD.id = 9 THEN RETURN NULL; END IF; RETURN OLD; END IF;"
        "IF NEW.id = 7 THEN NEW.name = 'wrong'; NEW.raw = 'x'; END IF; IF NEW.id = 8 THEN RETURN NULL; END IF;",
    )
    copy.start()
    copy.up.execute(INSERT.format(1, 500))
    copy.up.execute("""
        UPDATE items SET price = price + 1 WHERE id <= 100;
        DELETE FROM items WHERE id BETWEEN 9 AND 18;
        BEGIN; DELETE FROM items WHERE id = 20; INSERT INTO items (id, name) VALUES (20, 'back'); COMMIT;
        INSERT INTO pairs VALUES (E'a\\t''"\\\\', true, '2024-03-10 08:30+00', 1.50, 'x'), ('', false, now(), -1, 'y');
        UPDATE pairs SET v = 'z';
        UPDATE pairs SET b = false, n = 1.5 WHERE a <> '';
    """)
    fence = copy.fence()
    assert (fence.validated, fence.errors, fence.exit_code) == (True, 3, 1)
    status = copy.status()
    items, pairs = status.tables
    assert (items.inserts, items.updates, items.deletes, items.truncates) == (501, 100, 11, 0)
    # A key update is a delete and an insert.
    assert (pairs.inserts, pairs.updates, pairs.deletes, pairs.errors) == (3, 2, 1, {})
    assert (status.total("processed"), status.total("pending"), status.total("failed")) == (618, 0, 0)
    found = {error.key: error for error in copy.errors()}
    assert {key: (error.kind, error.columns) for key, error in found.items()} == {
        ("7",): ("changed", ("name", "raw")),
        ("8",): ("missing", ()),
        ("9",): ("extra", ()),
    }
    assert (found["7",].source_row or {})["name"] == "item 7"
    assert (found["7",].target_row or {})["name"] == "wrong"
    assert found["8",].target_row is None
    assert found["9",].source_row is None

    copy.validation.ignore([found["9",].id])
    copy.down.execute(
        "DROP TRIGGER spoil ON items; UPDATE items SET name = 'item 7', raw = int4send(7) WHERE id = 7;"
        + INSERT.format(8, 8)
        + "; UPDATE items SET price = price + 1 WHERE id = 8"
    )
    copy.until(lambda: not copy.errors())
    resolved = copy.errors("resolved")
    assert [error.key for error in resolved] == [("7",), ("8",)]
    assert all(error.resolved_at and error.resolved_by == "the row became equal" for error in resolved)
    copy.down.execute("DELETE FROM items WHERE id = 9")
    assert copy.fence().exit_code == 0
    assert [error.key for error in copy.errors("ignored")] == [("9",)]


@both_engines
def test_rows_spoiled_by_hand_are_found_by_the_scrub_and_after_a_truncate(engine: str, copy: Copy) -> None:
    copy.both(WIDE + "CREATE TABLE emptied (id int PRIMARY KEY, v text)")
    copy.up.execute(INSERT.format(1, 300) + "; INSERT INTO emptied SELECT i FROM generate_series(1, 40) i")
    copy.replicate()
    copy.down.execute(
        "UPDATE items SET doc = '{}' WHERE id = 30; DELETE FROM items WHERE id = 299;"
        "INSERT INTO items (id) VALUES (-5), (1000)"
    )
    copy.start(scrub_share=0.9, scrub_rows=50)
    copy.until(lambda: len(copy.errors()) == 4)
    assert {(error.key[0], error.kind) for error in copy.errors()} == {
        ("30", "changed"), ("299", "missing"), ("-5", "extra"), ("1000", "extra"),
    }  # fmt: skip
    copy.validation.update(scrub_share=0.0)
    copy.down.execute("INSERT INTO emptied VALUES (77)")
    copy.spoil("emptied", "IF NEW.id = 5 THEN RETURN NULL; END IF;", "INSERT")
    # A row comes back on the target as soon as the table is empty.
    copy.down.execute("""
        CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN INSERT INTO public.emptied VALUES (78); RETURN NULL; END';
        CREATE TRIGGER again AFTER TRUNCATE ON emptied EXECUTE FUNCTION again();
        ALTER TABLE emptied ENABLE ALWAYS TRIGGER again
    """)
    copy.up.execute("TRUNCATE emptied; INSERT INTO emptied VALUES (3), (5)")
    assert copy.fence().validated
    found = {error.key[0]: error.kind for error in copy.errors() if error.source == "public.emptied"}
    assert found == {"5": "missing", "78": "extra"}
    assert copy.status().tables[0].truncates == 1


def test_a_hot_row_is_never_an_error_and_is_proven_when_it_rests(copy: Copy) -> None:
    copy.both("CREATE TABLE hot (id int PRIMARY KEY, n int)")
    copy.replicate()
    # The syncer lags: each change takes it longer than the time until the next one.
    copy.spoil("hot", "PERFORM pg_sleep(0.25);")
    copy.start(row_error_delay=0.3)
    copy.up.execute("INSERT INTO hot VALUES (1, 0), (2, 0)")
    seen_hot = number = 0
    while number < 25 or not seen_hot:
        number += 1
        assert number < 300, "the row was never hot"
        copy.up.execute("UPDATE hot SET n = %s WHERE id = 1", [number])
        seen_hot = max(seen_hot, copy.status().total("hot"))
        time.sleep(0.1)
    copy.until(lambda: copy.down.execute("SELECT 1 FROM hot WHERE n = %s", [number]))
    copy.until(lambda: copy.status().total("updates") == number and not copy.status().total("pending"))
    assert seen_hot == 1
    assert copy.errors("all") == []
    assert copy.fence().exit_code == 0


@both_engines
def test_a_paused_syncer_makes_no_errors(engine: str, copy: Copy) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int)")
    copy.replicate()
    copy.start()
    assert copy.fence().seconds < 50  # an idle database
    copy.down.execute(f"ALTER SUBSCRIPTION {copy.down.name} DISABLE")
    copy.until(lambda: not copy.down.execute("SELECT 1 FROM pg_stat_subscription WHERE pid IS NOT NULL"))
    copy.up.execute("INSERT INTO t SELECT i FROM generate_series(1, 100) i")
    late = copy.fence(timeout=1.5)
    assert (late.validated, late.exit_code) == (False, 2)
    assert "the syncer is at" in late.reasons[0]
    assert copy.errors("all") == []
    copy.down.execute(f"ALTER SUBSCRIPTION {copy.down.name} ENABLE")
    assert copy.fence().exit_code == 0
    assert copy.status().total("inserts") == 100
    # A server that goes away is waited for.
    copy.down.server.restart()
    copy.up.execute("UPDATE t SET n = 1")
    assert copy.fence().exit_code == 0
    assert any(text.startswith("waiting") for text in copy.messages)
    assert (copy.status().total("updates"), copy.ended) == (100, [])


@both_engines
def test_a_commit_that_is_not_visible_yet_proves_nothing(engine: str, copy: Copy) -> None:
    """A transaction that waits for a synchronous standby is in the log, but its row is not visible yet."""
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int)")
    copy.up.execute("INSERT INTO t VALUES (1, 1)")
    copy.replicate()
    copy.spoil("t", "RETURN OLD;", "UPDATE")
    copy.start()
    assert copy.fence().exit_code == 0
    with missing_standby(copy.up):
        waiting = threading.Thread(target=copy.up.execute, args=("UPDATE t SET n = 2",), daemon=True)
        waiting.start()
        copy.until(lambda: copy.status().total("updates") == 1)
        assert copy.status().total("pending") == 1
        assert not copy.fence(timeout=0.5).validated
    waiting.join(60)
    copy.until(lambda: [error.kind for error in copy.errors()] == ["changed"])


@both_engines
def test_altered_keys_stop_a_table_and_added_columns_do_not(engine: str, copy: Copy) -> None:
    copy.both("""
        CREATE TABLE a (id int PRIMARY KEY, v text);
        CREATE TABLE b (id int PRIMARY KEY, other int NOT NULL UNIQUE, v text);
        CREATE TABLE keyless (v text);
    """)
    copy.replicate("a, b")
    copy.start()
    assert copy.up.execute("INSERT INTO keyless VALUES ('x'); DELETE FROM keyless RETURNING v") == [("x",)]
    copy.both("ALTER TABLE a ADD COLUMN more text DEFAULT 'm'")
    copy.spoil("a", "IF NEW.id = 2 THEN NEW.more = 'wrong'; END IF;", "INSERT")
    copy.up.execute("INSERT INTO a VALUES (1, 'v'), (2, 'v')")
    copy.until(lambda: [error.columns for error in copy.errors()] == [("more",)])
    copy.both("ALTER TABLE b DROP CONSTRAINT b_pkey; ALTER TABLE b ADD PRIMARY KEY (other)")
    copy.up.execute("INSERT INTO b VALUES (1, 10, 'v'); INSERT INTO a VALUES (3, 'v')")
    fence = copy.fence()
    assert (fence.validated, fence.exit_code) == (True, 2)
    stages = {table.source: (table.stage, table.reason) for table in copy.status().tables}
    assert stages["public.a"] == ("running", "")
    assert stages["public.b"] == ("stopped", "its key in the log was (id) and is now (other)")
    assert stages["public.keyless"][0] == "stopped"
    assert "no key" in stages["public.keyless"][1]
    assert copy.status().tables[0].inserts == 3
    assert [table.unchecked for table in copy.status().tables] == [0, 1, 0]


def test_a_role_without_create_can_use_the_meta_database(copy: Copy) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY)")
    copy.replicate()
    copy.create()
    role = f"user_{copy.down.name}"
    copy.down.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'p'; GRANT USAGE ON SCHEMA trueup TO {role}")
    copy.down.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA trueup TO {role}")
    try:
        nodes = {"n1": copy.up.uri, "n2": copy.down.uri.replace("postgres@", f"{role}:p@")}
        assert Validation(copy.name, nodes=nodes).create(row_error_delay=7.0).row_error_delay == 7.0
        assert copy.status().state == "stopped"
    finally:
        copy.down.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_table_that_is_added_later_needs_a_scrub(copy: Copy) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY)")
    copy.replicate()
    copy.start()
    assert copy.fence().exit_code == 0
    copy.stop()
    copy.both("CREATE TABLE late (id int PRIMARY KEY)")
    copy.up.execute("INSERT INTO late VALUES (1)")  # of no slot of trueup and of no subscription
    copy.go_on()
    fence = copy.fence()
    assert (fence.exit_code, len(fence.reasons)) == (2, 1)
    assert "public.late" in fence.reasons[0]
    copy.validation.update(scrub_share=0.5)
    copy.until(lambda: [error.key for error in copy.errors()] == [("1",)])


def test_a_lost_slot_means_a_full_check(copy: Copy) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int)")
    copy.replicate()
    copy.spoil("t", "IF NEW.id = 3 THEN RETURN NULL; END IF;", "INSERT")
    copy.start()
    copy.up.execute("INSERT INTO t VALUES (1)")
    assert copy.fence().exit_code == 0
    copy.until(lambda: _dropped(copy))
    copy.until(lambda: copy.ended)
    assert isinstance(copy.ended[0], SlotLost)
    status = copy.status()
    assert status.state == "stopped"
    assert "a full check is needed" in status.reason
    copy.up.execute("INSERT INTO t VALUES (2), (3)")
    copy.go_on()
    fence = copy.fence()
    assert (fence.exit_code, fence.errors) == (2, 0)
    assert "were not seen" in fence.reasons[0]
    copy.validation.update(scrub_share=0.9)
    copy.until(lambda: copy.status().gap is None)
    # What the scrub found to differ is decided before the fence is passed.
    assert copy.fence().exit_code == 1
    assert [error.key for error in copy.errors()] == [("3",)]


def test_a_second_loss_extends_the_gap(copy: Copy) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int)")
    copy.replicate()
    copy.start()
    copy.until(lambda: _dropped(copy))
    copy.until(lambda: copy.ended)
    first = copy.status().gap or {}
    copy.go_on()
    assert "to" in (copy.status().gap or {})
    copy.until(lambda: _dropped(copy))
    copy.until(lambda: copy.ended)
    # Scrubs between the two losses do not count, so the gap has a new time and no end.
    second = copy.status().gap or {}
    assert second["from"] == first["from"]
    assert second["at"] > first["at"]
    assert "to" not in second


def _dropped(copy: Copy) -> bool:
    try:
        copy.up.execute(f"SELECT pg_drop_replication_slot('{copy.slot}')")
    except Exception:
        return False
    return True


def test_a_slot_that_retains_too_much_log_is_dropped(copy: Copy) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n text)")
    copy.replicate()
    copy.down.execute(f"ALTER SUBSCRIPTION {copy.down.name} DISABLE")
    copy.start(max_retained_wal=1_000_000)
    # Log from before its first look could be log of the time when it did not run, for which it waits a minute.
    copy.until(lambda: copy.status().retained_bytes is not None)
    copy.up.execute("INSERT INTO t SELECT i, repeat(md5(i::text), 30) FROM generate_series(1, 3000) i")
    copy.until(lambda: copy.ended)
    assert "--max-retained-wal" in copy.status().reason
    assert copy.up.execute(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{copy.slot}'") == []


def test_pending_rows_beyond_a_page_are_in_the_meta_database_and_all_become_errors(copy: Copy) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int)")
    copy.replicate()
    copy.spoil("t", "IF NEW.id % 2 = 0 THEN RETURN NULL; END IF;", "INSERT")
    copy.start(page=100, batch=700)
    # One transaction that is larger than a batch.
    copy.up.execute("INSERT INTO t SELECT i FROM generate_series(1, 3000) i")
    copy.up.execute("INSERT INTO t SELECT i FROM generate_series(3001, 3010) i")
    fence = copy.fence()
    assert (fence.validated, fence.errors) == (True, 1505)
    assert copy.status().total("inserts") == 3010


def test_renames_filters_constants_and_other_types(copy: Copy) -> None:
    copy.up.execute("""
        CREATE SCHEMA shop;
        CREATE TABLE shop.orders (id int PRIMARY KEY, total float8, region text, secret text);
        CREATE TABLE shop.tags (id int PRIMARY KEY, v text)
    """)
    copy.down.execute("""
        CREATE TABLE sales (tenant int, id bigint, amount float8, region text, kind text, PRIMARY KEY (tenant, id));
        CREATE TABLE tags (id int PRIMARY KEY, v text, kind text)
    """)
    # No subscription: the test itself is the tool that syncs, and a lag is all that is known of it.
    copy.start(
        "shop.*",
        syncer="lag:0.3",
        routes=("shop.*=public.*", "shop.orders=public.sales"),
        renames=("shop.orders.total=amount",),
        filters=("shop.orders: region = 'EU'",),
        constants=("shop.orders.tenant=7", "shop.orders.kind=web", "shop.tags.kind=web"),
        exclude_columns=("shop.orders.secret",),
        float_tolerance=1e-6,
        row_error_delay=1.0,
    )
    copy.up.execute("INSERT INTO shop.orders SELECT i, i / 3.0, 'EU', 's' FROM generate_series(1, 6) i")
    copy.up.execute("UPDATE shop.orders SET region = 'US' WHERE id IN (2, 3); INSERT INTO shop.tags VALUES (1), (2)")
    copy.down.execute("""
        INSERT INTO sales SELECT 7, i, i / 3.0 * (1 + 1e-9), 'EU', 'web' FROM generate_series(1, 6) i WHERE i <> 3;
        INSERT INTO sales VALUES (8, 3, 0, 'EU', 'web');
        UPDATE sales SET kind = 'shop' WHERE id = 5;
        UPDATE sales SET amount = 2.001 WHERE id = 6;
        INSERT INTO tags VALUES (1, NULL, 'web'), (2, NULL, 'other');
    """)
    copy.until(lambda: len(copy.errors()) == 4)
    assert {(error.source, error.key, error.kind, error.columns) for error in copy.errors()} == {
        ("shop.orders", ("2",), "extra", ()),
        ("shop.orders", ("5",), "changed", ("kind",)),
        ("shop.orders", ("6",), "changed", ("total",)),
        ("shop.tags", ("2",), "changed", ("kind",)),
    }
    # The fast mode checks only whether rows exist.
    copy.validation.update(mode="fast")
    copy.until(lambda: {error.key for error in copy.errors()} <= {("2",), ("5",)})


@both_engines
def test_a_tube_replaces_logical_decoding(engine: str, copy: Copy) -> None:
    import trueup

    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int); CREATE TABLE k (a text, b text, PRIMARY KEY (a, b))")
    trueup.Tube.install(copy.up.uri)
    with trueup.Tube("q", copy.up.uri) as tube:
        tube.ensure()
        tube.attach("t", shard=0)
        tube.attach("k", shard=0)
    copy.start("public.t,public.k", changes="tube", tube="q", syncer="lag:0.5")
    copy.up.execute("INSERT INTO t SELECT i FROM generate_series(1, 50) i; INSERT INTO k VALUES ('[\"', E'\\t')")
    copy.down.execute(
        "INSERT INTO t SELECT i FROM generate_series(1, 50) i WHERE i <> 4; INSERT INTO k VALUES ('[\"', E'\\t')"
    )
    copy.until(lambda: [error.key for error in copy.errors()] == [("4",)])
    assert copy.fence().validated
    counts = {table.source: table.inserts for table in copy.status().tables}
    assert counts == {"public.t": 50, "public.k": 1}
    assert copy.up.execute("SELECT count(*) FROM tube.pods_q") == [(0,)]
