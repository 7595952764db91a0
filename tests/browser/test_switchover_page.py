"""The page of a switchover in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.browser import Tab
from trueup.report.html import write_html
from trueup.report.switchover import page_of_switchover

NASTY = "<img src=x onerror='window.hacked=1'>"
REHEARSAL: dict[str, Any] = {
    "sync": "main",
    "action": "rehearse",
    "rollback": False,
    "from": "n1",
    "to": "n2",
    "proof": "keys",
    "budget_ms": 2000,
    "pause_ms": 48.3,
    "phases_ms": {"prepare": 812.0, "fence": 3.1, "final round": 20.4, "sequences": 4.0, "gate": 19.8, "release": 1.0},
    "conditions": [
        {
            "name": "rows equal",
            "holds": True,
            "detail": "30 tables, by digests before the pause",
        },
        {"name": "way back ready", "holds": True, "detail": "n2 records the changes of 30 tables"},
    ],
    "final_keys": 17,
    "rounds": 4,
    "address": "host=db2 port=5432 dbname=shop",
    "task_id": "1f0c6a54-52a5-4bd4-9a7c-9d4c3b6f2a11",
    "remarks": [],
    "started_at": "2026-10-01T12:04:13+00:00",
    "tables": 30,
    "rows": 1_250_000,
    "waited": [f"4 sessions of app ({NASTY}), up to 45 ms"],
    "not_copied": ["public.audit is not in the sync", "settings of the server"],
    "unchecked": ["the commit of the decision"],
    "is_decided": False,
    "problem": "",
    "cure": "",
    "page": "",
}
FAILED = {
    "conditions": [{"name": "rows equal", "holds": False, "detail": "public.orders: 100 rows on n1, 99 rows on n2"}],
    "problem": "the gate is closed: rows equal",
    "cure": "compare the table with trueup diff",
}


@pytest.mark.parametrize(
    ("values", "verdict", "tone"),
    [
        ({}, "✓ READY", "good"),
        (FAILED, "⚠ NOT READY", "trouble"),
        ({"action": "execute"}, "✓ MOVED", "good"),
        ({**FAILED, "action": "execute", "is_decided": True}, "⚠ DECIDED, NOT COMPLETE", "trouble"),
        ({**FAILED, "action": "execute", "is_decided": None}, "⚠ UNKNOWN", "trouble"),
        ({"action": "rollback", "rollback": True, "conditions": []}, "● MOVED BACK", "plain"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_page_of_a_switchover(tab: Tab, tmp_path: Path, values: dict[str, Any], verdict: str, tone: str) -> None:
    tab.open(write_html(tmp_path / "page.html", page_of_switchover({**REHEARSAL, **values})))
    assert tab.complaints() == []
    assert tab.js("window.hacked") is None
    assert tab.text(".verdict strong") == verdict
    assert tab.js(f"document.querySelector('header').classList.contains('{tone}')")
    assert tab.count("section.trouble li") == (2 if "problem" in values else 0)
    captions = tab.texts("caption")
    assert captions[0] == ("What will happen" if "action" not in values else "What happened")
    assert {"Who waits", "What is not copied", "How to go back", "What was not checked"} <= set(captions)
    # A change board reads it on paper, or on a small screen.
    tab.size(390, 800, mobile=True)
    assert tab.js("document.documentElement.scrollWidth <= window.innerWidth")
