"""Every engine writes the same report, even if executors are killed, and shows no password to the cluster."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

import trueup
from support.spark import SparkCluster
from trueup.testing.postgres import Server, free_port
from trueup.testing.processes import wait_until

SECRET = "q7-Heron-2290"
TABLE = """
    CREATE TABLE items (code text, part int, name text, price numeric, seen timestamptz, PRIMARY KEY (code, part));
    INSERT INTO items
    SELECT 'c' || i % 7, i, nullif('item ' || i, 'item 5'), i / 100.0, '2024-01-01'::timestamptz + i * interval '1 s'
      FROM generate_series(1, 1200) i;
    ANALYZE items;
"""
DRIFTS = (
    "",
    """
    UPDATE items SET name = NULL WHERE part % 97 = 0;
    UPDATE items SET price = NULL WHERE part = 11;
    UPDATE items SET name = '' WHERE name IS NULL AND part = 5;
    DELETE FROM items WHERE part % 499 = 0;
    INSERT INTO items VALUES ('', -1, NULL, NULL, NULL), ('zz', 30000, 'é', 1, NULL);
    """,
    "UPDATE items SET seen = NULL WHERE part IN (1, 700, 1200); DELETE FROM items WHERE part BETWEEN 100 AND 110",
)
# Slow enough to be killed during the run: every hundredth row sleeps.
SLOW = "part % 100 <> 0 OR pg_catalog.pg_sleep(0.02) IS NOT NULL"
DIFF = ["-m", "trueup", "-v", "diff", "items", "--block-size=100", "--override-block-size", "--compare-unit-size=25",
        "--recheck=1", "--recheck-wait=0", f"--filter={SLOW}", "--allow-functions=pg_sleep",
        "--concurrency-factor=1", "--json"]  # fmt: skip
CORES = 3


@dataclass
class Seen:
    """What other processes can see during a run."""

    sessions: dict[str, int] = field(default_factory=dict)
    pages: dict[str, bytes] = field(default_factory=dict)
    processes: dict[str, str] = field(default_factory=dict)


@dataclass
class Ran:
    """A run of the command, its report, and what other processes could see."""

    code: int
    output: str
    report: dict[str, Any]
    seen: Seen


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the runs of this module."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def nodes(server: Server, folder: Path) -> Iterator[list[str]]:
    """The addresses of three nodes that differ; the password is in a file that only the driver can read."""
    made = [server.create_database(f"cluster_{os.getpid()}_{number}") for number in (1, 2, 3)]
    made[0].execute(f"CREATE ROLE distant LOGIN PASSWORD '{SECRET}'")
    try:
        for database, drift in zip(made, DRIFTS, strict=True):
            database.execute(TABLE + drift + "; GRANT SELECT ON items TO distant")
        password = folder / "pgpass"
        password.touch(0o600)
        password.write_text(f"*:*:*:distant:{SECRET}\n")
        yield [f"postgresql://distant@127.0.0.1:{server.port}/{database.name}" for database in made]
    finally:
        for database in made:
            database.drop()
        server.database("postgres").execute("DROP ROLE distant")


Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def run(nodes: list[str], folder: Path, server: Server) -> Run:
    """`run(options, conf=…, cluster=…, ui=…, meanwhile=…)`: run a diff as a process, and observe it."""

    def call(
        options: Sequence[str],
        *,
        conf: dict[str, str] | None = None,
        cluster: SparkCluster | None = None,
        ui: str = "",
        meanwhile: Callable[[], object] = lambda: None,
        program: Sequence[str] = DIFF,
    ) -> Ran:
        lines = [f'n{number} = "{address}"' for number, address in enumerate(nodes, 1)]
        lines += ["[spark.conf]", *[f'"{key}" = "{value}"' for key, value in (conf or {}).items()]]
        (folder / "trueup.toml").write_text("\n".join(["[nodes]", *lines]))
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("PG", "TRUEUP_"))},
            "PGPASSFILE": str(folder / "pgpass"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TRUEUP_TASKS_DB": str(folder / "tasks.db"),
        }
        process = subprocess.Popen(
            [sys.executable, *program, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=environment,
        )
        seen = Seen()
        watchers = [threading.Thread(target=_watch_sessions, args=(process, server, seen))]
        if cluster:
            watchers.append(threading.Thread(target=_watch_pages, args=(process, cluster, ui, seen)))
        for watcher in watchers:
            watcher.start()
        try:
            meanwhile()
        finally:
            out, err = process.communicate(timeout=300)
            for watcher in watchers:
                watcher.join()
        report = json.loads(Path(json.loads(out)["report"]).read_text()) if process.returncode in (0, 1) else {}
        return Ran(process.returncode, out + err, report, seen)

    return call


def _watch_sessions(process: subprocess.Popen[str], server: Server, seen: Seen) -> None:
    query = """SELECT datname, count(*) FROM pg_stat_activity
                WHERE application_name LIKE 'trueup%' AND application_name NOT LIKE '%watch' AND datname IS NOT NULL
                GROUP BY 1"""
    with psycopg.connect(server.uri(), autocommit=True) as connection:
        while process.poll() is None:
            for name, count in connection.execute(query).fetchall():
                seen.sessions[name] = max(seen.sessions.get(name, 0), count)
            time.sleep(0.05)


def _watch_pages(process: subprocess.Popen[str], cluster: SparkCluster, ui: str, seen: Seen) -> None:
    """Look at the processes and pages now and then: on a busy machine this takes a while."""
    while process.poll() is None:
        if seen.sessions:
            _look_at_processes([process, *cluster.processes.values()], seen)
            _look_at_pages(ui, seen)
        time.sleep(1)
    _look_at_pages(ui, seen)


def _look_at_processes(roots: Sequence[subprocess.Popen[Any]], seen: Seen) -> None:
    for root in roots:
        try:
            for child in psutil.Process(root.pid).children(recursive=True):
                seen.processes["\0".join(child.cmdline())] = str(child.environ())
        except psutil.Error:
            continue  # it has ended meanwhile


def _look_at_pages(ui: str, seen: Seen) -> None:
    """Read the pages and the REST interface of the web server of Spark."""
    try:
        (application,) = json.loads(_page(ui, "/api/v1/applications"))
        api = f"/api/v1/applications/{application['id']}"
        inside = ("jobs", "stages?details=true", "sql?details=true&planDescription=true", "environment", "allexecutors")
        for page in (*[f"{api}/{name}" for name in inside], "/SQL/", "/connect/"):
            seen.pages[page] = _page(ui, page)
    except (OSError, ValueError):
        return  # the server is not up yet, or no longer


def _page(ui: str, page: str) -> bytes:
    try:
        with urllib.request.urlopen(ui + page, timeout=20) as answer:
            found: bytes = answer.read()
            return found
    except urllib.error.HTTPError:
        return b""


def _without_hashes(difference: dict[str, Any]) -> dict[str, Any]:
    """Return a difference without the hashes, which have a random seed per run."""
    return {name: value for name, value in difference.items() if name != "hashes"}


def _comparable(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report without times, paths and random values."""
    summary = dict(report["summary"])
    for key in ("task_id", "start_time", "end_time", "time_taken", "engine", "ran_on", "concurrency_factor"):
        del summary[key]
    proof = {key: report["proof"][key] for key in ("digest", "one_snapshot_a_node", "long_value")}
    diffs = {
        pair: {**found, "differences": sorted(map(_without_hashes, found["differences"]), key=json.dumps)}
        for pair, found in report["diffs"].items()
    }
    return {**report, "summary": summary, "proof": proof, "diffs": diffs}


@pytest.fixture(scope="module")
def expected(run: Run) -> dict[str, Any]:
    """The report of the local engine."""
    ran = run(["--engine=local"])
    assert ran.report["summary"]["verdict"] == "DIFFER", ran.output
    return ran.report


def _check(ran: Ran, expected: dict[str, Any]) -> None:
    assert ran.code == 1, ran.output
    assert (ran.report["summary"]["engine"], [*ran.report["summary"]["ran_on"]]) == ("spark", ["spark"])
    assert _comparable(ran.report) == _comparable(expected)


def test_the_report_of_the_local_engine(expected: dict[str, Any]) -> None:
    counts = {pair: (found["missing"], found["extra"], found["changed"]) for pair, found in expected["diffs"].items()}
    assert counts == {"n1/n2": (2, 2, 14), "n1/n3": (11, 0, 3), "n2/n3": (13, 2, 17)}


def test_spark_in_one_process(run: Run, expected: dict[str, Any], tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho started >> {tmp_path}/started\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o700)
    _check(run(["--engine=spark", "--master=local[2]"], conf={"spark.pyspark.python": str(python)}), expected)
    assert (tmp_path / "started").exists()


def test_a_master_with_two_workers(
    run: Run, expected: dict[str, Any], spark_cluster: SparkCluster, tmp_path: Path
) -> None:
    ui = f"http://127.0.0.1:{free_port()}"
    package = Path(trueup.__file__).parent
    brought = shutil.make_archive(str(tmp_path / "sent"), "zip", package.parent, package.name)
    conf = {**spark_cluster.conf, "spark.ui.port": ui.rpartition(":")[2], "spark.submit.pyFiles": brought}
    two_of_three = "--concurrency-factor=0.67"
    ran = run([f"--master={spark_cluster.url}", two_of_three], conf=conf, cluster=spark_cluster, ui=ui)
    _check(ran, expected)
    # Two thirds of the cluster's cores, and the driver's.
    assert set(ran.seen.sessions.values()) == {2 + 1}
    assert list(spark_cluster.folder.glob("worker*/*/*/sent.zip")), "the executors did not get the package"
    _check_no_password(ran, spark_cluster)


def test_spark_connect(run: Run, expected: dict[str, Any], connect_cluster: SparkCluster, server: Server) -> None:
    ran = run([f"--remote={connect_cluster.remote}"], cluster=connect_cluster, ui=connect_cluster.connect_ui)
    _check(ran, expected)
    # Not more than the cores and the driver; on a busy machine there may be fewer at the same time.
    assert all(2 <= count <= CORES + 1 for count in ran.seen.sessions.values())
    left = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'trueup%'"
    is_none = wait_until(lambda: server.database("postgres").execute(left) == [(0,)], 60)
    assert is_none, "the workers still run, and must not keep sessions"
    _check_no_password(ran, connect_cluster)


def _check_no_password(ran: Ran, cluster: SparkCluster) -> None:
    """Check that the password is in no page, log, event and process list."""
    names = {name.rpartition("/")[2].partition("?")[0] for name, text in ran.seen.pages.items() if text}
    assert {"jobs", "stages", "sql", "environment", "allexecutors"} <= names
    assert any("mapInArrow" in text.decode() or "MapInArrow" in text.decode() for text in ran.seen.pages.values())
    assert any("CoarseGrainedExecutorBackend" in command for command in ran.seen.processes)
    assert any("pyspark.daemon" in command for command in ran.seen.processes)
    written = [path for path in cluster.folder.rglob("*") if path.is_file() and path.suffix != ".jar"]
    assert {"events", "worker1.log"} <= {path.name for path in written} | {path.parent.name for path in written}
    for place, text in (
        *ran.seen.pages.items(),
        *((path, path.read_bytes()) for path in written),
        *((command, (command + shown).encode()) for command, shown in ran.seen.processes.items()),
        ("output", ran.output.encode()),
    ):
        assert SECRET.encode() not in text, place


# A program that has a session through Spark Connect, as a notebook has, and brings trueup along for the executors.
NOTEBOOK = """
import json, shutil, sys
from pathlib import Path
from pyspark.sql import SparkSession
import trueup
from trueup.engine.slots import Cores

def home(batches):
    import pyarrow, trueup
    for batch in batches:
        yield pyarrow.RecordBatch.from_pydict({"home": [trueup.__file__]})

session = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
package = Path(trueup.__file__).parent
session.addArtifact(shutil.make_archive("brought", "zip", package.parent, package.name), pyfile=True)
result = trueup.diff("items", engine="spark", max_connections=2, concurrency_factor=4.0, block_size=100,
                     override_block_size=True, recheck=1, recheck_wait=0, filter=sys.argv[2],
                     allow_functions=["pg_sleep"])
found = {"home": session.range(1).mapInArrow(home, "home string").first()[0], "cores": Cores(session).now()}
print(json.dumps({**result.as_json(), **found}))
"""


def test_an_existing_session(run: Run, expected: dict[str, Any], connect_cluster: SparkCluster) -> None:
    ran = run([connect_cluster.remote, SLOW], program=["-c", NOTEBOOK])
    assert (ran.code, ran.report["summary"]["engine"]) == (0, "spark"), ran.output
    assert ran.report["summary"]["diff_rows_count"] == expected["summary"]["diff_rows_count"]
    # Three cores are free; one of the two connections is the driver's, so that one core may be used.
    assert set(ran.seen.sessions.values()) == {2}
    found = json.loads(ran.output.splitlines()[0])
    assert found["cores"] == CORES
    assert "brought.zip" in found["home"]


def _busy_worker(cluster: SparkCluster, port: int) -> psutil.Process | None:
    """Return a Python worker of the Connect server that has a connection to a node."""
    for name in ("worker1", "worker2"):
        for process in psutil.Process(cluster.processes[name].pid).children(recursive=True):
            try:
                if "pyspark.daemon" in process.cmdline() and any(
                    each.raddr and each.raddr.port == port for each in process.net_connections("tcp4")
                ):
                    return process
            except psutil.Error:
                continue  # it has ended meanwhile
    return None


def _its_executor(worker: psutil.Process) -> psutil.Process:
    backend = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
    return next(parent for parent in worker.parents() if backend in parent.cmdline())


@pytest.mark.parametrize("executor", [False, True], ids=["a Python worker", "an executor"])
def test_a_killed_executor(
    run: Run, expected: dict[str, Any], connect_cluster: SparkCluster, server: Server, executor: bool
) -> None:
    killed: list[psutil.Process] = []

    def kill_one() -> None:
        def done() -> bool:
            worker = _busy_worker(connect_cluster, server.port)
            if worker is not None:
                # It may end meanwhile; then there is another one.
                with suppress(psutil.NoSuchProcess):
                    process = _its_executor(worker) if executor else worker
                    process.kill()
                    killed.append(process)
            return bool(killed)

        assert wait_until(done, 60)

    trace = "ExecutorLostFailure" if executor else "Python worker exited unexpectedly"
    before = _events(connect_cluster).count(trace)
    _check(run([f"--remote={connect_cluster.remote}"], meanwhile=kill_one), expected)
    # A task was lost, and its differences are not in the report twice.
    assert _events(connect_cluster).count(trace) > before


def _events(cluster: SparkCluster) -> str:
    return "".join(path.read_text() for path in (cluster.folder / "events").iterdir())
