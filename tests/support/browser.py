"""A real browser for tests: Chromium, headless, controlled through its DevTools protocol over a socket."""

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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
# Chromium reads commands from descriptor 3 and answers on 4.
_START = "import os, sys; s = int(sys.argv[1]); os.dup2(s, 3); os.dup2(s, 4); os.execv(sys.argv[2], sys.argv[2:])"
_OPTIONS = (
    *("--headless", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio"),
)
TIMEOUT_SECONDS = 90.0


class Browser:
    """A Chromium process; commands and answers are JSON texts that end with a NUL byte."""

    def __init__(self, profile: Path) -> None:
        ours, theirs = socket.socketpair()
        # Chromium leaves files in the temporary folder. In the profile, the path of its socket would be too long.
        self._temporary = tempfile.mkdtemp(prefix="trueup-chromium-")
        options = [*_OPTIONS, f"--user-data-dir={profile}", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START, str(theirs.fileno()), CHROMIUM, *options],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": self._temporary},
        )
        theirs.close()
        ours.settimeout(TIMEOUT_SECONDS)
        self._socket, self._rest, self._number = ours, b"", 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; events that arrive meanwhile are appended to `events`."""
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
        self.process.wait(TIMEOUT_SECONDS)
        shutil.rmtree(self._temporary, ignore_errors=True)


class Tab:
    """A tab of the browser, in a separate profile."""

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

    def open(self, path: Path | str) -> None:
        """Open a file or an address, and wait until it and its scripts are loaded."""
        self._browser.events.clear()
        self.call("Page.navigate", url=path if isinstance(path, str) else path.absolute().as_uri())
        end = time.monotonic() + TIMEOUT_SECONDS
        # Do not use the state of the document: right after the navigation it may be that of the previous page.
        while not any(event["method"] == "Page.loadEventFired" for event in self._browser.events):
            assert time.monotonic() < end, f"{path} was not loaded"
            self.call("Runtime.evaluate", expression="0")
            time.sleep(0.005)

    def js(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Wait until an expression is true."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while not (found := self.js(expression)):
            assert time.monotonic() < end, f"still not true: {expression}"
            time.sleep(0.01)
        return found

    def text(self, selector: str) -> str:
        """Return the visible text of an element."""
        return str(self.js(f"document.querySelector({json.dumps(selector)}).innerText"))

    def texts(self, selector: str) -> list[str]:
        found: list[str] = self.js(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.innerText)")
        return found

    def count(self, selector: str) -> int:
        return int(self.js(f"document.querySelectorAll({json.dumps(selector)}).length"))

    def click(self, selector: str) -> None:
        """Click the center of an element."""
        where = self.js(f"""(() => {{
            const found = document.querySelector({json.dumps(selector)});
            found.scrollIntoView({{block: "center", inline: "center"}});
            const box = found.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        }})()""")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=where[0], y=where[1], button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Type text into the element that has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, text: str = "") -> None:
        """Press a key: `press("Tab")`, `press("/", "/")`."""
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, " ": 32}
        code = codes.get(key, ord(key.upper()[0]))
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text, windowsVirtualKeyCode=code)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def complaints(self) -> list[str]:
        """Return script errors and requests blocked by the content security policy."""
        self.js("0")
        found = []
        for event in self._browser.events:
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(event["params"]["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded":
                found.append(event["params"]["entry"]["text"])
        return found

    def requests(self) -> list[str]:
        """Return the URL of every request."""
        self.js("0")
        events = (event for event in self._browser.events if event["method"] == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in events]


Row: TypeAlias = Mapping[str, Any]
Report: TypeAlias = dict[str, Any]
# `make_report([(row, row), …])`: a report with the format of a diff; a missing row is None.
MakeReport: TypeAlias = Callable[..., Report]
WritePage: TypeAlias = Callable[[Report], Path]
OpenPage: TypeAlias = Callable[[Report], Tab]
