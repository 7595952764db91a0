"""The HTML report as a file: complete, private, self-contained, with escaped values and a note about omitted rows."""

from __future__ import annotations

import json
import re
import stat
import tracemalloc
from collections import Counter, deque
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from support.browser import MakeReport, WritePage
from trueup.report import html
from trueup.report.json_file import PairReport, write_report
from trueup.report.json_reader import open_report
from trueup.report.page import page_of_diff, page_of_task
from trueup.report.text import report_text

NASTY = [
    '</script><img src=x onerror="window.hacked=1">',
    "<!--<script> <!--<script x",
    "</script x <b>",
    "\"double\" 'single' &amp; & \\ \\u003c",
    "a\u202egnp.exe",
    "nul-like \x01 \x7f \u2028",
    "lone \ud800 half",
    "{{ 7 * 7 }} {% if %}",
]


class Read(HTMLParser):
    """The elements of a page with their attributes, and the texts of its scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.elements[-1:] and self.elements[-1][0] == "script":
            self.scripts.append(data)


def read(path: Path) -> Read:
    found = Read()
    found.feed(path.read_text(encoding="utf-8"))
    return found


def data_of(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="differences">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


def rows(count: int) -> list[tuple[dict[str, str], dict[str, str]]]:
    return [
        ({"id": str(at), "name": f"item {at}", "note": "n"}, {"id": str(at), "name": f"other {at}", "note": "n"})
        for at in range(count)
    ]


def test_the_file_is_private_and_self_contained(make_report: MakeReport, write_page: WritePage) -> None:
    path = write_page(make_report(rows(3)))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text(encoding="utf-8")
    assert "://" not in text
    elements = read(path).elements
    assert not [tag for tag, _ in elements if tag in ("link", "img", "iframe", "object", "base", "form")]
    assert not [
        name for _, given in elements for name in given if name.startswith("on") or name in ("src", "href", "style")
    ]
    (policy,) = [given["content"] for _, given in elements if given.get("http-equiv") == "Content-Security-Policy"]
    assert policy
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


def test_values_are_embedded_unchanged(make_report: MakeReport, write_page: WritePage) -> None:
    pairs = [({"id": text, "name": text, "note": None}, {"id": text, "name": "", "note": text}) for text in NASTY]
    path = write_page(make_report(pairs))
    (pair,) = data_of(path)["pairs"]
    assert [difference["key"] for difference in pair["differences"]] == [[text] for text in NASTY]
    assert [difference["rows"] for difference in pair["differences"]] == [[[t, t, None], [t, "", t]] for t in NASTY]
    assert [difference["columns"] for difference in pair["differences"]] == [[1, 2]] * len(NASTY)
    # For a browser, the values create no element.
    assert [tag for tag, _ in read(path).elements if tag in ("img", "script")] == ["script", "script"]


@pytest.mark.parametrize("nasty", NASTY)
def test_names_and_reasons_are_escaped(make_report: MakeReport, write_page: WritePage, nasty: str) -> None:
    report = make_report(
        rows(1), columns=("id", "name", "note"), nodes=("n1", nasty), verdict="INCOMPLETE", incomplete=[nasty]
    )
    report["summary"].update(table=nasty, table_filter=nasty)
    report["remarks"] = [nasty]
    path = write_page(report)
    found = read(path)
    assert [tag for tag, _ in found.elements if tag in ("img", "script")] == ["script", "script"]
    # Characters that reverse or hide text are displayed as code points.
    outside = re.sub(r"<script.*?</script>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert all(each.isprintable() or each == "\n" for each in outside)


def test_omitted_rows_are_reported(
    make_report: MakeReport, write_page: WritePage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html, "MAX_ROWS", 5)
    (pair,) = data_of(write_page(make_report(rows(5))))["pairs"]
    assert (len(pair["differences"]), pair["listed"]) == (5, {"changed": 5})
    (pair,) = data_of(write_page(make_report(rows(6))))["pairs"]
    assert (len(pair["differences"]), pair["listed"], pair["changed"]) == (5, {"changed": 6}, 6)


@pytest.mark.parametrize("length", [1, 3000])
def test_some_differences_of_each_kind_are_on_the_page(
    make_report: MakeReport, write_page: WritePage, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """Those of one kind come first in the report, and are more or larger than the page can have."""
    monkeypatch.setattr(html, "MAX_ROWS", 30)
    monkeypatch.setattr(html, "MAX_BYTES", 30_000)
    changed = [({**left, "note": "x" * length}, right) for left, right in rows(100)]
    missing = [({"id": f"m{at}", "name": "n", "note": "y" * length}, None) for at in range(100)]
    extra = [(None, {"id": "e", "name": "n", "note": ""})]
    (pair,) = data_of(write_page(make_report([*changed, *missing, *extra])))["pairs"]
    assert (pair["changed"], pair["missing"], pair["extra"]) == (100, 100, 1)
    assert pair["listed"] == {"changed": 100, "missing": 100, "extra": 1}
    shown = Counter(difference["kind"] for difference in pair["differences"])
    few = {"changed": 3, "missing": 3, "extra": 1}
    assert shown == (few if length > 1 else {"changed": 14, "missing": 15, "extra": 1})


def test_every_pair_has_rows_when_values_are_long(
    make_report: MakeReport, write_page: WritePage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html, "MAX_BYTES", 30_000)
    long = [({**left, "note": "x" * 3000}, right) for left, right in rows(20)]
    path = write_page(make_report(long, nodes=("n1", "n2", "n3")))
    found = data_of(path)["pairs"]
    assert [pair["listed"] for pair in found] == [{"changed": 20}] * 3
    assert all(len(pair["differences"]) == 3 for pair in found)


def test_a_large_report_is_shown_in_little_memory(make_report: MakeReport, tmp_path: Path) -> None:
    value = "x" * 1000
    report = make_report([({"id": "1", "name": "a", "note": value}, {"id": "1", "name": "b", "note": value})])
    ((pair, counts),) = report.pop("diffs").items()
    (difference,) = counts.pop("differences")
    path = tmp_path / "large.json"
    count = 4_000
    line = json.dumps({"key": difference.pop("key"), "hashes": {}, **difference})
    write_report(path, report, [PairReport(pair, {**counts, "changed": count}, (line for _ in range(count)))])
    tracemalloc.start()
    try:
        content = open_report(path)
        assert f"{count - 20:,} more" in report_text(content)
        assert len(deque(content.keys(), maxlen=count + 1)) == count
        assert sum(map(len, content.lines())) == path.stat().st_size
        html.write_diff_page(tmp_path / "large.html", content)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 8_000_000
    assert peak < 2_500_000


def test_node_names_may_contain_a_slash(make_report: MakeReport, write_page: WritePage) -> None:
    report = make_report(rows(1), nodes=("a/b", "c", "b/c"))
    assert [pair["nodes"] for pair in data_of(write_page(report))["pairs"]] == [
        ["a/b", "c"],
        ["a/b", "b/c"],
        ["c", "b/c"],
    ]


@pytest.mark.parametrize(
    ("verdict", "count", "incomplete", "tone"),
    [
        ("MATCH", 0, [], "good"),
        ("DIFFER", 1, [], "differ"),
        ("INCOMPLETE", 0, ["a block was left out"], "trouble"),
        # No verdict turns an incomplete result green.
        ("MATCH", 0, ["a block was left out"], "trouble"),
        ("MATCH", 1, [], "trouble"),
        ("DIFFER", 1, ["a block was left out"], "trouble"),
        ("OTHER", 0, [], "trouble"),
    ],
)
def test_only_a_complete_match_is_green(
    make_report: MakeReport, verdict: str, count: int, incomplete: list[str], tone: str
) -> None:
    report = make_report(rows(count), verdict=verdict, incomplete=incomplete)
    assert page_of_diff(report, report["diffs"], "x.json").tone == tone


@pytest.mark.parametrize(
    ("kind", "status", "summary", "tone"),
    [
        ("TABLE_CHECK", "COMPLETED", {"verdict": "MATCH", "blocks": 3}, "good"),
        ("TABLE_CHECK", "FAILED", {"verdict": "INCOMPLETE"}, "trouble"),
        ("DIFFLOG_RUN", "COMPLETED", {"number": 1, "rows": {"visit_log_wide": 12}, "late": {}}, "plain"),
        ("DIFFLOG_PROVE", "COMPLETED", {"verdict": "DIFFER", "keys": 9, "examples": [{"key": {"id": 1}}]}, "differ"),
        ("DIFFLOG_PROVE", "COMPLETED", {"verdict": "MATCH", "incomplete": ["no state"]}, "trouble"),
        ("A_KIND_TO_COME", "COMPLETED", {"list": [1, [2, {"a": None}]], "nothing": None}, "plain"),
        ("A_KIND_TO_COME", "FAILED", {}, "trouble"),
    ],
)
def test_pages_of_other_task_types(tmp_path: Path, kind: str, status: str, summary: dict[str, Any], tone: str) -> None:
    task = {
        **{"task_id": "1234", "task_type": kind, "task_status": status, "schema": "", "table_name": "<b>"},
        **{"started_at": "2026-10-01T12:04:13.000Z", "time_taken": None},
        "task_context": {"nodes": "n1,n2", "diff_summary": summary},
    }
    page = page_of_task(task)
    assert page.tone == tone
    text = html.write_html(tmp_path / "task.html", page).read_text(encoding="utf-8")
    assert "&lt;b&gt;" in text
    assert 'id="differences"' not in text
