"""A repair that waits for locks of other sessions: the holder is named, and the time is limited."""

from __future__ import annotations

import logging

import psycopg
import pytest

from support.repair import ITEMS, Nodes, NodesWith
from trueup.errors import ConfigError, QueryError

A = "INSERT INTO items VALUES (1, 'a', 1), (2, 'b', 2)"
B = "INSERT INTO items VALUES (1, 'a', 1), (2, 'other', 2)"
# The holder is looked up after a part of this time, and named in a warning after the second look.
TIMEOUT = 3.0


def holder(nodes: Nodes, statement: str) -> psycopg.Connection[tuple[object, ...]]:
    """Return a session of an application that is idle in a transaction on n2 and has run a statement."""
    connection = psycopg.connect(nodes[2].uri, application_name="shop")
    connection.execute(statement)
    return connection


def test_the_holder_of_a_row_is_named(nodes_with: NodesWith, caplog: pytest.LogCaptureFixture) -> None:
    """While a repair and an undo wait, and when their time is up."""
    nodes = nodes_with(ITEMS, A, B)
    report = nodes.diff()
    with holder(nodes, "SELECT FROM items WHERE id = 2 FOR UPDATE") as shop:
        name = f"process {shop.info.backend_pid} (postgres, shop, in a transaction for "
        done = nodes.repair(report, source_of_truth="n1", lock_timeout=TIMEOUT, execute=True)
        assert (done.verdict, done.exit_code) == ("FAILED", 2)
        assert f"node n2, public.items: no lock within {TIMEOUT:g} s: held by {name}" in done.failed["n2"]
        assert ": idle in transaction; nothing was written on this node" in done.failed["n2"]
        (record,) = [each for each in caplog.records if each.levelno == logging.WARNING]
        assert record.getMessage().startswith(
            f"node n2, public.items: waiting (at most {TIMEOUT:g} s) for a lock that is held by {name}"
        )
    done = nodes.repair(report, source_of_truth="n1", lock_timeout=0, execute=True)
    assert done.verdict == "REPAIRED"
    with holder(nodes, "UPDATE items SET price = 2 WHERE id = 2"):
        back = nodes.undo(done, lock_timeout=TIMEOUT, execute=True)
        assert "held by process" in back.failed["n2"]
    assert nodes.rows()[0] == nodes.rows()[1]


def test_the_holder_of_a_table_is_named(nodes_with: NodesWith) -> None:
    """A diff and a repair lock the table before they read it."""
    nodes = nodes_with(ITEMS, A, B)
    report = nodes.diff()
    with (
        holder(nodes, "LOCK TABLE items") as shop,
        pytest.raises(
            QueryError, match=f"no lock within {TIMEOUT:g} s: held by process {shop.info.backend_pid}"
        ) as caught,
    ):
        nodes.repair(report, source_of_truth="n1", lock_timeout=TIMEOUT, execute=True)
    assert (caught.value.node, caught.value.table) == ("n2", "public.items")
    assert "no row was read" in str(caught.value)


@pytest.mark.parametrize("value", [-1, 3e6, float("nan"), float("inf")])
def test_wrong_time_outs(nodes_with: NodesWith, value: float) -> None:
    nodes = nodes_with(ITEMS, A, B)
    with pytest.raises(ConfigError, match="--lock-timeout must be from 0 to"):
        nodes.repair("report.json", source_of_truth="n1", lock_timeout=value)
