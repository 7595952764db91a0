"""`trueup diff` and `trueup check` of many tables on the command line."""

from __future__ import annotations

from pathlib import Path

from support.cli import NodeOptions
from support.fixtures import Cli
from trueup.testing.postgres import Database


def test_one_summary_table_and_one_exit_code(
    drifted: list[Database], node_options: NodeOptions, cli: Cli, tmp_path: Path
) -> None:
    for node in drifted:
        node.execute("CREATE TABLE same (id int PRIMARY KEY); CREATE TABLE tmp_x (id int); INSERT INTO same VALUES (1)")
    drifted[0].execute("CREATE TABLE only_here (id int)")
    skip = tmp_path / "skip.txt"
    skip.write_text("# not these\npublic.tmp_*\n\n")
    ran = cli("diff", "--schema", "public", "--exclude-tables-file", skip, *node_options(drifted))
    assert ran.code == 1
    lines = [line.split() for line in ran.out.splitlines()]
    assert ran.out.splitlines()[0] == "DIFFER: 3 tables on n1, n2: the nodes differ"
    assert ["public.items", "DIFFER", "53", "6"] in [line[:4] for line in lines]
    assert ["public.only_here", "DIFFER", "-", "-", "-", "missing", "on", "n2"] in lines
    assert ["public.same", "MATCH", "1", "0"] in [line[:4] for line in lines]
    assert "  excluded: public.tmp_x" in ran.out.splitlines()
    ran = cli("check", "--tables", "public.same,public.tmp_x", *node_options(drifted), "--json")
    assert (ran.code, ran.json["verdict"], len(ran.json["tables"])) == (0, "MATCH", 2)
    # The same table, from the store.
    shown = cli("report", ran.json["task_id"])
    assert "MATCH: 2 tables on n1, n2: the digests of all rows of these tables agree" in shown.out
    page = cli("report", ran.json["task_id"], "--output", "html", "--to", tmp_path / "many.html")
    assert (page.code, "public.same" in (tmp_path / "many.html").read_text()) == (0, True)
    # A table that cannot be compared decides the exit code.
    drifted[0].execute("ALTER TABLE same ADD more int")
    ran = cli("check", "--schema", "public", *node_options(drifted))
    assert ran.code == 2
    assert ran.out.startswith("INCOMPLETE: 4 tables on n1, n2")
    assert "column more of public.same is not on n2" in ran.out


def test_contradictory_options_are_refused(
    equal: list[Database], node_options: NodeOptions, cli: Cli, tmp_path: Path
) -> None:
    for wrong in (["items", "--schema", "public"], ["--schema", "public", "--resume", "3f"], []):
        ran = cli("diff", *wrong, *node_options(equal))
        assert ran.code == 2
        assert "expected exactly one of: a table, --schema or --tables, --resume TASK" in ran.err
    ran = cli("diff", "items", "--exclude-tables", "x", *node_options(equal))
    assert (ran.code, "--exclude-tables needs --schema" in ran.err) == (2, True)
    ran = cli("diff", "--schema", "public", "--exclude-tables-file", tmp_path / "none", *node_options(equal))
    assert (ran.code, "No such file" in ran.err) == (2, True)
