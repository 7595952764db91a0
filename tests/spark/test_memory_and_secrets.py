"""A run on Spark needs limited memory, and shows no password to other processes."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from support.fixtures import Databases, OnAll, Spark
from support.spark_wire import is_served, listening_ports, request_block
from trueup.config.model import Node
from trueup.config.process import own_command
from trueup.engine.envelope import Slice
from trueup.engine.jvm import own_process
from trueup.engine.slots import Share
from trueup.engine.spark import SparkEngine
from trueup.engine.work import Room, Tasks
from trueup.nodes.postgres_rows import Packed

SECRET = "q7-Zebra-0451"


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from trueup.cli.main import main; main()", *arguments]


def test_a_hundred_thousand_rows_against_an_empty_table(databases: Databases, on_all: OnAll, tmp_path: Path) -> None:
    nodes = databases(2)
    on_all(nodes, "CREATE TABLE items (id bigint PRIMARY KEY, name text, note text)")
    nodes[0].execute("INSERT INTO items SELECT i, 'item ' || i, repeat('n', 100) FROM generate_series(1, 100000) i")
    arguments = [f"--node=n{number}={node.uri}" for number, node in enumerate(nodes, 1)]
    process = subprocess.Popen(
        _command("diff", "items", *arguments, "--engine=spark", "--recheck=0", "--json", "--quiet"),
        stdout=subprocess.PIPE,
        text=True,
    )
    most = 0
    while process.poll() is None:
        most = max(most, _memory(process.pid))
        # Counting the pages of a process stops it for a moment, so the check is not repeated all the time.
        time.sleep(1)
    assert process.stdout is not None
    result = json.loads(process.stdout.read())
    assert process.returncode == 1
    assert result["pairs"]["n1/n2"]["missing"] == 100_000
    assert len(json.loads(Path(result["report"]).read_text())["diffs"]["n1/n2"]["differences"]) == 100_000
    assert 100_000_000 < most < 1_000_000_000


def _memory(pid: int) -> int:
    """Return the memory of a process and its children in bytes, without counting shared memory twice."""
    total = 0
    try:
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            try:
                total += process.memory_full_info().pss
            except psutil.Error:
                continue
    except psutil.Error:
        return 0
    return total


def test_no_password_is_visible_to_other_processes(databases: Databases, on_all: OnAll, tmp_path: Path) -> None:
    nodes = databases(2)
    on_all(nodes, "CREATE TABLE items AS SELECT 1 AS id; ALTER TABLE items ADD PRIMARY KEY (id)")
    nodes[0].execute(f"CREATE ROLE reader LOGIN PASSWORD '{SECRET}'")
    try:
        on_all(nodes, "GRANT SELECT ON items TO reader")
        port = nodes[0].server.port
        lines = [f'n{n} = "postgresql://reader:${{PW}}@127.0.0.1:{port}/{d.name}"' for n, d in enumerate(nodes, 1)]
        Path("trueup.toml").write_text("\n".join(["[nodes]", *lines]))
        events = tmp_path / "events"
        events.mkdir()
        with open("trueup.toml", "a") as file:
            file.write(f'\n[spark.conf]\n"spark.eventLog.enabled" = "true"\n"spark.eventLog.dir" = "file://{events}"\n')
            file.write('"spark.eventLog.compress" = "false"\n"spark.ui.enabled" = "true"\n')
            file.write('"spark.hadoop.fs.s3a.secret.key" = "${PW}"\n"spark.hadoop.some.api_key" = "${PW}"\n')
        # The driver and the workers of Spark must not run a module of the working folder.
        for name in ("trueup", "pandas", "pyarrow", "psycopg"):
            Path(f"{name}.py").write_text("open('hijacked', 'w')")
        process = subprocess.Popen(
            [*own_command(), "-v", "diff", "items", "--engine=spark"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={
                "PW": SECRET,
                "PATH": "/usr/bin:/bin",
                "TRUEUP_TASKS_DB": "tasks.db",
                "HOME": str(tmp_path),
                "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", ""),
            },
        )
        seen: set[str] = set()
        while process.poll() is None:
            for each in psutil.process_iter(["cmdline"]):
                seen.update(each.info["cmdline"] or ())
            time.sleep(0.5)
        assert process.stdout is not None
        output = process.stdout.read()
        assert process.returncode == 0, output
        assert any("SparkSubmit" in part or "pyspark-shell" in part for part in seen)
        assert not any(SECRET in part for part in seen)
        written = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "trueup.toml"]
        assert any(path.is_relative_to(events) for path in written)
        for path in written:
            assert SECRET.encode() not in path.read_bytes(), path
        assert SECRET.encode() not in output
        assert not Path("hijacked").exists()
    finally:
        on_all(nodes, "DROP OWNED BY reader")
        nodes[0].execute("DROP ROLE reader")


class _KeepsNode:
    """Work that has the address of a node, as all work has."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def __call__(self, task: int, room: Room) -> Iterator[int]:
        yield task if SECRET in self.node.conninfo else -1


def test_other_users_get_nothing_from_a_local_spark(spark: Spark) -> None:
    """Every user of the machine can connect to its ports; what it sends to workers has passwords."""
    work = _KeepsNode(Node("n1", f"host=x password={SECRET}"))
    assert list(SparkEngine(spark, Share(fixed=2), owned=False).run(work, Tasks([1, 2]))) == [1, 2]
    java = own_process()
    assert java is not None
    ports = listening_ports(java.pid)
    # Two of Spark, and that of PySpark, which does not answer without its token.
    assert len(ports) >= 3
    answers = [request_block(port, f"broadcast_{number}_piece0") for port in ports for number in (0, 1, 2)]
    assert not any(map(is_served, answers)), answers
    assert sum(bool(kind) for kind, _ in answers) >= 6
    # The port on which Java calls this process, for streams.
    callbacks: Any = spark.sparkContext._gateway
    with socket.create_connection(("127.0.0.1", callbacks._callback_server.port), timeout=5) as connection:
        connection.sendall(b"c\np0\ntoString\ne\n")
        with suppress(ConnectionResetError):
            assert connection.recv(100) == b""


def test_what_spark_sends_has_no_password(spark: Spark) -> None:
    work = _KeepsNode(Node("n1", f"host=x password={SECRET}"))
    for sent in (Slice.of(work, [[1]], keep=False), Packed.of(work)):
        contents: bytes = getattr(sent, "contents", None) or vars(sent)["_data"]
        kind, _, path = contents.partition(b":")
        assert kind == b"file"
        assert SECRET.encode() not in pickle.dumps(sent)
        file = Path(os.fsdecode(path))
        assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        if isinstance(sent, Slice):
            sent.close()
            assert not file.exists()
    before = {each.name for each in file.parent.iterdir()}
    assert list(SparkEngine(spark, Share(fixed=2), owned=False).run(work, Tasks([1, 2]))) == [1, 2]
    assert {each.name for each in file.parent.iterdir()} == before
