"""`trueup tube prove` of sinks with documents; those with tables are in tests/spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.proof import prove_drift
from support.sinks import Rig
from support.tube import TubeDatabase
from trueup.cli.main import run as command


@pytest.mark.parametrize("rig", ["redis", "search"], indirect=True)
def test_documents(tube_db: TubeDatabase, rig: Rig, tmp_path: Path) -> None:
    options = {name: text for name, text in rig.options.items() if name != "bytes"}
    prove_drift(tube_db, rig.address, options, tmp_path, every_step=True)


def test_the_command_and_bad_input(tube_db: TubeDatabase, redis: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    def prove(name: str, sink: str, *more: str) -> tuple[int, str]:
        code = command(["tube", "prove", name, "--to", sink, "--node", f"n1={tube_db.database.uri}", *more])
        return code, "".join(capsys.readouterr())

    tube_db.run("CREATE TABLE public.t (id int PRIMARY KEY)")
    assert "the tube t has no tables" in prove("t", redis.address)[1]
    assert "the tube no does not exist" in prove("no", redis.address)[1]
    tube_db.tube.attach("t", shard=0)
    code, out = prove("t", redis.address, "--option", "mode=set")
    assert (code, "MATCH: the sink of the tube t" in out) == (0, True)
    assert "programs fill the cache" in prove("t", redis.address)[1]
    assert "cannot be read back" in prove("t", "python:json:dumps")[1]
    redis.down()
    code, out = prove("t", redis.address, "--option", "mode=set")
    assert (code, "is not usable" in out) == (2, True)
