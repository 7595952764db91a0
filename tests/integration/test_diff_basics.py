"""A diff finds exactly the rows that differ, and returns MATCH only if there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

import trueup
from support.fixtures import Compare, Databases, OnAll, ReportOf

TABLE = """
    CREATE TABLE items (id bigint PRIMARY KEY, name text, price numeric, seen timestamptz);
    INSERT INTO items SELECT i, 'item ' || i, i / 100.0, '2024-01-01'::timestamptz + i * interval '1 s'
      FROM generate_series(1, 5000) i;
    ANALYZE items;
"""
SMALL = {"block_size": 500, "override_block_size": True, "compare_unit_size": 100}


def test_equal_tables_match(databases: Databases, on_all: OnAll, compare: Compare, report_of: ReportOf) -> None:
    nodes = databases(2)
    on_all(nodes, TABLE)
    result = compare(nodes, "items", **SMALL)
    assert result.verdict == "MATCH"
    assert result.exit_code == 0
    assert result.rows_checked == 5000
    assert result.mismatched_blocks == 0
    assert result.blocks >= 10
    assert report_of(result)["summary"]["total_rows_checked"] == 5000


def test_every_kind_of_difference_is_found(
    databases: Databases, on_all: OnAll, compare: Compare, report_of: ReportOf
) -> None:
    nodes = databases(2)
    on_all(nodes, TABLE)
    nodes[1].execute("UPDATE items SET name = 'x', price = 0 WHERE id = 2500; DELETE FROM items WHERE id IN (1, 4999)")
    # Before the first and after the last key of the anchor.
    nodes[1].execute("INSERT INTO items VALUES (-7), (99999)")
    result = compare(nodes, "items", **SMALL)
    assert result.verdict == "DIFFER"
    assert result.exit_code == 1
    counts = result.pairs["n1/n2"]
    assert (counts.missing, counts.extra, counts.changed) == (2, 2, 1)
    found = {difference["key"]["id"]: difference for difference in report_of(result)["diffs"]["n1/n2"]["differences"]}
    assert {key: each["kind"] for key, each in found.items()} == {
        "1": "missing", "4999": "missing", "-7": "extra", "99999": "extra", "2500": "changed",
    }  # fmt: skip
    assert found["2500"]["columns"] == ["name", "price"]
    assert found["2500"]["rows"]["n1"]["price"] == "25.0000000000000000"
    assert found["1"]["rows"]["n2"] is None


@pytest.mark.parametrize("swap", ["name", "price"])
def test_two_rows_that_swap_a_value(databases: Databases, on_all: OnAll, compare: Compare, swap: str) -> None:
    nodes = databases(2)
    on_all(nodes, TABLE)
    nodes[1].execute(f"UPDATE items a SET {swap} = b.{swap} FROM items b WHERE (a.id, b.id) IN ((10, 11), (11, 10))")
    result = compare(nodes, "items")
    assert result.pairs["n1/n2"].changed == 2


def test_three_nodes_and_the_node_that_differs(
    databases: Databases, on_all: OnAll, compare: Compare, report_of: ReportOf
) -> None:
    nodes = databases(3)
    on_all(nodes, TABLE)
    nodes[1].execute("UPDATE items SET name = 'only here' WHERE id = 5")
    nodes[2].execute("DELETE FROM items WHERE id = 6; UPDATE items SET name = 'c' WHERE id = 7")
    nodes[0].execute("UPDATE items SET name = 'a' WHERE id = 7")
    result = compare(nodes, "items", **SMALL)
    assert {name: (c.missing, c.extra, c.changed) for name, c in result.pairs.items()} == {
        "n1/n2": (0, 0, 2), "n1/n3": (1, 0, 1), "n2/n3": (1, 0, 2),
    }  # fmt: skip
    assert result.alone == {"n1": 0, "n2": 1, "n3": 1}
    by_key = {difference["key"]["id"]: difference for difference in report_of(result)["diffs"]["n2/n3"]["differences"]}
    assert by_key["5"]["agree"] == [["n1", "n3"], ["n2"]]
    assert by_key["7"]["agree"] == [["n1"], ["n2"], ["n3"]]


def test_check_counts_blocks_and_fetches_no_rows(databases: Databases, on_all: OnAll, compare: Compare) -> None:
    nodes = databases(2)
    on_all(nodes, TABLE)
    assert compare(nodes, "items", quick=True, **SMALL).verdict == "MATCH"
    nodes[1].execute("UPDATE items SET name = 'x' WHERE id = 2500")
    result = compare(nodes, "items", quick=True, **SMALL)
    assert (result.verdict, result.mismatched_blocks, result.report) == ("DIFFER", 1, "")


def test_an_empty_anchor_with_stale_statistics(databases: Databases, on_all: OnAll, compare: Compare) -> None:
    nodes = databases(2)
    on_all(nodes, TABLE)
    nodes[0].execute("DELETE FROM items")
    nodes[1].execute("DELETE FROM items WHERE id > 1000; ANALYZE items")
    result = compare(nodes, "items", **SMALL)
    assert (result.verdict, result.pairs["n1/n2"].extra) == ("DIFFER", 1000)


def test_a_table_without_statistics(databases: Databases, on_all: OnAll, compare: Compare) -> None:
    nodes = databases(2)
    on_all(nodes, TABLE.replace("ANALYZE items;", "ALTER TABLE items SET (autovacuum_enabled = off);"))
    nodes[0].execute("DELETE FROM items WHERE id = 3")
    assert compare(nodes, "items", **SMALL).pairs["n1/n2"].extra == 1


def test_two_empty_tables(databases: Databases, on_all: OnAll, compare: Compare) -> None:
    nodes = databases(2)
    on_all(nodes, "CREATE TABLE items (id int PRIMARY KEY)")
    result = compare(nodes, "items")
    assert (result.verdict, result.rows_checked) == ("MATCH", 0)


def test_the_limit_stops_the_diff_and_is_reported(
    databases: Databases, on_all: OnAll, compare: Compare, report_of: ReportOf
) -> None:
    nodes = databases(2)
    on_all(nodes, TABLE)
    nodes[1].execute("UPDATE items SET name = 'x'")
    result = compare(nodes, "items", max_diff_rows=50, **SMALL)
    assert (result.verdict, result.exit_code) == ("INCOMPLETE", 2)
    assert result.pairs["n1/n2"].limit_reached
    assert result.pairs["n1/n2"].changed == 50
    report = report_of(result)
    assert report["summary"]["diff_row_limit_reached"] is True
    assert len(report["diffs"]["n1/n2"]["differences"]) == 50


def test_the_limit_applies_to_each_pair(databases: Databases, on_all: OnAll, compare: Compare) -> None:
    nodes = databases(3)
    on_all(nodes, TABLE)
    nodes[2].execute("UPDATE items SET name = 'x'")
    nodes[1].execute("UPDATE items SET name = 'y' WHERE id IN (1, 4990)")
    result = compare(nodes, "items", max_diff_rows=50, **SMALL)
    assert result.verdict == "INCOMPLETE"
    assert result.pairs["n1/n2"].changed == 2
    assert not result.pairs["n1/n2"].limit_reached


def test_exactly_as_many_differences_as_the_limit_is_complete(
    databases: Databases, on_all: OnAll, compare: Compare
) -> None:
    nodes = databases(2)
    on_all(nodes, TABLE)
    nodes[1].execute("UPDATE items SET name = 'x' WHERE id <= 50")
    result = compare(nodes, "items", max_diff_rows=50)
    assert (result.verdict, result.pairs["n1/n2"].changed) == ("DIFFER", 50)


def test_keyless_tables_are_multisets(
    databases: Databases, on_all: OnAll, compare: Compare, report_of: ReportOf
) -> None:
    nodes = databases(2)
    on_all(
        nodes, "CREATE TABLE logs (a int, b text); INSERT INTO logs SELECT i % 100, 'x' FROM generate_series(1, 1000) i"
    )
    assert compare(nodes, "logs").verdict == "MATCH"
    nodes[0].execute("INSERT INTO logs VALUES (1, 'x'), (1, 'x'), (500, NULL)")
    nodes[1].execute("INSERT INTO logs VALUES (7, 'new')")
    result = compare(nodes, "logs")
    counts = result.pairs["n1/n2"]
    assert (counts.missing, counts.extra, counts.changed) == (3, 1, 0)
    copies = {
        difference["rows"]["n1"]["a"]: difference["copies"]
        for difference in report_of(result)["diffs"]["n1/n2"]["differences"]
        if difference["rows"]["n1"]
    }
    assert copies == {"1": {"n1": 12, "n2": 10}, "500": {"n1": 1, "n2": 0}}
    assert compare(nodes, "logs", quick=True).verdict == "DIFFER"


def test_columns_and_filter_can_be_configured(
    databases: Databases, on_all: OnAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options of the command line and of the call override the configuration."""
    nodes = databases(2)
    on_all(nodes, TABLE)
    nodes[1].execute("UPDATE items SET name = 'x' WHERE id IN (1, 2, 3); UPDATE items SET price = 0 WHERE id IN (3, 4)")
    lines = [f'n{number} = "{node.uri}"' for number, node in enumerate(nodes, 1)]
    settings = ['table_filter = "id < 4"', 'exclude_columns = "price"', "recheck = 0"]
    Path("trueup.toml").write_text("\n".join(["[nodes]", *lines, "[diff]", *settings]))
    assert trueup.diff("items").pairs["n1/n2"].changed == 3
    assert trueup.diff("items", filter="id < 3").pairs["n1/n2"].changed == 2
    assert trueup.diff("items", columns=["price"], filter="true").pairs["n1/n2"].changed == 2
    monkeypatch.setenv("TRUEUP__DIFF__TABLE_FILTER", "id = 1")
    assert trueup.diff("items").pairs["n1/n2"].changed == 1
    monkeypatch.setenv("TRUEUP__DIFF__KEY", "name")
    assert trueup.diff("items", filter="id = 9").verdict == "MATCH"
