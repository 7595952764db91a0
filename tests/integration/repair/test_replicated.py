"""Repairs of tables that are replicated: which subscriptions get what is written, and that none of them stops."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import psycopg
import pytest

from support.replicated import Cluster
from support.tube import TubeDatabase
from trueup.errors import CheckFailed
from trueup.testing.postgres import Server
from trueup.verbs.repair import lag, replication

PG_BIN = os.environ.get("TRUEUP_TEST_PG_BIN") or None
ITEMS = "CREATE TABLE items (id int PRIMARY KEY, name text UNIQUE)"
FILLED = f"{ITEMS}; INSERT INTO items SELECT g, 'r' || g FROM generate_series(1, 20) g"
# Rows that are missing, changed and extra; and rows that swap unique values.
DRIFT = (
    "DELETE FROM items WHERE id <= 3; UPDATE items SET name = 'x' || id WHERE id IN (5, 6, 7);"
    " INSERT INTO items VALUES (50, 'extra')"
)
SWAP = (
    "UPDATE items SET name = 'y' WHERE id = 8; UPDATE items SET name = 'r8' WHERE id = 9;"
    " UPDATE items SET name = 'r9' WHERE id = 8"
)
_numbers = itertools.count(1)


Servers = Callable[["str | None"], list[Server]]


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    """`servers(bin_dir)`: two servers of a version, which are started once."""
    with ExitStack() as stack:

        @cache
        def start(bin_dir: str | None) -> list[Server]:
            return [stack.enter_context(Server.start(name=name, bin_dir=bin_dir)) for name in ("left", "right")]

        yield start


@pytest.fixture
def cluster(servers: Servers) -> Iterator[Cluster]:
    made = Cluster(servers(PG_BIN), f"cluster_{next(_numbers)}")
    yield made
    made.remove()


@pytest.fixture
def active(servers: Servers) -> Iterator[Cluster]:
    """Both nodes write, and subscribe to each other with `origin = none`, which PostgreSQL 16 introduced."""
    made = Cluster(servers(None), f"active_{next(_numbers)}")
    made.publish(FILLED)
    made.subscribe(2, 1, origin="none")
    made.subscribe(1, 2, origin="none")
    yield made
    made.remove()


def test_an_active_active_cluster_goes_on(active: Cluster) -> None:
    """The changes of a repair and of its undo are not replicated, those of the application are."""
    active.apart(2, f"{DRIFT}; {SWAP}")
    report = active.diff()
    dry = active.repair(report, source_of_truth="n1")
    assert "what is written on n2 is not replicated to n1: subscription from_n2 has origin = none" in dry.remarks
    done = active.repair(report, source_of_truth="n1", execute=True)
    assert done.verdict == "REPAIRED"
    assert set(dry.remarks) == set(done.remarks)
    active.flow({1: 101, 2: 102})
    assert active.undo(done, execute=True).verdict == "UNDONE"
    # Both nodes are written: the row 50 on n1, the others on n2.
    assert active.repair(active.diff(), bidirectional=True, execute=True).written["n1"]["insert"] == 1
    assert active.repair(active.diff(), source_of_truth="n2", execute=True).verdict == "REPAIRED"
    active.apart(2, "DELETE FROM items WHERE id IN (11, 12); UPDATE items SET name = 'z' WHERE id = 13")
    fired = active.repair(active.diff(), source_of_truth="n1", fire_triggers=True, execute=True)
    assert fired.verdict == "REPAIRED"
    active.flow({1: 103, 2: 104})
    assert active.errors() == 0
    assert active.origins() == []


def test_origins_in_use_and_origins_that_were_left(active: Cluster) -> None:
    """A repair uses another origin than one that runs now, and drops the origin that a killed one left."""
    active.apart(2, DRIFT)
    with psycopg.connect(active[2].uri, autocommit=True) as other:
        other.execute("SELECT pg_replication_origin_create('trueup_repair')")
        other.execute("SELECT pg_replication_origin_session_setup('trueup_repair')")
        assert active.repair(active.diff(), source_of_truth="n1", execute=True).verdict == "REPAIRED"
        assert active.origins() == ["trueup_repair"]
    active.until(lambda: not active.sessions(2))
    active.apart(2, DRIFT)
    assert active.repair(active.diff(), source_of_truth="n1", execute=True).verdict == "REPAIRED"
    active.flow({1: 101, 2: 102})
    assert (active.errors(), active.origins()) == (0, [])


def test_captures_of_trueup_see_a_repair(active: Cluster) -> None:
    """A slot without a filter of origins, and the triggers of a tube."""
    node = active[2]
    tube = TubeDatabase(node)
    tube.install()
    tube.tube.ensure()
    tube.tube.attach("items", shard=1, capture="row")
    active.apart(2, DRIFT)
    tube.take()
    node.execute("SELECT pg_create_logical_replication_slot('trueup_test', 'pgoutput')")
    report = active.diff()
    assert active.repair(report, source_of_truth="n1", execute=True).verdict == "REPAIRED"
    assert tube.ids() == [1, 2, 3, 5, 6, 7, 50]
    tube.close()
    options = "'proto_version', '1', 'publication_names', 'p'"
    read = f"SELECT data FROM pg_logical_slot_peek_binary_changes('trueup_test', NULL, NULL, {options})"
    kinds = {bytes(data)[:1] for (data,) in node.execute(read)}
    assert kinds >= {b"I", b"D"}
    node.execute("SELECT pg_drop_replication_slot('trueup_test')")


def test_a_role_that_may_not_use_origins(active: Cluster) -> None:
    """Inserts are refused, because they would be replicated; with the privileges they are not."""
    active.apart(2, DRIFT)
    role = f"writer_{active[2].name}"
    active[2].execute(
        f"CREATE ROLE {role} LOGIN PASSWORD 'p'; GRANT ALL ON items TO {role}; GRANT pg_read_all_data TO {role}"
    )
    active.addresses["n2"] = active[2].server.uri(active[2].name, user=role, password="p")
    report = active.diff()
    with pytest.raises(CheckFailed, match=r"from_n2 replicates inserted rows to n1.*GRANT EXECUTE") as caught:
        active.repair(report, source_of_truth="n1", execute=True)
    assert "nothing was written" in caught.value.cure
    dry = active.repair(report, source_of_truth="n1")
    grant = next(remark for remark in dry.remarks if "GRANT" in remark).rpartition(": ")[2].rstrip(")")
    assert grant.startswith("GRANT EXECUTE ON FUNCTION")
    active[2].execute(grant)
    assert active.repair(report, source_of_truth="n1", execute=True).verdict == "REPAIRED"
    active.flow({1: 101, 2: 102})
    assert (active.errors(), active.origins()) == (0, [])
    active[2].execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_publisher_is_repaired_from_its_subscriber(cluster: Cluster) -> None:
    """Without `origin = none` updates and deletes are replicated; inserts would stop the subscription."""
    cluster.publish(FILLED, "FOR ALL TABLES")
    cluster.subscribe(2, 1)
    cluster[2].execute("UPDATE items SET name = 'n2' WHERE id = 4; DELETE FROM items WHERE id = 5")
    done = cluster.repair(cluster.diff(), source_of_truth="n2", execute=True)
    assert done.verdict == "REPAIRED"
    why = "origin = any" if cluster.has_origins else "PostgreSQL before 16 replicates changes of all origins"
    assert f"what is written on n1 is replicated to n2 by subscription from_n1 ({why})" in done.remarks
    cluster.flow({1: 101})
    cluster[2].execute("INSERT INTO items VALUES (50, 'extra')")
    report = cluster.diff()
    with pytest.raises(CheckFailed, match="node n1: subscription from_n1 replicates inserted rows to n2"):
        cluster.repair(report, source_of_truth="n2", execute=True)
    dry = cluster.repair(report, source_of_truth="n2")
    assert any("--execute would fail: node n1: subscription from_n1" in remark for remark in dry.remarks)
    # The subscriber can always be repaired.
    assert not cluster.repair(report, source_of_truth="n1").remarks
    if cluster.has_origins:
        # The cure of the error.
        cluster[2].execute("ALTER SUBSCRIPTION from_n1 SET (origin = none)")
        assert cluster.repair(report, source_of_truth="n2", execute=True).verdict == "REPAIRED"
        cluster.flow({1: 102})
        assert cluster.errors() == 0
        cluster[2].execute("ALTER SUBSCRIPTION from_n1 SET (origin = any); INSERT INTO items VALUES (51)")
        report = cluster.diff()
    assert cluster.repair(report, source_of_truth="n2", replicate="accept", execute=True).verdict == "REPAIRED"
    give_up = cluster.deadline()
    while not cluster.errors():
        give_up()


def test_rows_that_a_subscription_still_has_to_deliver(active: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A subscription that is behind is waited for: rows that arrive meanwhile are left, and nothing stops."""
    active[2].execute("ALTER SUBSCRIPTION from_n1 DISABLE")
    active[1].execute("INSERT INTO items VALUES (60, 'in flight')")
    active.apart(2, "DELETE FROM items WHERE id = 1")
    report = active.diff()
    with monkeypatch.context() as patched:
        patched.setattr(lag, "PATIENCE", 0.2)
        with pytest.raises(CheckFailed, match="node n2: subscription from_n1 has not applied all changes of n1"):
            active.repair(report, source_of_truth="n1", execute=True)

    def enable_and_wait(*arguments: Any) -> set[tuple[str, str]]:
        active[2].execute("ALTER SUBSCRIPTION from_n1 ENABLE")
        return lag.slots_behind(*arguments)

    monkeypatch.setattr(replication, "slots_behind", enable_and_wait)
    done = active.repair(report, source_of_truth="n1", execute=True)
    assert (done.verdict, done.written["n2"]["insert"]) == ("REPAIRED", 1)
    assert [row.key for row in done.left] == [{"id": "60"}]
    active.flow({1: 101, 2: 102})
    assert active.errors() == 0


def test_partitions_and_readers_that_are_not_nodes(cluster: Cluster) -> None:
    """A subscription to the partitions is found; slots of unknown readers are named."""
    cluster.publish(
        "CREATE TABLE items (id int PRIMARY KEY, name text) PARTITION BY RANGE (id);"
        " CREATE TABLE items_1 PARTITION OF items FOR VALUES FROM (0) TO (100)",
        "FOR TABLE items_1",
    )
    cluster.subscribe(2, 1)
    cluster[2].execute("INSERT INTO items VALUES (1)")
    slot = f"{cluster[1].name}_reader"
    cluster[1].execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    dry = cluster.repair(cluster.diff(), source_of_truth="n2")
    assert any("node n1: subscription from_n1 replicates inserted rows to n2" in remark for remark in dry.remarks)
    (unknown,) = (remark for remark in dry.remarks if slot in remark)
    assert unknown.startswith(f"n1: the reader of replication slot {slot}")
    assert "not checked" in unknown
    shown = cluster.repair(cluster.diff(), source_of_truth="n2", replicate="all").remarks
    assert f"n1: the reader of replication slot {slot} gets what is written; it was not checked" in shown
    cluster[1].execute(f"SELECT pg_drop_replication_slot('{slot}')")
    # The publisher is not a node.
    third = cluster[1].server.database("postgres")
    third.execute("CREATE TABLE items (id int PRIMARY KEY, name text); INSERT INTO items VALUES (2)")
    cluster.addresses = {"n2": cluster[2].uri, "n3": third.uri}
    dry = cluster.repair(cluster.diff(), bidirectional=True)
    assert any(remark.startswith("n2: subscription from_n1 fills the table from a server") for remark in dry.remarks)
    third.execute("DROP TABLE items")
