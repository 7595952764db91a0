"""A job that lost its node waits for it; and a tube on an address still uses the configuration."""

from __future__ import annotations

import threading
from pathlib import Path
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


def test_a_paused_job_waits_for_a_lost_node(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(Node("n1", "host=127.0.0.1 port=1"), "tube")
    stop = threading.Event()
    sink = FunctionSink("builtins:print")
    job = Job(session, "t", sink, RunOptions(), Hold(session, "t", [0]), Silent(), stop)
    results: list[Exception | None] = [NodeError("lost", node="n1"), None]

    def run_once(*_: Any) -> None:
        if error := results.pop(0):
            raise error

    def heartbeat() -> None:
        # What the heartbeat of a paused job does while the node is lost.
        raise NodeError("still lost", node="n1")

    job.heartbeat = heartbeat
    monkeypatch.setattr(restart, "_take_locks", lambda *_, **__: True)
    monkeypatch.setattr(restart, "_run_once", run_once)
    assert restart.run(job).outages == 1
    assert not results


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
