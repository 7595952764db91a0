"""A proof by induction: certificates, every change of both nodes since, and nothing that was not seen."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import trueup
from support.fixtures import both_engines
from support.validate import Copy
from trueup.capture.log import slot
from trueup.cli.main import run
from trueup.proof import store
from trueup.proof.stated import verdict_of
from trueup.store import TaskStore
from trueup.testing.postgres import Server
from trueup.verbs.validate.fence import Fence, put_fence, wait_for
from trueup.verbs.validate.proving import target, target_log
from trueup.verbs.validate.proving.prove import Proof
from trueup.verbs.validate.status import status_text
from trueup.verbs.validate.to_certificate import tables_of_validation
from trueup.verbs.validate.validator import Validator

TABLE = "CREATE TABLE t (id int PRIMARY KEY, n int)"
PROOF: dict[str, Any] = {"both_sides": True, "scrub_share": 0.9, "scrub_rows": 50, "scrub_period": 7 * 86400.0}
DEBIAN = Path("/usr/lib/postgresql/15/bin")
both_sources = pytest.mark.parametrize("changes", ["log", "changelog"])


@pytest.fixture(scope="module")
def old_server() -> Iterator[Server]:
    """A server of version 15."""
    if not DEBIAN.exists():
        pytest.skip("Debian's PostgreSQL 15 is not installed")
    with Server.start(name="old", bin_dir=DEBIAN, settings={"wal_level": "logical"}) as server:
        yield server


def proven(copy: Copy) -> Proof:
    """Wait for a proof that says MATCH, and return it."""
    found: list[Proof] = []

    def is_match() -> bool:
        found.append(copy.validation.prove(timeout=30))
        return found[-1].verdict == "MATCH"

    copy.until(is_match)
    return found[-1]


def _until_errors(copy: Copy, expected: set[tuple[str, str, str]]) -> None:
    """Wait until exactly these rows are errors: table, key, kind."""
    copy.until(lambda: {(e.source.removeprefix("public."), e.key[0], e.kind) for e in copy.errors()} == expected)


def _begin(copy: Copy, tables: str = TABLE, **settings: Any) -> None:
    copy.both(tables)
    copy.up.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 300) i")
    copy.replicate("TABLES IN SCHEMA public")
    copy.start("public.*", **{**PROOF, **settings})


@both_engines
def test_writes_on_the_target_under_load_are_errors_exactly_those(engine: str, copy: Copy) -> None:
    _begin(copy)
    proven(copy)
    is_over = threading.Event()

    def load() -> None:
        number = 0
        with psycopg.connect(copy.up.uri, autocommit=True) as session:
            while not is_over.is_set():
                number += 1
                session.execute("UPDATE t SET n = %s WHERE id BETWEEN 100 AND 120", [number])
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
    with TaskStore() as store:
        (state,) = store.states()
        assert (state.run.mode, state.run.verdict, state.run.differences) == ("prove", "DIFFER", 3)
        assert (state.is_proven, bool(state.matched_at)) == (False, True)
    # A correction on the target is seen, too.
    copy.down.execute("UPDATE t SET n = 10 WHERE id = 10; INSERT INTO t VALUES (20, 20); DELETE FROM t WHERE id = 1000")
    assert proven(copy).tables[0].errors == 0
    with TaskStore() as store:
        assert [state.is_proven for state in store.states()] == [True]
    assert {error.key[0] for error in copy.errors("all")} == {"10", "20", "1000"}


@both_sources
def test_what_the_syncer_writes_is_not_judged_and_what_a_trigger_adds_to_it_is(
    copy: Copy, changes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _begin(copy, TABLE + "; CREATE TABLE other (id int PRIMARY KEY, n int)", changes=changes, batch=50)
    copy.up.execute("INSERT INTO other SELECT i, i FROM generate_series(1, 10) i")
    proven(copy)
    if changes == "log":
        # The slot stays at the mark behind a judged change; what is read next is more than a batch, and skipped.
        copy.down.execute("UPDATE t SET n = n WHERE id = 1")
        copy.until(lambda: copy.down.execute("SELECT FROM trueup.validation WHERE target_token <> ''"))
    others = copy.status().target_others
    before = copy.status().target_applied
    copy.up.execute("UPDATE t SET n = n + 1")
    proven(copy)
    # Triggers do not see what the syncer writes.
    assert copy.status().target_applied >= before + (300 if changes == "log" else 0)
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
    if changes == "log":
        copy.down.execute("UPDATE other SET n = 5 WHERE id = 5")
        proven(copy)
        _drop_before_look(copy, monkeypatch)
        _until_errors(copy, {("other", "5", "changed")})


def _drop_before_look(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the trigger write, and drop it, after the end of a read of the target and before the look at triggers."""
    position, is_done = slot.flushed_position, threading.Event()

    def end_of_read(connection: Any) -> int:
        if is_done.is_set():
            return position(connection)
        copy.down.execute("SELECT pg_logical_emit_message(true, 'more', '')")
        end = position(connection)
        copy.up.execute("UPDATE t SET n = 1 WHERE id = 1")
        copy.until(lambda: copy.down.execute("SELECT FROM other WHERE n = -5"))
        copy.down.execute("DROP TRIGGER more ON t")
        is_done.set()
        return end

    monkeypatch.setattr(target_log, "flushed_position", end_of_read)
    copy.until(is_done.is_set)


@pytest.mark.parametrize(
    ("engine", "changes"), [("local", "log"), ("local", "changelog"), ("spark", "log")], indirect=["engine"]
)
def test_changes_of_a_sync_are_compared_once(
    engine: str, copy: Copy, changes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `trueup sync` writes is compared as changes of the source; what others write to the same rows is seen."""
    monkeypatch.setattr(target, "WAIT_SECONDS", 60.0)
    copy.both(TABLE)
    copy.up.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 300) i")
    sync = trueup.Sync("n1", "n2", nodes={"n1": copy.up.uri, "n2": copy.down.uri}, engine="local")
    sync.start()
    syncer = threading.Thread(target=sync.run, args=("follow",))
    syncer.start()
    try:
        copy.until(lambda: copy.down.execute("SELECT FROM trueup.sync_mark"))
        copy.start("public.t", **PROOF, changes=changes)
        proven(copy)
        before = copy.status()
        for number in range(5):
            copy.up.execute("UPDATE t SET n = %s", [number])
            assert proven(copy)
        after = copy.status()
        # A sync deletes and inserts the rows.
        assert after.target_applied - before.target_applied == 5 * 2 * 300
        assert after.target_others == before.target_others
        # Another writer changes rows that were compared a moment ago, and one that the sync writes again.
        copy.up.execute("UPDATE t SET n = 6 WHERE id < 5")
        copy.until(lambda: copy.down.execute("SELECT FROM t WHERE id = 4 AND n = 6"))
        copy.down.execute("UPDATE t SET n = -1 WHERE id < 3; INSERT INTO t VALUES (1000, 0)")
        copy.up.execute("UPDATE t SET n = 7 WHERE id = 2")
        _until_errors(copy, {("t", "1", "changed"), ("t", "1000", "extra")})
        assert copy.validation.prove().verdict == "DIFFER"
        copy.down.execute("UPDATE t SET n = 6 WHERE id = 1; DELETE FROM t WHERE id = 1000")
        proven(copy)
        assert copy.up.execute("TABLE t ORDER BY id") == copy.down.execute("TABLE t ORDER BY id")
    finally:
        sync.stop()
        syncer.join()


def test_triggers_on_the_target(copy: Copy) -> None:
    _begin(copy, f"{TABLE}; CREATE TABLE gone (id int PRIMARY KEY)", changes="changelog")
    copy.up.execute("INSERT INTO gone VALUES (1), (2)")
    # A second validation of the target has triggers of its own, and takes only them with it.
    other = Copy(copy.up, copy.down)
    other.name = "w"
    other.start("public.t", both_sides=True, changes="changelog")
    proven(copy)
    others = copy.status().target_others
    copy.down.execute("""
        UPDATE t SET n = -1 WHERE id = 10; DELETE FROM t WHERE id = 20; INSERT INTO t VALUES (1000, 0);
        SET session_replication_role = replica; UPDATE t SET n = -1 WHERE id = 30
    """)
    expected = {("t", "10", "changed"), ("t", "20", "missing"), ("t", "1000", "extra"), ("t", "30", "changed")}
    for each in (copy, other):
        _until_errors(each, expected)
    other.stop()
    assert other.validation.delete()
    assert copy.status().target_others == others + 4
    assert "by triggers" in status_text(copy.status())
    assert (copy.validation.prove().verdict, len(copy.errors("all"))) == ("DIFFER", 4)
    copy.down.execute("TRUNCATE gone")
    copy.until(lambda: {error.key[0] for error in copy.errors() if error.source == "public.gone"} == {"1", "2"})
    copy.down.execute("""
        UPDATE t SET n = id WHERE id IN (10, 30); INSERT INTO t VALUES (20, 20); DELETE FROM t WHERE id = 1000;
        INSERT INTO gone VALUES (1), (2)
    """)
    proven(copy)
    # A table that is removed loses its triggers; then all objects go.
    copy.validation.remove(["public.gone"])
    assert not copy.down.execute("SELECT 1 FROM pg_trigger WHERE tgrelid = 'gone'::regclass")
    copy.stop()
    assert copy.left_on_target()
    copy.validation.delete()
    assert copy.left_on_target() == []


def test_a_second_publisher_and_a_second_table_with_the_same_target(
    copy: Copy, two_servers: tuple[Server, Server]
) -> None:
    """Apply workers fire no statement triggers; and a change of the target concerns all tables that it is a copy of."""
    tenants = "CREATE TABLE {0} (id int PRIMARY KEY, n int); INSERT INTO {0} VALUES (1, 1)"
    copy.up.execute(f"{TABLE}; {tenants.format('a')}; {tenants.format('b')}; CREATE PUBLICATION p FOR TABLE t")
    copy.down.execute(f"""
        {TABLE}; CREATE TABLE tenants (tenant int, id int, n int, PRIMARY KEY (tenant, id));
        INSERT INTO tenants VALUES (1, 1, 1), (2, 1, 1)
    """)
    copy.down.execute(f"CREATE SUBSCRIPTION {copy.down.name} CONNECTION '{copy.up.uri}' PUBLICATION p")
    routes = {"routes": ("public.a=public.tenants", "public.b=public.tenants")}
    constants = ("public.a.tenant=1", "public.b.tenant=2")
    syncer = f"subscription:{copy.down.name}"
    copy.start("public.*", **PROOF, **routes, constants=constants, changes="changelog", syncer=syncer)
    log = Copy(copy.up, copy.down)
    log.name = "w"
    log.start("public.*", **PROOF, **routes, constants=constants, syncer=syncer)
    for each in (copy, log):
        proven(each)
    third = two_servers[0].create_database(f"{copy.up.name}_third")
    third.execute(f"{TABLE}; CREATE PUBLICATION p FOR TABLE t")
    second = f"{copy.down.name}_second"
    copy.down.execute(f"CREATE SUBSCRIPTION {second} CONNECTION '{third.uri}' PUBLICATION p")
    proven(copy)
    third.execute("INSERT INTO t VALUES (5, 5)")
    copy.down.execute("UPDATE tenants SET n = 0 WHERE tenant = 1; DELETE FROM tenants WHERE tenant = 2")
    for each in (copy, log):
        _until_errors(each, {("t", "5", "extra"), ("a", "1", "changed"), ("b", "1", "missing")})
        each.stop()
    copy.down.execute(f"DROP SUBSCRIPTION {second}")
    third.drop()


@both_sources
def test_a_subscription_of_another_publisher_is_another_writer(
    copy: Copy, two_servers: tuple[Server, Server], changes: str
) -> None:
    """Also if it is not named which one is the syncer, and if the syncer is altered to replicate another database."""
    third = two_servers[0].create_database(f"{copy.up.name}_third")
    third.execute(f"{TABLE}; CREATE PUBLICATION p FOR TABLE t")
    copy.both(TABLE)
    second = f"{copy.down.name}_second"
    copy.down.execute(f"CREATE SUBSCRIPTION {second} CONNECTION '{third.uri}' PUBLICATION p")
    copy.replicate("t")
    copy.start("public.*", **PROOF, changes=changes)
    proven(copy)
    assert copy.messages[0].endswith(f"applied by subscription {copy.down.name}")
    third.execute("INSERT INTO t VALUES (5, 5)")
    _until_errors(copy, {("t", "5", "extra")})
    # The syncer itself is made to replicate the other database.
    copy.down.execute(f"ALTER SUBSCRIPTION {second} DISABLE; ALTER SUBSCRIPTION {second} SET (slot_name = NONE)")
    copy.down.execute(f"DROP SUBSCRIPTION {second}; ALTER SUBSCRIPTION {copy.down.name} DISABLE")
    copy.down.execute(f"ALTER SUBSCRIPTION {copy.down.name} SET (slot_name = '{second}')")
    copy.down.execute(f"ALTER SUBSCRIPTION {copy.down.name} CONNECTION '{third.uri}'")
    copy.down.execute(f"ALTER SUBSCRIPTION {copy.down.name} ENABLE")
    third.execute("INSERT INTO t VALUES (6, 6)")
    copy.until(lambda: copy.down.execute("SELECT FROM t WHERE id = 6"))
    copy.until(lambda: any(error.key == ("6",) for error in copy.errors()))
    copy.stop()
    copy.down.execute(f"ALTER SUBSCRIPTION {copy.down.name} DISABLE")
    copy.down.execute(f"ALTER SUBSCRIPTION {copy.down.name} SET (slot_name = NONE)")
    # Its worker ends a moment later.
    copy.until(lambda: third.execute(f"SELECT FROM pg_replication_slots WHERE slot_name = '{second}' AND NOT active"))
    copy.up.execute(f"SELECT pg_drop_replication_slot('{copy.down.name}')")
    third.execute(f"SELECT pg_drop_replication_slot('{second}')")
    third.drop()


@pytest.mark.parametrize("is_from_old", [True, False])
def test_two_versions_of_the_server(is_from_old: bool, old_server: Server, two_servers: tuple[Server, Server]) -> None:
    """From 15 to the present version and back, both sources at the same time."""
    servers = (old_server, two_servers[1]) if is_from_old else (two_servers[0], old_server)
    number = f"{os.getpid()}_{int(is_from_old)}"
    copy = Copy(*(server.create_database(f"{server.name}_{number}") for server in servers))
    try:
        _begin(copy)
        other = Copy(copy.up, copy.down)
        other.name = "w"
        other.start("public.*", **PROOF, changes="changelog")
        for each in (copy, other):
            proven(each)
        copy.up.execute("UPDATE t SET n = 0 WHERE id < 5")
        copy.down.execute("INSERT INTO t VALUES (1000, 0); DELETE FROM t WHERE id = 9")
        for each in (copy, other):
            _until_errors(each, {("t", "1000", "extra"), ("t", "9", "missing")})
            assert each.validation.prove().verdict == "DIFFER"
        copy.down.execute("DELETE FROM t WHERE id = 1000; INSERT INTO t VALUES (9, 9)")
        for each in (copy, other):
            proven(each)
        other.stop()
    finally:
        copy.remove()


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


def test_what_is_applied_after_the_start_from_before_it_is_not_proven(copy: Copy) -> None:
    """The changes are not in the log of the slot: a block that is hashed before they are applied proves nothing."""
    copy.both(TABLE)
    copy.up.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 300) i")
    copy.replicate("t")
    copy.down.execute(f"ALTER SUBSCRIPTION {copy.down.name} DISABLE")
    for number in (-1, 5):
        copy.up.execute("UPDATE t SET n = %s WHERE id = 5", [number])
    copy.start("public.t", **PROOF)
    nodes = {"n1": copy.up.uri, "n2": copy.down.uri}
    result = trueup.check("public.t", nodes=nodes, certify="v", engine="local")
    assert result.verdict == "MATCH"
    assert "the syncer has not applied all changes from before" in result.certified["reason"]
    assert copy.validation.prove(timeout=1).tables[0].certified_at is None
    copy.down.execute(f"ALTER SUBSCRIPTION {copy.down.name} ENABLE")
    proven(copy)


def test_a_lagging_and_a_skipping_subscription(copy: Copy) -> None:
    _begin(copy)
    first = proven(copy)
    assert first.target_position
    subscription = copy.down.name
    copy.down.execute(f"ALTER SUBSCRIPTION {subscription} DISABLE")
    copy.up.execute("UPDATE t SET n = -1 WHERE id = 5")

    def is_named() -> bool:
        """On a busy machine, the log may not have been read up to the marker either."""
        proof = copy.validation.prove(timeout=1)
        assert proof.verdict == "INCOMPLETE"
        return "syncer" in " ".join(proof.tables[0].reasons)

    copy.until(is_named)
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


def _documents(copy: Copy) -> list[dict[str, Any]]:
    """Return what `trueup certificate` would state."""
    stated = tables_of_validation(copy.validation.config, "v", [], meta_node="n2")
    return [{**table, "verdict": verdict_of(table)} for table in stated]


def _with_error(copy: Copy) -> None:
    """Let a row differ, and wait until it is listed as an error."""
    proven(copy)
    copy.down.execute("UPDATE t SET n = -1 WHERE id = 5")
    _until_errors(copy, {("t", "5", "changed")})


def test_a_certificate_that_becomes_valid_while_a_table_is_proven(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that differed when it was made may not have been checked yet when the marker is validated."""
    _begin(copy)
    _with_error(copy)
    markers: list[int] = []
    is_certified = threading.Event()
    scrub, check_pending = Validator.scrub, Validator.check_pending
    documents: list[dict[str, Any]] = []

    def scrub_behind_marker(validator: Validator) -> None:
        if markers and validator.positions.read >= markers[0]:
            scrub(validator)
            if store.certificates(validator.sessions.meta.connection, "v")["public.t"].is_valid:
                is_certified.set()

    def put_and_note(*arguments: Any) -> tuple[int, str]:
        position, problem = put_fence(*arguments)
        markers.append(position)
        return position, problem

    def wait_for_both(*arguments: Any, **options: Any) -> Fence:
        fence = wait_for(*arguments, **options)
        assert is_certified.wait(60)
        if len(markers) == 1:
            documents.extend(_documents(copy))
        return fence

    monkeypatch.setattr(Validator, "scrub", scrub_behind_marker)
    # Suspected rows are checked when the second marker is written.
    monkeypatch.setattr(Validator, "check_pending", lambda validator: len(markers) != 1 and check_pending(validator))
    monkeypatch.setattr("trueup.verbs.validate.proving.prove.put_fence", put_and_note)
    monkeypatch.setattr("trueup.verbs.validate.proving.prove.wait_for", wait_for_both)
    copy.validation.resolve(None)
    assert copy.validation.prove().verdict == "DIFFER"
    assert len(markers) == 2
    assert [(document["verdict"], document["reason"]) for document in documents] == [
        ("VOID", "not decided yet: 1 row that differed")
    ]


@pytest.mark.parametrize("verb", ["resolve", "clear"])
def test_errors_that_are_resolved_by_hand_while_a_block_is_stored(
    copy: Copy, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """The block is hashed when the certificate is void, and stored when the row is still listed as an error."""
    _begin(copy, scrub_rows=1000)
    _with_error(copy)
    scrub, void = Validator.scrub, store.void
    is_idle, is_void = threading.Event(), threading.Event()

    def scrub_later(validator: Validator) -> None:
        if is_void.is_set():
            scrub(validator)
        is_idle.set()

    def void_and_wait(*arguments: Any) -> None:
        void(*arguments)
        is_void.set()
        # The scrub waits for the end of this transaction.
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        copy.until(lambda: copy.down.execute(waiting))

    with monkeypatch.context() as patch:
        patch.setattr(Validator, "scrub", scrub_later)
        assert is_idle.wait(60)
        # The only block is due, once.
        copy.down.execute("UPDATE trueup.certificate_block SET hashed_at = hashed_at - interval '30 days'")
        patch.setattr("trueup.verbs.validate.row_errors.store.void", void_and_wait)
        assert getattr(copy.validation, verb)(None) == 1
    assert copy.validation.prove().verdict in ("INCOMPLETE", "DIFFER")
    copy.until(lambda: copy.validation.prove().verdict == "DIFFER")


@pytest.mark.parametrize("verb", ["resolve", "clear"])
def test_errors_that_are_resolved_by_hand_before_there_is_a_certificate(copy: Copy, verb: str) -> None:
    """The first pass of the scrub has passed their rows already."""
    copy.both(TABLE)
    copy.up.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 300) i")
    copy.replicate("TABLES IN SCHEMA public")
    copy.down.execute("UPDATE t SET n = -1 WHERE id = 5")
    # Enough for one of six blocks.
    copy.start("public.*", **{**PROOF, "scrub_share": 0.0001})
    _until_errors(copy, {("t", "5", "changed")})
    assert copy.status().tables[0].certificate is None
    assert getattr(copy.validation, verb)(None) == 1
    copy.validation.update(scrub_share=0.9)
    copy.until(lambda: copy.status().tables[0].certificate)
    assert copy.validation.prove().verdict == "DIFFER"


def test_a_row_that_differs_is_changed_after_the_marker(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The subscription passes over the change of a missing row: the row is still to be decided at the marker."""
    copy.both(TABLE)
    copy.up.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 300) i")
    copy.replicate("TABLES IN SCHEMA public")
    copy.down.execute("DELETE FROM t WHERE id = 5")
    copy.start("public.*", **{**PROOF, "row_error_delay": 600.0})
    copy.until(lambda: copy.status().tables[0].certificate)

    def put_and_change(*arguments: Any) -> tuple[int, str]:
        position = put_fence(*arguments)
        copy.up.execute("UPDATE t SET n = n + 1 WHERE id = 5")
        return position

    monkeypatch.setattr("trueup.verbs.validate.proving.prove.put_fence", put_and_change)
    assert copy.validation.prove(timeout=4).verdict == "INCOMPLETE"
    copy.until(lambda: copy.status().tables[0].pending_by_operation.get("update"))
    (document,) = _documents(copy)
    assert (document["verdict"], document["reason"]) == ("VOID", "not decided yet: 1 row that differed")


def test_a_row_that_was_found_and_not_checked_yet_is_not_certified(copy: Copy) -> None:
    """As after a kill between the two."""
    _begin(copy)
    proven(copy)
    copy.stop()
    assert [document["verdict"] for document in _documents(copy)] == ["PROVEN"]
    for op in ("scrub", "target"):
        copy.down.execute(
            "INSERT INTO trueup.validation_pending (validation, source, key, op, first_lsn, last_lsn, xid, checks,"
            " is_hot, samples, due_at) VALUES ('v', 'public.t', '[\"5\"]', %s, 1::bigint << 60, 1::bigint << 60, 0, 0,"
            " false, '[]', now())",
            [op],
        )
        assert [document["reason"] for document in _documents(copy)] == ["not decided yet: 1 row that differed"]
        copy.down.execute("DELETE FROM trueup.validation_pending")


def test_errors_are_resolved_in_tables_of_an_older_version(copy: Copy) -> None:
    _begin(copy)
    _with_error(copy)
    copy.stop()
    copy.down.execute("ALTER TABLE trueup.certificate DROP COLUMN valid_since")
    copy.down.execute("ALTER TABLE trueup.validation_table DROP COLUMN voids")
    assert copy.validation.resolve(None) == 1
    certificate = copy.status().tables[0].certificate
    assert certificate is not None
    assert certificate["void"]["reason"] == "errors were resolved by hand"
    copy.go_on()
    copy.until(lambda: copy.validation.prove().verdict == "DIFFER")


def test_a_table_that_is_removed_while_it_is_proven(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    _begin(copy, f"{TABLE}; CREATE TABLE u (id int PRIMARY KEY)")
    proven(copy)

    def put_and_remove(*arguments: Any) -> tuple[int, str]:
        copy.validation.remove(["public.u"])
        return put_fence(*arguments)

    monkeypatch.setattr("trueup.verbs.validate.proving.prove.put_fence", put_and_remove)
    proof = copy.validation.prove()
    verdicts = {table.table: table.verdict for table in proof.tables}
    assert (proof.verdict, verdicts["public.u"]) == ("INCOMPLETE", "INCOMPLETE")


def test_a_table_that_is_not_published_on_the_target_is_not_proven_after_a_scrub(copy: Copy) -> None:
    _begin(copy)
    before = proven(copy).tables[0].certified_at
    copy.down.execute(f"ALTER PUBLICATION {copy.slot}_t DROP TABLE t")
    copy.until(lambda: copy.status().tables[0].target_problem)
    copy.until(lambda: (table := copy.status().tables[0]).certificate and not table.certificate["void"])
    proof = copy.validation.prove().tables[0]
    assert (proof.verdict, proof.certified_at != before) == ("INCOMPLETE", True)
    assert "what is written on the target is not seen" in proof.reasons[0]
    copy.stop()
    copy.go_on()
    proven(copy)


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


@both_sources
def test_the_documented_role(copy: Copy, changes: str) -> None:
    """It owns the tables and may replicate; pg_subscription, which has passwords, it may not read."""
    role = f"user_{copy.down.name}"
    nodes = {}
    for name, database in (("n1", copy.up), ("n2", copy.down)):
        database.execute(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'p'; {TABLE}; ALTER TABLE t OWNER TO {role}")
        database.execute(f"GRANT CREATE ON DATABASE {database.name} TO {role}; GRANT pg_read_all_stats TO {role}")
        nodes[name] = database.server.uri(database.name, role, "p")
    copy.up.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 300) i")
    copy.replicate("TABLES IN SCHEMA public")
    copy.nodes = nodes
    try:
        syncer = "lag:1" if changes == "changelog" else ""
        copy.start("public.t", **PROOF, changes=changes, syncer=syncer)
        proven(copy)
        copy.up.execute("UPDATE t SET n = 0 WHERE id = 7")
        proven(copy)
        if changes == "log":
            assert any("GRANT SELECT (xmin) ON pg_subscription" in text for text in copy.messages)
            copy.down.execute(f"GRANT SELECT (xmin) ON pg_subscription TO {role}")
            copy.stop()
            copy.go_on()
            assert not any("GRANT" in text for text in copy.messages)
        copy.down.execute("UPDATE t SET n = -1 WHERE id = 9")
        _until_errors(copy, {("t", "9", "changed")})
    finally:
        copy.stop()
        copy.down.execute("DROP SCHEMA trueup CASCADE")
        for database in (copy.up, copy.down):
            database.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")
