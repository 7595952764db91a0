"""The web application in a thread of the test, and a client that sends exactly what the test writes."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from prometheus_client.parser import text_string_to_metric_families

from trueup.config.model import Config
from trueup.serve.app import Application
from trueup.serve.collector import Collector, Scope
from trueup.serve.metrics import metrics_text
from trueup.serve.model import Seen
from trueup.serve.options import ServeOptions
from trueup.serve.server import in_thread
from trueup.store import COMPLETED, FAILED, TaskStore

PATIENCE = 60.0
# A proxy that names users, and the header that proves that it is the proxy.
PROXY_SECRET = "0123456789abcdef-proxy"
PROXY: dict[str, Any] = {"proxy_header": "X-User", "proxy_secret": sha256(PROXY_SECRET.encode()).digest()}
PROVEN = {"X_Trueup_Proxy_Secret": PROXY_SECRET}


class Answer(NamedTuple):
    """The answer to a request."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Served:
    """A running application: its URL, its collector, and requests to it."""

    def __init__(self, url: str, collector: Collector) -> None:
        self.url = url
        self.collector = collector
        split = urlsplit(url)
        self.host, self.port = str(split.hostname), int(split.port or 0)

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, **headers)

    def post(self, path: str, form: dict[str, str], **headers: str) -> Answer:
        body = urlencode(form)
        return self.ask("POST", path, body, **{"Content-Type": "application/x-www-form-urlencoded", **headers})

    def ask(self, method: str, path: str, body: str | None = None, **headers: str) -> Answer:
        connection = HTTPConnection(self.host, self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): text for name, text in headers.items()})
            answer = connection.getresponse()
            text = answer.read().decode("utf-8", "replace")
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, text)
        finally:
            connection.close()

    def raw(self, data: bytes) -> bytes:
        """Send bytes and return everything until the server closes the connection, or is silent."""
        with socket.create_connection((self.host, self.port), timeout=10) as connection:
            connection.sendall(data)
            connection.settimeout(0.5)
            pieces = []
            try:
                while piece := connection.recv(1 << 16):
                    pieces.append(piece)
            except (TimeoutError, ConnectionResetError):
                pass
            return b"".join(pieces)

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait until a condition holds, and return its value."""
        deadline = time.monotonic() + PATIENCE
        while not (found := condition()):
            assert time.monotonic() < deadline, self.collector.seen
            time.sleep(0.02)
        return found

    def read(self) -> Served:
        """Wait until all sources were read, or failed."""
        self.until(lambda: all(part.tried_at for part in self.collector.seen.parts))
        return self


@contextmanager
def serving(stores: list[Path], config: Config | None = None, **options: Any) -> Iterator[Served]:
    """Run the application over task stores and the nodes of a configuration, on a free port."""
    scope = {name: options.pop(name) for name in ("verbs", "with_doctor") if name in options}
    collector = Collector(Scope(config or Config(), tuple(stores), 0.2, **{"with_doctor": False, **scope}))
    chosen = ServeOptions(**{"port": 0, **options}).checked()
    application = Application(collector, chosen)
    collector.start()
    try:
        with in_thread(application.asgi, chosen) as url:
            yield Served(url, collector)
    finally:
        application.stop()
        collector.stop()


def compared(store: TaskStore, table: str, verdict: str, *, count: int = 0, **end: Any) -> str:
    """Record a diff of a table, and return the id of its task."""
    context = {"mode": "diff", "nodes": "n1,n2", "qualified_table": table}
    task = store.start("TABLE_DIFF", cluster="shop", schema="public", table=table, context=context)
    summary = {
        "verdict": verdict,
        "mode": "diff",
        "nodes": ["n1", "n2"],
        "total_rows_checked": 1000,
        "diff_rows_count": {"n1/n2": count},
        "kinds": {"n1/n2": {"missing": count, "extra": 0, "changed": 0}},
        "positions": {"n1": "0/1"},
        "time_taken": 0.5,
    }
    status = FAILED if verdict == "INCOMPLETE" else COMPLETED
    return store.finish(task.task_id, status, summary=summary, **end).task_id


def metric_names() -> set[str]:
    """Return the names of all metrics, as they are written in queries."""
    families = text_string_to_metric_families(metrics_text(Seen(), Config()).decode())
    return {family.name + ("_total" if family.type == "counter" else "") for family in families}
