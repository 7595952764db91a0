"""Accepted differences are exactly those rows: everything else is reported as before."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

import trueup
from support.fixtures import Compare, Databases, FreshServer, OnAll, ReportOf
from trueup.errors import CheckFailed, ConfigError, StoreError
from trueup.report.json_reader import open_report
from trueup.report.text import report_text, summary
from trueup.store import tasks_db_path
from trueup.testing.postgres import Database

TABLE = """
    CREATE TABLE items (id int PRIMARY KEY, name text, price numeric);
    INSERT INTO items SELECT i, 'item ' || i, i FROM generate_series(1, 1000) i;
"""
DEBIAN = Path("/usr/lib/postgresql/15/bin")
DRIFT = "UPDATE items SET name = 'x' WHERE id = 5; DELETE FROM items WHERE id = 7; INSERT INTO items VALUES (2000, 'y')"


@pytest.fixture
def pair(databases: Databases, on_all: OnAll) -> list[Database]:
    """Two nodes with three differences."""
    nodes: list[Database] = databases(2)
    on_all(nodes, TABLE)
    nodes[1].execute(DRIFT)
    return nodes


def _expire() -> None:
    with sqlite3.connect(tasks_db_path()) as store:
        store.execute("UPDATE acceptances SET until = '2020-01-01T00:00:00.000Z'")


def test_accepted_differences_are_reported_apart(pair: list[Database], compare: Compare, report_of: ReportOf) -> None:
    first = compare(pair, "items")
    done = trueup.accept(first.report, reason="test account\nof 2024", by="ana", until="2999-01-01")
    assert (done.acceptance.differences, done.acceptance.accepted_by, done.remarks) == (3, "ana", ())

    again = compare(pair, "items", output="html,json")
    assert (again.verdict, again.exit_code, again.pairs["n1/n2"].total) == ("ACCEPTED", 0, 0)
    assert again.pairs["n1/n2"].accepted == 3
    (accepted,) = again.accepted
    assert (accepted["differences"], accepted["reason"]) == (3, "test account\nof 2024")
    report = report_of(again)
    assert report["diffs"]["n1/n2"]["differences"] == []
    listed = {each["key"]["id"]: each for each in report["diffs"]["n1/n2"]["accepted_differences"]}
    assert {key: each["kind"] for key, each in listed.items()} == {"5": "changed", "7": "missing", "2000": "extra"}
    assert {each["accepted"] for each in listed.values()} == {done.acceptance.id}
    assert "test account" in summary(again)
    assert "3 differences" in summary(again)
    assert "test account" in Path(again.page).read_text()
    text = report_text(open_report(Path(again.report)), limit=2)
    assert "accepted:" in text
    assert "and 1 more" in text
    # The report with accepted differences is read completely, and repaired without them.
    assert trueup.repair(again.report, nodes=_nodes(pair), source_of_truth="n1", engine="local").exit_code == 0
    assert trueup.rerun(first.report, nodes=_nodes(pair), recheck=0, engine="local").verdict == "ACCEPTED"


def _nodes(pair: list[Database]) -> dict[str, str]:
    return {f"n{number}": node.uri for number, node in enumerate(pair, 1)}


def test_a_row_that_changes_again_is_a_new_difference(pair: list[Database], compare: Compare) -> None:
    trueup.accept(compare(pair, "items").report, reason="known")
    pair[1].execute("UPDATE items SET name = 'z' WHERE id = 5")
    again = compare(pair, "items")
    assert (again.verdict, again.exit_code) == ("DIFFER", 1)
    assert (again.pairs["n1/n2"].changed, again.pairs["n1/n2"].accepted) == (1, 2)
    pair[1].execute("UPDATE items SET name = 'x' WHERE id = 5")
    pair[0].execute("UPDATE items SET price = 0 WHERE id IN (5, 7)")
    again = compare(pair, "items")
    counts = again.pairs["n1/n2"]
    assert (counts.changed, counts.missing, counts.accepted) == (1, 1, 1)
    # What is equal again needs no acceptance.
    pair[0].execute("DELETE FROM items WHERE id IN (5, 7)")
    pair[1].execute("DELETE FROM items WHERE id IN (5, 7, 2000)")
    assert compare(pair, "items").verdict == "MATCH"


def test_the_order_of_the_nodes_does_not_matter(pair: list[Database], compare: Compare) -> None:
    trueup.accept(compare(pair, "items").report, reason="known")
    nodes = {"n2": pair[1].uri, "n1": pair[0].uri}
    again = trueup.diff("items", nodes=nodes, recheck=0, engine="local")
    assert (again.verdict, again.pairs["n2/n1"].accepted) == ("ACCEPTED", 3)


@pytest.mark.parametrize(
    ("change", "options", "reason"),
    [
        ("ALTER TABLE items RENAME name TO title", {}, "title added, name not compared"),
        ("ALTER TABLE items ADD extra int", {}, "extra added"),
        ("ALTER TABLE items ALTER name TYPE varchar(50)", {}, "another type of name"),
        ("", {"exclude_columns": ["price"]}, "price not compared"),
        ("", {"filter": "id > 0"}, "the filter is 'id > 0'"),
        ("", {"numeric": "representation"}, "the rule for numerics"),
        ("ALTER TABLE items RENAME TO old; CREATE TABLE items (LIKE old INCLUDING ALL); INSERT INTO items TABLE old",
         {}, "the table on n1 was created again"),
    ],
)  # fmt: skip
def test_another_table_or_comparison_is_not_accepted(
    pair: list[Database], on_all: OnAll, compare: Compare, change: str, options: dict[str, Any], reason: str
) -> None:
    trueup.accept(compare(pair, "items").report, reason="known")
    if change:
        on_all(pair, change)
    again = compare(pair, "items", **options)
    assert (again.verdict, again.pairs["n1/n2"].total, again.pairs["n1/n2"].accepted) == ("DIFFER", 3, 0)
    assert any("does not apply" in remark and reason in remark for remark in again.remarks), again.remarks


def test_a_table_in_another_database_is_not_accepted(
    pair: list[Database], databases: Databases, on_all: OnAll, compare: Compare
) -> None:
    trueup.accept(compare(pair, "items").report, reason="known")
    others = databases(2)
    on_all(others, TABLE)
    others[1].execute(DRIFT)
    again = compare(others, "items")
    assert again.verdict == "DIFFER"
    assert any("another server or database" in remark for remark in again.remarks)


def test_expired_and_revoked(pair: list[Database], compare: Compare) -> None:
    first = compare(pair, "items")
    done = trueup.accept(first.report, reason="for a day", until="2999-01-01T10:00+02:00")
    assert done.acceptance.until == "2999-01-01T08:00:00.000Z"
    _expire()
    again = compare(pair, "items")
    assert again.verdict == "DIFFER"
    assert any("has expired (for a day)" in remark for remark in again.remarks)
    assert trueup.acceptances() == []
    assert [each.id for each in trueup.acceptances(all=True)] == [done.acceptance.id]
    kept = trueup.accept(first.report, reason="again").acceptance
    assert compare(pair, "items").verdict == "ACCEPTED"
    assert trueup.revoke(kept.id[:8], by="ben").revoked_by == "ben"
    with pytest.raises(StoreError, match="was revoked"):
        trueup.revoke(kept.id)
    with pytest.raises(StoreError, match="does not exist"):
        trueup.revoke("nothing")
    assert compare(pair, "items").verdict == "DIFFER"


def test_some_keys_and_wrong_options(pair: list[Database], compare: Compare) -> None:
    report = compare(pair, "items").report
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"reason": " "}, "--reason is empty"),
        ({"reason": "r", "until": "soon"}, "is not a date"),
        ({"reason": "r", "until": "2020-01-01"}, "is past"),
        ({"reason": "r", "only": ["5", "6"]}, "no confirmed difference with the key 6"),
    ]
    for options, message in wrong:
        with pytest.raises(ConfigError, match=message):
            trueup.accept(report, **options)
    assert trueup.acceptances(all=True) == []
    assert trueup.accept(report, reason="one", only=["5"]).acceptance.differences == 1
    again = compare(pair, "items")
    assert (again.verdict, again.pairs["n1/n2"].accepted, again.pairs["n1/n2"].total) == ("DIFFER", 1, 2)
    pair[1].execute("DELETE FROM items WHERE id = 2000; INSERT INTO items SELECT 7, 'item 7', 7")
    again = compare(pair, "items")
    assert again.verdict == "ACCEPTED"
    with pytest.raises(StoreError, match="lists no confirmed difference"):
        trueup.accept(again.report, reason="none")


def test_an_incomplete_report(pair: list[Database], compare: Compare) -> None:
    first = compare(pair, "items", max_diff_rows=2, block_size=100, override_block_size=True)
    assert first.verdict == "INCOMPLETE"
    done = trueup.accept(first.report, reason="known")
    assert "INCOMPLETE" in done.remarks[0]
    again = compare(pair, "items")
    assert (again.verdict, again.pairs["n1/n2"].accepted + again.pairs["n1/n2"].total) == ("DIFFER", 3)
    again = compare(pair, "items", max_diff_rows=2, block_size=100, override_block_size=True)
    assert again.verdict == "INCOMPLETE"


def test_a_check_cannot_tell_them_apart(pair: list[Database], compare: Compare) -> None:
    trueup.accept(compare(pair, "items").report, reason="known")
    result = compare(pair, "items", quick=True)
    assert (result.verdict, result.exit_code) == ("DIFFER", 1)
    assert any("3 differences of this table are accepted; a check reads no rows" in it for it in result.remarks)


def test_a_repair_does_not_overwrite_them(pair: list[Database], compare: Compare) -> None:
    report = compare(pair, "items").report
    accepted = trueup.accept(report, reason="wanted on n2", only=["5"]).acceptance
    options: dict[str, Any] = {"nodes": _nodes(pair), "source_of_truth": "n1", "engine": "local", "recheck": 0}
    with pytest.raises(CheckFailed, match=r"1 of its keys have accepted differences.*wanted on n2"):
        trueup.repair(report, execute=True, **options)
    newer = compare(pair, "items")
    done = trueup.repair(newer.report, execute=True, **options)
    assert done.verdict == "REPAIRED"
    assert any("1 accepted difference of the earlier report" in remark for remark in done.remarks), done.remarks
    assert compare(pair, "items").verdict == "ACCEPTED"
    # The accepted row changed since: it is a new difference, and its report can be repaired.
    pair[1].execute("UPDATE items SET name = 'z' WHERE id = 5")
    assert trueup.repair(compare(pair, "items").report, execute=True, **options).verdict == "REPAIRED"
    trueup.revoke(accepted.id)
    assert compare(pair, "items").verdict == "MATCH"


def test_tables_without_a_key(databases: Databases, on_all: OnAll, compare: Compare) -> None:
    nodes: list[Database] = databases(2)
    on_all(
        nodes, "CREATE TABLE notes (a int, b text); INSERT INTO notes SELECT i % 50, 'b' FROM generate_series(1, 99) i"
    )
    nodes[1].execute("INSERT INTO notes VALUES (1, 'b'), (1, 'b'), (77, 'c')")
    trueup.accept(compare(nodes, "notes").report, reason="known")
    again = compare(nodes, "notes")
    assert (again.verdict, again.pairs["n1/n2"].accepted) == ("ACCEPTED", 3)
    nodes[1].execute("INSERT INTO notes VALUES (1, 'b')")
    again = compare(nodes, "notes")
    assert (again.verdict, again.pairs["n1/n2"].extra, again.pairs["n1/n2"].accepted) == ("DIFFER", 3, 1)


def test_three_nodes(databases: Databases, on_all: OnAll, compare: Compare) -> None:
    nodes: list[Database] = databases(3)
    on_all(nodes, TABLE)
    nodes[2].execute("DELETE FROM items WHERE id = 7")
    first = compare(nodes, "items")
    assert first.alone["n3"] == 1
    trueup.accept(first.report, reason="known")
    again = compare(nodes, "items")
    assert (again.verdict, again.alone["n3"]) == ("ACCEPTED", 0)
    assert {pair: counts.accepted for pair, counts in again.pairs.items()} == {"n1/n2": 0, "n1/n3": 1, "n2/n3": 1}
    assert again.accepted[0]["differences"] == 2
    # The same nodes, fewer of them.
    assert compare([nodes[0], nodes[1]], "items").verdict == "MATCH"
    # n1 loses the row, too: that it differs from n2 was not accepted.
    nodes[0].execute("DELETE FROM items WHERE id = 7")
    again = compare(nodes, "items")
    assert (again.verdict, again.pairs["n1/n2"].total, again.pairs["n2/n3"].accepted) == ("DIFFER", 1, 1)


@pytest.mark.skipif(not DEBIAN.exists(), reason="Debian's PostgreSQL 15 is not installed")
def test_another_server_with_another_version(pair: list[Database], fresh_server: FreshServer, compare: Compare) -> None:
    """An acceptance does not follow the name of a table to another server with the same rows."""
    other = fresh_server(name="old", bin_dir=DEBIAN).create_database("shop")
    other.execute(TABLE + DRIFT)
    trueup.accept(compare(pair, "items").report, reason="known")
    mixed = [pair[0], other]
    again = compare(mixed, "items")
    assert again.verdict == "DIFFER"
    assert any("n2 is another server or database" in remark for remark in again.remarks)
    trueup.accept(again.report, reason="known, too")
    again = compare(mixed, "items")
    assert (again.verdict, [each["reason"] for each in again.accepted]) == ("ACCEPTED", ["known, too"])
    assert compare(pair, "items").verdict == "ACCEPTED"


def test_many_tables(pair: list[Database], on_all: OnAll, compare: Compare) -> None:
    on_all(pair, "CREATE TABLE other (id int PRIMARY KEY)")
    trueup.accept(compare(pair, "items").report, reason="known")
    options: dict[str, Any] = {"nodes": _nodes(pair), "recheck": 0, "engine": "local"}
    run = trueup.diff_many(schemas=["public"], **options)
    assert (run.verdict, run.exit_code) == ("ACCEPTED", 0)
    assert {table.table: (table.verdict, table.accepted) for table in run.tables} == {
        "public.items": ("ACCEPTED", 3), "public.other": ("MATCH", 0),
    }  # fmt: skip
    pair[1].execute("INSERT INTO other VALUES (1)")
    assert trueup.diff_many(schemas=["public"], **options).verdict == "DIFFER"
