"""`trueup history` and `trueup tasks prune`, after diffs of real nodes."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from support.cli import NodeOptions
from support.fixtures import Cli, Databases, OnAll
from trueup.report.history import sparkline
from trueup.store import COMPLETED, TaskStore
from trueup.testing.postgres import Database


def test_verdicts_over_time(cli: Cli, databases: Databases, on_all: OnAll, node_options: NodeOptions) -> None:
    nodes: list[Database] = databases(2)
    on_all(nodes, "CREATE TABLE items (id int PRIMARY KEY); INSERT INTO items SELECT generate_series(1, 9)")
    assert cli("history").err.startswith("no table was compared yet")
    assert cli("diff", "items", *node_options(nodes)).code == 0
    nodes[1].execute("DELETE FROM items WHERE id < 3")
    assert cli("diff", "items", *node_options(nodes)).code == 1
    assert cli("check", "items", *node_options(nodes)).code == 1

    (state,) = cli("history", "--json").json
    assert (state["run"]["verdict"], state["runs"], bool(state["matched_at"])) == ("DIFFER", 3, True)
    check, differ, match = cli("history", "ITEMS", "--json").json
    assert [each["verdict"] for each in (match, differ, check)] == ["MATCH", "DIFFER", "DIFFER"]
    assert (match["differences"], differ["differences"], match["mode"]) == (0, 2, "diff")
    assert differ["kinds"]["n1/n2"]["missing"] == 2
    assert set(differ["positions"]) == {"n1", "n2"}
    assert differ["rows"] == 9
    text = cli("history", "public.items", "--limit", 2)
    assert "DIFFER" in text.out
    assert "2 of 3 runs are shown" in text.err
    assert "▁█?" in cli("history").out
    assert cli("history", "nothing").code == 2

    reports = sorted(Path().glob("*_diffs-*.json"))
    assert len(reports) == 2

    assert cli("tasks", "prune", "--older-than", "soon").code == 2
    assert cli("tasks", "prune", "--older-than", "1d").out.startswith("deleted 0 tasks")
    assert sorted(Path().glob("*_diffs-*.json")) == reports


def test_a_name_with_control_characters_does_not_reach_the_terminal(cli: Cli) -> None:
    with TaskStore() as store:
        task = store.start("TABLE_DIFF", schema="public", table="a\x1b[2J\nb", context={"nodes": "n1,n2"})
        store.finish(task.task_id, COMPLETED, summary={"verdict": "MATCH", "nodes": ["n1", "n2"]})
    out = cli("history").out
    assert "\x1b" not in out
    assert len(out.splitlines()) == 2


@given(st.lists(st.none() | st.integers(0, 10**12)))
def test_only_zero_has_the_lowest_bar(values: list[int | None]) -> None:
    line = sparkline(values)
    assert len(line) == len(values)
    assert [char == "▁" for char in line] == [value == 0 for value in values]
    assert [char == "?" for char in line] == [value is None for value in values]
