"""`trueup rerun`, `repair` and `undo` on the command line: stdout, stderr and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

from support.cli import NodeOptions, WriteConfig
from support.fixtures import Cli
from trueup.testing.postgres import Database


def test_from_a_diff_to_a_repair_and_back(
    cli: Cli, drifted: list[Database], node_options: NodeOptions, write_config: WriteConfig
) -> None:
    write_config(drifted)
    task = cli("diff", "items", *node_options(drifted), "--json").json["task_id"][:8]
    rows = drifted[1].execute("SELECT * FROM items ORDER BY 1")
    dry = cli("repair", task, "--source-of-truth", "n1", "--engine", "local")
    assert dry.code == 1
    assert dry.out.startswith("DRY RUN: repair of public.items on n1, n2 (source-of-truth n1): nothing was changed\n")
    assert "\n  n2       2       1       3\n" in dry.out
    assert "    n2  update  id=7  name: 'x' -> 'item 7'\n" in dry.out
    assert "next: run it again with --execute" in dry.out
    assert drifted[1].execute("SELECT * FROM items ORDER BY 1") == rows
    done = cli("repair", task, "--source-of-truth", "n1", "--execute", "--engine", "local", "--undo", "u.gz")
    assert (done.code, done.out.split(":")[0]) == (0, "REPAIRED")
    assert "verified: 0 of these keys differ now" in done.out
    assert cli("rerun", task, "--engine", "local").code == 0
    assert cli("undo", "u.gz").code == 1
    back = cli("undo", "u.gz", "--execute", "--json")
    assert (back.code, back.json["verdict"], back.json["written"]["n2"]["insert"]) == (0, "UNDONE", 3)
    assert drifted[1].execute("SELECT * FROM items ORDER BY 1") == rows
    again = cli("rerun", task, "--engine", "local", "--recheck", "0", "--json")
    assert (again.code, again.json["since"]["n1/n2"]["remains"]) == (1, 6)
    # All runs are in the list of tasks, and each has a report.
    listed = cli("tasks", "--json").json
    kinds = [task["task_type"] for task in listed]
    assert kinds == [*["TABLE_RERUN", "TABLE_UNDO", "TABLE_UNDO", "TABLE_RERUN"], *["TABLE_REPAIR"] * 2, "TABLE_DIFF"]
    for each in listed:
        assert cli("report", each["task_id"]).code == 0
    repaired = Path(cli("report", listed[4]["task_id"], "--output", "html").out.strip())
    assert '<header class="plain">' in repaired.read_text(encoding="utf-8")
    page = Path(cli("report", listed[0]["task_id"], "--output", "html").out.strip())
    assert "keys of the earlier report differ" in page.read_text(encoding="utf-8")


def test_a_failure_is_exit_code_2_also_when_quiet(cli: Cli, drifted: list[Database], node_options: NodeOptions) -> None:
    report = cli("diff", "items", *node_options(drifted), "--json").json["report"]
    drifted[1].execute("ALTER TABLE items ADD CHECK (id <> 1)")
    addresses, how = node_options(drifted)[6:], ["--engine", "local", "--recheck", "0"]
    failed = cli("repair", report, "--source-of-truth", "n1", "--execute", "--quiet", *how, *addresses)
    assert (failed.code, failed.out) == (2, "")
    assert "items_id_check" in failed.err
    failed = cli("repair", report, "--source-of-truth", "n1", "--execute", "--json", *how, *addresses)
    assert (failed.code, failed.json["verdict"], list(failed.json["failed"])) == (2, "FAILED", ["n2"])


def test_plans_are_written_without_a_connection(cli: Cli, drifted: list[Database], node_options: NodeOptions) -> None:
    report = cli("diff", "items", *node_options(drifted), "--json").json["report"]
    made = cli("repair", report, "--write-plan", "plan.yaml")
    assert (made.code, made.out) == (0, "plan.yaml\n")
    plan = Path("plan.yaml")
    assert plan.stat().st_mode & 0o777 == 0o600
    plan.write_text(plan.read_text(encoding="utf-8").replace("# default:", "default:"), encoding="utf-8")
    done = cli(
        "repair", report, "--plan", "plan.yaml", "--execute", "--json", "--engine", "local", *node_options(drifted)[6:]
    )
    assert done.json["verdict"] == "REPAIRED"


def test_errors_have_a_cure(cli: Cli, drifted: list[Database], node_options: NodeOptions) -> None:
    report = cli("diff", "items", *node_options(drifted), "--json").json["report"]
    Path("plan.txt").write_text("no report")
    for arguments, message in [
        (("repair", report), "no repair mode is given"),
        (("repair", "nothing.json", "--fix-nulls"), "cannot read the report"),
        (("repair", "feed", "--fix-nulls"), "does not exist"),
        (("repair", report, "--fix-nulls"), "n1"),
        (("repair", report, "--plan", "none.yaml"), "cannot read the plan"),
        (("rerun", report + ".html"), "cannot read the report"),
        (("rerun", "plan.txt"), "cannot read the report plan.txt"),
        (("undo", "none.gz"), "cannot read the undo file"),
        (("undo", report), "cannot read the undo file"),
    ]:
        ran = cli(*arguments)
        assert (ran.code, ran.out) == (2, ""), arguments
        assert message in ran.err
        assert "what to do" in ran.err
    assert json.loads(Path(report).read_text(encoding="utf-8"))["summary"]["verdict"] == "DIFFER"
