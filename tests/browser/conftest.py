"""Fixtures for tests of the HTML report: a browser, reports, and their pages."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from support.browser import CHROMIUM, Browser, MakeReport, OpenPage, Report, Row, Tab, WritePage
from trueup.report.html import write_diff_page
from trueup.report.json_reader import loaded


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The Chromium process of a module; until the end of the run, it would use processor time."""
    if not CHROMIUM:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    with tempfile.TemporaryDirectory(prefix="trueup-chromium-", ignore_cleanup_errors=True) as profile:
        started = Browser(Path(profile))
        try:
            yield started
        finally:
            started.close()


@pytest.fixture
def tab(browser: Browser) -> Iterator[Tab]:
    """A new tab."""
    opened = Tab(browser)
    yield opened
    browser.call("Target.disposeBrowserContext", browserContextId=opened.context)


@pytest.fixture
def make_report() -> MakeReport:
    """`make_report([(row, row), …])`: a report with the format of a diff; key `id`, two nodes."""

    def report(
        rows: Sequence[tuple[Row | None, Row | None]],
        *,
        nodes: Sequence[str] = ("n1", "n2"),
        key: Sequence[str] = ("id",),
        columns: Sequence[str] = ("id", "name", "note"),
        **head: Any,
    ) -> dict[str, Any]:
        diffs = {}
        for pair in combinations(nodes, 2):
            differences = [_difference(pair, nodes, key, columns, left, right) for left, right in rows]
            kinds = [difference["kind"] for difference in differences]
            counts = {kind: kinds.count(kind) for kind in ("missing", "extra", "changed")}
            more = {"in_flight": 0, "limit_reached": False, "total": len(kinds), "differences": differences}
            diffs["/".join(pair)] = {**counts, **more}
        summary = {
            "verdict": head.pop("verdict", "DIFFER" if rows else "MATCH"),
            "task_id": "1f0c6a54-52a5-4bd4-9a7c-9d4c3b6f2a11",
            "schema": "public",
            "table": "items",
            "nodes": list(nodes),
            "primary_key": list(key),
            "columns": list(columns),
            "table_filter": "",
            "total_rows_checked": 53,
            "blocks": 2,
            "mismatched_ranges_count": 1,
            "end_time": "2026-10-01T12:04:13.000Z",
            "time_taken": 1.5,
        }
        return {"summary": summary, "proof": {}, "incomplete": [], "remarks": [], **head, "diffs": diffs}

    return report


def _difference(
    pair: tuple[str, str],
    nodes: Sequence[str],
    key: Sequence[str],
    columns: Sequence[str],
    left: Row | None,
    right: Row | None,
) -> dict[str, Any]:
    known: Row = left or right or {}
    kind = "extra" if left is None else "missing" if right is None else "changed"
    changed = [name for name in columns if left and right and left[name] != right[name]]
    others = [node for node in nodes if node != pair[1]]
    return {
        "key": {name: known[name] for name in key},
        "kind": kind,
        "columns": changed,
        "rows": dict(zip(pair, (left, right), strict=True)),
        "agree": [others, [pair[1]]],
    }


@pytest.fixture
def write_page(tmp_path: Path) -> WritePage:
    """`write_page(report)`: write the page of a report and return its path."""

    def write(report: Report) -> Path:
        return write_diff_page(tmp_path / "report.html", loaded(Path("/x/report.json"), report))

    return write


@pytest.fixture
def open_page(tab: Tab, write_page: WritePage) -> OpenPage:
    """`open_page(report)`: open the page of a report in the browser; fail if the browser reports an error."""

    def show(report: Report) -> Tab:
        tab.open(write_page(report))
        assert tab.complaints() == []
        return tab

    return show
