"""Alerts: raised, repeated and resolved once, to real HTTP and SMTP servers; a target that is down blocks nothing."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.serve import compared
from trueup.cli.main import run
from trueup.errors import ConfigError
from trueup.serve.alert_settings import AlertSettings, Target, load_alerts
from trueup.serve.model import NodeSeen, Part, Seen, SlotSeen
from trueup.serve.notify import Alerts, message
from trueup.serve.sources import read_store
from trueup.store import TaskStore
from trueup.store.alerts import Change


class Hook(BaseHTTPRequestHandler):
    """Keeps what is posted."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.got.append(json.loads(body))  # type: ignore[attr-defined]
        self.server.login = self.headers["authorization"]  # type: ignore[attr-defined]
        self.send_response(self.server.answer)  # type: ignore[attr-defined]
        self.send_header("location", "/elsewhere")
        self.end_headers()

    def do_GET(self) -> None:
        self.server.got.append("redirected")  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hook() -> Iterator[Any]:
    """A webhook: `got` has the messages, `answer` is its status."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        server.got, server.answer = [], 200  # type: ignore[attr-defined]
        server.url = f"http://127.0.0.1:{server.server_port}/services/T0/secret-part"  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


class Mailbox(socketserver.StreamRequestHandler):
    """A small SMTP server that keeps what it gets."""

    def handle(self) -> None:
        self.wfile.write(b"220 test\r\n")
        while line := self.rfile.readline():
            word = line.split()[0].upper()
            if word == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                mail = b""
                while (line := self.rfile.readline()) != b".\r\n":
                    mail += line
                self.server.got.append(mail.decode())  # type: ignore[attr-defined]
            self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")
            if word == b"QUIT":
                return


@contextmanager
def mailbox() -> Iterator[Any]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Mailbox) as server:
        server.got = []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TaskStore]:
    with TaskStore(tmp_path / "alerts.db") as opened:
        yield opened


def seen(store: TaskStore, **more: Any) -> Seen:
    return Seen(stores={store.path: Part("s", read_store(store.path), 1.0, 1.0)}, **more)


def alerts(store: TaskStore, *targets: Target, **settings: Any) -> Alerts:
    return Alerts(AlertSettings(targets=targets, **settings), store.path)


def test_what_is_sent_and_logged_stays_with_its_target(
    store: TaskStore, hook: Any, caplog: pytest.LogCaptureFixture
) -> None:
    compared(store, "orders", "DIFFER", count=9)
    hook.answer = 302
    assert alerts(store, Target("ops", webhook=hook.url)).process(seen(store)) == []
    assert [message for message in hook.got if message == "redirected"] == []
    # The driver names the path, which is the secret of a webhook.
    assert alerts(store, Target("chat", webhook="http://127.0.0.1:1/T0/secret part")).process(seen(store)) == []
    assert "cannot be reached" in caplog.text
    assert "secret" not in caplog.text


def test_raised_changed_repeated_and_resolved(store: TaskStore, hook: Any) -> None:
    rules = alerts(store, Target("ops", webhook=hook.url), differences_above=5, task_failed=False)
    compared(store, "orders", "MATCH")
    assert rules.process(seen(store)) == []
    compared(store, "orders", "DIFFER", count=9)
    assert [change.how for change in rules.process(seen(store))] == ["raised", "raised"]
    # No process sends it again.
    assert rules.process(seen(store)) == []
    assert (
        alerts(store, Target("ops", webhook=hook.url), differences_above=5, task_failed=False).process(seen(store))
        == []
    )
    compared(store, "orders", "INCOMPLETE", count=2)
    assert sorted((change.alert.split()[0], change.how) for change in rules.process(seen(store))) == [
        ("differences", "resolved"),
        ("verdict", "changed"),
    ]
    often = alerts(store, Target("ops", webhook=hook.url), repeat_after=0.01, task_failed=False)
    time.sleep(0.02)
    assert [change.how for change in often.process(seen(store))] == ["repeated"]
    compared(store, "orders", "MATCH")
    assert [change.how for change in rules.process(seen(store))] == ["resolved"]
    assert len(hook.got) == 4
    assert (
        hook.got[0]["text"]
        == "ALERT: public.orders on shop is DIFFER\nALERT: public.orders on shop has 9 differences (limit 5)"
    )
    assert hook.got[-1]["alerts"][0]["state"] == "resolved"


def test_what_cannot_be_seen_is_not_resolved(store: TaskStore, hook: Any) -> None:
    rules = alerts(store, Target("ops", webhook=hook.url), slot_retained_above=100)
    node = NodeSeen("n1", "id", slots=(SlotSeen("n1", "trueup_v", True, 4096),))
    assert [change.text for change in rules.process(seen(store, nodes={"n1": Part("n1", node, 1.0, 1.0)}))] == [
        "n1 keeps 4,096 bytes of log for the slot trueup_v (limit 100 bytes)"
    ]
    # A command reads only its task store; a node that was never read says nothing.
    assert rules.process(seen(store)) == []
    assert rules.process(seen(store, nodes={"n1": Part("n1", error="down")})) == []
    # A command does not know the tables of other task stores.
    with TaskStore(store.path.with_name("other.db")) as other:
        compared(other, "elsewhere", "DIFFER", count=1)
        both = {path: Part("s", read_store(path), 1.0, 1.0) for path in (store.path, other.path)}
        assert [change.how for change in rules.process(Seen(stores=both))] == ["raised"]
        assert rules.process(seen(store)) == []
        compared(other, "elsewhere", "MATCH")
        both = {path: Part("s", read_store(path), 1.0, 1.0) for path in (store.path, other.path)}
        assert [change.how for change in rules.process(Seen(stores=both))] == ["resolved"]
    # The node answers, but its slots could not be read.
    partly = Part("n1", NodeSeen("n1", "id", problems=("permission denied",)), 1.0, 1.0)
    assert rules.process(seen(store, nodes={"n1": partly})) == []
    good = Part("n1", NodeSeen("n1", "id"), 1.0, 1.0)
    assert [change.how for change in rules.process(seen(store, nodes={"n1": good}))] == ["resolved"]


def test_a_failed_task_and_an_old_proof(store: TaskStore, hook: Any) -> None:
    rules = alerts(store, Target("ops", webhook=hook.url), proof_older_than=0.01, verdict_change=False)
    compared(store, "a<b>&", "MATCH")
    compared(store, "orders", "INCOMPLETE", error="lost postgresql://u:hunter2@h/x\nmore")
    time.sleep(0.02)
    first = rules.process(seen(store))
    assert sorted(change.alert.split()[0] for change in first) == ["proof", "proof", "task"]
    text = hook.got[0]["text"]
    assert "hunter2" not in text
    assert "a&lt;b&gt;&amp;" in text
    assert "was never proven" in text
    # A failure is sent once, and its end is no news.
    often = alerts(store, Target("ops", webhook=hook.url), repeat_after=0.01, verdict_change=False)
    time.sleep(0.02)
    assert [change.how for change in often.process(seen(store)) if change.alert.startswith("task")] == []


@pytest.mark.parametrize("answer", [500, 302])
def test_a_target_that_refuses_is_tried_again(
    store: TaskStore, hook: Any, answer: int, caplog: pytest.LogCaptureFixture
) -> None:
    rules = alerts(store, Target("ops", webhook=hook.url), task_failed=False)
    compared(store, "orders", "DIFFER", count=1)
    hook.answer = answer
    assert rules.process(seen(store)) == []
    assert "ops cannot be reached" in caplog.text
    assert "secret-part" not in caplog.text
    hook.answer = 200
    assert [change.how for change in rules.process(seen(store))] == ["raised"]


def test_a_target_that_was_down_gets_it_later(store: TaskStore, hook: Any, tmp_path: Path) -> None:
    """Another target that was reached does not get it again."""
    flag, out = tmp_path / "up", tmp_path / "out"
    command = Target("run", command=("sh", "-c", f"test -e {flag} && cat >> {out}"))
    rules = alerts(store, Target("ops", webhook=hook.url), command, task_failed=False)
    compared(store, "orders", "DIFFER", count=1)
    assert [change.target for change in rules.process(seen(store))] == ["ops"]
    assert rules.process(seen(store)) == []
    flag.touch()
    assert [change.target for change in rules.process(seen(store))] == ["run"]
    assert rules.process(seen(store)) == []
    assert len(hook.got) == 1
    assert json.loads(out.read_text())["alerts"][0]["state"] == "raised"


def test_a_process_that_is_killed_while_it_sends_loses_nothing(
    store: TaskStore, hook: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = alerts(store, Target("ops", webhook=hook.url), task_failed=False)
    compared(store, "orders", "DIFFER", count=1)

    def claim() -> list[Change]:
        texts = {"verdict public.orders shop n1,n2": ("text", "DIFFER")}
        return store.claim_alerts(["ops"], texts, lambda key: True, once=(), repeat_after=1e9)

    # Claimed, and never confirmed: not sent by others for a while, then sent.
    assert [change.how for change in claim()] == ["raised"]
    assert rules.process(seen(store)) == []
    monkeypatch.setattr("trueup.store.alerts.CLAIM_SECONDS", 0.0)
    assert [change.how for change in rules.process(seen(store))] == ["raised"]
    # The same when it is resolved.
    compared(store, "orders", "MATCH")
    resolved = store.claim_alerts(["ops"], {}, lambda key: True, once=(), repeat_after=1e9)
    assert [change.how for change in resolved] == ["resolved"]
    assert [change.how for change in rules.process(seen(store))] == ["resolved"]
    assert rules.process(seen(store)) == []
    # An alert that was over before anyone got it is no news.
    assert [change.how for change in claim()] == ["raised"]
    assert rules.process(seen(store)) == []


def test_a_machine_that_only_watches_creates_the_store(tmp_path: Path, hook: Any) -> None:
    rules = Alerts(
        AlertSettings(targets=(Target("ops", webhook=hook.url),), slot_retained_above=1), tmp_path / "new" / "tasks.db"
    )
    quiet, loud = NodeSeen("n1", "id"), NodeSeen("n1", "id", slots=(SlotSeen("n1", "trueup_v", True, 4096),))
    assert rules.process(Seen(nodes={"n1": Part("n1", quiet, 1.0, 1.0)})) == []
    assert not rules.store.exists()
    assert [change.how for change in rules.process(Seen(nodes={"n1": Part("n1", loud, 1.0, 1.0)}))] == ["raised"]
    assert [change.how for change in rules.process(Seen(nodes={"n1": Part("n1", quiet, 1.0, 1.0)}))] == ["resolved"]


def test_a_password_of_a_webhook(store: TaskStore, hook: Any, caplog: pytest.LogCaptureFixture) -> None:
    compared(store, "orders", "DIFFER", count=1)
    address = hook.url.replace("http://", "http://bob:hunter2%40x@")
    for wrong in (address.replace(str(hook.server_port), "1"), address.replace(str(hook.server_port), "x")):
        assert alerts(store, Target("ops", webhook=wrong), task_failed=False).process(seen(store)) == []
    assert "ops cannot be reached" in caplog.text
    assert "hunter2" not in caplog.text
    assert "secret-part" not in caplog.text
    assert alerts(store, Target("ops", webhook=address), task_failed=False).process(seen(store))
    assert b64decode(hook.login.split()[1]) == b"bob:hunter2@x"


def test_a_command_and_mail(store: TaskStore, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    with mailbox() as server:
        address = f"smtp://127.0.0.1:{server.server_address[1]}"
        mail = Target("mail", smtp=address, sender="trueup@example.com", recipients=("ops@example.com",))
        rules = alerts(store, Target("run", command=("sh", "-c", f"cat > {out}")), mail, task_failed=False)
        compared(store, "orders\r\nBcc: evil@example.com", "DIFFER", count=1)
        assert sorted(change.target for change in rules.process(seen(store))) == ["mail", "run"]
        (text,) = server.got
    assert "trueup: ALERT: public" in text
    assert "\nBcc:" not in text
    assert json.loads(out.read_text())["alerts"][0]["state"] == "raised"


def test_a_run_is_not_blocked_by_a_target_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that fails a task sends it; a server that accepts and is silent delays the end by seconds only."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (tmp_path / "trueup.toml").write_text(
            f'[nodes]\na = "postgresql://127.0.0.1:1/x"\nb = "postgresql://127.0.0.1:1/y"\n[alerts]\n[alerts.to.ops]\n'
            f'webhook = "http://127.0.0.1:{silent.getsockname()[1]}/"\n'
        )
        monkeypatch.setattr("trueup.serve.notify.END_SECONDS", 0.5)
        began = time.monotonic()
        assert run(["diff", "public.t", "--engine", "local"]) == 2
        assert 0.5 <= time.monotonic() - began < 60
    with TaskStore() as store:
        assert [task.task_status for task in store.list()] == ["FAILED"]


def test_a_command_sends_what_it_found(tmp_path: Path, hook: Any) -> None:
    config = tmp_path / "watch.toml"
    config.write_text(
        '[nodes]\na = "postgresql://127.0.0.1:1/x"\nb = "postgresql://127.0.0.1:1/y"\n[alerts]\n[alerts.to.ops]\n'
        f'webhook = "{hook.url}"\n'
    )
    assert run(["check", "public.t", "--engine", "local", "--config", str(config)]) == 2
    assert "TABLE_CHECK public.t) failed" in hook.got[0]["text"]
    run(["tasks"])
    assert len(hook.got) == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[alerts]\n", "there is no target"),
        ("[alerts]\nlag_over = 1\n", "no such key"),
        ('[alerts]\nlag_above = "soon"\n[alerts.to.x]\ncommand = ["a"]\n', "not an interval"),
        ('[alerts]\nslot_retained_above = "many"\n[alerts.to.x]\ncommand = ["a"]\n', "not a size"),
        ('[alerts.to.x]\nwebhook = "ftp://x"\n', "not an address of HTTP"),
        ('[alerts.to.x]\nwebhook = "https://x"\ncommand = ["a"]\n', "exactly one"),
        ('[alerts.to.x]\nwebhook = "http://u:hunter2@hooks.example.com/x"\n', "not be encrypted"),
        ('[alerts.to.x]\nwebhook = "http://hunter2@hooks.example.com/x"\n', "not be encrypted"),
        ('[alerts.to.x]\nwebhook = "http://hooks.example.com/x?token=hunter2"\n', "not be encrypted"),
        ('[alerts.to.x]\nsmtp = "smtp://u:hunter2@mail.example.com"\nfrom = "a"\nto = ["b"]\n', "not be encrypted"),
        ('[alerts.to.x]\nsmtp = "smtps://mail.example.com"\n', "from and to are required"),
    ],
)
def test_wrong_settings(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "trueup.toml").write_text(text)
    with pytest.raises(ConfigError, match=problem) as caught:
        load_alerts()
    assert "hunter2" not in str(caught.value)


def test_right_settings(tmp_path: Path) -> None:
    (tmp_path / "trueup.toml").write_text(
        '[alerts]\nlag_above = "5m"\nslot_retained_above = "2GB"\nrepeat_after = "0"\n'
        '[alerts.to.x]\ncommand = ["a", "b"]\n'
    )
    settings = load_alerts()
    assert settings is not None
    assert (settings.lag_above, settings.slot_retained_above, settings.repeat_after) == (300.0, 2 * 1024**3, 0.0)
    assert settings.targets[0].command == ("a", "b")


def test_a_long_list_is_cut() -> None:
    changes = [Change(f"verdict {number}", "raised", f"t{number} is DIFFER", "") for number in range(50)]
    assert message(changes).splitlines()[-1] == "… and 30 more"
