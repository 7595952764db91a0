"""`trueup tasks`, `trueup tasks show` and `trueup report` list finished, failed and killed tasks."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.cli import NodeOptions
from support.fixtures import Cli
from trueup.store import TaskStore
from trueup.testing.postgres import Database
from trueup.testing.processes import wait_until

# The three documented analytics queries.
RECENT = """
SELECT task_id, task_status, started_at, finished_at, time_taken, diff_file_path
FROM ace_tasks
WHERE task_type = 'TABLE_DIFF'
ORDER BY started_at DESC
LIMIT 20;
"""
COUNTS = """
SELECT task_status, COUNT(*)
FROM ace_tasks
WHERE task_type = 'TABLE_DIFF'
  AND started_at >= datetime('now','-7 day')
GROUP BY task_status;
"""
DRIFT = """
SELECT
  task_id,
  json_extract(task_context, '$.diff_summary.total_rows_checked')   AS rows_checked,
  json_extract(task_context, '$.diff_summary.mismatched_ranges_count') AS mismatched_ranges,
  json_extract(task_context, '$.diff_summary.diff_row_limit_reached')  AS limit_hit
FROM ace_tasks
WHERE task_type = 'TABLE_DIFF'
ORDER BY started_at DESC
LIMIT 20;
"""


@pytest.fixture
def ran(cli: Cli, node_options: NodeOptions, drifted: list[Database]) -> dict[str, Any]:
    """Run a diff that differs, an incomplete one, a failed one, and a check; return their results."""
    nodes = node_options(drifted)
    return {
        "differ": cli("diff", "items", *nodes, "--json").json,
        "cut": cli("diff", "items", *nodes, "--max-diff-rows", 2, "--json").json,
        "failed": cli("diff", "itmes", *nodes),
        "check": cli("check", "items", *nodes, "--json").json,
    }


def query(path: Path, text: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(text).fetchall()
    finally:
        connection.close()


def test_the_list_is_a_table_newest_first(cli: Cli, ran: dict[str, Any]) -> None:
    found = cli("tasks")
    assert (found.code, found.err) == (0, "")
    head, *lines = found.out.splitlines()
    assert head.split() == ["ID", "STARTED", "(UTC)", "TYPE", "STATUS", "VERDICT", "TIME", "TABLE", "NODES"]
    at = {name: head.index(name) for name in ("TYPE", "STATUS", "VERDICT", "TABLE", "NODES")}
    shown = [{name: line[start:].split("  ")[0].strip() for name, start in at.items()} for line in lines]
    assert [(row["TYPE"], row["STATUS"], row["VERDICT"]) for row in shown] == [
        ("TABLE_CHECK", "COMPLETED", "DIFFER"),
        ("TABLE_DIFF", "FAILED", "-"),
        ("TABLE_DIFF", "FAILED", "INCOMPLETE"),
        ("TABLE_DIFF", "COMPLETED", "DIFFER"),
    ]
    assert {(row["TABLE"], row["NODES"]) for row in shown} == {("public.items", "n1,n2"), ("public.itmes", "n1,n2")}
    assert lines[-1].startswith(ran["differ"]["task_id"][:8] + "  ")


def test_the_list_as_json_and_its_limit(cli: Cli, ran: dict[str, Any]) -> None:
    found = cli("tasks", "--json").json
    assert len(found) == 4
    assert found[0]["task_id"] == ran["check"]["task_id"]
    cut = cli("tasks", "--limit", 1, "--json")
    assert [task["task_id"] for task in cut.json] == [ran["check"]["task_id"]]
    assert "only 1 tasks are shown; use --limit 0 for all" in cut.err
    assert "are shown" not in cli("tasks", "--limit", 4).err
    assert len(cli("tasks", "--limit", 0, "--json").json) == 4
    assert cli("tasks", "--limit", -1).code == 2


def test_no_tasks_yet(cli: Cli, tmp_path: Path) -> None:
    found = cli("tasks")
    assert (found.code, found.out) == (0, "")
    assert str(tmp_path / "tasks.db") in found.err
    assert cli("tasks", "--json").json == []


def test_show(cli: Cli, ran: dict[str, Any]) -> None:
    task_id = ran["differ"]["task_id"]
    found = cli("tasks", "show", task_id[:8])
    assert (found.code, found.err) == (0, "")
    lines = dict(line.strip().split(None, 1) for line in found.out.splitlines() if len(line.split()) > 1)
    assert (lines["task"], lines["status"], lines["verdict"]) == (task_id, "COMPLETED", "DIFFER")
    assert lines["report"] == ran["differ"]["report"]
    assert (lines["total_rows_checked"], lines["diff_rows_count"]) == ("53", "n1/n2: 6")
    whole = cli("tasks", "show", task_id, "--json").json
    assert whole["task_context"]["diff_summary"]["verdict"] == "DIFFER"
    assert whole["task_context"]["nodes"] == "n1,n2"


def test_show_of_a_failure_has_the_reason(cli: Cli, ran: dict[str, Any]) -> None:
    failed = cli("tasks", "--json").json[1]["task_id"]
    found = cli("tasks", "show", failed).out
    assert "there is no table public.itmes" in found
    cut = cli("tasks", "show", ran["cut"]["task_id"]).out
    assert "more than 2 differences" in cut


def test_unknown_and_ambiguous_ids(cli: Cli, ran: dict[str, Any]) -> None:
    for arguments in (("tasks", "show", "zzz"), ("report", "zzz"), ("tasks", "show", "")):
        found = cli(*arguments)
        assert (found.code, found.out) == (2, "")
        assert "does not exist" in found.err
        assert "what to do: " in found.err
    with TaskStore() as store:
        ids = [task.task_id for task in store.list(limit=-1)]
        while len({each[0] for each in ids}) == len(ids):
            ids.append(store.start("TABLE_DIFF", context={}).task_id)
    twice = next(each[0] for each in ids if sum(other[0] == each[0] for other in ids) > 1)
    found = cli("tasks", "show", twice)
    assert found.code == 2
    assert "use a longer prefix" in found.err


def test_report_as_text(cli: Cli, ran: dict[str, Any]) -> None:
    found = cli("report", ran["differ"]["task_id"][:10])
    assert (found.code, found.err) == (0, "")
    lines = [line.split() for line in found.out.splitlines()]
    assert found.out.startswith("DIFFER: public.items on n1, n2")
    assert ["n1/n2", "2", "3", "1", "0"] in lines
    assert {tuple(line[:2]) for line in lines if line and line[0] in ("missing", "extra", "changed")} >= {
        ("missing", "id=1"), ("missing", "id=2"), ("extra", "id=-1"), ("extra", "id=-3"), ("changed", "id=7"),
    }  # fmt: skip
    assert "name: 'item 7' -> 'x'" in found.out
    assert "not compared: " in cli("report", ran["cut"]["task_id"]).out


def test_report_as_json_is_the_file(cli: Cli, ran: dict[str, Any], tmp_path: Path) -> None:
    path = Path(ran["differ"]["report"])
    written = json.loads(path.read_text(encoding="utf-8"))
    assert cli("report", ran["differ"]["task_id"], "--output", "json").json == written
    assert cli("report", path, "--output", "json").json == written
    copy = tmp_path / "copy.txt"
    found = cli("report", path, "--output", "json", "--to", copy)
    assert (found.out.strip(), json.loads(copy.read_text(encoding="utf-8"))) == (str(copy), written)
    assert oct(copy.stat().st_mode)[-3:] == "600"


def test_report_as_html(
    cli: Cli, ran: dict[str, Any], drifted: list[Database], node_options: NodeOptions, tmp_path: Path
) -> None:
    drifted[0].execute("UPDATE items SET name = '<script>alert(1)</script>' WHERE id = 7")
    task_id = cli("diff", "items", *node_options(drifted), "--json").json["task_id"]
    found = cli("report", task_id, "--output", "html")
    page = Path(found.out.strip())
    assert (page.suffix, oct(page.stat().st_mode)[-3:]) == (".html", "600")
    text = page.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "\\u003cscript\\u003ealert(1)" in text
    own = cli("report", task_id, "--output", "html", "--to", tmp_path / "own.html")
    assert (tmp_path / "own.html").read_text(encoding="utf-8") == text
    assert own.out.strip() == str(tmp_path / "own.html")


def test_report_of_a_damaged_report(cli: Cli, ran: dict[str, Any], tmp_path: Path) -> None:
    """A report without any of its parts is displayed or refused; there is no traceback and no partial page."""
    whole = json.loads(Path(ran["differ"]["report"]).read_text(encoding="utf-8"))
    path = tmp_path / "part.json"
    (first, *_) = (pair := whole["diffs"]["n1/n2"])["differences"]
    for inside in (whole, whole["summary"], pair, first):
        for name in list(inside):
            kept = inside.pop(name)
            for output, damage in (("text", {}), ("html", {}), ("html", {name: {"nothing": None}})):
                inside.update(damage)
                path.write_text(json.dumps(whole), encoding="utf-8")
                found = cli("report", path, "--output", output)
                assert "unexpected" not in found.err, (name, output, damage)
                assert found.code == 0 or f"cannot read the report {path}" in found.err
                assert bool(found.code) != path.with_suffix(".html").exists() or output == "text"
                path.with_suffix(".html").unlink(missing_ok=True)
            inside[name] = kept


def test_report_of_a_check(cli: Cli, ran: dict[str, Any], tmp_path: Path) -> None:
    task_id = ran["check"]["task_id"]
    assert "verdict   DIFFER" in cli("report", task_id).out
    assert cli("report", task_id, "--output", "json").json["task_context"]["diff_summary"]["verdict"] == "DIFFER"
    page = Path(cli("report", task_id, "--output", "html").out.strip())
    assert page == tmp_path / f"table_check-{task_id[:8]}.html"
    text = page.read_text(encoding="utf-8")
    assert "≠ DIFFER" in text
    assert "public.items" in text


def test_report_of_a_version_log(cli: Cli, tmp_path: Path) -> None:
    proof = {"verdict": "INCOMPLETE", "keys": 7, "standing_twice": 1, "incomplete": ["there is no state yet"]}
    proof["examples"] = [{"key": {"id": 3}, "problem": "twice", "standing": [[1, 2]], "columns": []}]
    with TaskStore() as store:
        task = store.start("DIFFLOG_PROVE", table="visits", context={"work": "/log"})
        store.finish(task.task_id, "COMPLETED", summary=proof)
        waiting = store.start("DIFFLOG_RUN", table="visits", context={"work": "/log"})
    text = Path(cli("report", task.task_id, "--output", "html").out.strip()).read_text(encoding="utf-8")
    assert "⚠ INCOMPLETE" in text
    assert "there is no state yet" in text
    assert "id: 3" in text
    assert "there is no state yet" in cli("report", task.task_id).out
    found = cli("report", waiting.task_id, "--output", "html")
    assert found.code == 2
    assert f"trueup tasks show {waiting.task_id[:8]}" in found.err


def test_a_missing_report(cli: Cli, ran: dict[str, Any], tmp_path: Path) -> None:
    failed = cli("tasks", "--json").json[1]["task_id"]
    assert f"trueup tasks show {failed[:8]}" in cli("report", failed).err
    Path(ran["differ"]["report"]).unlink()
    found = cli("report", ran["differ"]["task_id"])
    assert found.code == 2
    assert ran["differ"]["report"] in found.err
    path = tmp_path / "damaged.json"
    for text in ("{", "[]", "{}", '{"summary": {}, "diffs": {}}', "not JSON", "[" * 100_000):
        path.write_text(text, encoding="utf-8")
        for output in ("text", "html"):
            found = cli("report", path, "--output", output)
            assert (found.code, found.out) == (2, "")
            assert f"cannot read the report {path}" in found.err
    assert not path.with_suffix(".html").exists()
    found = cli("report", ran["cut"]["task_id"], "--to", tmp_path / "nowhere" / "file")
    assert found.code == 2
    assert "create the folder" in found.err


def test_a_killed_process_is_listed_as_failed(
    cli: Cli, node_options: NodeOptions, equal: list[Database], tmp_path: Path
) -> None:
    slow = (
        "--filter",
        "pg_sleep(0.05) IS NOT NULL",
        "--allow-functions=pg_sleep",
        "--task-db",
        str(tmp_path / "tasks.db"),
    )
    command = [sys.executable, "-m", "trueup", "diff", "items", *node_options(equal), *slow]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert wait_until(lambda: _statuses(cli) == ["RUNNING"], 60)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    assert _statuses(cli) == ["FAILED"]
    (task,) = cli("tasks", "--json").json
    found = cli("tasks", "show", task["task_id"])
    assert f"process {child.pid} ended without finishing the task" in found.out
    # A query with sqlite3 returns the same.
    assert query(tmp_path / "tasks.db", "SELECT task_status FROM ace_tasks") == [("FAILED",)]


def _statuses(cli: Cli) -> list[str]:
    return [task["task_status"] for task in cli("tasks", "--json").json]


def test_the_documented_queries_return_correct_results(cli: Cli, ran: dict[str, Any], tmp_path: Path) -> None:
    store = tmp_path / "tasks.db"
    listed = [task for task in cli("tasks", "--json").json if task["task_type"] == "TABLE_DIFF"]
    recent = query(store, RECENT)
    assert [row[0] for row in recent] == [task["task_id"] for task in listed]
    assert [row[1] for row in recent] == ["FAILED", "FAILED", "COMPLETED"]
    assert [row[5] for row in recent] == ["", ran["cut"]["report"], ran["differ"]["report"]]
    assert all(row[2] <= row[3] and row[4] >= 0 for row in recent)
    assert dict(query(store, COUNTS)) == {"FAILED": 2, "COMPLETED": 1}
    drift = {row[0]: row[1:] for row in query(store, DRIFT)}
    assert drift[ran["differ"]["task_id"]] == (53, ran["differ"]["mismatched_blocks"], 0)
    assert drift[ran["cut"]["task_id"]][2] == 1
    assert drift[listed[0]["task_id"]] == (None, None, None)
