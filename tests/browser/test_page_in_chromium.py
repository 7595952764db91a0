"""The HTML report in a real browser: display, keyboard, mouse, printing, and the content security policy."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.browser import MakeReport, OpenPage, Tab, WritePage
from support.fixtures import Compare, Databases, OnAll
from trueup.testing.processes import wait_until

NASTY = "</script x><!--<script x></script><img src=x onerror='window.hacked=1'> \" &amp;"
# Whether green is the strongest component of a color.
GREEN = """(() => {{
    const colour = getComputedStyle(document.querySelector("{}")).{};
    const [red, green, blue] = colour.match(/[0-9.]+/g).map(Number);
    return green > red && green > blue;
}})()"""

OpenDiff = Callable[..., Tab]


def row(at: int, **values: Any) -> dict[str, Any]:
    return {"id": str(at), "name": f"item {at}", "note": "n", **values}


def drift(count: int) -> list[tuple[Any, Any]]:
    """Return changed rows, one missing row and one extra row."""
    changed = [(row(at), row(at, name=f"other {at}")) for at in range(2, count)]
    return [(row(0), None), (None, row(1)), *changed]


@pytest.fixture
def open_diff(databases: Databases, on_all: OnAll, compare: Compare, tab: Tab) -> Callable[..., Any]:
    """`open_diff(on both, on the second only, nodes)`: a real diff with its page, open in the browser."""

    def run(before: str, after: str, count: int = 2, **options: Any) -> Tab:
        nodes = databases(count)
        on_all(nodes, before)
        nodes[1].execute(after)
        result = compare(nodes, "items", output=["json", "html"], **options)
        tab.open(Path(result.page))
        assert tab.complaints() == []
        assert tab.requests() == [Path(result.page).as_uri()]
        return tab

    return run


def test_a_diff_of_values_that_contain_html(open_diff: OpenDiff) -> None:
    tab = open_diff(
        "CREATE TABLE items (id text PRIMARY KEY, name text, long text);"
        "INSERT INTO items VALUES ('1', 'a', 'x'), ('2', 'same', 'x'), ('<b>3', 'gone', NULL)",
        f"UPDATE items SET name = $${NASTY}$$, long = repeat('é', 400000) || U&'\\202e' WHERE id = '1';"
        "DELETE FROM items WHERE id = '<b>3'; INSERT INTO items VALUES ('4', '', NULL)",
    )
    assert tab.text(".verdict strong") == "≠ DIFFER"
    assert tab.js("window.hacked") is None
    assert tab.texts("#pairs td") == ["1", "1", "1", "0", "3", ""]
    assert tab.texts("tbody.is-changed td.changed")[0] == "a"
    assert tab.texts("tbody.is-changed td.changed")[2] == NASTY
    assert tab.texts("tbody.is-missing .key > span") == ["<b>3"]
    assert tab.texts("tbody.is-missing td") == ["−missing\non n2", "n1", "gone", "NULL"]
    assert tab.texts("tbody.is-extra td") == ["+extra\non n2", "n2", "empty text", "NULL"]
    # A click shows the complete value; characters that reverse text are displayed as code points.
    assert tab.text("button.more") == "all 400,001 characters"
    tab.click("button.more")
    assert tab.js("document.querySelector('.whole').textContent") == "é" * 400_000 + "U+202E"
    assert tab.text("button.more") == "less"
    tab.click("button.more")
    assert tab.count(".whole") == 0


def test_a_table_without_a_key(open_diff: OpenDiff) -> None:
    tab = open_diff(
        "CREATE TABLE items (name text); INSERT INTO items VALUES ('three'), ('three'), ('three'), ('gone')",
        "DELETE FROM items WHERE ctid IN ('(0,1)', '(0,2)', '(0,4)')",
    )
    found = {tuple(tab.texts(f"tbody[data-at='{at}'] td")) for at in (0, 1)}
    assert found == {("−missing\ncopies 3 → 1", "n1, n2", "three"), ("−missing\ncopies 1 → 0", "n1", "gone")}


def test_every_pair_of_three_nodes(open_diff: OpenDiff) -> None:
    tab = open_diff(
        "CREATE TABLE items (id int PRIMARY KEY, name text); INSERT INTO items VALUES (1, 'a'), (2, 'b')",
        "UPDATE items SET name = 'x' WHERE id = 2",
        count=3,
    )
    assert tab.texts("#pairs tbody th") == ["n1/n2", "n1/n3", "n2/n3"]
    assert tab.texts("tbody.is-changed small") == ["name", "n1 = n3 ≠ n2"]
    tab.click("[data-pair='2']")
    assert tab.texts("td.changed") == ["x", "b"]
    tab.click("[data-pair='1']")
    assert tab.text("#rows") == "No differences between n1 and n3."


def test_filter_kinds_and_columns(make_report: MakeReport, open_page: OpenPage) -> None:
    tab = open_page(make_report(drift(250)))
    assert tab.text("#status") == "1–100 of 250"
    assert tab.texts(".kinds button") == ["− missing 1", "+ extra 1", "≠ changed 248"]
    tab.press("/", "/")
    tab.type("OTHER 24")
    tab.wait("document.getElementById('status').textContent.startsWith('1–11 of 11')")
    assert tab.texts(".key > span") == ["24", *map(str, range(240, 250))]
    tab.press("Escape")
    tab.wait("document.getElementById('status').textContent === '1–100 of 250'")
    # A search text does not match across two cells.
    tab.type("item 2n")
    tab.wait("document.getElementById('rows').textContent === 'Nothing matches the filter.'")
    tab.press("Escape")
    tab.click("[data-kind='changed']")
    assert tab.texts("#rows tbody .kind") == ["−missing\non n2", "+extra\non n2"]
    tab.click("[data-kind='changed']")
    tab.click("#changed-only")
    assert tab.texts("#rows thead th") == ["id", "difference", "node", "name"]
    assert tab.text("#status") == "1–100 of 250, 1 of 2 columns"


def test_hot_rows_are_a_kind_of_their_own(make_report: MakeReport, open_page: OpenPage) -> None:
    report = make_report(drift(5), verdict="INCOMPLETE", incomplete=["n1/n2: 1 row is hot"])
    counts = report["diffs"]["n1/n2"]
    next(each for each in counts["differences"] if each["kind"] == "changed")["hot"] = True
    counts.update(hot=1, changed=counts["changed"] - 1, total=counts["total"] - 1)
    tab = open_page(report)
    assert tab.texts(".kinds button") == ["− missing 1", "+ extra 1", "≠ changed 2", "~ hot 1"]
    assert tab.texts("#pairs th")[1:7] == ["missing", "extra", "changed", "in flight", "hot", "differences"]
    for kind in ("missing", "extra", "changed"):
        tab.click(f"[data-kind='{kind}']")
    assert tab.texts("#rows tbody .kind") == ["~hot\nname"]


def test_paging_with_mouse_and_keyboard(make_report: MakeReport, open_page: OpenPage) -> None:
    tab = open_page(make_report(drift(250)))
    assert tab.js("document.getElementById('previous').disabled")
    tab.click("#next")
    assert (tab.text("#status"), tab.count("#rows tbody")) == ("101–200 of 250", 100)
    tab.press("n", "n")
    assert (tab.text("#status"), tab.count("#rows tbody")) == ("201–250 of 250", 50)
    tab.press("n", "n")
    assert tab.text("#status") == "201–250 of 250"
    tab.press("p", "p")
    assert tab.texts(".key > span")[0] == "100"


def test_every_control_can_be_reached_with_the_keyboard(make_report: MakeReport, open_page: OpenPage) -> None:
    tab = open_page(make_report([(row(1, note="x" * 500), row(1, note="y" * 500))]))
    seen = []
    for _ in range(14):
        tab.press("Tab")
        seen.append(
            tab.js("document.activeElement.id || document.activeElement.className || document.activeElement.tagName")
        )
    expected = ["theme", "SUMMARY", "filter", "changed-only", "rows", "copy", "more"]
    assert [name for name in expected if name not in seen] == []
    tab.js("document.querySelector('button.more').focus()")
    tab.press("Enter", "\r")
    assert tab.count(".whole") == 1


def test_changed_text_is_marked_and_equal_cells_are_merged(make_report: MakeReport, open_page: OpenPage) -> None:
    left, right = row(1, name="a long, long text 1 more", note=None), row(1, name="a long, long text 2 more", note="")
    tab = open_page(make_report([(left, right)]))
    assert tab.texts("td.changed.first mark") == ["1", "NULL"]
    assert tab.texts("td.changed.second mark") == ["2", "empty text"]
    # Not marked by color alone.
    assert "underline" in tab.js("getComputedStyle(document.querySelector('mark')).textDecorationLine")
    tab = open_page(make_report([(row(1), row(1, name="x"))]))
    assert tab.texts("td.same") == ["n"]
    assert tab.js("document.querySelector('td.same').rowSpan") == 2
    # The changed part of a long value is displayed, even if it is far from the start.
    tab = open_page(
        make_report([(row(1, note="a" * 5000 + "🙂" + "b" * 5000), row(1, note="a" * 5000 + "😀" + "b" * 5000))])
    )
    assert tab.texts("mark") == ["🙂", "😀"]


# Texts, and how they are displayed.
INVISIBLE = {
    "lone \ud800 half": "lone U+D800 half",
    "a\u202egnp.exe": "aU+202Egnp.exe",
    "zero\u200bwidth\u00a0": "zeroU+200BwidthU+00A0",
    " ends ": "·ends·",
    "two\nlines\t": "two↵\nlines⇥",
    "\x01\x7f": "U+0001U+007F",
    "NULL": "NULL",
}


def test_invisible_characters_are_displayed(make_report: MakeReport, open_page: OpenPage) -> None:
    tab = open_page(make_report([(row(number, name=text), None) for number, text in enumerate(INVISIBLE)]))
    cells = "[...document.querySelectorAll('#rows tbody td:nth-of-type(3)')]"
    assert tab.js(f"{cells}.map(cell => cell.textContent)") == [*INVISIBLE.values()]
    assert tab.js(f"{cells}.map(cell => cell.querySelectorAll('.null').length)") == [0] * len(INVISIBLE)


def test_the_key_is_copied(make_report: MakeReport, open_page: OpenPage) -> None:
    tab = open_page(make_report([(row(7), None)], key=("id", "name")))
    tab.js("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }")
    tab.click("button.copy")
    tab.wait("document.querySelector('button.copy').textContent === 'copied'")
    assert tab.js("window.copied") == '{"id":"7","name":"item 7"}'
    # If the clipboard is not available, the key is selected.
    tab.js("navigator.clipboard.writeText = () => Promise.reject(new Error('no'))")
    tab.click("button.copy")
    tab.wait("document.querySelector('button.copy').textContent === 'press Ctrl+C'")
    assert "item 7" in tab.js("getSelection().toString()")


def test_dark_mode_follows_the_system_until_it_is_chosen(make_report: MakeReport, open_page: OpenPage) -> None:
    tab = open_page(make_report(drift(3)))
    light = "getComputedStyle(document.body).backgroundColor"
    day = tab.js(light)
    tab.media(prefers_color_scheme="dark")
    night = tab.js(light)
    assert day != night
    tab.click("#theme")
    assert (tab.text("#theme"), tab.js(light)) == ("theme: dark", night)
    tab.click("#theme")
    assert (tab.text("#theme"), tab.js(light)) == ("theme: light", day)
    # The choice is kept. Another process of the browser may open the next page, and get the choice a moment later.
    report = make_report(drift(3))
    assert wait_until(lambda: open_page(report).text("#theme") == "theme: light", 30)
    assert tab.js(light) == day


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_incomplete_report_is_displayed_as_a_failure(
    make_report: MakeReport, open_page: OpenPage, tab: Tab, scheme: str
) -> None:
    tab.media(prefers_color_scheme=scheme)
    open_page(make_report([], verdict="MATCH"))
    assert tab.js(GREEN.format(".verdict strong", "color"))
    open_page(make_report(drift(3), verdict="INCOMPLETE", incomplete=["node n2: the connection was lost"]))
    assert tab.text(".verdict strong") == "⚠ INCOMPLETE"
    assert tab.texts(".notes.trouble li") == ["node n2: the connection was lost"]
    for place in (".verdict", ".verdict strong", ".notes.trouble h2"):
        for part in ("color", "backgroundColor"):
            assert not tab.js(GREEN.format(place, part))
    assert "✓" not in tab.text("body")


def test_ten_thousand_differences_of_twenty_columns(
    make_report: MakeReport, open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = ["id", *(f"c{at}" for at in range(19))]
    values = [{"id": str(at), **{name: f"{name} {at}" for name in columns[1:]}} for at in range(10_001)]
    changed = [(each, {**each, "c7": "x"}) for each in values]
    other = [({**each, "id": f"m{each['id']}"}, None) for each in values[:7000]]
    tab = open_page(make_report([*changed, *other, (None, {**values[0], "id": "e"})], columns=columns))
    assert tab.text("#status") == "1–100 of 10,000"
    # The counts of the report, not those of the rows on the page.
    assert tab.texts(".kinds button") == ["− missing 7,000", "+ extra 1", "≠ changed 10,001"]
    assert tab.texts("#pairs td")[:3] == ["7,000", "1", "10,001"]
    # Only a few rows are elements, so the page is fast.
    assert tab.js("document.querySelectorAll('*').length") < 10_000
    assert tab.text("#cut") == (
        "⚠ This page has 10,000 of the 17,002 differences of n1/n2: 4,999 of 7,000 missing, 1 of 1 extra,"
        " 5,000 of 10,001 changed. All of them are in the JSON report (report.json)."
    )
    tab.click("[data-kind='changed']")
    tab.click("[data-kind='missing']")
    assert tab.texts(".key > span") == ["e"]
    tab.click("[data-kind='changed']")
    tab.js("document.getElementById('filter').focus()")
    tab.type("c3 4998")
    tab.wait("document.getElementById('status').textContent === '1–1 of 1 (of 10,000)'")
    assert tab.texts(".key > span") == ["4998"]


def test_the_first_rows_are_displayed_without_scripts(make_report: MakeReport, write_page: WritePage, tab: Tab) -> None:
    path = write_page(make_report([*drift(10), (row(99), row(99, name=NASTY))]))
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    tab.open(path)
    assert "item 5" in tab.text("noscript pre")
    assert "</script x><!--<script x></script>" in tab.text("noscript pre")
    assert tab.count("img") == 0
    assert not tab.js("document.getElementById('explorer').checkVisibility()")


def test_all_rows_are_printed(make_report: MakeReport, open_page: OpenPage) -> None:
    tab = open_page(make_report(drift(250)))
    tab.click("#next")
    tab.js("document.documentElement.dataset.theme = 'dark'")
    tab.media("print")
    tab.js("dispatchEvent(new Event('beforeprint'))")
    assert tab.count("#rows tbody") == 250
    assert tab.js("[...document.querySelectorAll('details')].every(each => each.open)")
    assert tab.js("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not tab.js("document.getElementById('filter').checkVisibility()")
    tab.js("dispatchEvent(new Event('afterprint'))")
    assert tab.text("#status") == "101–200 of 250"
    assert not tab.js("[...document.querySelectorAll('details')].some(each => each.open)")


# What a script may try, and the directive that refuses it.
ATTEMPTS = {
    "document.body.innerHTML = '<b>x</b>'": "require-trusted-types-for",
    "document.body.setAttribute('onclick', 'window.hacked = 1')": "require-trusted-types-for",
    "new Image().src = 'data:image/gif,x'": "img-src",
    "fetch('data:text/plain,x').catch(() => 0)": "connect-src",
    "document.body.append(Object.assign(document.createElement('style'), {textContent: 'b {}'}))": "style-src-elem",
}


def test_the_content_security_policy_is_enforced(make_report: MakeReport, open_page: OpenPage) -> None:
    for attempt, refused_by in ATTEMPTS.items():
        # A new page each time, so that no event of the attempt before arrives.
        tab = open_page(make_report(drift(3)))
        found = tab.js(f"""new Promise((done) => {{
            document.addEventListener("securitypolicyviolation", (event) => done(event.effectiveDirective));
            try {{ {attempt} }} catch {{ }}
        }})""")
        assert found == refused_by, attempt


def test_the_page_fits_the_screen_of_a_phone(make_report: MakeReport, open_page: OpenPage, tab: Tab) -> None:
    tab.size(390, 844, mobile=True)
    open_page(make_report(drift(20), incomplete=["x" * 300]))
    assert tab.js("document.documentElement.scrollWidth") <= 390


def test_selected_rows_become_a_repair_plan(databases: Databases, on_all: OnAll, compare: Compare, tab: Tab) -> None:
    """Select rows, choose an action, copy or download the plan; the repair does what the plan says."""
    import trueup

    nodes = databases(2)
    nasty = "a\t'\"é\u0085👍\\"
    on_all(nodes, "CREATE TABLE items (id text, at int, name text, PRIMARY KEY (id, at))")
    nodes[0].execute("INSERT INTO items SELECT 'k', i, 'name' FROM generate_series(1, 5) i")
    nodes[0].execute("INSERT INTO items VALUES (%s, 0, 'nasty')", (nasty,))
    nodes[1].execute("INSERT INTO items VALUES ('k', 1, 'other'), ('k', 2, 'other'), ('k', 9, 'extra')")
    result = compare(nodes, "items", output=["json", "html"])
    tab.open(Path(result.page))
    assert tab.js("document.getElementById('download-plan').disabled")
    places = dict(zip(tab.texts(".key > span:not(.action)"), range(99), strict=False))

    def tick(key: str, action: str) -> None:
        at = next(place for shown, place in places.items() if key in shown)
        tab.click(f"#rows tbody:nth-of-type({at + 1}) .tick")
        choose = "const s = document.getElementById('action');"
        choose += f"s.value = [...s.options].find((o) => o.textContent === {action!r}).value;"
        tab.js(f"(() => {{ {choose} s.dispatchEvent(new Event('change')); }})()")

    tick("at 1", "keep n1")
    tick("at 2", "keep n2")
    tick("at 9", "delete everywhere")
    tick("at 0", "insert where missing")
    tick("at 3", "skip")
    assert tab.text("#planned") == "5 ticked, 5 with an action"
    assert sorted(tab.texts(".key .action"))[:2] == ["delete everywhere", "insert where missing"]
    # Deselected rows are in no plan.
    at = next(place for shown, place in places.items() if "at 3" in shown)
    tab.click(f"#rows tbody:nth-of-type({at + 1}) .tick")
    assert tab.text("#planned") == "4 ticked, 4 with an action"
    tab.js("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }")
    tab.click("#copy-plan")
    tab.wait("document.getElementById('planned').textContent === 'copied'")
    folder = Path.cwd() / "downloads"
    tab.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    tab.click("#download-plan")
    plan = folder / "plan.yaml"
    end = time.monotonic() + 60
    while not plan.exists():
        assert time.monotonic() < end
        tab.js("0")
        time.sleep(0.02)
    assert plan.read_text(encoding="utf-8") == tab.js("window.copied")
    assert tab.complaints() == []
    addresses = {f"n{number}": node.uri for number, node in enumerate(nodes, 1)}
    options: dict[str, Any] = {"nodes": addresses, "engine": "local", "recheck": 0}
    done = trueup.repair(result.report, plan=str(plan), execute=True, **options)
    assert done.written == {
        "n1": {"insert": 0, "update": 1, "delete": 0},
        "n2": {"insert": 1, "update": 1, "delete": 1},
    }
    assert nodes[1].execute("SELECT id, at, name FROM items ORDER BY at") == [
        (nasty, 0, "nasty"),
        ("k", 1, "name"),
        ("k", 2, "other"),
    ]
    assert done.left_counts == {"no row, rule or default of the plan applies": 3}
