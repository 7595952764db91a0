"""`trueup tube prove` of sinks with documents; those with tables are in tests/spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from redis import Redis

from support.fixtures import Databases
from support.proof import prove_drift
from support.sinks import Rig
from support.tube import TubeDatabase
from trueup.cli.main import run as command
from trueup.sinks import open_sink
from trueup.sinks.base import Document


@pytest.mark.parametrize("rig", ["redis", "search"], indirect=True)
def test_documents(tube_db: TubeDatabase, rig: Rig, tmp_path: Path) -> None:
    options = {name: text for name, text in rig.options.items() if name != "bytes"}

    def foreign(key: str) -> None:
        if rig.address.startswith("redis"):
            Redis.from_url(rig.address).set(f"doc:public.things:0:{key}", "{}")
            # Not a document: no row has such a name.
            Redis.from_url(rig.address).set("document", "{}")
            return
        store(f"public.things:0:{key}")

    def store(*ids: str) -> None:
        lines = [line for name in ids for line in ({"index": {"_index": "shop", "_id": name}}, {"n": 1})]
        body = "".join(json.dumps(line) + "\n" for line in lines).encode()
        urlopen(Request(f"{rig.address.removesuffix('/shop')}/_bulk", body)).close()

    prove_drift(tube_db, rig.address, options, tmp_path, every_step=True, foreign=foreign)
    if rig.address.startswith("http"):
        # A document of the tube may be among those that were not looked at.
        for first in range(0, 2000, 20):
            store(*(f"other{first + number}" for number in range(20)))
        proof = tube_db.tube.prove(rig.address, sink_options=options, recheck_wait=0.0, report_dir=str(tmp_path))
        assert proof.verdict == "INCOMPLETE"
        assert "not all were looked at" in proof.tables[0].incomplete[0]
    # The server fails after the first page: the table is not proven, although nothing differs so far.
    sink: Any = open_sink(rig.address, options)
    read = sink.differing

    def differing(batch: Sequence[Document]) -> Any:
        found = read(batch)
        rig.down()
        return found

    sink.differing = differing
    proof = tube_db.tube.prove(sink, recheck_wait=0.0, report_dir=str(tmp_path))
    assert (proof.verdict, proof.exit_code, proof.sink) == ("INCOMPLETE", 2, type(sink).__name__)
    assert [table.verdict for table in proof.tables] == ["INCOMPLETE", "INCOMPLETE"]


def test_the_command_and_bad_input(
    tube_db: TubeDatabase,
    redis: Rig,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def prove(name: str, sink: str, *more: str) -> tuple[int, str]:
        to = ["--to", sink] if sink else []
        code = command(["tube", "prove", name, *to, "--node", f"n1={tube_db.database.uri}", *more])
        return code, "".join(capsys.readouterr())

    tube_db.run("CREATE TABLE public.t (id int PRIMARY KEY)")
    assert "the tube t has no tables" in prove("t", redis.address)[1]
    assert "the tube no does not exist" in prove("no", redis.address)[1]
    tube_db.tube.attach("t", shard=0)
    code, out = prove("t", redis.address, "--option", "mode=set")
    assert (code, "MATCH of 0 rows: the sink of the tube t" in out) == (0, True)
    assert "programs fill the cache" in prove("t", redis.address)[1]
    assert "cannot be read back" in prove("t", "python:json:dumps")[1]
    # Without a sink: of the configuration, else of the last run.
    assert "the tube no does not exist" in prove("no", "")[1]
    assert "the sink of the tube t is not known: no run of the tube is recorded" in prove("t", "")[1]
    tube_db.tube.run(redis.address, sink_options={"mode": "set"}, until_empty=True, spark=tube_db.spark)
    assert "is not known: it has a password, which is not recorded" in prove("t", "")[1]
    monkeypatch.chdir(tmp_path)
    tube_db.tube.run("parquet:lake", until_empty=True, spark=tube_db.spark)
    config = tmp_path / "sinks.toml"
    config.write_text('[tube.t]\nto = "${SINK}"\noptions = { mode = "set" }\n')
    monkeypatch.setenv("SINK", redis.address)
    code, out = prove("t", "", "--config", str(config))
    assert (code, "0, from [tube.t])" in out, "ge%20heim" in out) == (0, True, False)
    config.write_text('[tube.t]\nsink = "x"\n')
    assert "sinks.toml: tube.t.sink: there is no such key" in prove("t", "", "--config", str(config))[1]
    monkeypatch.chdir("/")
    assert f"parquet:{tmp_path}/lake, from the run of 2" in prove("t", "", "--engine", "local")[1]
    redis.down()
    code, out = prove("t", redis.address, "--option", "mode=set")
    assert (code, "is not usable" in out) == (2, True)


def test_a_proof_says_what_it_is_about(tube_db: TubeDatabase, databases: Databases, tmp_path: Path) -> None:
    (copy,) = databases(1)
    tube_db.run("CREATE TABLE public.t (id int PRIMARY KEY, note text)")
    copy.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
    tube_db.tube.attach("t", shard=0, predicate="id > 1")
    options: dict[str, Any] = {"recheck_wait": 0.0, "report_dir": str(tmp_path), "spark": tube_db.spark}
    # An empty table is delivered completely, and is said to be empty.
    proof = tube_db.tube.prove(copy.uri, **options)
    assert (proof.verdict, proof.as_text().startswith("MATCH of 0 rows (of a part): ")) == ("MATCH", True)
    tube_db.run("INSERT INTO public.t VALUES (1, 'x'), (2, 'y')")
    tube_db.tube.run(copy.uri, until_empty=True, spark=tube_db.spark)
    text = tube_db.tube.prove(copy.uri, **options).as_text()
    assert (text.startswith("MATCH (of a part): "), "only rows with: " in text, "id > 1" in text) == (True, True, True)
