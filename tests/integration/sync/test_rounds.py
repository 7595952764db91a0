"""Rounds: after each round the target has the same rows as the source."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import psycopg
import pytest

import trueup
from support.sync import Pair, Wire, wire
from support.waiting import Pause
from trueup.engine.progress import Silent
from trueup.errors import CheckFailed
from trueup.verbs.sync import ending, large, round
from trueup.verbs.sync import run as sync
from trueup.verbs.sync import runner as runner_module
from trueup.verbs.sync.link import Link, open_link
from trueup.verbs.sync.runner import Runner
from trueup.verbs.sync.totals import Until

TABLES = """
CREATE TABLE customers (id bigint PRIMARY KEY, email text UNIQUE, note jsonb, chief bigint REFERENCES customers);
CREATE TABLE orders (id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer bigint REFERENCES customers ON DELETE CASCADE,
    amount numeric, doubled numeric GENERATED ALWAYS AS (amount * 2) STORED);
CREATE TABLE lines ("order" integer REFERENCES orders ON DELETE CASCADE, line text, what text,
    PRIMARY KEY ("order", line));
CREATE TABLE tags (tag text PRIMARY KEY);
CREATE TABLE a (id int PRIMARY KEY, b int NOT NULL);
CREATE TABLE b (id int PRIMARY KEY, a int NOT NULL REFERENCES a);
ALTER TABLE a ADD FOREIGN KEY (b) REFERENCES b;
CREATE TABLE days (day date, place text, n int, PRIMARY KEY (day, place)) PARTITION BY RANGE (day);
CREATE TABLE days_1 PARTITION OF days FOR VALUES FROM ('2024-01-01') TO ('2024-07-01');
CREATE TABLE days_2 PARTITION OF days FOR VALUES FROM ('2024-07-01') TO ('2025-01-01');
"""
NAMES = ["customers", "orders", "lines", "tags", "a", "b", "days"]
# A cycle of foreign keys that are not deferrable and not nullable needs silenced triggers, as in a restore.
ROWS = r"""
INSERT INTO customers SELECT g, 'c' || g || '@x', '{"a": null}', nullif(g - 1, 0) FROM generate_series(1, 50) g;
INSERT INTO orders (customer, amount) SELECT g % 50 + 1, g / 7.0 FROM generate_series(1, 200) g;
INSERT INTO lines SELECT g % 200 + 1, 'l"' || g, E'a\tb\\c,{}' FROM generate_series(1, 400) g;
INSERT INTO tags SELECT 't' || g FROM generate_series(1, 10) g;
SET session_replication_role = replica;
INSERT INTO a VALUES (1, 1), (2, 2); INSERT INTO b VALUES (1, 1), (2, 2);
SET session_replication_role = origin;
INSERT INTO days SELECT date '2024-01-01' + g, 'p', g FROM generate_series(0, 300) g;
"""
# The changes of the source, one entry per round.
CHANGES = {
    "key updates": "UPDATE tags SET tag = tag || '!'; UPDATE lines SET line = 'x' || line WHERE \"order\" < 9",
    "unique reuse": "DELETE FROM customers WHERE id = 50; INSERT INTO customers VALUES (99, 'c50@x', '[]', NULL)",
    "a swap": "UPDATE customers SET email = 'tmp' WHERE id = 1; UPDATE customers SET email = 'c1@x' WHERE id = 2;"
    " UPDATE customers SET email = 'c2@x' WHERE id = 1",
    "a rotation of three": "UPDATE customers SET email = 'tmp' WHERE id = 3;"
    " UPDATE customers SET email = 'c3@x' WHERE id = 4; UPDATE customers SET email = 'c4@x' WHERE id = 5;"
    " UPDATE customers SET email = 'c5@x' WHERE id = 3",
    "cascades": "UPDATE customers SET chief = NULL; DELETE FROM customers WHERE id IN (7, 8)",
    "a chain": "INSERT INTO customers SELECT g, 'n' || g, 'null', g - 1 FROM generate_series(100, 130) g",
    "a key in another's place": "DELETE FROM tags WHERE tag = 't1!'; UPDATE tags SET tag = 't1!' WHERE tag = 't2!'",
    "rows between partitions": "UPDATE days SET day = day + 200, place = place || 'm' WHERE day < '2024-02-01'",
    "a cycle": "SET session_replication_role = replica; INSERT INTO a VALUES (3, 3); INSERT INTO b VALUES (3, 3);"
    " DELETE FROM a WHERE id = 1; DELETE FROM b WHERE id = 1",
    "identity": "INSERT INTO orders (id, customer, amount) OVERRIDING SYSTEM VALUE VALUES (100000, 1, 'NaN')",
    "truncate cascade": "TRUNCATE orders CASCADE; INSERT INTO orders (customer, amount) VALUES (1, 1)",
    "truncate of a partition": "TRUNCATE days_1; INSERT INTO days VALUES ('2024-03-03', 'q', 1)",
    "nothing of interest": "UPDATE customers SET note = note WHERE false",
}

ALL_AT_ONCE = r"""
UPDATE customers SET email = md5(email), note = '1.50'; UPDATE customers SET email = 'tmp' WHERE id = 10;
UPDATE customers SET email = md5('c10@x') WHERE id = 11; UPDATE customers SET email = md5('c11@x') WHERE id = 10;
TRUNCATE orders CASCADE; INSERT INTO orders (customer, amount) SELECT 1, g FROM generate_series(1, 9) g;
INSERT INTO lines SELECT id, '', NULL FROM orders; UPDATE tags SET tag = tag || '?'; DELETE FROM tags WHERE tag < 't2';
TRUNCATE days_2; UPDATE days SET n = -n;
"""


@pytest.fixture
def synced(pair: Pair) -> Pair:
    pair.both(TABLES)
    pair.source.execute(ROWS)
    pair.start()
    pair.check_equal(NAMES)
    return pair


def raise_too_long(*arguments: object, **options: object) -> None:
    raise psycopg.errors.ProgramLimitExceeded("array size exceeds the maximum allowed")


@contextmanager
def running(pair: Pair | Wire) -> Iterator[tuple[Link, Runner]]:
    with (
        open_link(pair.request.source, pair.request.target, "main") as link,
        Runner(link, pair.request, Silent()) as runner,
    ):
        yield link, runner


def test_every_kind_of_change_arrives(synced: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(synced) as (_, runner):
        for statements in CHANGES.values():
            synced.source.execute(statements)
            while not runner.round().is_empty:
                pass
            synced.check_equal(NAMES)
    # Then as one large round, over tasks.
    monkeypatch.setattr(round, "SMALL", 3)
    monkeypatch.setattr(large, "KEYS_PER_TASK", 2)
    synced.source.execute(ALL_AT_ONCE)
    totals = synced.run(once=True)
    assert totals.last.large
    assert {"public.orders", "public.lines", "public.days"} <= set(totals.last.reloaded)
    synced.check_equal(NAMES)
    assert synced.run().last.is_empty
    assert synced.messages[-1]["pending_keys"] == 0
    assert synced.status().waiting == (0, 0, 0.0)


def test_a_sync_of_a_version_without_functions_on_the_target_continues(synced: Pair) -> None:
    synced.target.execute("DROP FUNCTION trueup.sync_check_epoch(text, bigint)")
    synced.source.execute(CHANGES["key updates"])
    assert synced.run().keys
    synced.check_equal(NAMES)


def test_round_trips_do_not_grow_with_the_number_of_tables(pair: Pair) -> None:
    def trips(tables: int) -> tuple[int, int]:
        pair.source.execute("".join(f"UPDATE t{number} SET n = n + 1 WHERE id < 4;" for number in range(tables)))
        with wire(pair) as counted, running(counted) as (_, runner):
            before = counted.source_trips(), counted.target_trips()
            assert runner.round().keys == 3 * tables
            return counted.source_trips() - before[0], counted.target_trips() - before[1]

    pair.both("".join(f"CREATE TABLE t{number} (id int PRIMARY KEY, n int);" for number in range(30)))
    pair.source.execute(
        "".join(f"INSERT INTO t{number} SELECT g, g FROM generate_series(1, 9) g;" for number in range(30))
    )
    pair.start()
    few, many = trips(3), trips(30)
    assert few == many
    assert sum(many) <= 5
    pair.check_equal([f"t{number}" for number in range(30)])


def test_a_null_in_a_column_that_was_the_key_is_not_lost(synced: Pair) -> None:
    keys = {"tags": ("tag", "(NULL)"), "lines": ('"order", line', "(1, NULL, 'x')")}
    for table, (key, row) in keys.items():
        column = key.split(", ")[-1]
        change = f"""ALTER TABLE {table} DROP CONSTRAINT {table}_pkey; ALTER TABLE {table} ALTER {column} DROP NOT NULL;
                     INSERT INTO {table} VALUES {row};"""
        with running(synced) as (_, runner):
            synced.source.execute(change)
            with pytest.raises(CheckFailed, match="was changed since"):
                runner.round()
        aside = synced.run().aside
        assert {problem.where for problem in aside} == {f"public.{table}"}
        assert any("it has no key on the source" in problem.what for problem in aside)
        cure = f"DELETE FROM {table} WHERE {column} IS NULL; ALTER TABLE {table} ADD PRIMARY KEY ({key})"
        synced.source.execute(cure)
        assert not synced.run().aside
        # Between two rounds: the entries without a key concern rows that do not exist any more.
        synced.source.execute(change + cure)
        assert not synced.run().aside
    synced.check_equal(NAMES)


def test_a_part_of_a_swap_is_not_written_alone_and_only_one_sync_runs(synced: Pair) -> None:
    synced.source.execute(CHANGES["a rotation of three"])
    with running(synced) as (link, runner):
        changes = round.read_changes(link, 1)
        assert changes.taken == 1
        assert not changes.is_all
        with pytest.raises(trueup.QueryError, match="unique"):
            round.small_round(link, changes, 0.0)
        link.source.execute("ROLLBACK")
        # Nothing was written, and no entry was deleted.
        assert synced.target.execute("SELECT count(*) FROM customers WHERE email LIKE 'c_@x'") == [(9,)]
        assert runner.round().keys == 3
        # Rows that are too long for one value are written by tasks.
        synced.source.execute("UPDATE customers SET note = '2' WHERE id < 9")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(round, "read_rows", raise_too_long)
            assert runner.round().large
    synced.check_equal(NAMES)
    with open_link(synced.request.source, synced.request.target, "main") as link:
        with pytest.raises(CheckFailed, match="the sync main is already running"):
            synced.run()
        synced.source.execute("INSERT INTO tags VALUES ('late')")
        # A process that lost its session with the source without noticing must not write any more.
        synced.target.execute("UPDATE trueup.syncs SET epoch = epoch + 1")
        for small_keys in (round.SMALL, 0):
            with Runner(link, synced.request, Silent()) as runner, pytest.MonkeyPatch.context() as patch:
                patch.setattr(round, "SMALL", small_keys)
                with pytest.raises(CheckFailed, match="another process has taken over"):
                    runner.round()
        synced.source.execute("SELECT setval('orders_id_seq', 5000000)")
        with Runner(link, synced.request, Silent()) as runner, pytest.raises(CheckFailed, match="has taken over"):
            runner.copy_sequences()
        assert synced.target.execute("SELECT count(*) FROM tags WHERE tag = 'late'") == [(0,)]
        assert synced.target.execute("SELECT last_value < 5000000 FROM orders_id_seq") == [(True,)]
        # The large round did not clear the position of the process that took over.
        assert synced.target.execute("SELECT source_lsn > '0/0' FROM trueup.sync_mark") == [(True,)]
    synced.run()
    synced.check_equal(["tags"])
    assert synced.target.execute("SELECT last_value FROM orders_id_seq") == [(5000000,)]


@pytest.mark.parametrize("small_keys", [round.SMALL, 0])
def test_a_dropped_check_of_the_epoch_is_named_and_created_again(
    synced: Pair, monkeypatch: pytest.MonkeyPatch, small_keys: int
) -> None:
    """Also for a sync that was started by a version of trueup without this function."""
    with running(synced) as (_, runner):
        synced.target.execute("DROP FUNCTION trueup.sync_check_epoch")
        synced.source.execute("INSERT INTO tags VALUES ('late')")
        with monkeypatch.context() as patch:
            patch.setattr(round, "SMALL", small_keys)
            with pytest.raises(CheckFailed, match=r"trueup\.sync_check_epoch was dropped .* nothing was written"):
                runner.round()
        assert synced.target.execute("SELECT count(*) FROM tags WHERE tag = 'late'") == [(0,)]
    synced.run()
    synced.check_equal(["tags"])


@pytest.mark.parametrize("mode", ["replica", "ordered"])
def test_the_position_moves_only_when_a_round_took_all_entries(
    synced: Pair, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """A validation judges rows up to the position: what waits in the change log must not be before it."""
    monkeypatch.setattr(round, "SMALL", 1)
    monkeypatch.setattr(runner_module, "LARGE", 1)
    synced.run()
    (before,) = synced.target.execute("SELECT source_lsn FROM trueup.sync_mark")
    for number in range(3):
        synced.source.execute(f"INSERT INTO tags VALUES ('late {number}')")
    (last,) = synced.source.execute("SELECT pg_current_wal_lsn()")
    with running(synced) as (link, _):
        link = replace(link, plan=replace(link.plan, mode=mode))
        with Runner(link, synced.request, Silent()) as runner:
            while runner.round().pending:
                waiting = synced.source.execute("SELECT count(*) FROM trueup_log.pods_main")
                assert waiting != [(0,)]
                # A large round has no position until it is complete.
                known = synced.target.execute("SELECT source_lsn FROM trueup.sync_mark")
                assert known == ([before] if mode == "ordered" else [("0/0",)])
    assert synced.target.execute("SELECT source_lsn >= %s FROM trueup.sync_mark", last) == [(True,)]
    synced.check_equal(["tags"])


def test_a_running_sync_notices_partitions_that_come_and_go(pair: Pair) -> None:
    pair.both("""CREATE TABLE e (id int, day int, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
                 CREATE TABLE e1 PARTITION OF e FOR VALUES FROM (0) TO (10);
                 CREATE TABLE e2 PARTITION OF e FOR VALUES FROM (10) TO (20)""")
    pair.target.execute("CREATE TABLE e3 PARTITION OF e FOR VALUES FROM (20) TO (30)")
    pair.source.execute("INSERT INTO e SELECT g, g % 20 FROM generate_series(1, 40) g")
    pair.start()
    errors: list[BaseException] = []

    def follow() -> None:
        try:
            sync.run(pair.request, Until(follow=True, interval=0.2), Silent(), pair.messages.append)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        for statements in (
            "INSERT INTO e VALUES (100, 1)",
            "DROP TABLE e1",
            "CREATE TABLE e3 (LIKE e INCLUDING ALL); INSERT INTO e3 VALUES (7, 25);"
            "ALTER TABLE e ATTACH PARTITION e3 FOR VALUES FROM (20) TO (30)",
            "ALTER TABLE e DETACH PARTITION e2; DROP TABLE e2",
        ):
            pair.source.execute(statements)
            give_up = time.monotonic() + 60
            pause = Pause()
            while len({tuple(rows) for rows in pair.rows("SELECT * FROM e ORDER BY 1, 2")}) > 1:
                assert not errors, errors
                assert time.monotonic() < give_up, statements
                pause()
    finally:
        ending.stop(pair.request, timeout=30)
        thread.join(30)
