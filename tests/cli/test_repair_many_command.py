"""`trueup repair` and `trueup undo` of a run over many tables on the command line."""

from __future__ import annotations

from pathlib import Path

from support import zoo
from support.cli import NodeOptions, WriteConfig
from support.fixtures import Cli, Databases


def test_from_a_diff_of_many_tables_to_a_repair_and_back(
    cli: Cli, databases: Databases, node_options: NodeOptions, write_config: WriteConfig
) -> None:
    pair = databases(2)
    zoo.create(pair)
    write_config(pair)
    before = [zoo.rows(node) for node in pair]
    tables = ["--schema", "public,far", "--exclude-tables", "public.outside", "--engine", "local", "--recheck", "0"]
    differ = cli("diff", *tables, *node_options(pair))
    assert differ.code == 1
    task = differ.out.split("next: trueup repair ")[1].split()[0]
    options = ["--source-of-truth", "n1", "--engine", "local", "--recheck", "0"]
    dry = cli("repair", task, *options)
    assert dry.code == 1
    assert dry.out.startswith("DRY RUN: repair of 7 tables on n1, n2 (source-of-truth n1): nothing was changed\n")
    assert "\n  public.hens" in dry.out
    assert "next: run it again with --execute" in dry.out
    done = cli("repair", task, *options, "--execute", "--json")
    assert (done.code, done.json["verdict"], len(done.json["tables"])) == (0, "REPAIRED", 7)
    assert zoo.rows(pair[1]) == before[0]
    assert cli("rerun", task, "--engine", "local", "--recheck", "0").code == 0
    undo = cli("undo", done.json["undo"], "--execute")
    assert undo.out.startswith("UNDONE: undo of 7 tables on n1, n2 (repair ")
    assert [zoo.rows(node) for node in pair] == before
    shown = cli("tasks", "show", done.json["task_id"][:8])
    assert (shown.code, "TABLES_REPAIR" in shown.out) == (0, True)
    assert cli("report", done.json["task_id"][:8], "--output", "html", "--to", "page.html").code == 0
    assert "REPAIRED" in Path("page.html").read_text()
