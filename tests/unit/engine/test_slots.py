"""The number of concurrent tasks: a share of the cores, at least one, at most what a node allows."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from trueup.engine import slots
from trueup.engine.slots import IdleCores, Share, cores_here


@pytest.mark.parametrize(
    ("share", "cores", "slots"),
    [
        (Share(0.5), 8, 4),
        (Share(0.5), 1, 2),
        (Share(0.0), 64, 1),
        (Share(4.0), 2, 8),
        (Share(0.5, max_connections=3), 100, 2),
        (Share(1.0, max_connections=2), 3, 1),
        (Share(0.5, fixed=6), 2, 6),
        (Share(0.5, max_connections=5, fixed=6), 2, 4),
    ],
)
def test_the_slots_of_a_share(share: Share, cores: int, slots: int) -> None:
    assert share.of(cores) == slots


def test_the_cores_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert cores_here() == 8
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cores_here() == 8
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert cores_here() == 2


def test_idle_cores_are_counted_within_the_limit_of_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "CGROUP", tmp_path)
    idle = IdleCores()
    time.sleep(0.05)
    assert 0 <= idle.now() <= (os.cpu_count() or 1) + 0.5
    (tmp_path / "cpu.max").write_text("10000 100000\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 5000000\nuser_usec 1\n")
    idle = IdleCores()
    time.sleep(0.05)
    assert 0 <= idle.now() <= 0.1
    (tmp_path / "cpu.stat").write_text("usage_usec 9000000\nuser_usec 1\n")
    assert idle.now() == 0
