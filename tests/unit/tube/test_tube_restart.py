"""A job that lost its node waits for it; and a tube on an address still uses the configuration."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trueup.api.tube import Tube
from trueup.capture.triggers.hold import Hold
from trueup.capture.triggers.session import Session
from trueup.config.model import Node
from trueup.engine.progress import Silent
from trueup.errors import NodeError
from trueup.sinks.function import FunctionSink
from trueup.verbs.tube import restart
from trueup.verbs.tube.model import Job, RunOptions


class Loop:
    """The loop of a job, which loses the node the first time."""

    runs = 0

    def __init__(self, *_: object) -> None:
        self.letters = SimpleNamespace(count=0)
        self.control = SimpleNamespace(close=lambda: None)

    def run(self) -> None:
        Loop.runs += 1
        if Loop.runs == 1:
            raise NodeError("lost", node="n1")


def test_a_paused_job_waits_for_a_lost_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "reading_node", lambda session: session.node)
    monkeypatch.setattr(Hold, "take", lambda *_, **__: None)
    monkeypatch.setattr(Hold, "release", lambda *_: None)
    monkeypatch.setattr(restart, "Run", Loop)
    session = Session(Node("n1", "host=127.0.0.1 port=1"), "tube")
    sink = FunctionSink("builtins:print")
    job = Job(session, "t", sink, RunOptions(), Hold(session, "t", [0]), Silent(), threading.Event())

    def heartbeat() -> None:
        # The heartbeat of a paused job while the node is lost.
        raise NodeError("still lost", node="n1")

    job.heartbeat = heartbeat
    assert restart.run(job).outages == 1
    assert Loop.runs == 2


def test_a_tube_on_an_address_uses_the_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "trueup.toml").write_text('[nodes]\ncopy = "host=copy dbname=x"\n[tasks]\ntask_db = "mine.db"\n')
    used: dict[str, Any] = {}

    def open_sink(address: str, options: Any, *, nodes: Any) -> FunctionSink:
        used["nodes"] = list(nodes)
        return FunctionSink("builtins:print")

    monkeypatch.setattr("trueup.api.tube.open_sink", open_sink)
    monkeypatch.setattr("trueup.api.tube.pods.partitions_to_hold", lambda *_: [0])
    monkeypatch.setattr("trueup.api.tube.run_as_task", lambda job, **options: used.update(options))
    for node in ("postgresql://source/x", Node("source", "host=source")):
        Tube("t", node, config=str(tmp_path / "trueup.toml")).run("copy")
        assert used["nodes"] == ["copy"]
        assert used["configured"].endswith("mine.db")
