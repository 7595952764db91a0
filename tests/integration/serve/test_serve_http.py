"""The server over HTTP: pages, the API, who may read and act, and requests that a scanner would send."""

from __future__ import annotations

import re
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from support.serve import PROVEN, PROXY, PROXY_SECRET, Served, compared, serving
from trueup.config.load import load
from trueup.serve import server
from trueup.serve.server import HEAD_SECONDS
from trueup.store import RUNNING, TaskStore, file

SCRIPT = "</title><script>alert(1)</script><img src=x onerror=alert(1)>"
TOKEN = "0123456789abcdef-token"
TOKENS = (("ann", sha256(TOKEN.encode()).digest()),)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


@pytest.fixture
def store(path: Path) -> Iterator[TaskStore]:
    with TaskStore(path) as opened:
        yield opened


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server over a store with two tables, for tests that change nothing."""
    path = tmp_path_factory.mktemp("served") / "tasks.db"
    with TaskStore(path) as store:
        compared(store, "orders", "MATCH")
        compared(store, SCRIPT, "DIFFER", count=3)
    with serving([path]) as running:
        yield running.read()


PAGES = ("/", "/tables", "/tasks", "/validations", "/tubes", "/syncs", "/schedule", "/doctor", "/actions")


def test_every_page_is_served_with_safe_headers(served: Served) -> None:
    for page in PAGES:
        answer = served.get(page)
        assert answer.status == 200, page
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cache-control"] == "no-store"
        assert "set-cookie" not in answer.headers
        assert "<script>alert" not in answer.text
        assert "<img src=x" not in answer.text
        # Nothing is loaded from another host.
        assert not re.findall(r'(?:src|href)="(?:https?:)?//', answer.text)


def test_tables_and_tasks(served: Served) -> None:
    listed = served.get("/api/v1/tables").json["tables"]
    assert [(table["verdict"], table["differences"]) for table in listed] == [("DIFFER", 3), ("MATCH", 0)]
    tasks = served.get("/api/v1/tasks?status=COMPLETED&type=TABLE_DIFF").json
    assert len(tasks["tasks"]) == 2
    assert tasks["next"] is None
    one = tasks["tasks"][0]["task_id"]
    assert served.get(f"/api/v1/tasks/{one}").json["task_id"] == one
    assert served.get("/api/v1/tasks/none").status == 404
    assert "DIFFER" in served.get(f"/tasks/{one}").text
    assert served.get("/tasks/none").status == 404
    assert served.get("/api/v1/history?name=public.orders").json["runs"][0]["verdict"] == "MATCH"
    assert "public.orders" in served.get("/table?name=public.orders&cluster=shop&nodes=n1,n2").text
    assert served.get("/table?name=nothing").status == 404
    assert "public.orders" in served.get("/tables?name=ORDERS").text
    assert "public.orders" not in served.get("/tables?verdict=DIFFER").text


def test_metrics_are_read_by_a_parser(served: Served) -> None:
    answer = served.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {family.name for family in text_string_to_metric_families(answer.text)}
    assert {"trueup_build_info", "trueup_proof_age_seconds", "trueup_diff_differences", "trueup_tasks"} <= found
    assert served.get("/healthz").json["status"] == "ok"


def test_pages_of_many_tasks(tmp_path: Path) -> None:
    """Tasks of two stores, some with the same time, are each on exactly one page."""
    paths = [tmp_path / "a.db", tmp_path / "b.db"]
    for path in paths:
        with TaskStore(path) as store:
            first = compared(store, "t", "MATCH")
        with closing(sqlite3.connect(path)) as connection, connection:
            columns = ", ".join(
                row[1]
                for row in connection.execute("PRAGMA table_info(tasks)")
                if row[1] not in ("seq", "task_id", "started_at")
            )
            connection.execute(
                f"INSERT INTO tasks (task_id, started_at, {columns}) SELECT hex(randomblob(16)),"
                f" '2026-01-01T00:00:' || printf('%02d', n.value % 7) || '.000Z', {columns} FROM tasks"
                " JOIN (WITH RECURSIVE c(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM c WHERE value < 100)"
                " SELECT value FROM c) n WHERE task_id = ?",
                (first,),
            )
    with serving(paths) as running:
        address, ids = "/api/v1/tasks", []
        while address:
            answer = running.get(address).json
            ids += [task["task_id"] for task in answer["tasks"]]
            address = answer["next"]
    assert len(ids) == len(set(ids)) == 202


def test_a_hundred_thousand_tasks_are_fast(store: TaskStore) -> None:
    first = compared(store, "t", "MATCH")
    with closing(sqlite3.connect(store.path)) as connection, connection:
        columns = ", ".join(
            row[1] for row in connection.execute("PRAGMA table_info(tasks)") if row[1] not in ("seq", "task_id")
        )
        connection.execute(
            f"INSERT INTO tasks (task_id, {columns}) WITH RECURSIVE c(value) AS (SELECT 1 UNION ALL SELECT value + 1"
            f" FROM c WHERE value < 100000) SELECT 'x' || value, {columns} FROM tasks, c WHERE task_id = ?",
            (first,),
        )
    with serving([store.path]) as running:
        running.read()
        for page in ("/", "/tasks", "/tasks?type=TABLE_DIFF&status=COMPLETED", "/tasks?status=FAILED", "/metrics"):
            # Of the processor, and of all threads: the machine may be busy with other things.
            began = time.process_time()
            assert running.get(page).status == 200
            assert time.process_time() - began < 2.0, page


# Who may read.


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost:x", "[::1]x"]
)
def test_another_name_of_the_server_is_refused(served: Served, host: str) -> None:
    answer = served.raw(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    assert answer.split()[1] in (b"421", b"400")
    assert b"orders" not in answer


def test_hosts_that_are_allowed(served: Served) -> None:
    for host in ("localhost", "LOCALHOST:1", f"127.0.0.1:{served.port}", "[::1]:80"):
        assert b" 200 " in served.raw(f"GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    two = served.raw(b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\nConnection: close\r\n\r\n")
    assert two.split()[1] in (b"421", b"400")


def test_a_token_is_needed(store: TaskStore) -> None:
    compared(store, "orders", "MATCH")
    with serving([store.path], tokens=TOKENS) as running:
        running.read()
        assert (running.get("/").status, running.get("/").headers["location"]) == (303, "/login")
        for page in ("/metrics", "/api/v1/tables", "/events", "/openapi.json"):
            assert running.get(page).status == 401, page
        assert running.get("/api/v1/tables", Authorization="Bearer wrong").status == 401
        assert running.get("/healthz").status == 200
        assert running.get("/api/v1/tables", Authorization=f"Bearer {TOKEN}").status == 200
        wrong = running.post("/login", {"token": "wrong"})
        assert (wrong.status, "set-cookie" in wrong.headers) == (403, False)
        right = running.post("/login", {"token": TOKEN})
        cookie = right.headers["set-cookie"]
        assert right.status == 303
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert TOKEN not in cookie
        session = cookie.partition(";")[0]
        shown = running.get("/tables", Cookie=session).text
        assert "public.orders" in shown
        csrf = re.search(r'name="csrf" value="([^"]+)"', shown)
        assert csrf
        assert running.post("/logout", {}, Cookie=session).status == 403
        assert running.post("/logout", {"csrf": csrf[1]}, Cookie=session).status == 303
        assert running.get("/tables", Cookie=session).status == 303


def test_the_header_of_a_proxy_counts_only_from_that_proxy(store: TaskStore) -> None:
    with serving([store.path], proxy_header="X-User", proxies=("10.9.9.9",)) as running:
        assert running.get("/", X_User="ann").status == 403
    with serving([store.path], proxy_header="X-User") as running:
        assert running.get("/").status == 403
        assert running.get("/", X_User="ann").status == 200


def test_another_program_of_this_machine_is_not_the_proxy(store: TaskStore) -> None:
    """It can send the header too, but not the secret."""
    task = store.start("TABLE_DIFF", schema="public", table="t", context={}).task_id
    with serving([store.path], allow_actions=True, **PROXY) as running:
        for wrong in ({}, {"X_Trueup_Proxy_Secret": "guess"}, {"X_Trueup_Proxy_Secret": ""}):
            assert running.get("/", X_User="ann", **wrong).status == 403
            assert running.post("/actions", {"action": "stop", "task": task}, X_User="ann", **wrong).status == 403
        twice = "X-User: ann\r\n" + f"X-Trueup-Proxy-Secret: {PROXY_SECRET}\r\n" * 2
        answer = running.raw(f"GET / HTTP/1.1\r\nHost: localhost\r\n{twice}Connection: close\r\n\r\n".encode())
        assert answer.split()[1] == b"403"
        assert running.get("/", X_User="ann", **PROVEN).status == 200
        assert PROXY_SECRET not in running.get(f"/tasks/{task}", X_User="ann", **PROVEN).text


def test_the_form_of_another_user_is_refused(store: TaskStore) -> None:
    task = store.start("TABLE_DIFF", schema="public", table="t", context={}).task_id
    with serving([store.path], allow_actions=True, **PROXY) as running:
        found: dict[str, str] = {}
        for who in ("ann", "bob", "ann"):
            page = running.get(f"/tasks/{task}", X_User=who, **PROVEN).text
            csrf = re.search(r'name="csrf" value="([^"]+)"', page)
            assert csrf
            assert found.setdefault(who, csrf[1]) == csrf[1]
        assert found["ann"] != found["bob"]
        form = {"action": "stop", "task": task, "csrf": found["bob"]}
        assert running.post("/actions", form, X_User="ann", **PROVEN).status == 403
        assert store.wanted(task) == ""
        assert running.post("/actions", form, X_User="bob", **PROVEN).status == 303
    # Two browsers of one user.
    with serving([store.path], tokens=TOKENS, allow_actions=True) as running:
        forms = []
        for _ in range(2):
            cookie = running.post("/login", {"token": TOKEN}).headers["set-cookie"].partition(";")[0]
            csrf = re.search(r'name="csrf" value="([^"]+)"', running.get(f"/tasks/{task}", Cookie=cookie).text)
            assert csrf
            forms.append((cookie, csrf[1]))
        (one, _), (_, other) = forms
        assert running.post("/actions", {**form, "csrf": other}, Cookie=one).status == 403


_HOST = b"Host: localhost\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HT",
        b"POST /login HTTP/1.1\r\nContent-Length: 9\r\n" + _HOST + b"t",
        b"GET /healthz HTTP/1.1\r\n" + _HOST,
        # Without reading an answer; the number fits into what the server accepts at once.
        (b"GET /static/app.css HTTP/1.1\r\n" + _HOST) * 250,
    ],
    ids=["nothing", "half a head", "half a body", "one request", "many requests"],
)
def test_connections_that_wait_do_not_keep_others_out(store: TaskStore, sent: bytes) -> None:
    """More than the server accepts; those that have sent a whole request are kept open for the next."""
    with serving([store.path], tokens=TOKENS) as running, ExitStack() as stack:
        for _ in range(600):
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            connection.settimeout(10)
            connection.connect((running.host, running.port))
            # Closed by the server, as one of many.
            with suppress(ConnectionError):
                connection.sendall(sent)
        began = time.monotonic()
        # The requests of all may be under way at this moment.
        running.until(lambda: running.get("/healthz").status == 200)
        assert running.get("/tables", Authorization=f"Bearer {TOKEN}").status == 200
        # Not the time after which they are closed.
        assert time.monotonic() - began < HEAD_SECONDS / 2


def test_only_one_of_many_requests_at_once_is_answered(store: TaskStore) -> None:
    request = b"GET /healthz HTTP/1.1\r\n" + _HOST
    with serving([store.path]) as running:
        assert running.raw(request * 3).count(b"HTTP/1.1 200") == 1
        # One after the other.
        with socket.create_connection((running.host, running.port), timeout=10) as connection:
            for _ in range(3):
                connection.sendall(request)
                answer = b""
                while not answer.endswith(b"}"):
                    answer += connection.recv(65536)
                assert answer.startswith(b"HTTP/1.1 200")


# Actions.


def test_actions_are_refused_without_the_option(store: TaskStore) -> None:
    task = store.start("TABLE_DIFF", schema="public", table="t", context={})
    with serving([store.path]) as running:
        assert running.post("/actions", {"action": "stop", "task": task.task_id}).status in (403, 404, 405)
        assert store.wanted(task.task_id) == ""
        assert '<form method="post"' not in running.get(f"/tasks/{task.task_id}").text


def test_an_action_needs_the_form_of_the_page_and_is_recorded(store: TaskStore) -> None:
    task = store.start("TABLE_DIFF", schema="public", table="t", context={})
    with serving([store.path], allow_actions=True, **PROXY) as running:
        page = running.get(f"/tasks/{task.task_id}", X_User="ann", **PROVEN).text
        csrf = re.search(r'name="csrf" value="([^"]+)"', page)
        assert csrf
        form = {"action": "pause", "task": task.task_id, "csrf": csrf[1]}
        own = f"http://127.0.0.1:{running.port}"
        for refused in (
            running.post("/actions", {**form, "csrf": "wrong"}, X_User="ann", **PROVEN),
            running.post("/actions", form, **PROVEN),
            running.post("/actions", form, X_User="ann", **PROVEN, Origin="https://evil.example"),
            running.post("/actions", form, X_User="ann", **PROVEN, Origin="null"),
            running.post("/actions", form, X_User="ann", **PROVEN, Sec_Fetch_Site="cross-site"),
            running.post("/actions", form, X_User="ann", **PROVEN, Sec_Fetch_Site="same-site"),
        ):
            assert refused.status in (401, 403)
        assert store.wanted(task.task_id) == ""
        done = running.post("/actions", form, X_User="ann", **PROVEN, Origin=own, Sec_Fetch_Site="same-origin")
        assert (done.status, done.headers["location"]) == (303, f"/tasks/{task.task_id}")
        assert store.wanted(task.task_id) == "pause"
        assert store.get(task.task_id).task_status == RUNNING
        assert running.post("/actions", {**form, "action": "drop"}, X_User="ann", **PROVEN).status == 409
        assert running.post("/actions", {**form, "task": "none"}, X_User="ann", **PROVEN).status == 409
        log = running.get("/actions", X_User="ann", **PROVEN).text
        assert "ann" in log
        assert "pause" in log
    with serving([store.path], proxy_header="X-User") as running:
        assert 'name="csrf"' not in running.get(f"/tasks/{task.task_id}", X_User="ann").text
        assert running.post("/actions", {**form, "action": "stop"}, X_User="ann").status == 405
        assert store.wanted(task.task_id) == "pause"


# Requests of scanners.


@pytest.mark.parametrize(
    "target",
    [
        "/../../etc/passwd",
        "/static/../app.py",
        "/static/..%2f..%2fapp.py",
        "/static/%2e%2e/%2e%2e/etc/passwd",
        "/tasks/..%2f..%2fetc%2fpasswd/report",
        "/tasks/%00",
        "/static/app.css%00.png",
        "/.git/config",
        "/wp-login.php",
        "//evil.example/",
        "/tasks?before=%27%20OR%201=1--&before_id=x",
        "/table?name=%27;DROP%20TABLE%20tasks;--",
        "/tables?first=-1",
        "/tables?first=99999999999999999999",
        "/tables?first=%D9%A3",
        "/tasks?status=%ff%fe",
    ],
)
def test_odd_paths(served: Served, target: str) -> None:
    answer = served.raw(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert answer.split()[1] in (b"200", b"404", b"307"), answer[:200]
    assert b"root:" not in answer
    assert b"Traceback" not in answer
    assert served.get("/tables").status == 200


CHUNKED = "Transfer-Encoding: chunked\r\n\r\n"
ODD_REQUESTS = {
    "long header": ("GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: " + "a" * 100_000, "400 431"),
    "long path": ("GET /" + "a" * 100_000 + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", "400 414 431"),
    "long query": ("GET /tasks?" + "a=1&" * 2000 + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", "414"),
    "DELETE": ("DELETE / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", "405"),
    "TRACE": ("TRACE / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", "405"),
    "long body": ("POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 99999999\r\n\r\n", "413"),
    "long chunk": (
        f"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{CHUNKED}fffff\r\n{'a' * 0xFFFFF}\r\n0\r\n\r\n",
        "413",
    ),
    "two lengths": (
        f"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 5\r\n{CHUNKED}0\r\n\r\n",
        "400 404 405",
    ),
    "many fields": (
        "POST /login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 400\r\n\r\n" + "a=1&" * 100,
        "400",
    ),
    "TLS": ("\x16\x03\x01\x02\x00\x01\x00\x01\x7f\x03\x03\r\n\r\n", "400"),
    "websocket": (
        "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        "200 400 426",
    ),
}


@pytest.mark.parametrize("name", ODD_REQUESTS)
def test_odd_requests(served: Served, name: str) -> None:
    text, statuses = ODD_REQUESTS[name]
    answer = served.raw(text.encode())
    assert not answer or answer.split()[1].decode() in statuses, answer[:200]
    assert served.get("/tables").status == 200


def test_slow_clients_are_dropped(store: TaskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.4)
    with serving([store.path]) as running:
        idle = [socket.create_connection((running.host, running.port), timeout=30) for _ in range(20)]
        try:
            for connection in idle[10:]:
                connection.sendall(b"GET / HTTP/1.1\r\nHost: loc")
            # One byte now and then does not extend the time.
            began = time.monotonic()
            with suppress(OSError):
                while time.monotonic() - began < 60:
                    idle[-1].sendall(b"a")
                    time.sleep(0.05)
            assert time.monotonic() - began < 50
            for connection in idle[:-1]:
                with suppress(ConnectionResetError):
                    assert connection.recv(100) == b""
            monkeypatch.setattr(server, "HEAD_SECONDS", 10.0)
            assert running.get("/healthz").status == 200
        finally:
            for connection in idle:
                connection.close()


# Sources that cannot be read.


def test_a_store_that_is_missing_corrupt_or_foreign(tmp_path: Path) -> None:
    missing, corrupt, good = tmp_path / "missing.db", tmp_path / "corrupt.db", tmp_path / "good.db"
    corrupt.write_bytes(b"x" * 5000)
    with TaskStore(good) as store:
        compared(store, "orders", "MATCH")
    with serving([missing, corrupt, good]) as running:
        running.read()
        page = running.get("/").text
        assert "does not exist" in page
        assert "is not a SQLite file" in page
        assert "public.orders" in running.get("/tables").text
        assert running.get("/tasks").status == 200
        assert 'trueup_source_up{kind="store",source="' + str(good) + '"} 1.0' in running.get("/metrics").text
        assert not missing.exists()
        assert corrupt.read_bytes() == b"x" * 5000
        # The store appears: the page shows it without a restart.
        with TaskStore(missing) as store:
            compared(store, "late", "MATCH")
        running.until(lambda: "public.late" in running.get("/tables").text)


def test_a_store_that_is_locked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "BUSY_SECONDS", 0.1)
    with TaskStore(path) as store:
        compared(store, "orders", "MATCH")
    with closing(sqlite3.connect(path)) as lock:
        lock.execute("PRAGMA locking_mode = EXCLUSIVE")
        lock.execute("BEGIN EXCLUSIVE")
        with serving([path]) as running:
            running.read()
            assert "is locked by another process" in running.get("/").text
            assert "is locked by another process" in running.get("/tasks").text
            assert running.get("/api/v1/tasks").status == 503
            lock.close()
            running.until(lambda: "public.orders" in running.get("/tables").text)
            assert "is locked" not in running.get("/").text


def test_a_node_that_is_down(store: TaskStore, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.close()
        file = tmp_path / "trueup.toml"
        port = silent.getsockname()[1] if silent.fileno() >= 0 else 1
        file.write_text(f'[nodes]\ndown = "postgresql://u:hunter2secret@127.0.0.1:{port}/x?connect_timeout=2"\n')
    compared(store, "orders", "MATCH")
    with serving([store.path], load(str(file))) as running:
        # Also the task store: each source is read by its own thread.
        running.read()
        assert running.collector.seen.nodes["down"].error
        page = running.get("/").text
        assert "down:" in page
        assert "public.orders" in page
        assert "These sources do not answer" in running.get("/validations").text
        for address in (*PAGES, "/metrics", "/api/v1/overview", "/api/v1/validations"):
            assert "hunter2secret" not in running.get(address).text


class Names(HTMLParser):
    """Collects the elements and the text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


PIECES = (
    "<",
    ">",
    '"',
    "'",
    "&",
    "<script>",
    "</td>",
    "</title>",
    "<img src=x",
    " onload=x",
    "{{",
    "\x00",
    "\u202e",
    "a",
)


@given(name=st.lists(st.sampled_from(PIECES) | st.characters(codec="utf-8"), min_size=1, max_size=12).map("".join))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_a_name_never_becomes_markup(name: str, rendered: Any) -> None:
    plain, odd = Names(), Names()
    plain.feed(rendered("plain"))
    odd.feed(rendered(name))
    assert odd.tags == plain.tags
    assert not [text for text in odd.texts if not text.replace("\n", "").isprintable()]


@pytest.fixture
def rendered() -> Any:
    """`rendered(name)`: the page of tables, with one table of this name."""
    from trueup.serve.pages import tables
    from trueup.serve.render import Renderer
    from trueup.store.history import TableRun, TableState

    renderer = Renderer()

    def render(name: str) -> str:
        time = "2026-01-01T00:00:00.000Z"
        run = TableRun("id", "shop", "n1,n2", name, "diff", True, "MATCH", 0, {}, {}, 10, 1.0, time, time)
        view = tables.tables([TableState(run, time, 1, 10)], lambda state: [run], name, "", 0)
        return renderer.page(view, (), "")

    return render
