"""A proof by induction: certificates, every change of both nodes since, and nothing that was not seen."""

from __future__ import annotations

import json
import signal
import threading
import time
from typing import Any

import pytest

from support.fixtures import both_engines
from support.validate import Copy
from trueup.cli.main import run
from trueup.verbs.validate.proving.prove import Proof

TABLE = "CREATE TABLE t (id int PRIMARY KEY, n int)"
PROOF = {"both_sides": True, "scrub_share": 0.9, "scrub_rows": 50, "scrub_period": 7 * 86400.0}


def proven(copy: Copy) -> Proof:
    """Wait for a proof that says MATCH, and return it."""
    found: list[Proof] = []

    def is_match() -> bool:
        found.append(copy.validation.prove(timeout=30))
        return found[-1].verdict == "MATCH"

    copy.until(is_match)
    return found[-1]


def _begin(copy: Copy, tables: str = TABLE, **settings: Any) -> None:
    copy.both(tables)
    copy.up.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 300) i")
    copy.replicate()
    copy.start("public.*", **{**PROOF, **settings})


@both_engines
def test_writes_on_the_target_under_load_are_errors_exactly_those(engine: str, copy: Copy) -> None:
    _begin(copy)
    proven(copy)
    is_over = threading.Event()

    def load() -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            copy.up.execute("UPDATE t SET n = %s WHERE id BETWEEN 100 AND 120", [number])
            time.sleep(0.02)

    writer = threading.Thread(target=load)
    writer.start()
    try:
        copy.until(lambda: copy.status().target_applied > 100)
        copy.down.execute(
            "UPDATE t SET n = -1 WHERE id = 10; DELETE FROM t WHERE id = 20; INSERT INTO t VALUES (1000, 0)"
        )
        expected = {("10", "changed"), ("20", "missing"), ("1000", "extra")}
        copy.until(lambda: {(error.key[0], error.kind) for error in copy.errors()} == expected)
    finally:
        is_over.set()
        writer.join()
    proof = copy.validation.prove()
    assert (proof.verdict, proof.tables[0].errors) == ("DIFFER", 3)
    # A correction on the target is seen, too.
    copy.down.execute("UPDATE t SET n = 10 WHERE id = 10; INSERT INTO t VALUES (20, 20); DELETE FROM t WHERE id = 1000")
    assert proven(copy).tables[0].errors == 0
    assert {error.key[0] for error in copy.errors("all")} == {"10", "20", "1000"}


def test_what_the_syncer_writes_is_counted_and_what_a_trigger_adds_to_it_is_judged(copy: Copy) -> None:
    _begin(copy, TABLE + "; CREATE TABLE other (id int PRIMARY KEY, n int)")
    copy.up.execute("INSERT INTO other SELECT i, i FROM generate_series(1, 10) i")
    proven(copy)
    others = copy.status().target_others
    before = copy.status().target_applied
    copy.up.execute("UPDATE t SET n = n + 1")
    proven(copy)
    assert copy.status().target_applied >= before + 300
    assert copy.status().target_others == others
    # Its transactions have the origin of the subscription.
    copy.down.execute("""
        CREATE FUNCTION more() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN UPDATE public.other SET n = -5 WHERE id = 5; RETURN NULL; END';
        CREATE TRIGGER more AFTER UPDATE ON t FOR EACH ROW EXECUTE FUNCTION more();
        ALTER TABLE t ENABLE ALWAYS TRIGGER more
    """)
    copy.up.execute("UPDATE t SET n = 0 WHERE id = 1")
    copy.until(lambda: [(error.source, error.key) for error in copy.errors()] == [("public.other", ("5",))])
    assert [table.verdict for table in copy.validation.prove().tables] == ["DIFFER", "MATCH"]


def test_nothing_unseen_is_proven(copy: Copy) -> None:
    _begin(copy, scrub_share=0.0, scrub_period=0.0, both_sides=False)
    proof = copy.validation.prove()
    assert proof.verdict == "INCOMPLETE"
    assert "no certificate" in proof.tables[0].reasons[0]
    assert "--both-sides" in proof.tables[0].reasons[1]
    copy.validation.update(scrub_share=0.9)
    copy.until(lambda: copy.validation.prove().tables[0].certified_at)
    assert copy.validation.prove().verdict == "INCOMPLETE"
    assert copy.validation.prove().target_position is None
    copy.validation.update(mode="fast")
    assert any("mode fast" in reason for reason in copy.validation.prove().tables[0].reasons)


def test_a_lagging_and_a_skipping_subscription(copy: Copy) -> None:
    _begin(copy)
    first = proven(copy)
    assert first.target_position
    subscription = copy.down.name
    copy.down.execute(f"ALTER SUBSCRIPTION {subscription} DISABLE")
    copy.up.execute("UPDATE t SET n = -1 WHERE id = 5")
    proof = copy.validation.prove(timeout=1)
    assert proof.verdict == "INCOMPLETE"
    assert "syncer" in " ".join(proof.tables[0].reasons)
    position = copy.up.execute("SELECT pg_current_wal_lsn()")[0][0]
    # The transaction is passed over: as a skip of a failed transaction does.
    copy.until(lambda: not copy.down.execute("SELECT 1 FROM pg_stat_subscription WHERE pid IS NOT NULL"))
    copy.down.execute(
        "SELECT pg_replication_origin_advance('pg_' || oid, %s) FROM pg_subscription WHERE subname = %s",
        [position, subscription],
    )
    copy.down.execute(f"ALTER SUBSCRIPTION {subscription} ENABLE")
    copy.until(lambda: [error.key for error in copy.errors()] == [("5",)])
    assert copy.validation.prove().verdict == "DIFFER"
    copy.validation.ignore(None)
    assert (copy.validation.prove().verdict, copy.validation.prove().exit_code) == ("ACCEPTED", 0)
    # A row that is taken from the list by hand is not proven: the scrub finds it again.
    copy.validation.resolve(None)
    assert copy.validation.prove().verdict in ("INCOMPLETE", "DIFFER")
    copy.until(lambda: copy.validation.prove().verdict == "DIFFER")


def test_the_command(copy: Copy, capfd: pytest.CaptureFixture[str]) -> None:
    _begin(copy)
    proven(copy)
    nodes = ("--node", f"n1={copy.up.uri}", "--node", f"n2={copy.down.uri}")
    assert run(["prove", "public.t", "--validation", "v", *nodes, "--json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert (shown["verdict"], shown["tables"][0]["verdict"], shown["exit_code"]) == ("MATCH", "MATCH", 0)
    assert shown["tables"][0]["oldest_block_age_seconds"] >= 0
    assert run(["prove", "--validation", "v", *nodes]) == 0
    assert capfd.readouterr().out.startswith("MATCH: at ")
    assert run(["prove", "public.nothing", "--validation", "v", *nodes]) == 2
    copy.stop()
    capfd.readouterr()
    assert run(["prove", "--validation", "v", *nodes, "--timeout", "1"]) == 2
    assert "the validation is stopped" in capfd.readouterr().out
    assert len(copy.left_on_target()) == 2
    copy.validation.delete()
    assert copy.left_on_target() == copy.left() == []


def test_the_demo(capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert run(["demo", "proof", "--rows", "300", "--seconds", "0"]) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    output = capfd.readouterr().out
    verdicts = [line.partition(":")[0] for line in output.splitlines() if line.startswith(("MATCH", "DIFF", "INCOM"))]
    assert verdicts == ["INCOMPLETE", "MATCH", "DIFFER", "MATCH", "MATCH"]
    assert "the certificate is void since" in output
