"""Validations with triggers instead of the log: a change log, or a tube."""

from __future__ import annotations

import itertools
import os
import re
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import psycopg
import pytest

import trueup
from support.standby import WAITING, missing_standby
from support.validate import PG_BIN, Copy
from trueup.testing.postgres import Server
from trueup.verbs.validate.validator import Validator

TABLES = """
CREATE TABLE t (id int PRIMARY KEY, n int);
CREATE TABLE words (word text PRIMARY KEY, n int);
CREATE TABLE pairs (a text, b timestamptz, n int, PRIMARY KEY (a, b));
"""
OURS = "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'trueup%' ORDER BY 1"
_numbers = itertools.count(1)
TRIGGERS = "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'trueup\\_changes%'"


@pytest.fixture(scope="module")
def plain_server() -> Iterator[Server]:
    """A server without wal_level = logical."""
    with Server.start(name="plain", bin_dir=PG_BIN, settings={"wal_level": "replica"}) as server:
        yield server


@pytest.fixture
def plain(plain_server: Server) -> Iterator[Copy]:
    """Two databases of this server; the test copies rows itself."""
    number = next(_numbers)
    made = Copy(*(plain_server.create_database(f"{side}_{os.getpid()}_{number}") for side in ("up", "down")))
    made.both(TABLES)
    yield made
    made.remove()


def _start(copy: Copy, tables: str = "public.*", **settings: Any) -> None:
    copy.start(tables, **{"changes": "changelog", "syncer": "lag:0.2", **settings})


def _reasons(copy: Copy) -> dict[str, str]:
    return {table.source: table.reason for table in copy.status().tables}


def test_the_log_is_refused_and_the_cure_works(plain: Copy) -> None:
    plain.create("public.*", syncer="lag:0.2")
    with pytest.raises(trueup.CheckFailed) as refused:
        plain.validation.start(engine="local")
    assert "--source changelog" in str(refused.value.cure)
    plain.validation.delete()
    _start(plain)
    assert plain.fence().validated


def test_errors_are_found_and_delete_removes_everything(plain: Copy) -> None:
    _start(plain, both_sides=True, scrub_share=0.9)
    plain.up.execute(
        "INSERT INTO t SELECT i, i FROM generate_series(1, 20) i;"
        "UPDATE t SET n = -1 WHERE id = 3; DELETE FROM t WHERE id = 4; UPDATE t SET id = 100 WHERE id = 5;"
        "INSERT INTO words VALUES ('[1]', 1), ('[\"a\", 2', 2), ('plain', 3);"
        "INSERT INTO pairs VALUES (E'\\t', '2026-01-01', 1), ('[x', '2026-01-02', 2)"
    )
    plain.down.execute(
        "INSERT INTO t SELECT i, i FROM generate_series(1, 20) i;"
        "INSERT INTO words VALUES ('[1]', -1), ('[\"a\", 2', 2), ('plain', 3);"
        "INSERT INTO pairs VALUES (E'\\t', '2026-01-01', 1), ('[x', '2026-01-02', -2)"
    )
    expected = {
        ("public.t", "3", "changed"),
        ("public.t", "4", "extra"),
        ("public.t", "5", "extra"),
        ("public.t", "100", "missing"),
        ("public.words", "[1]", "changed"),
        ("public.pairs", "[x", "changed"),
    }
    plain.until(lambda: len(plain.errors()) == len(expected))
    assert {(error.source, error.key[0], error.kind) for error in plain.errors()} == expected
    assert plain.fence().exit_code == 1
    plain.down.execute("TRUNCATE t, words, pairs; INSERT INTO words VALUES ('[1]', 1), ('[\"a\", 2', 2), ('plain', 3)")
    plain.up.execute("TRUNCATE t, pairs")
    plain.until(lambda: not plain.errors())
    assert plain.fence().exit_code == 0
    # Written on the target only: also without a logical log, and with both databases on one server.
    plain.down.execute("DELETE FROM words WHERE word = 'plain'")
    plain.until(lambda: [(error.key[0], error.kind) for error in plain.errors()] == [("plain", "missing")])
    plain.down.execute("INSERT INTO words VALUES ('plain', 3)")
    plain.until(lambda: plain.validation.prove().verdict == "MATCH")
    assert (0,) not in [*plain.up.execute(TRIGGERS), *plain.down.execute(TRIGGERS)]
    assert plain.validation.delete()
    for node in (plain.up, plain.down):
        assert (node.execute(TRIGGERS), node.execute(OURS)) == ([(0,)], [])


def test_a_commit_that_is_not_visible_yet_is_waited_for(copy: Copy) -> None:
    """A commit may wait for a standby after its log record is written and before it is visible."""
    copy.both(TABLES)
    _start(copy)
    assert copy.fence().exit_code == 0
    with missing_standby(copy.up):
        waiting = threading.Thread(target=copy.up.execute, args=("INSERT INTO t VALUES (1, 1)",), daemon=True)
        waiting.start()
        copy.until(lambda: copy.up.execute(WAITING))
        assert not copy.fence(timeout=3).validated, "it is committed, but not compared"
    waiting.join(60)
    copy.until(lambda: [error.key for error in copy.errors()] == [("1",)])


def test_an_open_writer_holds_back_the_position_but_not_the_checks(plain: Copy) -> None:
    _start(plain)
    with psycopg.connect(plain.up.uri) as writer:
        writer.execute("INSERT INTO t VALUES (1, 1)")
        plain.up.execute("INSERT INTO t VALUES (2, 2)")
        plain.until(lambda: [error.key for error in plain.errors()] == [("2",)])
        writer.commit()
    plain.until(lambda: len(plain.errors()) == 2)
    assert plain.fence().exit_code == 1


def test_a_restart_continues_from_the_checkpoint(plain: Copy) -> None:
    _start(plain)
    plain.up.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 5) i")
    plain.down.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 5) i")
    assert plain.fence().exit_code == 0
    plain.stop()
    plain.up.execute("UPDATE t SET n = 0 WHERE id = 2")
    plain.go_on()
    plain.until(lambda: [error.key for error in plain.errors()] == [("2",)])
    assert {table.source: table.updates for table in plain.status().tables}["public.t"] == 1


def test_a_stop_during_the_start_is_not_lost(plain: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    plain.create(changes="changelog", syncer="lag:0.2")
    open_all = Validator.open
    stopped: list[bool] = []
    requests: list[threading.Thread] = []

    def open_during_the_stop(validator: Validator) -> None:
        requests.append(threading.Thread(target=lambda: stopped.append(plain.validation.stop(timeout=20))))
        requests[0].start()
        plain.until(lambda: validator.sessions.meta.need(plain.name).wanted == "stop")
        open_all(validator)

    with monkeypatch.context() as patch:
        patch.setattr(Validator, "open", open_during_the_stop)
        starts = threading.Thread(
            target=lambda: plain.ended.append(plain.validation.start(engine="local")), daemon=True
        )
        starts.start()
        plain.until(lambda: bool(plain.ended))
        requests[0].join()
    assert (stopped, plain.ended) == ([True], ["stopped by the user"])
    # A request from before the start does not stop it.
    assert not plain.validation.stop()
    plain.go_on()
    assert plain.fence().validated


def test_a_fence_waits_for_a_validation_that_is_starting(plain: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    plain.create(changes="changelog", syncer="lag:0.2")
    open_all, is_held, may_open = Validator.open, threading.Event(), threading.Event()

    def open_later(validator: Validator) -> None:
        is_held.set()
        may_open.wait()
        open_all(validator)

    monkeypatch.setattr(Validator, "open", open_later)
    threading.Timer(1.0, may_open.set).start()
    threading.Thread(target=lambda: plain.ended.append(plain.validation.start(engine="local")), daemon=True).start()
    is_held.wait()
    assert plain.fence().validated
    assert plain.validation.stop()
    assert plain.until(lambda: plain.ended) == ["stopped by the user"]


def test_two_validations_of_a_table_are_independent(plain: Copy) -> None:
    other = Copy(plain.up, plain.down)
    other.name = "w"
    _start(plain, "public.t")
    _start(other, "public.t")
    plain.up.execute("INSERT INTO t VALUES (1, 1)")
    plain.until(lambda: [error.key for error in plain.errors()] == [("1",)])
    other.until(lambda: [error.key for error in other.errors()] == [("1",)])
    other.stop()
    assert other.validation.delete()
    plain.up.execute("INSERT INTO t VALUES (2, 2)")
    plain.until(lambda: len(plain.errors()) == 2)


def test_keys_that_a_trigger_could_not_record_need_a_scrub(plain: Copy) -> None:
    _start(plain)
    assert plain.fence().exit_code == 0
    source = plain.up.execute("SELECT source FROM trueup_changes.sources WHERE \"table\" = 't'::regclass")[0][0]
    plain.up.execute(f"SELECT trueup_changes.tube_trouble({source}, 'boom', true, 't'::regclass)")
    plain.until(lambda: any("boom" in text for text in plain.messages))
    fence = plain.fence()
    assert fence.exit_code == 2
    assert any("public.t" in reason for reason in fence.reasons)
    plain.validation.update(scrub_share=0.5)
    plain.until(lambda: plain.fence().exit_code == 0)


def test_a_table_with_disabled_triggers_is_stopped(plain: Copy) -> None:
    _start(plain)
    plain.up.execute("ALTER TABLE t DISABLE TRIGGER USER")
    plain.until(lambda: "triggers are missing, disabled or replaced" in _reasons(plain)["public.t"])
    assert _reasons(plain)["public.words"] == ""
    assert plain.fence().exit_code == 2
    # Enabled again: changes in between were not captured.
    plain.stop()
    plain.go_on()
    assert _reasons(plain)["public.t"] == ""
    assert plain.fence().exit_code == 2
    plain.validation.update(scrub_share=0.5)
    plain.until(lambda: plain.fence().exit_code == 0)


def test_errors_of_a_stopped_table_do_not_keep_other_errors_from_being_resolved(plain: Copy) -> None:
    _start(plain, page=1)
    plain.up.execute("INSERT INTO t VALUES (1, 1)")
    plain.until(lambda: len(plain.errors()) == 1)
    plain.up.execute("INSERT INTO words VALUES ('x', 1)")
    plain.until(lambda: len(plain.errors()) == 2)
    plain.up.execute("ALTER TABLE t DISABLE TRIGGER USER")
    plain.until(lambda: _reasons(plain)["public.t"])
    plain.down.execute("INSERT INTO words VALUES ('x', 1)")
    plain.until(lambda: [error.source for error in plain.errors()] == ["public.t"])


@pytest.mark.parametrize("is_running", [True, False])
def test_triggers_that_were_disabled_for_a_while_are_detected(plain: Copy, is_running: bool) -> None:
    _start(plain)
    assert plain.fence().exit_code == 0
    if not is_running:
        plain.stop()
    # They are enabled again before the next check.
    plain.up.execute(
        "BEGIN; ALTER TABLE t DISABLE TRIGGER USER; INSERT INTO t VALUES (1, 1);"
        + "".join(
            f"ALTER TABLE t ENABLE ALWAYS TRIGGER {name};"
            for (name,) in plain.up.execute(
                "SELECT quote_ident(tgname) FROM pg_trigger WHERE tgrelid = 't'::regclass AND NOT tgisinternal"
            )
        )
        + "COMMIT"
    )
    if not is_running:
        plain.go_on()
    assert plain.fence().exit_code == 2
    plain.validation.update(scrub_share=0.5)
    plain.until(lambda: [error.key for error in plain.errors()] == [("1",)])


def test_a_table_that_was_detached_meanwhile_is_not_validated_until_a_scrub(plain: Copy) -> None:
    _start(plain)
    assert plain.fence().exit_code == 0
    plain.stop()
    (log,) = trueup.Tube.list(plain.up.uri, schema="trueup_changes")
    with trueup.Tube(log.tube, plain.up.uri, schema="trueup_changes") as tube:
        tube.detach("t")
        plain.up.execute("INSERT INTO t VALUES (1, 1)")
        tube.attach("t", shard=0)
    plain.go_on()
    assert plain.fence().exit_code == 2
    plain.validation.update(scrub_share=0.5)
    plain.until(lambda: [error.key for error in plain.errors()] == [("1",)])


PARTITIONED = """
CREATE TABLE p (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (100) TO (200);
INSERT INTO p VALUES (1, 1), (101, 1);
CREATE TABLE p3 (id int NOT NULL, n int);
INSERT INTO p3 VALUES (201, 1);
"""
# A partitioned table per case.
UNSEEN = {
    "a": "ALTER TABLE a1 DISABLE TRIGGER ALL; INSERT INTO a VALUES (2, 2)",
    "b": "DROP TABLE b2",
    "c": "ALTER TABLE c ATTACH PARTITION c3 FOR VALUES FROM (200) TO (300)",
    "d": "ALTER TABLE d DETACH PARTITION d1; ALTER TABLE d1 DISABLE TRIGGER USER; UPDATE d1 SET n = 2;"
    "ALTER TABLE d1 ENABLE TRIGGER USER; ALTER TABLE d ATTACH PARTITION d1 FOR VALUES FROM (0) TO (100)",
    "e": "BEGIN; ALTER TABLE e DETACH PARTITION e1; ALTER TABLE e1 ALTER n TYPE int USING n + 1;"
    "ALTER TABLE e ATTACH PARTITION e1 FOR VALUES FROM (0) TO (100); COMMIT",
    "f": "CREATE TABLE above (id int, n int) PARTITION BY RANGE (id);"
    "ALTER TABLE above ATTACH PARTITION f FOR VALUES FROM (0) TO (1000); UPDATE above SET n = 3;"
    "ALTER TABLE above DETACH PARTITION f",
}
# A table per case.
CHILDREN = {
    "g": "CREATE TABLE over (n int); ALTER TABLE g INHERIT over; DELETE FROM over; ALTER TABLE g NO INHERIT over",
    "h": "CREATE TABLE seen (); ALTER TABLE h INHERIT seen; DELETE FROM seen",
}


@pytest.mark.parametrize("is_running", [True, False])
def test_changes_of_partitions_that_are_not_captured_need_a_scrub(plain: Copy, is_running: bool) -> None:
    for name in UNSEEN:
        plain.both(re.sub(r"\bp(?=\d?\b)", name, PARTITIONED))
    _start(plain, ",".join(f"public.{name}" for name in UNSEEN))
    assert plain.fence().exit_code == 0
    if not is_running:
        plain.stop()
    for statement in UNSEEN.values():
        plain.up.execute(statement)
    if not is_running:
        plain.go_on()
    assert _unseen(plain, UNSEEN) == {*UNSEEN}


@pytest.mark.parametrize("is_running", [True, False])
def test_changes_through_a_parent_need_a_scrub(plain: Copy, is_running: bool) -> None:
    for name in (*CHILDREN, "other"):
        plain.both(f"CREATE TABLE {name} (id int PRIMARY KEY, n int); INSERT INTO {name} VALUES (1, 1)")
    _start(plain, ",".join(f"public.{name}" for name in (*CHILDREN, "other")))
    assert plain.fence().exit_code == 0
    if not is_running:
        plain.stop()
    for statement in (
        *CHILDREN.values(),
        "ALTER TABLE other ALTER n SET DEFAULT 1; GRANT SELECT (id) ON other TO PUBLIC",
    ):
        plain.up.execute(statement)
    if not is_running:
        plain.go_on()
    assert _unseen(plain, (*CHILDREN, "other")) == {*CHILDREN}
    plain.up.execute("ALTER TABLE h NO INHERIT seen")
    assert _unseen(plain, (*CHILDREN, "other")) == {*CHILDREN}


def _unseen(plain: Copy, names: Iterable[str]) -> set[str]:
    fence = plain.fence()
    assert fence.exit_code == 2
    return {name for name in names if any(f"public.{name} " in text for text in fence.reasons)}


def test_a_new_partition_is_captured_and_does_not_stop_its_table(plain: Copy) -> None:
    plain.both(PARTITIONED)
    _start(plain, "public.p", scrub_share=0.5)
    plain.both("CREATE TABLE p4 PARTITION OF p FOR VALUES FROM (300) TO (400)")
    plain.up.execute("INSERT INTO p VALUES (301, 1)")
    plain.until(lambda: [error.key for error in plain.errors()] == [("301",)])
    assert _reasons(plain)["public.p"] == ""
    plain.down.execute("INSERT INTO p VALUES (301, 1)")
    plain.until(lambda: plain.fence().exit_code == 0)


def test_keys_are_found_by_their_value_also_when_they_are_gone(plain: Copy) -> None:
    plain.both("CREATE TABLE x (id numeric(10, 2) PRIMARY KEY, n int); INSERT INTO x VALUES (3, 1), (4, 1)")
    _start(plain, "public.x")
    plain.up.execute("DELETE FROM x WHERE id = 3")
    plain.until(lambda: [error.kind for error in plain.errors()] == ["extra"])


def test_pods_of_an_old_key_are_not_used_for_the_new_key(plain: Copy) -> None:
    plain.both(
        "CREATE TABLE x (id int PRIMARY KEY, n int NOT NULL UNIQUE, m int NOT NULL); INSERT INTO x VALUES (5, 6, 7)"
    )
    _start(plain, "public.x")
    assert plain.fence().exit_code == 0
    plain.stop()
    plain.up.execute("DELETE FROM x")
    plain.both("ALTER TABLE x DROP CONSTRAINT x_pkey CASCADE")
    plain.both("ALTER TABLE x ADD PRIMARY KEY (n, m)")
    plain.go_on()
    assert plain.fence().exit_code == 2
    plain.validation.update(scrub_share=0.5)
    plain.until(lambda: [error.kind for error in plain.errors()] == ["extra"])


def test_validations_of_one_name_have_change_logs_of_their_own(plain: Copy, plain_server: Server) -> None:
    third = plain_server.create_database(f"third_{os.getpid()}_{next(_numbers)}")
    third.execute(TABLES)
    other = Copy(plain.up, third)
    _start(plain, "public.t")
    plain.stop()
    plain.up.execute("INSERT INTO t VALUES (1, 1)")
    _start(other, "public.t")
    assert other.fence().exit_code == 0
    other.stop()
    assert other.validation.delete()
    plain.go_on()
    plain.until(lambda: [error.key for error in plain.errors()] == [("1",)])
    third.drop()


def test_it_stops_at_the_cut_over_position(plain: Copy) -> None:
    _start(plain)
    plain.up.execute("INSERT INTO t VALUES (1, 1)")
    plain.down.execute("INSERT INTO t VALUES (1, 1)")
    position = plain.up.execute("SELECT pg_current_wal_lsn()::text")[0][0]
    plain.validation.update(cutover=position)
    plain.until(lambda: plain.ended)
    assert plain.ended == [f"all changes before the cut-over position {position} are validated"]
    assert plain.status().total("inserts") == 1


def test_a_dropped_change_log_needs_a_full_check(plain: Copy) -> None:
    _start(plain)
    plain.stop()
    trueup.Tube.uninstall(plain.up.uri, schema="trueup_changes", force=True)
    plain.up.execute("INSERT INTO t VALUES (7, 7)")
    with pytest.raises(trueup.TrueupError, match="change log does not exist"):
        plain.validation.start(engine="local")
    assert "full check" in plain.status().reason
    plain.go_on()
    assert plain.fence().exit_code == 2
    plain.validation.update(scrub_share=0.5)
    plain.until(lambda: [error.key for error in plain.errors()] == [("7",)])
    plain.down.execute("INSERT INTO t VALUES (7, 7)")
    plain.until(lambda: plain.fence().exit_code == 0)


def test_a_tube_with_a_predicate_is_rejected(plain: Copy) -> None:
    trueup.Tube.install(plain.up.uri)
    with trueup.Tube("q", plain.up.uri) as tube:
        tube.ensure()
        tube.attach("t", shard=0, predicate="n > 0")
        tube.attach("words", shard=0)
    plain.start("public.t,public.words", changes="tube", tube="q", syncer="lag:0.2")
    assert "only rows of a predicate" in _reasons(plain)["public.t"]
    assert _reasons(plain)["public.words"] == ""


def test_nothing_is_created_where_all_tables_are_published(copy: Copy) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int)")
    copy.replicate("ALL TABLES")
    copy.create("public.t", changes="changelog")
    refused = r"publication p of database .* publishes all tables: its subscribers would stop at"
    with pytest.raises(trueup.CheckFailed, match=f"{refused} trueup_changes.installation"):
        copy.validation.start(engine="local")
    with pytest.raises(trueup.CheckFailed, match=f"{refused} tube.installation"):
        trueup.Tube.install(copy.up.uri)
    there = trueup.Validation("w", nodes={"n1": copy.up.uri, "n2": copy.down.uri}, meta="n1")
    with pytest.raises(trueup.CheckFailed, match=f"{refused} trueup.validation"):
        there.create(source="n1", target="n2", tables=("public.t",))
    sync = trueup.Sync("n1", "n2", nodes={"n1": copy.up.uri, "n2": copy.down.uri})
    assert any("publishes all tables" in problem.what for problem in sync.plan().problems)
    # Nothing was created, and changes arrive as before.
    assert copy.up.execute("SELECT nspname FROM pg_namespace WHERE nspname ~ '^(trueup|tube)'") == []
    copy.up.execute("INSERT INTO t VALUES (1, 1)")
    copy.until(lambda: copy.down.execute("SELECT 1 FROM t"))


@pytest.mark.parametrize("options", [{"changes": "tube"}, {"changes": "changelog", "tube": "q"}, {"tube": "q"}])
def test_a_tube_and_its_name_belong_together(plain: Copy, options: dict[str, str]) -> None:
    with pytest.raises(trueup.errors.ConfigError, match="must be used together"):
        plain.create(**options)


def test_replaced_and_later_tables_are_named(plain: Copy) -> None:
    plain.both("CREATE TABLE swapped (LIKE t INCLUDING ALL); CREATE TABLE renamed (LIKE t INCLUDING ALL)")
    _start(plain)
    assert plain.fence().exit_code == 0
    plain.up.execute("""
        ALTER TABLE swapped RENAME TO swapped_old; CREATE TABLE swapped (LIKE t INCLUDING ALL);
        INSERT INTO swapped VALUES (1, 1);
    """)
    plain.both("ALTER TABLE renamed RENAME TO renamed_2; CREATE TABLE late (id int PRIMARY KEY)")
    plain.up.execute("INSERT INTO renamed_2 VALUES (1, 1); INSERT INTO late VALUES (1)")
    plain.down.execute("DROP TABLE words; CREATE TABLE words (word text PRIMARY KEY, n int)")
    fence = plain.fence()
    assert fence.exit_code == 2
    named = {name for name in _reasons(plain) if any(f"{name} " in reason for reason in fence.reasons)}
    expected = {"swapped", "swapped_old", "renamed", "renamed_2", "late", "words"}
    assert named == {f"public.{name}" for name in expected}
    assert "public.renamed_2" in next(text for text in fence.reasons if text.startswith("public.renamed is"))
    # Written again with other values, without row changes.
    plain.up.execute("INSERT INTO t VALUES (1, 1)")
    plain.down.execute("INSERT INTO t VALUES (1, 1)")
    plain.until(lambda: not any(error.source == "public.t" for error in plain.errors()))
    plain.up.execute("ALTER TABLE t ALTER n TYPE int USING n + 1")
    plain.until(lambda: [error.key for error in plain.errors() if error.source == "public.t"] == [("1",)])
