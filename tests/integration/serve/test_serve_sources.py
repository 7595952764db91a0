"""Sources of the web page: tubes of any schema, nodes that fail while others go on, servers that hang, and TLS."""

from __future__ import annotations

import socket
import ssl
import subprocess
from http.client import HTTPSConnection
from pathlib import Path

import pytest

from support.fixtures import Databases
from support.serve import compared, serving
from trueup.api.tube import Tube
from trueup.api.validate import Validation
from trueup.cli.main import run
from trueup.config.load import load
from trueup.config.model import Config
from trueup.errors import ConfigError
from trueup.serve.options import ServeOptions
from trueup.serve.server import bind
from trueup.store import TaskStore


def configured(folder: Path, **nodes: str) -> Config:
    path = folder / "trueup.toml"
    path.write_text("[nodes]\n" + "".join(f'{name} = "{uri}"\n' for name, uri in nodes.items()))
    path.chmod(0o600)
    return load(str(path))


def test_tubes_of_all_schemas(databases: Databases, tmp_path: Path) -> None:
    (database,) = databases(1)
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    for schema, tube in (("tube", "copies"), ("other", "copies")):
        Tube.install(database.uri, schema=schema)
        with Tube(tube, database.uri, schema=schema) as opened:
            opened.ensure()
            opened.attach("public.items", shard=0)
    database.execute("INSERT INTO items VALUES (1), (2)")
    # A trap of another role: it would run with the rights of the server.
    role = f"mallory_{database.name}"
    database.execute(
        f"CREATE ROLE {role}; CREATE SCHEMA trap AUTHORIZATION {role}; SET ROLE {role};"
        "CREATE TABLE trap.installation (version int); CREATE TABLE trap.tubes (tube text);"
        "CREATE TABLE trap.sources (source int); RESET ROLE"
    )
    try:
        with serving([tmp_path / "none.db"], configured(tmp_path, n1=database.uri)) as running:
            running.until(lambda: running.collector.seen.nodes["n1"].seen_at)
            assert [tube.name for tube in running.collector.seen.tubes()] == ["other.copies", "copies"]
            assert running.collector.seen.nodes["n1"].value.problems == ()  # type: ignore[union-attr]
            metrics = running.get("/metrics").text
            for name in ("copies", "other.copies"):
                assert f'trueup_tube_backlog_keys{{node="n1",tube="{name}"}} 2.0' in metrics
                assert "public.items" in running.get(f"/tube?node=n1&name={name}").text
                assert f">{name}<" in running.get("/tubes").text
    finally:
        database.execute(f"DROP SCHEMA trap CASCADE; DROP ROLE {role}")


def test_a_meta_database_that_fails_while_others_go_on(databases: Databases, tmp_path: Path) -> None:
    one, two, three = databases(3)
    for database in (one, two, three):
        database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    config = configured(tmp_path, n1=one.uri, n2=two.uri, n3=three.uri)
    for name, target in (("first", "n2"), ("second", "n3")):
        Validation(name, meta=target, config=config).create(source="n1", target=target, tables=("public.items",))
    with TaskStore(tmp_path / "tasks.db") as store:
        compared(store, "orders", "MATCH")
    with serving([tmp_path / "tasks.db"], config) as running:
        running.until(lambda: len(running.collector.seen.validations()) == 2)
        page = running.get("/validation?node=n2&name=first").text
        assert "it does not run" in page
        assert "no errors</strong>" not in page
        one.execute(f"ALTER DATABASE {two.name} ALLOW_CONNECTIONS false")
        running.until(lambda: running.collector.seen.nodes["n2"].error)
        before = running.collector.seen.nodes["n3"].seen_at
        running.until(lambda: running.collector.seen.nodes["n3"].seen_at > before)
        page = running.get("/validations").text
        assert "These sources do not answer" in page
        assert "shown as it was" in page
        assert ">first<" in page
        assert ">second<" in page
        assert "not known: the node does not answer" in running.get("/validation?node=n2&name=first").text
        assert "do not answer" not in running.get("/validation?node=n3&name=second").text
        metrics = running.get("/metrics").text
        assert 'trueup_source_up{kind="node",source="n2"} 0.0' in metrics
        assert 'trueup_source_up{kind="node",source="n3"} 1.0' in metrics
        assert "problem" in running.get("/").text
        # It answers again, but its tables cannot be read.
        one.execute(f"ALTER DATABASE {two.name} ALLOW_CONNECTIONS true")
        running.until(lambda: not running.collector.seen.nodes["n2"].error)
        two.execute("ALTER TABLE trueup.validation RENAME COLUMN state TO gone")
        running.until(lambda: running.collector.seen.nodes["n2"].value.problems)  # type: ignore[union-attr]
        page = running.get("/validations").text
        assert "Not everything could be read" in page
        # As it was.
        assert ">first<" in page
        assert ">second<" in page
        assert "not known" in running.get("/validation?node=n2&name=first").text
        assert 'trueup_source_up{kind="node",source="n2"} 0.0' in running.get("/metrics").text
    for database in (two, three):
        database.execute("DROP SCHEMA trueup CASCADE")


def test_a_server_that_hangs_is_shown_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts connections and says nothing; what was seen before would look current."""
    monkeypatch.setattr("trueup.serve.collector.LATE_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"postgresql://u:hunter2@127.0.0.1:{silent.getsockname()[1]}/x?connect_timeout=60"
        with serving([tmp_path / "none.db"], configured(tmp_path, n1=uri)) as running:
            running.until(lambda: "no answer for more than" in running.get("/").text)
            assert 'trueup_source_up{kind="node",source="n1"} 0.0' in running.get("/metrics").text
            silent.close()


def test_tls(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*make.split(), "-keyout", key, "-out", cert], check=True, capture_output=True)
    with serving([tmp_path / "none.db"], tls_cert=str(cert), tls_key=str(key)) as running:
        assert running.url.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=str(cert))
        connection = HTTPSConnection(running.host, running.port, timeout=30, context=context)
        connection.request("GET", "/tables")
        answer = connection.getresponse()
        assert (answer.status, b"No table was compared yet." in answer.read()) == (200, True)
        connection.close()
        # Plain HTTP is not answered.
        assert not running.raw(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").startswith(b"HTTP/1.1 200")
    key.write_text("not a key")
    with pytest.raises(ConfigError, match="TLS files"), serving([], tls_cert=str(cert), tls_key=str(key)):
        pass


def test_two_servers_on_one_port(tmp_path: Path) -> None:
    with serving([tmp_path / "none.db"]) as running:
        with pytest.raises(ConfigError, match="cannot listen on"):
            bind(ServeOptions(port=running.port))
        assert run(["serve", "--port", str(running.port), "--no-doctor"]) == 2


def test_a_path_is_not_taken_from_a_host_header(tmp_path: Path) -> None:
    """The address of a request is not that of its Host header."""
    with serving([tmp_path / "none.db"], proxy_header="X-User") as running:
        for host in ("localhost/login?", "localhost:80/login?", "localhost/healthz#"):
            answer = running.raw(f"GET /tables HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            assert answer.split()[1] in (b"400", b"421")
