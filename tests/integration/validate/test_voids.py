"""What voids a certificate, by name and with the reason; and a proof after kills."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from support.validate import Copy
from trueup.capture.log.slot import SlotLost

PROOF: dict[str, Any] = {"both_sides": True, "scrub_share": 0.9, "scrub_rows": 50, "scrub_period": 7 * 86400.0}
PARTS = (
    "CREATE TABLE {0} (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);"
    "CREATE TABLE {0}1 PARTITION OF {0} FOR VALUES FROM (0) TO (10);"
    "CREATE TABLE {0}2 PARTITION OF {0} FOR VALUES FROM (10) TO (20);"
)


def _voids(copy: Copy) -> dict[str, str]:
    """Return the reasons of void certificates by table; a table without a certificate has an empty one."""
    tables = copy.status().tables
    return {
        table.source.removeprefix("public."): table.certificate["void"]["reason"] if table.certificate else ""
        for table in tables
        if table.certificate is None or table.certificate["void"]
    }


def _certified(copy: Copy) -> None:
    copy.until(lambda: copy.status().tables and not _voids(copy))


def test_events_of_tables(copy: Copy) -> None:
    plain = ("rekeyed", "recreated", "published", "published_there", "renamed", "swapped", "untouched")
    parts = ("emptied", "detached", "emptied_there", "changed_there")
    copy.both("".join(f"CREATE TABLE {name} (id int PRIMARY KEY, n int);" for name in plain))
    copy.both("".join(PARTS.format(name) for name in parts))
    for name in (*plain, *parts):
        copy.up.execute(f"INSERT INTO {name} SELECT i, i FROM generate_series(1, 15) i")
    copy.up.execute("CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root = true)")
    copy.down.execute(f"CREATE SUBSCRIPTION {copy.down.name} CONNECTION '{copy.up.uri}' PUBLICATION p")
    copy.until(lambda: not copy.down.execute("SELECT 1 FROM pg_subscription_rel WHERE srsubstate <> 'r'"))
    copy.start("public.*", **PROOF)
    _certified(copy)
    # Nothing lifts it.
    copy.validation.update(scrub_share=0.0)
    copy.both("ALTER TABLE rekeyed DROP CONSTRAINT rekeyed_pkey, ADD PRIMARY KEY (id, n)")
    copy.up.execute("DROP TABLE recreated; CREATE TABLE recreated (id int PRIMARY KEY, n int)")
    copy.up.execute(f"ALTER PUBLICATION {copy.slot} DROP TABLE published")
    copy.down.execute(f"ALTER PUBLICATION {copy.slot}_t DROP TABLE published_there")
    copy.up.execute(
        "ALTER TABLE renamed RENAME TO another; TRUNCATE emptied1; ALTER TABLE detached DETACH PARTITION detached1"
    )
    copy.down.execute(
        "TRUNCATE emptied_there2; CREATE TABLE good AS SELECT * FROM swapped; ALTER TABLE good ADD PRIMARY KEY (id);"
        "ALTER TABLE swapped RENAME TO old; ALTER TABLE good RENAME TO swapped"
    )
    # With the same partitions and files as before.
    copy.down.execute(
        "ALTER TABLE changed_there DETACH PARTITION changed_there1;"
        "ALTER TABLE changed_there1 DROP n, ADD n int DEFAULT 7;"
        "ALTER TABLE changed_there ATTACH PARTITION changed_there1 FOR VALUES FROM (0) TO (10)"
    )
    copy.up.execute("CREATE TABLE later (id int PRIMARY KEY)")
    copy.down.execute("CREATE TABLE later (id int PRIMARY KEY)")
    expected = {
        "rekeyed": "its key was changed", "recreated": "another table has its name on the source",
        "published": "its publication was altered", "published_there": "the publication on the target was altered",
        "renamed": "it was renamed to public.another", "swapped": "another table has its name on the target",
        "emptied": "truncated or written again", "detached": "a partition was detached",
        "emptied_there": "the table on the target, or a partition, was truncated", "later": "",
        "changed_there": "the table on the target, or a partition, was truncated, detached or written again",
    }  # fmt: skip

    def is_void() -> bool:
        found = _voids(copy)
        return all(name in found and reason in found[name] for name, reason in expected.items())

    try:
        copy.until(is_void)
    except AssertionError:
        pytest.fail(str(_voids(copy)))
    assert "untouched" not in _voids(copy)
    proof = copy.validation.prove(timeout=20)
    assert proof.verdict == "INCOMPLETE"
    by_table = {table.table.removeprefix("public."): table for table in proof.tables}
    assert all(by_table[name].verdict == "INCOMPLETE" and by_table[name].reasons for name in expected)
    # All that can be compared is certified again by the scrub.
    copy.validation.update(scrub_share=0.9)
    copy.until(lambda: {*_voids(copy)} <= {"renamed", "another", "detached1"})


def _until_void(copy: Copy, expected: dict[str, str]) -> None:
    """Wait until the certificates of exactly these tables are void, with these reasons."""

    def is_void() -> bool:
        found = _voids(copy)
        return {*found} == {*expected} and all(reason in found[name] for name, reason in expected.items())

    try:
        copy.until(is_void)
    except AssertionError:
        pytest.fail(str(_voids(copy)))


def test_events_of_triggers_on_the_target(copy: Copy) -> None:
    names = ("disabled", "dropped", "function", "replaced", "swapped", "truncated", "untouched")
    copy.both("".join(f"CREATE TABLE {name} (id int PRIMARY KEY, n int);" for name in names) + PARTS.format("parts"))
    for name in (*names, "parts"):
        copy.up.execute(f"INSERT INTO {name} SELECT i, i FROM generate_series(1, 15) i")
    copy.replicate("TABLES IN SCHEMA public")
    copy.start(",".join(f"public.{name}" for name in (*names, "parts")), **PROOF, changes="changelog")
    _certified(copy)
    copy.validation.update(scrub_share=0.0)
    trigger = f"trueup_changes_{copy.slot}_t_insert"
    numbers = dict(copy.down.execute("SELECT name, source FROM trueup_changes.sources"))
    nothing = "RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
    replace = f"CREATE OR REPLACE FUNCTION trueup_changes.touch_{numbers['public.function']}() {nothing}"
    copy.down.execute(f"""
        ALTER TABLE disabled DISABLE TRIGGER USER; DROP TRIGGER {trigger} ON dropped; {replace};
        CREATE FUNCTION nothing() {nothing};
        CREATE OR REPLACE TRIGGER {trigger} AFTER INSERT ON replaced EXECUTE FUNCTION nothing();
        ALTER TABLE replaced ENABLE ALWAYS TRIGGER {trigger}
    """)
    missing, other = "triggers are missing, disabled or replaced", "its triggers, or their functions, were replaced"
    unseen = {"disabled": missing, "dropped": missing, "function": other, "replaced": missing}
    _until_void(copy, unseen)
    # A scrub is no proof as long as changes are not seen.
    copy.validation.update(scrub_share=0.9)
    _certified(copy)
    proof = {table.table.removeprefix("public."): table for table in copy.validation.prove().tables}
    assert {name for name, table in proof.items() if table.verdict == "INCOMPLETE"} == {*unseen}
    assert all("on the target is not seen: triggers" in proof[name].reasons[0] for name in unseen)
    # The next start corrects the triggers. What was written before is found by the scrub.
    copy.down.execute("INSERT INTO disabled VALUES (99, 0); INSERT INTO replaced VALUES (99, 0)")
    copy.stop()
    copy.go_on()
    copy.until(lambda: {error.source for error in copy.errors()} == {"public.disabled", "public.replaced"})
    copy.down.execute("DELETE FROM disabled WHERE id = 99; DELETE FROM replaced WHERE id = 99")
    copy.until(lambda: copy.validation.prove().verdict == "MATCH")
    copy.down.execute("INSERT INTO replaced VALUES (98, 0)")
    copy.until(lambda: [error.key for error in copy.errors()] == [("98",)])
    # A function that is replaced while the validation does not run; tables that are not what they were.
    copy.validation.update(scrub_share=0.0)
    copy.stop()
    copy.down.execute(f"{replace}; INSERT INTO function VALUES (99, 0); TRUNCATE truncated, parts2")
    copy.down.execute("CREATE TABLE good (LIKE swapped INCLUDING ALL)")
    copy.down.execute("ALTER TABLE swapped RENAME TO old; ALTER TABLE good RENAME TO swapped")
    copy.go_on()
    emptied = "the table on the target, or a partition, was truncated"
    _until_void(
        copy,
        {
            "function": "the capture by triggers on the target was interrupted", "truncated": emptied, "parts": emptied,
            "swapped": "another table has its name on the target",
        },
    )  # fmt: skip
    copy.validation.update(scrub_share=0.9)
    _certified(copy)
    wrong = {"replaced": 1, "function": 1, "truncated": 15, "parts": 6, "swapped": 15}
    copy.until(lambda: Counter(error.source.removeprefix("public.") for error in copy.errors()) == wrong)
    assert not copy.down.execute("SELECT 1 FROM pg_trigger WHERE tgrelid = 'old'::regclass")


def _lose_slot(copy: Copy) -> None:
    copy.down.execute(f"SELECT pg_drop_replication_slot('{copy.slot}_t')")


def _advance_slot(copy: Copy) -> None:
    copy.down.execute(f"SELECT pg_replication_slot_advance('{copy.slot}_t', pg_current_wal_flush_lsn())")


def _lose_change_log(copy: Copy) -> None:
    copy.down.execute(f"SELECT trueup_changes.tube_ensure_absent('{copy.slot}_t')")


def _go_back(copy: Copy) -> None:
    """Forget the last rounds on the target, as a restore of it does."""
    copy.down.execute("DELETE FROM trueup_changes.readers")


@pytest.mark.parametrize(
    ("changes", "lose", "reason"),
    [
        ("log", lambda copy: copy.up.execute(f"SELECT pg_drop_replication_slot('{copy.slot}')"), "replication slot"),
        ("log", _lose_slot, "replication slot"),
        ("log", _advance_slot, "replication slot"),
        ("changelog", _lose_change_log, "the change log does not exist on the target"),
        ("changelog", _go_back, "the target n2 went back"),
    ],
)
def test_lost_changes_of_either_side(copy: Copy, changes: str, lose: Callable[[Copy], object], reason: str) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 1)")
    copy.up.execute("CREATE PUBLICATION p FOR TABLE t")
    copy.down.execute(
        f"CREATE SUBSCRIPTION {copy.down.name} CONNECTION '{copy.up.uri}' PUBLICATION p WITH (copy_data = false)"
    )
    copy.start("public.t", **PROOF, changes=changes)
    copy.down.execute("UPDATE t SET n = n")
    _certified(copy)
    copy.until(lambda: copy.validation.prove().verdict == "MATCH")
    copy.stop()
    copy.down.execute("INSERT INTO t VALUES (7, 7)")
    lose(copy)
    with pytest.raises(AssertionError):
        copy.go_on()
    assert isinstance(copy.ended[0], SlotLost)
    assert reason in _voids(copy)["t"]
    assert copy.validation.prove(timeout=1).verdict == "INCOMPLETE"
    # What was written meanwhile is found by the scrub, which the next start begins at once.
    copy.go_on()
    copy.until(lambda: copy.validation.prove().verdict == "DIFFER")
    assert [error.key for error in copy.errors()] == [("7",)]


def _process(copy: Copy) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "trueup", "validate", "start", "--name", "v", "--engine", "local"]
    nodes = ["--node", f"n1={copy.up.uri}", "--node", f"n2={copy.down.uri}"]
    return subprocess.Popen([*command, *nodes], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _run_and_kill(copy: Copy, seed: int) -> None:
    """Run the validation as a process, and kill it some time after it has read changes of the target."""
    process = _process(copy)
    before = copy.status().target_position
    copy.until(lambda: copy.status().target_position != before or process.poll() is not None)
    time.sleep(random.Random(seed).uniform(0, 0.5))
    process.kill()
    process.wait()


def _kill_before_a_commit(copy: Copy) -> None:
    """Kill the process when it has read a change of the target, and waits to store that the row differs."""
    process = _process(copy)
    copy.until(lambda: copy.status().state == "running")
    with psycopg.connect(copy.down.uri) as connection:
        connection.execute(
            "INSERT INTO trueup.validation_pending VALUES ('v', 'public.t', '[\"10000\"]', 'target', 1, 1, 0, NULL,"
            " NULL, NULL, NULL, 0, false, '[]', now())"
        )
        copy.down.execute("INSERT INTO t VALUES (10000, 0)")
        copy.until(lambda: copy.down.execute("SELECT 1 FROM pg_locks WHERE NOT granted"))
        process.kill()
        process.wait()
        connection.rollback()


@pytest.mark.parametrize("changes", ["log", "changelog"])
def test_kills_lose_nothing_of_the_proof(copy: Copy, changes: str) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int)")
    copy.up.execute("INSERT INTO t SELECT i, 0 FROM generate_series(1, 2000) i")
    copy.replicate("t")
    # Without a scrub, only changes that were read are found; a scrub is killed, too.
    scrub = {"scrub_rows": 20, "scrub_period": 0.0} if changes == "log" else {}
    copy.start("public.t", **{**PROOF, **scrub}, changes=changes)
    _certified(copy)
    certificate = copy.status().tables[0].certificate
    copy.stop()
    _kill_before_a_commit(copy)
    is_over = threading.Event()

    def load() -> None:
        with (
            psycopg.connect(copy.up.uri, autocommit=True) as up,
            psycopg.connect(copy.down.uri, autocommit=True) as down,
        ):
            number = 0
            while not is_over.wait(0.02) or number < 30:
                number += 1
                up.execute("UPDATE t SET n = n + 1 WHERE id %% 20 = %s", [number % 20])
                if number <= 30:
                    down.execute("INSERT INTO t VALUES (%s, 0)", [10_000 + number])

    writer = threading.Thread(target=load)
    writer.start()
    try:
        for seed in range(2):
            _run_and_kill(copy, seed)
    finally:
        is_over.set()
        writer.join()
    copy.until(lambda: copy.status().state == "stopped")
    assert "the validation does not run: its process ended" in copy.validation.prove(timeout=1).tables[0].reasons[0]
    copy.go_on()
    copy.until(lambda: len(copy.errors()) == 31)
    copy.until(lambda: copy.validation.prove().verdict == "DIFFER")
    assert {error.key[0] for error in copy.errors("all")} == {str(10_000 + n) for n in range(31)}
    if changes == "changelog":
        assert copy.status().tables[0].certificate == certificate, "no change was lost, so nothing was hashed again"
    copy.down.execute("DELETE FROM t WHERE id >= 10000")
    copy.until(lambda: copy.validation.prove().verdict == "MATCH")
    assert copy.up.execute("TABLE t ORDER BY id") == copy.down.execute("TABLE t ORDER BY id")


def test_a_pass_in_progress_begins_again_after_an_interruption(copy: Copy) -> None:
    """There is no certificate yet that could be void."""
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int)")
    copy.up.execute("INSERT INTO t SELECT i, 0 FROM generate_series(1, 2000) i")
    copy.replicate("t")
    copy.start("public.t", **{**PROOF, "scrub_share": 0.01, "scrub_rows": 10}, changes="changelog")
    copy.until(lambda: copy.status().tables[0].blocks > 1)
    enable = copy.down.execute(
        "SELECT string_agg(format('ALTER TABLE t ENABLE ALWAYS TRIGGER %I', tgname), ';') FROM pg_trigger"
        " WHERE tgrelid = 't'::regclass AND NOT tgisinternal"
    )[0][0]
    before = copy.status().target_position
    copy.down.execute(f"BEGIN; ALTER TABLE t DISABLE TRIGGER USER; UPDATE t SET n = 7 WHERE id = 1; {enable}; COMMIT")
    copy.until(lambda: copy.status().target_position != before)
    assert copy.status().tables[0].certificate is None
    copy.validation.update(scrub_share=0.9)
    copy.until(lambda: copy.status().tables[0].certificate)
    copy.until(lambda: [error.key for error in copy.errors()] == [("1",)])


def test_rows_that_have_null_in_the_key_are_not_proven(copy: Copy) -> None:
    if copy.up.execute("SELECT current_setting('server_version_num')::int >= 180000") == [(False,)]:
        # NOT NULL is always valid there.
        return
    copy.both("CREATE TABLE kept (k int PRIMARY KEY, v text); CREATE TABLE t (k int UNIQUE, v text)")
    # A row of the source that is in no block.
    copy.up.execute("INSERT INTO t VALUES (NULL, 'v'); ALTER TABLE t ADD CONSTRAINT n NOT NULL k NOT VALID")
    copy.down.execute("ALTER TABLE t ALTER k SET NOT NULL")
    copy.both(
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_k_key;"
        "INSERT INTO t SELECT i, 'v' FROM generate_series(1, 15) i; INSERT INTO kept SELECT k, v FROM t WHERE k > 0"
    )
    copy.up.execute("CREATE PUBLICATION p FOR ALL TABLES")
    copy.down.execute(
        f"CREATE SUBSCRIPTION {copy.down.name} CONNECTION '{copy.up.uri}' PUBLICATION p WITH (copy_data = false)"
    )
    copy.start("public.*", **PROOF)
    copy.until(lambda: "kept" not in _voids(copy))
    proof = copy.validation.prove(timeout=60)
    assert {table.table: table.verdict for table in proof.tables} == {"public.kept": "MATCH", "public.t": "INCOMPLETE"}
    assert any("has no key" in reason for table in proof.tables for reason in table.reasons)


def test_changes_of_the_target_that_its_log_does_not_identify(copy: Copy) -> None:
    """Another replica identity hides former keys of its table, or of its partition; the other tables go on."""
    tables = ("away", "there", "moved", "other")
    for name in tables:
        copy.both(
            f"CREATE TABLE {name} (id int PRIMARY KEY, n int NOT NULL); CREATE UNIQUE INDEX {name}_n ON {name} (n)"
        )
    copy.both(PARTS.format("part") + "ALTER TABLE part1 ALTER n SET NOT NULL; CREATE UNIQUE INDEX part1_n ON part1 (n)")
    for name in (*tables, "part"):
        copy.up.execute(f"INSERT INTO {name} SELECT i, i FROM generate_series(1, 15) i")
    copy.up.execute("CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root = true)")
    copy.down.execute(f"CREATE SUBSCRIPTION {copy.down.name} CONNECTION '{copy.up.uri}' PUBLICATION p")
    copy.until(lambda: not copy.down.execute("SELECT 1 FROM pg_subscription_rel WHERE srsubstate <> 'r'"))
    copy.start("public.*", **PROOF)
    _certified(copy)
    by_n = "ALTER TABLE {0} REPLICA IDENTITY USING INDEX {0}_n; "
    copy.down.execute(by_n.format("away") + "DELETE FROM away WHERE id = 1")
    back = "; ALTER TABLE there REPLICA IDENTITY DEFAULT"
    copy.down.execute(by_n.format("there") + "DELETE FROM there WHERE id = 2" + back)
    # The log has the new key only.
    copy.down.execute(by_n.format("moved") + "UPDATE moved SET id = 103 WHERE id = 3")
    copy.down.execute(by_n.format("part1") + "DELETE FROM part WHERE id = 4; UPDATE part SET n = -1 WHERE id = 14")
    copy.down.execute("UPDATE other SET n = -1 WHERE id = 5")
    expected = {
        ("away", "1"), ("there", "2"), ("moved", "3"), ("moved", "103"), ("part", "4"), ("part", "14"), ("other", "5"),
    }  # fmt: skip
    copy.until(lambda: {(e.source.removeprefix("public."), e.key[0]) for e in copy.errors()} == expected)
    assert not copy.ended
    copy.down.execute("ALTER TABLE part1 REPLICA IDENTITY DEFAULT")
    copy.stop()
    copy.go_on()
    proof = copy.validation.prove(timeout=30)
    reasons = {table.table.removeprefix("public."): " ".join(table.reasons) for table in proof.tables}
    assert "the replica identity of public.away on the target lacks the key" in reasons["away"]
    assert {name for name, reason in reasons.items() if "lacks the key" in reason} == {"away", "moved"}
    copy.validation.prove(["public.other"], timeout=30)
