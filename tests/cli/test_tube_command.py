"""`trueup tube`: every command as text and as JSON, from install to uninstall."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.cli import WriteConfig
from support.fixtures import Cli, Databases
from trueup.capture.triggers.install import VERSION
from trueup.store import TaskStore
from trueup.testing.postgres import Database


@pytest.fixture
def node(databases: Databases, write_config: WriteConfig) -> Database:
    """A configured node n1 with a table of 300 orders."""
    nodes = databases(1)
    nodes[0].execute("CREATE TABLE orders (id int PRIMARY KEY, at timestamptz DEFAULT now(), n int)")
    nodes[0].execute("INSERT INTO orders (id, n) SELECT g, g % 3 FROM generate_series(1, 300) g")
    write_config(nodes)
    return nodes[0]


def test_from_install_to_uninstall(cli: Cli, node: Database) -> None:
    ran = cli("tube", "install", "n1")
    assert (ran.code, ran.out, ran.err) == (0, f"version {VERSION} installed in the schema tube of n1\n", "")
    assert cli("tube", "install", "n1", "--json").json == {
        "node": "n1",
        "schema": "tube",
        "before": VERSION,
        "version": VERSION,
    }
    assert "trueup tube ensure" in cli("tube", "list").out
    assert cli("tube", "ensure", "search", "--partitions", 2, "--filter", "n > 0").code == 0
    assert "no tables" in cli("tube", "list").out
    ran = cli("tube", "attach", "search", "orders", "--shard", 4, "--json")
    assert (ran.json["source"], ran.json["table"], ran.json["key"], ran.json["problem"]) == (
        1,
        "public.orders",
        ["id"],
        None,
    )
    assert "public.orders: shard 4, key id" in cli("tube", "attach", "search", "Orders", "--shard", 4).out
    ran = cli("tube", "backfill", "search", "orders", "--order-col", "at", "--json", "--quiet")
    assert (ran.json["keys"], ran.json["pods"], ran.json["shard"], ran.err) == (200, 1, 4, "")
    assert "200 keys in 1 pod, finished" in cli("tube", "backfill", "search", "orders").out
    assert "control pod" in cli("tube", "backfill", "search", "orders", "--schedule").out
    assert cli("tube", "touch", "search", "orders", 7, 8, "--json").json == {"pods": 1}
    query = "SELECT id FROM public.orders"
    assert cli("tube", "touch", "search", "orders", "--query", query).out == "touched: 2 pods\n"
    shown = cli("tube", "stats")
    head, zero, one, backfill = shown.out.splitlines()
    assert head.split()[:4] == ["tube", "part", "live", "pods"]
    assert (zero.split()[:4], one.split()[:4]) == (["search", "0", "3", "302"], ["search", "1", "0", "0"])
    assert backfill.startswith("backfill search public.orders (shard 4): 200 keys")
    found = cli("tube", "stats", "--json").json
    assert [each["backfill_keys"] for each in found["stats"]] == [400, 0]
    assert found["backfills"][0]["keys"] == 200
    ran = cli("tube", "drop", "search")
    assert (ran.code, "in the tube search would be lost" in ran.err) == (2, True)
    assert "--force" in ran.err
    assert cli("tube", "detach", "search", "orders").out == "detached orders from search\n"
    assert cli("tube", "detach", "search", "orders", "--json").json == {"detached": False}
    assert cli("tube", "drop", "search", "--force").out == "dropped the tube search\n"
    assert cli("tube", "drop", "search", "--json").json == {"dropped": False}
    assert cli("tube", "uninstall", "n1").out == "dropped 0 tubes and the schema tube\n"


def test_problems_are_shown(cli: Cli, node: Database) -> None:
    cli("tube", "install", "n1")
    cli("tube", "ensure", "search")
    cli("tube", "attach", "search", "orders", "--shard", 1)
    node.execute("ALTER TABLE orders DISABLE TRIGGER USER")
    assert "PROBLEM: triggers are missing, disabled or replaced" in cli("tube", "list").out
    assert cli("tube", "list", "--json").json[0]["tables"][0]["problem"]


def test_errors_are_reported(cli: Cli, node: Database, databases: Databases) -> None:
    ran = cli("tube", "stats")
    assert (ran.code, "trueup tube install n1" in ran.err) == (2, True)
    cli("tube", "install", "n1")
    cli("tube", "ensure", "search")
    for words, why in (
        (("attach", "search", "ordres", "--shard", 1), "did you mean public.orders?"),
        (("attach", "serach", "orders", "--shard", 1), "the tube 'serach' does not exist"),
        (("attach", "search", "orders"), "contains no number"),
        (("touch", "search", "orders"), "either keys or --query is required"),
        (("ensure", "Search"), "invalid name of a tube"),
        (("list", "--on", "n9"), 'there is no node "n9"'),
        (("list", "--schema", "Bad"), "invalid schema name"),
        (("stats", "--schema", "other"), "trueup tube install n1 --schema other"),
    ):
        ran = cli("tube", *words)
        assert (ran.code, ran.out) == (2, "")
        assert why in ran.err
        assert "what to do" in ran.err
    other = databases(1)[0]
    ran = cli("tube", "list", "--node", f"n2={other.uri}", "--on", "n1")
    assert ran.code == 0
    ran = cli("tube", "list", "--node", f"n2={other.uri}", "--node", f"n3={other.uri}")
    assert "choose one: --on NAME" in ran.err


SINK = """
import json, pathlib

def write(batch):
    bad = [each for each in batch if each.key == ("13",)]
    if bad:
        raise ValueError("unlucky")
    with open("written.jsonl", "a") as out:
        out.writelines(json.dumps([each.key[0], each.row]) + "\\n" for each in batch)
"""


def test_a_job_runs_until_it_is_stopped(
    cli: Cli, node: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mysink.py").write_text(SINK, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    for command in ("install n1", "ensure search", "attach search orders --shard 4", "backfill search orders -q"):
        assert cli("tube", *command.split()).code == 0
    ran = cli("tube", "run", "search", "--to", "nothing://u:secret@x/y")
    assert (ran.code, "secret" in ran.err, "unknown kind of sink 'nothing:'" in ran.err) == (2, False, True)
    assert "expected numbers" in cli("tube", "run", "search", "--to", "python:mysink:write", "--partitions", "x").err
    assert (
        "python:mysink:nothing cannot be imported" in cli("tube", "run", "search", "--to", "python:mysink:nothing").err
    )
    ran = cli("tube", "run", "search", "--to", "python:mysink:write", "--until-empty", "--attempts", 2, "--json", "-q")
    assert (ran.code, ran.json["keys"], ran.json["written"], ran.json["dead_letters"]) == (2, 301, 299, 1)
    shown = cli("tube", "dead-letters", "search").out
    assert "public.orders 13 (shard 4): 2 attempts" in shown
    assert "ValueError: unlucky" in shown
    assert cli("tube", "dead-letters", "search", "13", "--json").json[0]["attempts"] == 2
    assert cli("tube", "dead-letters", "search", "99", "--retry").out == "0 dead letters will be retried\n"
    assert cli("tube", "dead-letters", "search", "--retry", "--drop").code == 2
    assert cli("tube", "dead-letters", "search", "--drop", "--json").json == {"dropped": 1}
    assert cli("tube", "dead-letters", "search").out == "no dead letters\n"
    # As a process, until it gets a signal.
    arguments = [sys.executable, "-m", "trueup", "tube", "run", "search", "--to", "python:mysink:write"]
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    job = subprocess.Popen(arguments, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        node.execute("UPDATE orders SET n = 99 WHERE id = 7")
        written = tmp_path / "written.jsonl"
        end = time.monotonic() + 60
        while not any(json.loads(line)[1]["n"] == 99 for line in written.read_text(encoding="utf-8").splitlines()):
            assert job.poll() is None, job.communicate()
            assert time.monotonic() < end
            time.sleep(0.05)
        with TaskStore() as store:
            (task,) = store.list(status="RUNNING")
        assert (task.task_type, task.task_context["sink"]) == ("TUBE_RUN", "python:mysink:write")
        job.send_signal(signal.SIGTERM)
        out, err = job.communicate(timeout=60)
    finally:
        job.kill()
    assert job.returncode == 0, err
    assert "search: 1 key of 1 pod" in out
    assert cli("tube", "stats", "--json").json["stats"][0]["live_pods"] == 0


def test_stats_with_an_interval(cli: Cli, node: Database, databases: Databases) -> None:
    """Statistics at an interval: as text, as lines of JSON, or updated in place; with the progress of a backfill."""
    for command in ("install n1", "ensure search", "attach search orders --shard 4", "backfill search orders -q"):
        assert cli("tube", *command.split()).code == 0
    watch = ["tube", "stats", "--watch", "--interval", "0.05", "--times", "2"]
    ran = cli(*watch)
    assert ran.code == 0
    assert len([line for line in ran.out.splitlines() if line.startswith("tube ")]) == 2
    assert "[------------------------] 0%, 300 keys waiting" in ran.out
    looks = [json.loads(line) for line in cli(*watch, "--json").out.splitlines()]
    assert [look["stats"][0]["backfill_keys"] for look in looks] == [300, 300]
    near, far = os.openpty()
    env = {**os.environ, "COLUMNS": "150", "TERM": "xterm"}
    shown = subprocess.Popen([sys.executable, "-m", "trueup", *watch], stdout=far, env=env)
    os.close(far)
    text = b""
    with contextlib.suppress(OSError):  # a closed terminal is an error here
        while part := os.read(near, 65536):
            text += part
    os.close(near)
    assert shown.wait(60) == 0
    assert b"every 0.05 s, Ctrl-C to stop" in text
    assert text.count(b"live pods") >= 2
    assert b"\x1b[1A" in text, "drawn in place"
    # A job writes them to a table of another node, with other column names: there is no progress bar any more.
    other = databases(1)[0]
    options = [
        "--node",
        f"n2={other.uri}",
        "--on",
        "n1",
        "--option",
        "table=copy.mine",
        "--map",
        "id=nr",
        "--map",
        "n=a",
    ]
    ran = cli("tube", "run", "search", "--to", "n2", "--until-empty", "-q", *options)
    assert ran.code == 0, ran.err
    assert other.execute("SELECT count(*), max(nr) FROM copy.mine WHERE a IS NOT NULL") == [(300, 300)]
    assert "keys waiting" not in cli("tube", "stats").out
