"""What voids a certificate, by name and with the reason; and a proof after kills."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
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
    parts = ("emptied", "detached", "emptied_there")
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
    copy.up.execute("CREATE TABLE later (id int PRIMARY KEY)")
    copy.down.execute("CREATE TABLE later (id int PRIMARY KEY)")
    expected = {
        "rekeyed": "its key was changed", "recreated": "another table has its name on the source",
        "published": "its publication was altered", "published_there": "the publication on the target was altered",
        "renamed": "it was renamed to public.another", "swapped": "another table has its name on the target",
        "emptied": "truncated or written again", "detached": "a partition was detached",
        "emptied_there": "the table on the target, or a partition, was truncated", "later": "",
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


@pytest.mark.parametrize(
    ("side", "lose"),
    [
        ("source", lambda copy: copy.up.execute(f"SELECT pg_drop_replication_slot('{copy.slot}')")),
        ("target", lambda copy: copy.down.execute(f"SELECT pg_drop_replication_slot('{copy.slot}_t')")),
        (
            "target",
            lambda copy: copy.down.execute(
                f"SELECT pg_replication_slot_advance('{copy.slot}_t', pg_current_wal_flush_lsn())"
            ),
        ),
    ],
)
def test_a_lost_slot_on_either_side(copy: Copy, side: str, lose: Callable[[Copy], object]) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int)")
    copy.replicate()
    copy.start("public.t", **PROOF)
    _certified(copy)
    copy.stop()
    copy.down.execute("INSERT INTO t VALUES (7, 7)")
    lose(copy)
    with pytest.raises(AssertionError):
        copy.go_on()
    assert isinstance(copy.ended[0], SlotLost)
    assert "replication slot" in _voids(copy)["t"]
    assert copy.validation.prove(timeout=1).verdict == "INCOMPLETE"
    # What was written meanwhile is found by the scrub, which the next start begins at once.
    copy.go_on()
    copy.until(lambda: copy.validation.prove().verdict == "DIFFER")
    assert [error.key for error in copy.errors()] == [("7",)]


def _run_and_kill(copy: Copy, seed: int) -> None:
    """Run the validation as a process, and kill it some time after it has read the log of the target."""
    command = [sys.executable, "-m", "trueup", "validate", "start", "--name", "v", "--engine", "local"]
    nodes = ["--node", f"n1={copy.up.uri}", "--node", f"n2={copy.down.uri}"]
    process = subprocess.Popen([*command, *nodes], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    before = copy.status().target_position
    copy.until(lambda: copy.status().target_position != before or process.poll() is not None)
    time.sleep(random.Random(seed).uniform(0, 0.5))
    process.kill()
    process.wait()


def test_kills_lose_nothing_of_the_proof(copy: Copy) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int)")
    copy.up.execute("INSERT INTO t SELECT i, 0 FROM generate_series(1, 2000) i")
    copy.replicate()
    copy.start("public.t", **{**PROOF, "scrub_rows": 20, "scrub_period": 0.0})
    copy.stop()
    is_over = threading.Event()

    def load() -> None:
        with (
            psycopg.connect(copy.up.uri, autocommit=True) as up,
            psycopg.connect(copy.down.uri, autocommit=True) as down,
        ):
            number = 0
            while not is_over.wait(0.02):
                number += 1
                up.execute("UPDATE t SET n = n + 1 WHERE id %% 20 = %s", [number % 20])
                if number <= 30:
                    down.execute("INSERT INTO t VALUES (%s, 0)", [10_000 + number])

    writer = threading.Thread(target=load)
    writer.start()
    try:
        for seed in range(5):
            _run_and_kill(copy, seed)
    finally:
        is_over.set()
        writer.join()
    copy.until(lambda: copy.status().state == "stopped")
    copy.go_on()
    copy.until(lambda: len(copy.errors()) == 30)
    copy.until(lambda: copy.validation.prove().verdict == "DIFFER")
    assert {error.key[0] for error in copy.errors("all")} == {str(10_001 + n) for n in range(30)}
    copy.down.execute("DELETE FROM t WHERE id > 10000")
    copy.until(lambda: copy.validation.prove().verdict == "MATCH")
    assert copy.up.execute("TABLE t ORDER BY id") == copy.down.execute("TABLE t ORDER BY id")
