"""TLS and passwords of MySQL nodes: with `ssl_ca` the server is verified, and no option is ignored."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from urllib.parse import urlencode

import pytest

import trueup
from support import mariadb
from support.certificates import make_certificates
from support.fixtures import Databases
from trueup.errors import ConfigError, NodeError, TrueupError

# A connection by the socket has the name localhost.
USER = "secure"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with certificates."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def _tls(folder: Path, certificate: str) -> list[str]:
    files = {"ca": "ca.pem", "cert": certificate, "key": "server.key"}
    return [f"--ssl-{name}={folder / file}" for name, file in files.items()]


@pytest.fixture(scope="module")
def maria(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[mariadb.MariaDb]:
    """A server with a certificate for localhost, and a user who needs a certificate."""
    if not mariadb.is_installed():
        pytest.skip("MariaDB is not installed")
    with mariadb.started(tmp_path_factory.mktemp("maria"), _tls(folder, "server.pem")) as server:
        server.execute("CREATE TABLE t (id int PRIMARY KEY)")
        server.execute("INSERT INTO t VALUES (1)")
        server.execute(f"CREATE USER {USER}@localhost REQUIRE X509")
        server.execute(f"GRANT ALL ON *.* TO {USER}@localhost")
        yield server


def _compare(server: mariadb.MariaDb, databases: Databases, user: str = "root", **options: str) -> str:
    (database,) = databases(1)
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    address = f"mysql://{user}@localhost/shop?{urlencode({'unix_socket': str(server.socket), **options})}"
    return str(trueup.diff("t", nodes={"pg": database.uri, "my": address}, engine="local").verdict)


def test_the_certificate_is_verified(maria: mariadb.MariaDb, databases: Databases, folder: Path) -> None:
    assert _compare(maria, databases, ssl_ca=str(folder / "ca.pem")) == "MATCH"
    for verified in ("true", "false"):
        with pytest.raises(NodeError, match="CERTIFICATE_VERIFY_FAILED"):
            _compare(maria, databases, ssl_ca=str(folder / "other.pem"), ssl_verify_identity=verified)


def test_the_name_of_the_server_is_verified(
    tmp_path: Path, maria: mariadb.MariaDb, databases: Databases, folder: Path
) -> None:
    authority = str(folder / "ca.pem")
    with mariadb.started(tmp_path / "other_name", _tls(folder, "elsewhere.pem")) as server:
        server.execute("CREATE TABLE t (id int PRIMARY KEY)")
        with pytest.raises(NodeError, match="Hostname mismatch"):
            _compare(server, databases, ssl_ca=authority)
        assert _compare(server, databases, ssl_ca=authority, ssl_verify_identity="false") == "DIFFER"
    with mariadb.started(tmp_path / "no_tls") as server, pytest.raises(NodeError, match="SSL is required"):
        _compare(server, databases, ssl_ca=authority)


def test_a_certificate_of_the_client_needs_no_authority(
    maria: mariadb.MariaDb, databases: Databases, folder: Path
) -> None:
    files = {"ssl_cert": str(folder / "server.pem"), "ssl_key": str(folder / "server.key")}
    assert _compare(maria, databases, USER, **files) == "MATCH"
    with pytest.raises(NodeError, match="Access denied"):
        _compare(maria, databases, USER)
    with pytest.raises(ConfigError, match="files for TLS cannot be used"):
        _compare(maria, databases, USER, **{**files, "ssl_key": str(folder / "missing")})


@pytest.mark.parametrize(
    "options", [{"ssl_key": "x"}, {"ssl_verify_identity": "true"}, {"ssl_ca": "x", "ssl_verify_identity": "no"}]
)
def test_options_that_would_be_ignored_are_refused(
    databases: Databases, maria: mariadb.MariaDb, options: dict[str, str]
) -> None:
    with pytest.raises(ConfigError, match="the address is not valid"):
        _compare(maria, databases, **options)


PASSWORD = "geheim-4711"
# What a program in the place of the server asks for: the method of its greeting, then packets.
_SWITCH = b"\xfe%s\0" + b"s" * 20 + b"\0"
_QUESTIONS = {
    "clear text": ("mysql_native_password", [b"\xfemysql_clear_password\0"]),
    "dialog": ("mysql_native_password", [b"\xfedialog\0\x05Password: "]),
    "old": ("mysql_native_password", [b"\xfemysql_old_password\0" + b"s" * 8 + b"\0"]),
    "sha256": ("sha256_password", [b"\x01KEY"]),
    "sha256 by a switch": ("mysql_native_password", [_SWITCH % b"sha256_password", b"\x01KEY"]),
    "full": ("caching_sha2_password", [b"\x01\x04", b"\x01KEY"]),
    "full by a switch": ("mysql_native_password", [_SWITCH % b"caching_sha2_password", b"\x01\x04", b"\x01KEY"]),
}


@cache
def _public_key() -> bytes:
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = rsa.generate_private_key(65537, 2048).public_key()
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@contextmanager
def _impostor(method: str, packets: list[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """A program that asks for a password as a server: its port, and what it gets after its greeting."""
    # Protocol 4.1, database, passwords of 20 bytes, other methods.
    low, high = struct.pack("<H", 0x8209), struct.pack("<H", 0x0008)
    greeting = b"\x0a8.0.1\0" + bytes(4) + b"s" * 8 + b"\0" + low + b"\x2d\x02\x00" + high + b"\x15" + bytes(10)
    greeting += b"s" * 12 + b"\0" + method.encode() + b"\0"
    got: list[bytes] = []

    def serve() -> None:
        connection, _ = listening.accept()
        with connection, suppress(OSError):
            connection.settimeout(10)
            number = 0
            for packet in [greeting, *packets]:
                body = packet.replace(b"KEY", _public_key())
                connection.sendall(struct.pack("<I", len(body))[:3] + bytes([number]) + body)
                if not (data := connection.recv(65536)):
                    return
                got.append(data)
                number = data[3] + 1

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1], got
        thread.join(10)


@pytest.mark.parametrize("question", _QUESTIONS)
@pytest.mark.parametrize("is_near", [True, False])
def test_no_program_gets_the_password_by_asking(question: str, is_near: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without TLS, and with a TLS that verifies nothing, every program can pass for the server."""
    monkeypatch.setattr("trueup.nodes.databases.mysql.is_local_host", lambda host: is_near)
    method, packets = _QUESTIONS[question]
    # Of a server of this machine, another machine cannot get the answer: its own key may encrypt the password.
    may_encrypt = is_near and ("sha256" in question or "full" in question)
    with _impostor(method, packets) as (port, got):
        uri = f"mysql://me:{PASSWORD}@127.0.0.1:{port}/shop"
        with pytest.raises(NodeError if may_encrypt else ConfigError) as caught:
            trueup.diff("t", nodes={"my": uri, "also": uri}, engine="local")
    assert PASSWORD.encode() not in b"".join(got)
    assert any(len(data) == 260 for data in got) == may_encrypt
    if not may_encrypt:
        assert "the server asks for the password, and nothing proves which server it is" in str(caught.value)
        assert "insecure=true" in caught.value.cure
    # Who accepts it, gets what other programs get; this library does not know the old method.
    accepting = f"mysql://me:{PASSWORD}@127.0.0.1:%d/shop?insecure=true"
    with _impostor(method, packets) as (port, got), pytest.raises(TrueupError):
        trueup.diff("t", nodes={"my": accepting % port, "also": accepting % port}, engine="local")
    assert len(got) == len(packets) + (question != "old")
