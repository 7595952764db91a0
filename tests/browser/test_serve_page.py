"""The pages of `trueup serve` in a real browser: hostile names, widths, keyboard, and live updates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from support.browser import Tab
from support.fixtures import Databases
from support.serve import Served, compared, serving
from support.validate import Copy
from trueup.config.load import load
from trueup.store import TaskStore

HOSTILE = (
    "</td><script>document.title='hacked'</script>\"'><img src=x onerror=\"document.title='hacked'\">\x1b[31m\u202e"
)
PAGES = ("/", "/tables", "/tasks", "/validations", "/tubes", "/syncs", "/schedule", "/doctor")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TaskStore]:
    with TaskStore(tmp_path / "tasks.db") as opened:
        yield opened


@pytest.fixture
def served(store: TaskStore) -> Iterator[Served]:
    for _ in range(3):
        compared(store, "orders", "MATCH")
        compared(store, HOSTILE, "DIFFER", count=4, error=HOSTILE)
    with serving([store.path]) as running:
        yield running.read()


def test_every_page_at_three_widths(served: Served, store: TaskStore, tab: Tab) -> None:
    hostile = f"/table?name={quoted(store)}&cluster=shop&nodes=n1,n2"
    task = store.list(limit=1)[0].task_id
    for width in (390, 820, 1400):
        tab.size(width, 900)
        every = (*PAGES, hostile, f"/tasks/{task}", f"/tasks/{task}/report")
        for page in every if width != 820 else ("/", "/tables", hostile):
            tab.open(served.url.rstrip("/") + page)
            assert tab.complaints() == [], page
            assert tab.js("document.title") != "hacked", page
            assert tab.count("img") == 0, page
            assert tab.js("document.documentElement.scrollWidth <= innerWidth"), (page, width)
            assert all(url.startswith(served.url) for url in tab.requests()), page
    assert "\\x1b" in served.get(hostile).text


def quoted(store: TaskStore) -> str:
    return quote(next(state.run.table_name for state in store.states() if "script" in state.run.table_name))


def test_keyboard_only_and_without_scripts(served: Served, tab: Tab) -> None:
    tab.open(served.url)
    tab.press("Tab")
    assert tab.text(":focus") == "Skip to the content"
    for _ in range(2):
        tab.press("Tab")
    assert tab.text(":focus") == "tables"
    # The focus is visible.
    assert tab.js("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    tab.press("Enter", "\r")
    tab.wait("location.pathname === '/tables' && document.readyState === 'complete'")
    assert tab.js("document.querySelector('[aria-current=page]').innerText") == "tables"
    # Every picture has a text, every table a caption, every field a label.
    assert tab.count("svg:not([aria-label])") == 0
    assert tab.count("table:not(:has(caption))") == 0
    assert tab.js("[...document.querySelectorAll('input, select')].every(field => field.labels.length)")
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    tab.open(served.url + "tables")
    text = tab.call("DOM.getDocument", depth=-1)
    assert "public.orders" in str(text)
    tab.call("Emulation.setScriptExecutionDisabled", value=False)


def test_dark_and_light(served: Served, tab: Tab) -> None:
    colours = []
    for scheme in ("light", "dark"):
        tab.media(prefers_color_scheme=scheme)
        tab.open(served.url)
        colours.append(tab.js("getComputedStyle(document.body).backgroundColor"))
    assert colours[0] != colours[1]
    tab.wait("!document.getElementById('theme').hidden")
    tab.click("#theme")
    assert tab.js("getComputedStyle(document.body).backgroundColor") == colours[0]


def test_a_page_is_live_while_a_validation_runs(
    databases: Databases, store: TaskStore, tab: Tab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRUEUP__SPARK__ENGINE", "local")
    up, down = databases(2)
    copy = Copy(up, down)
    copy.both(
        "CREATE TABLE items (id int PRIMARY KEY, note text);"
        "INSERT INTO items SELECT i, 'x' FROM generate_series(1, 9) i"
    )
    file = tmp_path / "trueup.toml"
    file.write_text(f'[nodes]\nn1 = "{up.uri}"\nn2 = "{down.uri}"\n')
    file.chmod(0o600)
    copy.start(syncer="lag:0")
    try:
        with serving([store.path], load(str(file)), show_rows=True) as running:
            running.until(lambda: running.collector.seen.validations())
            tab.open(running.url + "validation?node=n2&name=v")
            assert "no errors" in tab.text("#verdict")
            tab.js("window.kept = true; document.querySelector('nav a').focus()")
            # Only the source has these: they stay wrong.
            up.execute("UPDATE items SET note = '<b>secret</b>' WHERE id = 3; DELETE FROM items WHERE id = 4")
            tab.wait("document.getElementById('verdict').innerText.includes('2 errors')")
            assert "<b>secret</b>" in tab.text("main")
            assert tab.js("window.kept"), "the page was loaded again"
            assert tab.text(":focus") == "overview"
            assert tab.complaints() == []
            metrics = running.get("/metrics").text
            assert (
                'trueup_validation_errors{kind="changed",node="n2",table="public.items",validation="v"} 1.0' in metrics
            )
            assert "trueup_slot_retained_bytes{" in metrics
            assert "secret" not in metrics
            # A node that does not answer: the page says so, and what was seen stays.
            assert running.get("/api/v1/validations").json["validations"][0]["open_errors"] == 2
        with serving([store.path], load(str(file))) as running:
            running.until(lambda: running.collector.seen.validations())
            hidden = running.get("/validation?node=n2&name=v").text + running.get("/api/v1/validations").text
            assert "secret" not in hidden
            assert "changed" in hidden
    finally:
        copy.stop()
        for (slot,) in up.execute("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"):
            up.execute(f"SELECT pg_drop_replication_slot('{slot}')")
