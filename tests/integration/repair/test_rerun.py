"""A rerun compares only the keys of a report, and counts resolved, remaining and new differences."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import trueup
from support.repair import NodesWith
from trueup.errors import ConfigError, StoreError
from trueup.report.json_reader import open_report
from trueup.report.page import page_of_diff
from trueup.report.repair import repair_text
from trueup.report.text import report_text, summary
from trueup.task.compare.rerun import ListedKeys
from trueup.task.job import Job

TABLE = "CREATE TABLE items (k uuid, t timestamptz, v text, PRIMARY KEY (k, t))"
FILL = """
INSERT INTO items SELECT md5(i::text)::uuid, '2026-01-01'::timestamptz + i * interval '1 us', 'v'
  FROM generate_series(1, 40) i
"""


def key(number: int) -> str:
    return f"k = md5('{number}')::uuid"


def test_a_rerun_reports_resolved_remaining_and_new_keys(nodes_with: NodesWith) -> None:
    nodes = nodes_with(TABLE, FILL, FILL, FILL)
    nodes[2].execute(
        f"UPDATE items SET v = 'x' WHERE {key(1)} OR {key(2)}; DELETE FROM items WHERE {key(3)} OR {key(4)}"
    )
    report = nodes.diff()
    # Resolved: a fixed row, and one that is deleted on all nodes. New: a third node differs. Not compared: key 9.
    nodes[2].execute(f"UPDATE items SET v = 'v' WHERE {key(1)}; UPDATE items SET v = 'y' WHERE {key(2)} OR {key(9)}")
    for number in (1, 3):
        nodes[number].execute(f"DELETE FROM items WHERE {key(3)}")
    nodes[3].execute(f"UPDATE items SET v = 'z' WHERE {key(4)}")
    again = nodes.rerun(report)
    assert (again.verdict, again.exit_code, again.mode, again.rows_checked) == ("DIFFER", 1, "rerun", 4)
    assert again.since["n1/n2"] == {"resolved": 2, "remains": 2, "new": 0}
    assert again.since["n1/n3"] == {"resolved": 0, "remains": 0, "new": 1}
    written = json.loads(Path(again.report).read_text(encoding="utf-8"))
    assert len(written["diffs"]["n1/n2"]["resolved_keys"]) == 2
    assert [difference["since"] for difference in written["diffs"]["n1/n3"]["differences"]] == ["new"]
    assert "2 resolved, 2 remain, 0 new" in summary(again)
    assert report_text(open_report(Path(again.report))).splitlines()[1].startswith(f"  4 keys of {report.report}")
    # The report of a rerun can be rerun and repaired.
    assert nodes.rerun(again).since["n1/n2"] == {"resolved": 0, "remains": 2, "new": 0}
    assert nodes.repair(again, source_of_truth="n1", execute=True).verdict == "REPAIRED"
    done = nodes.rerun(again.task_id[:8])
    assert (done.verdict, done.exit_code) == ("RESOLVED", 0)
    page = page_of_diff(json.loads(Path(done.report).read_text(encoding="utf-8")), {}, done.report)
    # It proves nothing about the table, so it is not green.
    assert page.tone == "plain"
    assert nodes.diff().verdict == "DIFFER"


def test_rows_without_a_key_are_counted_again(nodes_with: NodesWith) -> None:
    nodes = nodes_with("CREATE TABLE items (v text)", "INSERT INTO items VALUES ('a'), ('a'), ('b')", "")
    report = nodes.diff()
    nodes[2].execute("INSERT INTO items VALUES ('a'), ('b')")
    again = nodes.rerun(report)
    assert (again.verdict, again.pairs["n1/n2"].missing) == ("DIFFER", 1)
    assert again.since["n1/n2"] == {"resolved": 1, "remains": 1, "new": 0}
    nodes[2].execute("INSERT INTO items VALUES ('a')")
    assert nodes.rerun(report).verdict == "RESOLVED"


def test_keys_that_cannot_be_compared_are_not_resolved(nodes_with: NodesWith, monkeypatch: pytest.MonkeyPatch) -> None:
    from trueup.errors import QueryError
    from trueup.task.compare import rerun

    nodes = nodes_with(TABLE, FILL, "")
    report = nodes.diff()
    look = rerun.rows_if_equal

    def broken(job: Job, task: ListedKeys) -> int | None:
        if len(task.keys) < 15:
            raise QueryError("no luck", node="n2")
        return look(job, task)

    with monkeypatch.context() as patched:
        patched.setattr(rerun, "KEYS_PER_TASK", 15)
        patched.setattr(rerun, "rows_if_equal", broken)
        again = nodes.rerun(report)
    assert (again.verdict, again.exit_code) == ("INCOMPLETE", 2)
    assert again.since["n1/n2"] == {"resolved": 0, "remains": 30, "new": 0}
    assert again.incomplete == ("node n2: no luck",)
    with trueup.TaskStore() as store:
        assert store.get(again.task_id).task_status == "FAILED"
    # The keys of an incomplete report can be compared, and never are all keys.
    nodes[2].execute(FILL)
    more = nodes.rerun(again)
    assert (more.verdict, more.rows_checked, more.since["n1/n2"]["resolved"]) == ("INCOMPLETE", 30, 30)
    assert more.incomplete == ("the earlier report may not list all differences, run a new diff: node n2: no luck",)


def test_what_a_report_does_not_list_is_not_repaired(nodes_with: NodesWith) -> None:
    """A diff that was cut by its limit, and one that met keys that are not unique."""
    limited = nodes_with(TABLE, FILL, FILL)
    limited[2].execute("UPDATE items SET v = 'x'")
    twice = nodes_with(
        "CREATE TABLE items (id int NOT NULL, v text)",
        "INSERT INTO items SELECT i, 'v' FROM generate_series(1, 3000) i",
        "INSERT INTO items SELECT i, CASE WHEN i < 4 THEN 'x' ELSE 'v' END FROM generate_series(1, 2998) i;"
        "INSERT INTO items VALUES (2990, 'v')",
    )
    reports = (
        (limited, limited.diff(max_diff_rows=10), "differences; those beyond the limit are not listed"),
        (twice, twice.diff(key=["id"], block_size=1000, compare_unit_size=500), "not unique"),
    )
    for nodes, report, reason in reports:
        assert report.verdict == "INCOMPLETE"
        dry = nodes.repair(report, source_of_truth="n1")
        assert (dry.verdict, dry.exit_code, reason in dry.unlisted) == ("DRY RUN", 2, True)
        done = nodes.repair(report, source_of_truth="n1", execute=True)
        assert (done.verdict, done.exit_code, done.remaining) == ("INCOMPLETE", 2, 0)
        assert reason in done.unlisted
        assert f"not repaired: {done.unlisted}" in repair_text(done)
        assert "nothing to do" not in repair_text(done)
        with trueup.TaskStore() as store:
            assert store.get(done.task_id).task_status == "FAILED"
        again = nodes.rerun(report)
        assert (again.verdict, again.exit_code) == ("INCOMPLETE", 2)
        assert again.incomplete == (done.unlisted,)


def test_reports_that_cannot_be_used(nodes_with: NodesWith) -> None:
    nodes = nodes_with(TABLE, FILL, "")
    report = nodes.diff()
    text = Path(report.report).read_text(encoding="utf-8")
    for name, damaged in (("cut", text[:-20]), ("cut_line", text[: text.index('"n2": null')]), ("no", "{}")):
        Path(f"{name}.json").write_text(damaged, encoding="utf-8")
        with pytest.raises(StoreError, match="cannot read the report"):
            nodes.rerun(f"{name}.json")
    # Reformatted by another program, but complete.
    Path("indented.json").write_text(json.dumps(json.loads(text), indent=3), encoding="utf-8")
    assert nodes.rerun("indented.json").since == nodes.rerun(report).since
    checked = trueup.check("items", nodes=nodes.addresses, engine="local", recheck=0)
    with pytest.raises(ConfigError, match="has no report of rows"):
        nodes.rerun(checked.task_id)
    nodes[1].execute("ALTER TABLE items DROP COLUMN v")
    with pytest.raises(trueup.CheckFailed, match="column v"):
        nodes.rerun(report)
