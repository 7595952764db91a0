"""`trueup tube`: every command, for people and as JSON, from install to uninstall."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def node(databases: Any, written: Any) -> Any:
    """A configured node n1 with a table of 300 orders."""
    nodes = databases(1)
    nodes[0].execute("CREATE TABLE orders (id int PRIMARY KEY, at timestamptz DEFAULT now(), n int)")
    nodes[0].execute("INSERT INTO orders (id, n) SELECT g, g % 3 FROM generate_series(1, 300) g")
    written(nodes)
    return nodes[0]


def test_from_install_to_uninstall(cli: Any, node: Any) -> None:
    ran = cli("tube", "install", "n1")
    assert (ran.code, ran.out, ran.err) == (0, "version 2 installed in the schema tube of n1\n", "")
    assert cli("tube", "install", "n1", "--json").json == {"node": "n1", "schema": "tube", "before": 2, "version": 2}
    assert "trueup tube ensure" in cli("tube", "list").out
    assert cli("tube", "ensure", "search", "--partitions", 2, "--predicate", "n > 0").code == 0
    assert "no tables" in cli("tube", "list").out
    ran = cli("tube", "attach", "search", "orders", "--shard", 4, "--json")
    assert (ran.json["source"], ran.json["table"], ran.json["key"], ran.json["problem"]) == (
        1,
        "public.orders",
        ["id"],
        None,
    )
    assert "public.orders: shard 4, key id" in cli("tube", "attach", "search", "Orders", "--shard", 4).out
    ran = cli("tube", "backfill", "search", "orders", "--order-col", "at", "--json", "--quiet")
    assert (ran.json["keys"], ran.json["pods"], ran.json["shard"], ran.err) == (200, 1, 4, "")
    assert "200 keys in 1 pods, finished" in cli("tube", "backfill", "search", "orders").out
    assert "control pod" in cli("tube", "backfill", "search", "orders", "--schedule").out
    assert cli("tube", "touch", "search", "orders", 7, 8, "--json").json == {"pods": 1}
    query = "SELECT id FROM public.orders"
    assert cli("tube", "touch", "search", "orders", "--query", query).out == "touched: 2 pods\n"
    shown = cli("tube", "stats")
    head, zero, one, backfill = shown.out.splitlines()
    assert head.split()[:4] == ["tube", "part", "live", "pods"]
    assert (zero.split()[:4], one.split()[:4]) == (["search", "0", "3", "302"], ["search", "1", "0", "0"])
    assert backfill.startswith("backfill search public.orders (shard 4): 200 keys")
    found = cli("tube", "stats", "--json").json
    assert [each["backfill_keys"] for each in found["stats"]] == [400, 0]
    assert found["backfills"][0]["keys"] == 200
    ran = cli("tube", "drop", "search")
    assert (ran.code, "pods wait in the tube search, and would be lost" in ran.err) == (2, True)
    assert "--force" in ran.err
    assert cli("tube", "detach", "search", "orders").out == "orders is detached\n"
    assert cli("tube", "detach", "search", "orders", "--json").json == {"detached": False}
    assert cli("tube", "drop", "search", "--force").out == "the tube search is dropped\n"
    assert cli("tube", "drop", "search", "--json").json == {"dropped": False}
    assert cli("tube", "uninstall", "n1").out == "dropped 0 tubes and the schema tube\n"


def test_problems_are_shown(cli: Any, node: Any) -> None:
    cli("tube", "install", "n1")
    cli("tube", "ensure", "search")
    cli("tube", "attach", "search", "orders", "--shard", 1)
    node.execute("ALTER TABLE orders DISABLE TRIGGER USER")
    assert "PROBLEM: triggers are missing or disabled" in cli("tube", "list").out
    assert cli("tube", "list", "--json").json[0]["tables"][0]["problem"]


def test_what_is_wrong_is_said(cli: Any, node: Any, databases: Any) -> None:
    ran = cli("tube", "stats")
    assert (ran.code, "trueup tube install n1" in ran.err) == (2, True)
    cli("tube", "install", "n1")
    cli("tube", "ensure", "search")
    for words, why in (
        (("attach", "search", "ordres", "--shard", 1), "did you mean public.orders?"),
        (("attach", "serach", "orders", "--shard", 1), "there is no tube 'serach'"),
        (("attach", "search", "orders"), "has no number"),
        (("touch", "search", "orders"), "give keys, or a query"),
        (("ensure", "Search"), "cannot be the name of a tube"),
        (("list", "--on", "n9"), 'there is no node "n9"'),
        (("list", "--schema", "Bad"), "cannot be the schema"),
        (("stats", "--schema", "other"), "trueup tube install n1 --schema other"),
    ):
        ran = cli("tube", *words)
        assert (ran.code, ran.out) == (2, "")
        assert why in ran.err
        assert "what to do" in ran.err
    other = databases(1)[0]
    ran = cli("tube", "list", "--node", f"n2={other.uri}", "--on", "n1")
    assert ran.code == 0
    ran = cli("tube", "list", "--node", f"n2={other.uri}", "--node", f"n3={other.uri}")
    assert "say which one: --on NAME" in ran.err
