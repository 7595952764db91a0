"""The Redis sink on real servers with TLS, behind a Sentinel, and in a cluster."""

from __future__ import annotations

import json
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from redis import Redis, RedisCluster
from redis.exceptions import RedisError

from support.certificates import make_certificates
from support.tube import TubeDatabase
from trueup.sinks import open_sink
from trueup.sinks.base import Document, Mark, Sink, SinkDown, SourceTable

THINGS = SourceTable("public.things", (("id", "bigint"), ("name", "text")), ("id",), routed=False)
PASSWORD = "secret-1"
NOW = datetime(2026, 1, 2, tzinfo=timezone.utc)
OLD = NOW - timedelta(days=1)

if shutil.which("redis-server") is None:
    pytest.skip("no redis-server (as root: apt-get install redis-server)", allow_module_level=True)


def until_done(call: Callable[[], None]) -> None:
    """Repeat a call until it raises no error."""

    def attempt() -> bool:
        call()
        return True

    until(attempt)


def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds; errors of Redis and of the sink count as not yet."""
    end = time.monotonic() + 60
    while True:
        try:
            if condition():
                return
        except (RedisError, SinkDown, OSError):
            pass
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.05)


def free_ports(count: int) -> list[int]:
    """Return ports that are free, also as ports of a cluster bus (port + 10000).

    Both are below the range of ephemeral ports: a session of another test cannot take them before the server does.
    """
    with ExitStack() as stack:
        ports: list[int] = []
        while len(ports) < count:
            port = random.randint(10000, 20000)
            probe, bus = stack.enter_context(socket.socket()), stack.enter_context(socket.socket())
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                bus.bind(("127.0.0.1", port + 10000))
                ports.append(port)
        return ports


@contextmanager
def server(folder: Path, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """Run a redis-server in a folder."""
    folder.mkdir(exist_ok=True)
    command = ["redis-server", *map(str, arguments), "--dir", str(folder), "--bind", "127.0.0.1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def write(sink: Sink, *documents: tuple[int, str | None], mark: Mark) -> None:
    """Write things: (id, name), or (id, None) for a deleted row."""
    rows = [(str(key), None if name is None else {"id": key, "name": name}) for key, name in documents]
    sink.write([Document("public.things", 7, (key,), "U", row) for key, row in rows], mark=mark)


def older(sink: Sink, limit: int = 100) -> list[str]:
    """Return the keys of all documents that are older than sequence number 5, page by page."""
    found: list[str] = []
    after: tuple[str, ...] | None = None
    while page := sink.older("public.things", [7], 5, NOW - timedelta(hours=1), after, limit):
        found += [key[0] for _, key in page]
        after = page[-1][1]
    return found


# TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with certificates."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def tls_options(certificates: Path, port: int, certificate: str) -> list[object]:
    """Return the options of a server with TLS on a port."""
    return [
        *("--tls-port", port, "--tls-auth-clients", "no", "--tls-ca-cert-file", certificates / "ca.pem"),
        *("--tls-cert-file", certificates / certificate, "--tls-key-file", certificates / "server.key"),
    ]


def test_tls_with_a_ca_file(certificates: Path, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    arguments = ["--port", 0, "--requirepass", PASSWORD, "--save", "", *tls_options(certificates, port, "server.pem")]
    address = f"rediss://:{PASSWORD}@localhost:{port}/1"
    with server(tmp_path / "tls", *arguments):
        sink = open_sink(address, {"ca": str(certificates / "ca.pem"), "mode": "set"})
        until_done(lambda: sink.setup([THINGS]))
        write(sink, (1, "one"), mark=Mark(1, OLD))
        client: Any = Redis(
            host="localhost", port=port, db=1, password=PASSWORD, ssl=True, ssl_ca_certs=str(certificates / "ca.pem")
        )
        assert client.get("public.things:1") == b'{"id":1,"name":"one"}'
        client.close()
        sink.close()
        for wrong in (
            open_sink(address, {"ca": str(certificates / "other.pem")}),
            open_sink(address),
            open_sink(address.replace("localhost", "127.0.0.1"), {"ca": str(certificates / "ca.pem")}),
            open_sink(address.replace("rediss", "redis")),
        ):
            with pytest.raises(SinkDown) as caught:
                wrong.setup([THINGS])
            assert PASSWORD not in f"{caught.value} {caught.value.cure} {wrong!r}"


# Errors


def test_an_error_shows_no_rows(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with server(tmp_path / "plain", "--port", port, "--save", ""):
        sink = open_sink(f"redis://127.0.0.1:{port}/0", {"mode": "set"})
        until_done(lambda: sink.setup([THINGS]))
        client: Any = Redis(port=port)
        client.set("trueup:keys:public.things", "another type")
        with pytest.raises(SinkDown, match="WRONGTYPE") as in_transaction:
            write(sink, (123_456_789, "private"), mark=Mark(1, OLD))
        client.config_set("maxmemory", 1)
        with pytest.raises(SinkDown, match="maxmemory") as at_queue:
            write(sink, (123_456_789, "private"), mark=Mark(1, OLD))
        client.close()
        sink.close()
    for caught in (in_transaction, at_queue):
        assert "123456789" not in str(caught.value)
        assert "private" not in str(caught.value)


# Sentinel


def test_sentinel_follows_a_failover(tmp_path: Path) -> None:
    master, replica, watcher = free_ports(3)
    login = ["--requirepass", PASSWORD, "--masterauth", PASSWORD, "--save", ""]
    conf = tmp_path / "sentinel.conf"
    conf.write_text(
        f"port {watcher}\nrequirepass {PASSWORD}\nsentinel monitor shop 127.0.0.1 {master} 1\n"
        f"sentinel auth-pass shop {PASSWORD}\nsentinel down-after-milliseconds shop 60000\n"
        "sentinel failover-timeout shop 2000\n",
        encoding="utf-8",
    )
    follow = ["--replicaof", "127.0.0.1", str(master), "--repl-diskless-sync-delay", "0"]
    with (
        server(tmp_path / "master", "--port", master, *login, "--repl-diskless-sync-delay", 0) as first,
        server(tmp_path / "replica", "--port", replica, *login, *follow),
        server(tmp_path / "sentinel", conf, "--sentinel"),
    ):
        other: Any = Redis(port=replica, password=PASSWORD)
        sentinel: Any = Redis(port=watcher, password=PASSWORD)
        until(lambda: other.info("replication")["master_link_status"] == "up")
        until(lambda: sentinel.execute_command("SENTINEL", "MASTER", "shop") and _replicas(sentinel) == 1)
        address = f"redis://:{PASSWORD}@127.0.0.1:{watcher}/0?sentinel=shop&sentinel_login=yes&mode=set"
        sink = open_sink(address)
        sink.setup([THINGS])
        write(sink, (1, "one"), mark=Mark(1, OLD))
        until(lambda: other.get("public.things:1"))
        # Before, a busy machine would be a reason for a failover too.
        sentinel.execute_command("SENTINEL", "SET", "shop", "down-after-milliseconds", "500")
        first.kill()
        first.wait()
        with pytest.raises(SinkDown) as caught:
            write(sink, (2, "two"), mark=Mark(2, OLD))
        assert PASSWORD not in str(caught.value)
        until_done(lambda: write(sink, (2, "two"), mark=Mark(2, OLD)))
        assert other.get("public.things:2") == b'{"id":2,"name":"two"}'
        assert older(sink) == ["1", "2"]
        for client in (sink, other, sentinel):
            client.close()


def _replicas(sentinel: Any) -> int:
    return len(sentinel.execute_command("SENTINEL", "REPLICAS", "shop"))


# Cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[Sequence[int]]:
    """The ports of a cluster of three masters: three without TLS, and three with TLS, which the nodes use too."""
    folder, every = tmp_path_factory.mktemp("cluster"), free_ports(6)
    ports, with_tls = every[:3], every[3:]
    with ExitStack() as stack:
        clients: list[Any] = []
        for port, tls_port in zip(ports, with_tls, strict=True):
            arguments = ["--port", port, "--cluster-enabled", "yes", "--cluster-node-timeout", 30000, "--save", ""]
            arguments += ["--requirepass", PASSWORD, "--masterauth", PASSWORD, "--tls-cluster", "yes"]
            arguments += ["--tls-replication", "yes", *tls_options(certificates, tls_port, "node.pem")]
            stack.enter_context(server(folder / str(port), *arguments))
            clients.append(Redis(port=port, password=PASSWORD))
        edges = [0, 5461, 10923, 16384]
        for number, client in enumerate(clients):
            until(client.ping)
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", edges[number], edges[number + 1] - 1)
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for port in with_tls[1:]:
            clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", port)
        until(lambda: all(client.cluster("info")["cluster_state"] == "ok" for client in clients))
        until(lambda: all(len(client.cluster("nodes")) == len(ports) for client in clients))
        yield every
        for client in clients:
            client.close()


@pytest.mark.parametrize("mode", ["set", "delete"])
def test_cluster(cluster: Sequence[int], mode: str) -> None:
    hosts = ",".join(f"127.0.0.1:{port}" for port in cluster[:2])
    client: Any = RedisCluster(host="127.0.0.1", port=cluster[0], password=PASSWORD)
    client.flushall(target_nodes=RedisCluster.PRIMARIES)
    sink = open_sink(f"redis://:{PASSWORD}@{hosts}/0", {"cluster": "yes", "mode": mode})
    sink.setup([THINGS])
    names = [f"public.things:{key}" for key in range(300)]
    if mode == "set":
        write(sink, *((key, f"n{key}") for key in range(300)), mark=Mark(1, OLD))
        write(sink, *((key, f"m{key}") for key in range(100)), mark=Mark(9, NOW))
    else:
        for name in names:
            client.set(name, "x")
    nodes = {client.get_node_from_key(name).port for name in names}
    assert nodes == set(cluster[:3]), "the test does not use all nodes"
    deleted = range(200, 210)
    write(sink, *((key, None) for key in deleted), mark=Mark(9, NOW))
    write(sink, *((key, None) for key in deleted), mark=Mark(9, NOW))
    there = {name.decode() for name in client.scan_iter(match="public.things:*")}
    assert there == {name for key, name in enumerate(names) if key not in deleted}
    expected = set(range(100 if mode == "set" else 0, 300)) - set(deleted)
    found = older(sink, limit=17)
    assert (len(found), {int(key) for key in found}) == (len(expected), expected)
    if mode == "set":
        assert client.get("public.things:5") == b'{"id":5,"name":"m5"}'
    wrong = open_sink(f"redis://:not-{PASSWORD}@{hosts}/0", {"cluster": "yes"})
    with pytest.raises(SinkDown) as caught:
        wrong.setup([THINGS])
    assert PASSWORD not in f"{caught.value} {wrong!r}"
    sink.close()
    client.close()


def test_a_tube_into_a_cluster_with_tls(cluster: Sequence[int], certificates: Path, tube_db: TubeDatabase) -> None:
    client: Any = RedisCluster(host="127.0.0.1", port=cluster[0], password=PASSWORD)
    client.flushall(target_nodes=RedisCluster.PRIMARIES)
    address = f"rediss://:{PASSWORD}@127.0.0.1:{cluster[3]},127.0.0.1:{cluster[4]}/0"
    options = {"cluster": "yes", "mode": "set", "ca": str(certificates / "ca.pem")}
    tube_db.run("CREATE TABLE things (id bigint PRIMARY KEY, name text)")
    tube_db.tube.attach("things", shard=7)
    tube_db.run("INSERT INTO things SELECT g, 'n' || g FROM generate_series(1, 100) g")
    tube_db.tube.run(address, sink_options=options, until_empty=True)
    tube_db.run("UPDATE things SET name = 'é' WHERE id = 5; DELETE FROM things WHERE id > 50")
    tube_db.tube.run(address, sink_options=options, until_empty=True)
    names = {name.decode() for name in client.scan_iter(match="public.things:*")}
    assert names == {f"public.things:{key}" for key in range(1, 51)}
    assert {client.get_node_from_key(name).port for name in names} == set(cluster[:3])
    assert json.loads(client.get("public.things:5")) == {"id": 5, "name": "é"}
    tube_db.run("TRUNCATE things; INSERT INTO things VALUES (1, 'last')")
    tube_db.tube.run(address, sink_options=options, until_empty=True)
    assert list(client.scan_iter(match="public.things:*")) == [b"public.things:1"]
    with pytest.raises(SinkDown) as caught:
        open_sink(address, {**options, "ca": str(certificates / "other.pem")}).setup([THINGS])
    assert "certificate" in str(caught.value).lower()
    client.close()
