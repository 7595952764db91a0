"""A summary is not wider than its evidence: what was not compared is named, and a part is never the whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import trueup
from support.cli import NodeOptions
from support.fixtures import Cli, Databases, OnAll
from trueup.testing.postgres import Database

WHOLE = "all rows were compared and are equal"
TABLES = """
    CREATE TABLE items (id int PRIMARY KEY, name text, note text);
    INSERT INTO items SELECT i, 'item', 'n' FROM generate_series(1, 99) i;
    CREATE TABLE nothing (id int PRIMARY KEY);
"""


@pytest.fixture
def nodes(databases: Databases, on_all: OnAll) -> list[Database]:
    """Two nodes whose tables are equal but for the notes and a row."""
    pair: list[Database] = databases(2)
    on_all(pair, TABLES)
    pair[1].execute("UPDATE items SET note = 'm'; DELETE FROM items WHERE id = 99")
    return pair


def test_what_a_mapping_takes_for_equal_is_not_proven(
    cli: Cli, nodes: list[Database], node_options: NodeOptions, tmp_path: Path
) -> None:
    # The row that n2 lacks, and another note in each row, of which the mappings see nothing.
    nodes[1].execute("INSERT INTO items VALUES (99, 'item', 'm'); UPDATE items SET note = 'N'")
    expressions = "".join(f'nodes.n{number}.expressions.note = "left(note, 0)"\n' for number in (1, 2))
    for text, line in (
        ("rules.note.ignore_case = true", "rule for note: ignore_case"),
        (expressions, "instead of note of n1: left(note, 0)"),
    ):
        mapping = tmp_path / "map.toml"
        mapping.write_text(text)
        for verb in ("diff", "check"):
            ran = cli(verb, "items", *node_options(nodes), "--map", mapping)
            if ran.code == 2:
                # Digests do not know the rule.
                continue
            assert (ran.code, ran.out.startswith("MATCH (of a part): "), f"\n  {line}\n" in ran.out) == (0, True, True)
            assert WHOLE not in ran.out
            history = cli("history").out
            assert ("MATCH (of a part)" in history, "never" in history) == (True, True)
    assert cli("check", "items", *node_options(nodes)).code == 1


def test_a_part_is_named_wherever_it_is_shown(cli: Cli, nodes: list[Database], node_options: NodeOptions) -> None:
    options = [*node_options(nodes), "--filter", "id < 99", "--exclude-columns", "note"]
    cli("certificate", "keygen", "--output", "my.key")
    for verb, equal in (("diff", "it is equal"), ("check", "its digests agree")):
        ran = cli(verb, "items", *options)
        head, rows, columns, *_ = ran.out.splitlines()
        assert (ran.code, head.startswith("MATCH (of a part): "), equal in head) == (0, True, True)
        assert (rows, columns) == ("  only rows with: id < 99", "  columns that were not compared: note")
        assert "nothing to do" not in ran.out
        found = cli(verb, "items", *options, "--json").json
        assert found["extent"] == {"filter": "id < 99", "selected": [], "left_out": ["note"], "weakened": []}
        issued = cli("certificate", "--task", found["task_id"], "--sign", "my.key", "--output", f"{verb}.json")
        assert (issued.code, issued.out.startswith("PROVEN IN PART")) == (2, True)
        verified = cli("certificate", "verify", f"{verb}.json", "--key", "my.key.pub")
        assert (verified.code, verified.out.startswith("VERIFIED IN PART")) == (2, True)
        for shown in (issued.out, verified.out, Path(f"{verb}.html").read_text()):
            assert "id &lt; 99" in shown or "id < 99" in shown
            assert "columns that were not compared: note" in shown
    report = Path(cli("diff", "items", *options, "--output", "html", "--json").json["report"])
    page = report.with_suffix(".html").read_text()
    assert ("MATCH (of a part)" in page, "columns that were not compared: note" in page) == (True, True)
    assert WHOLE not in page
    assert "columns that were not compared: note" in cli("report", report).out
    assert "(of a part)" in cli("history").out
    many = cli("diff", "--schema", "public", *node_options(nodes), "--filter", "id < 99", "--exclude-columns", "note")
    # The table without the column cannot be compared like this.
    assert many.code == 2
    many = cli("diff", "--tables", "items", *options)
    assert (many.code, many.out.startswith("MATCH (of a part): 1 table")) == (0, True)
    assert ("all rows" in many.out, "columns that were not compared: note" in many.out) == (False, True)
    # Columns that are named, and are all that there are, are the whole.
    nodes[1].execute("UPDATE items SET note = 'n'; INSERT INTO items VALUES (99, 'item', 'n')")
    ran = cli("diff", "items", *node_options(nodes), "--columns", "note,name")
    assert WHOLE in ran.out
    trueup.certificate_key("other.key")
    task = json.loads(cli("tasks", "--json").out)[0]["task_id"]
    issued = cli("certificate", "--task", task, "--sign", "other.key", "--output", "whole.json")
    assert (issued.code, issued.out.startswith("PROVEN: ")) == (0, True)
    assert cli("certificate", "verify", "whole.json").code == 2
    assert cli("certificate", "verify", "whole.json", "--key", "my.key.pub").code == 1
    assert cli("certificate", "verify", "whole.json", "--key", "other.key.pub").code == 0


def test_a_comparison_of_no_row(cli: Cli, nodes: list[Database], node_options: NodeOptions) -> None:
    options = node_options(nodes)
    for verb in ("diff", "check"):
        ran = cli(verb, "items", *options, "--filter", "id < 0")
        assert (ran.code, ran.out.startswith("INCOMPLETE")) == (2, True)
        assert "no row was selected on any node" in ran.out
        allowed = cli(verb, "items", *options, "--filter", "id < 0", "--no-require-rows")
        assert (allowed.code, allowed.out.startswith("MATCH of 0 rows (of a part): ")) == (0, True)
        empty = cli(verb, "nothing", *options)
        assert (empty.code, empty.out.startswith("MATCH of 0 rows: "), WHOLE in empty.out) == (0, True, False)
        assert "the table is empty on all nodes" in empty.out
        assert cli(verb, "nothing", *options, "--require-rows").code == 2
        task = json.loads(cli("tasks", "--json", "--limit", 2).out)[1]["task_id"]
        issued = cli("certificate", "--task", task, "--output", f"{verb}.json")
        assert (issued.code, "1 of 1 have no rows" in issued.out.splitlines()[0]) == (0, True), issued
        # A row of one node only is a row.
        assert cli(verb, "items", *options, "--filter", "id = 99").code == 1
    many = cli("check", "--tables", "nothing", *options)
    assert (many.code, many.out.startswith("MATCH of 0 rows: 1 table")) == (0, True)
    assert cli("check", "--tables", "nothing", *options, "--filter", "id < 0").code == 2


def test_the_key_cannot_be_left_out(cli: Cli, databases: Databases, node_options: NodeOptions) -> None:
    """A renamed key: the cure was to leave both columns out, and the verdict MATCH of rows without a key."""
    pair: list[Database] = databases(2)
    for node, key in zip(pair, ("id", "ident"), strict=True):
        node.execute(f"CREATE TABLE items ({key} int PRIMARY KEY, name text)")
        node.execute(f"INSERT INTO items VALUES ({len(key)}, 'x')")
        # Views are compared by value.
        node.execute("CREATE VIEW seen AS SELECT name FROM items")
    for options in ([], ["--exclude-columns", "id"], ["--exclude-columns", "id,ident"]):
        ran = cli("diff", "items", *node_options(pair), *options)
        assert (ran.code, "leave it out" in ran.err) == (2, False), options
    assert "name the other column in [compare.NAME.nodes.NODE.columns]" in cli("diff", "items", *node_options(pair)).err
    # The cure works.
    Path("map.toml").write_text('key = ["id"]\n[nodes.n2.columns]\nid = "ident"\n')
    ran = cli("diff", "items", *node_options(pair), "--map", "map.toml")
    assert (ran.code, ran.out.startswith("DIFFER")) == (1, True)
    # A filter of the mapping is a filter, too.
    Path("map.toml").write_text(Path("map.toml").read_text() + '[nodes.n1]\nfilter = "id < 0"\n')
    ran = cli("diff", "items", *node_options(pair), "--map", "map.toml")
    assert (ran.code, "only rows of n1 with: id < 0" in ran.out) == (1, True)
    queries = [f"n{number}=SELECT name FROM public.items" for number in (1, 2)]
    ran = cli("diff", "seen", *node_options(pair), *(word for query in queries for word in ("--query", query)))
    assert (ran.code, ran.out.startswith("MATCH (of a part)")) == (0, True)
    assert "a query instead of the table on n1" in ran.out
