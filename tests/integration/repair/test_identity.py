"""An undo file is for the databases and the table that were repaired, and a repair writes where it has read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.repair import ITEMS, AtStage, Nodes, NodesWith
from trueup.errors import CheckFailed
from trueup.testing.postgres import Server
from trueup.verbs.repair.settle import STALE

FILL = "INSERT INTO items SELECT i, 'name ' || i, i FROM generate_series(1, 9) i"
# Another table with the same name, columns and rows.
REPLACE = """
CREATE TABLE copy (LIKE items INCLUDING ALL); INSERT INTO copy TABLE items;
DROP TABLE items; ALTER TABLE copy RENAME TO items
"""


@pytest.fixture
def nodes(nodes_with: NodesWith) -> Nodes:
    """Return two nodes: n2 lacks a row, and has another one changed."""
    nodes = nodes_with(ITEMS, FILL, FILL)
    nodes[2].execute("UPDATE items SET price = 0 WHERE id = 3; DELETE FROM items WHERE id = 4")
    return nodes


def test_an_undo_file_is_for_its_databases_and_its_table(nodes: Nodes, server: Server) -> None:
    before = nodes.rows()[1]
    done = nodes.repair(nodes.diff(), source_of_truth="n1", execute=True)
    right = dict(nodes.addresses)

    # The addresses are swapped: the rows of n1 are those that were written on n2.
    nodes.addresses = {"n1": right["n2"], "n2": right["n1"]}
    for execute in (False, True):
        with pytest.raises(CheckFailed, match=r"is the database .*; it is the database that the undo file has as n1"):
            nodes.undo(done, execute=execute)
    assert nodes.rows()[0] == nodes.rows()[1]
    nodes.addresses = right

    nodes[2].execute(REPLACE)
    with pytest.raises(CheckFailed, match=r"node n2: public\.items: the table was created again") as refused:
        nodes.undo(done, execute=True)
    assert "--other-database" in refused.value.cure
    nodes[2].execute("UPDATE items SET name = 'later' WHERE id = 4")
    undone = nodes.undo(done, execute=True, other_database=True)
    # Each row is still compared with the row that was written.
    assert (undone.verdict, undone.left_counts) == ("REMAINS", {"the row changed since the repair": 1})
    assert [row for row in nodes.rows()[1] if row[0] != 4] == before
    # The undo of the undo is for the new table.
    assert nodes.undo(undone, execute=True).verdict == "UNDONE"

    name = nodes[2].name
    nodes[2].drop()
    nodes.databases[1] = server.create_database(name)
    nodes[2].execute(f"{ITEMS}; {FILL}")
    with pytest.raises(CheckFailed, match=f"node n2: public.items: the database {name} was created again"):
        nodes.undo(undone, execute=True)


def test_a_table_that_was_created_again_since_the_diff(nodes: Nodes) -> None:
    nodes[2].execute("INSERT INTO items VALUES (99, 'extra', 0)")
    report, target = nodes.diff(), nodes.rows()[1]
    # The source lost its rows: those of the target are not deleted because of that.
    nodes[1].execute(REPLACE + "; DELETE FROM items")
    for plan in ("tables: {items: {default: {keep: n1}}}", ""):
        Path("plan.yaml").write_text(plan)
        mode: dict[str, Any] = {"plan": "plan.yaml"} if plan else {"source_of_truth": "n1"}
        left = nodes.repair(report, execute=True, **mode)
        # The row 4 is on no node by now, and the row 99 was extra before.
        assert (left.verdict, left.written["n2"]["delete"], left.left_counts) == ("REMAINS", 1, {STALE: 1})
        assert nodes.rows()[1] == target[:-1]
        nodes[2].execute("INSERT INTO items VALUES (99, 'extra', 0)")
    assert nodes.repair(report, source_of_truth="n1", stale="apply", execute=True).written["n2"]["delete"] == 2
    # The target has other rows than those of the report: none is written over.
    nodes[1].execute(FILL)
    nodes[2].execute(REPLACE + "; DELETE FROM items; INSERT INTO items VALUES (3, 'new', 1), (4, 'new', 1)")
    target = nodes.rows()[1]
    left = nodes.repair(report, source_of_truth="n1", execute=True)
    assert (left.verdict, left.left_counts, nodes.rows()[1]) == ("REMAINS", {STALE: 2}, target)
    again = nodes.rerun(report)
    assert (again.verdict, again.since["n1/n2"]) == ("DIFFER", {"resolved": 1, "remains": 2, "new": 0})


def test_a_table_that_is_replaced_between_reading_and_writing_is_not_written(nodes: Nodes) -> None:
    rows = nodes.rows()
    progress = AtStage("writing", lambda: nodes[2].execute(REPLACE))
    done = nodes.repair(nodes.diff(), source_of_truth="n1", execute=True, progress=progress)
    assert (done.verdict, "the table was created again" in done.failed["n2"]) == ("FAILED", True)
    assert nodes.rows() == rows
