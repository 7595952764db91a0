"""A real browser for the tests: Debian's Chromium, headless, spoken to over a socket in its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from trueup.report.html import write_html
from trueup.report.page import page_of_diff

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
# Chromium reads commands from descriptor 3 and answers on 4.
_START = "import os, sys; s = int(sys.argv[1]); os.dup2(s, 3); os.dup2(s, 4); os.execv(sys.argv[2], sys.argv[2:])"
_OPTIONS = (
    *("--headless", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio"),
)
_PATIENCE = 30.0


class Browser:
    """Chromium as a child; commands and answers are JSON texts, each with a NUL behind it."""

    def __init__(self, profile: Path) -> None:
        ours, theirs = socket.socketpair()
        options = [*_OPTIONS, f"--user-data-dir={profile}", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START, str(theirs.fileno()), CHROMIUM, *options],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
        ours.settimeout(_PATIENCE)
        self._socket, self._rest, self._number = ours, b"", 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; what happens meanwhile is kept in `events`."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        self._socket.sendall(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") != self._number:
                self.events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']['message']}")
            else:
                found: dict[str, Any] = answer["result"]
                return found

    def _next(self) -> dict[str, Any]:
        pieces = [self._rest]
        while b"\0" not in pieces[-1]:
            more = self._socket.recv(1 << 20)
            if not more:
                raise RuntimeError("Chromium has ended")
            pieces.append(more)
        text, _, self._rest = b"".join(pieces).partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        return found

    def close(self) -> None:
        self._socket.close()
        self.process.terminate()
        self.process.wait(_PATIENCE)


class Tab:
    """One page of the browser, in a profile of its own."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self.context = browser.call("Target.createBrowserContext")["browserContextId"]
        target = browser.call("Target.createTarget", url="about:blank", browserContextId=self.context)["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        browser.events.clear()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.size(1280, 900)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def size(self, width: int, height: int, *, mobile: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def media(self, kind: str = "", **features: str) -> None:
        """`media("print")`, `media(prefers_color_scheme="dark")`."""
        wanted = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", media=kind, features=wanted)

    def open(self, path: Path) -> None:
        """Go to a file and wait until it is loaded, scripts and all."""
        self._browser.events.clear()
        self.call("Page.navigate", url=path.absolute().as_uri())
        end = time.monotonic() + _PATIENCE
        # The state of the document would not do: right after the navigation it may still be the one of the last page.
        while not any(event["method"] == "Page.loadEventFired" for event in self._browser.events):
            assert time.monotonic() < end, f"{path} was not loaded"
            self.call("Runtime.evaluate", expression="0")
            time.sleep(0.005)

    def js(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Wait until an expression is true."""
        end = time.monotonic() + _PATIENCE
        while not (found := self.js(expression)):
            assert time.monotonic() < end, f"still not true: {expression}"
            time.sleep(0.01)
        return found

    def text(self, selector: str) -> str:
        """What a person reads there."""
        return str(self.js(f"document.querySelector({json.dumps(selector)}).innerText"))

    def texts(self, selector: str) -> list[str]:
        found: list[str] = self.js(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.innerText)")
        return found

    def count(self, selector: str) -> int:
        return int(self.js(f"document.querySelectorAll({json.dumps(selector)}).length"))

    def click(self, selector: str) -> None:
        """A click of the mouse into the middle of an element, wherever that leads."""
        where = self.js(f"""(() => {{
            const found = document.querySelector({json.dumps(selector)});
            found.scrollIntoView({{block: "center", inline: "center"}});
            const box = found.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        }})()""")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=where[0], y=where[1], button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Text into whatever has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, text: str = "") -> None:
        """One key: `press("Tab")`, `press("/", "/")`."""
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, " ": 32}
        code = codes.get(key, ord(key.upper()[0]))
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text, windowsVirtualKeyCode=code)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def complaints(self) -> list[str]:
        """Errors of scripts, and all that the policy of the page has refused."""
        self.js("0")
        found = []
        for event in self._browser.events:
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(event["params"]["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded":
                found.append(event["params"]["entry"]["text"])
        return found

    def requests(self) -> list[str]:
        """Every address that was asked for."""
        self.js("0")
        events = (event for event in self._browser.events if event["method"] == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in events]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The one Chromium of the run."""
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
    """A fresh page."""
    made = Tab(browser)
    yield made
    browser.call("Target.disposeBrowserContext", browserContextId=made.context)


Row = Mapping[str, Any]
Made = Callable[..., dict[str, Any]]


@pytest.fixture
def made() -> Made:
    """`made([(row, row), …])`: a report as a diff writes it; a side without a row is None; key `id`, two nodes."""

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
            kinds = [each["kind"] for each in differences]
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
def written(tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    """`written(report)`: its page."""

    def write(report: dict[str, Any]) -> Path:
        pairs = [(pair, counts, counts["differences"]) for pair, counts in report["diffs"].items()]
        return write_html(tmp_path / "report.html", page_of_diff(report, report["diffs"], "/x/report.json"), pairs)

    return write


@pytest.fixture
def shown(tab: Tab, written: Callable[[dict[str, Any]], Path]) -> Callable[[dict[str, Any]], Tab]:
    """`shown(report)`: its page in the browser, without a complaint."""

    def show(report: dict[str, Any]) -> Tab:
        tab.open(written(report))
        assert tab.complaints() == []
        return tab

    return show
