"""TLS of MySQL nodes: with `ssl_ca` the server is verified, and no option is ignored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

import trueup
from support import mariadb
from support.certificates import make_certificates
from support.fixtures import Databases
from trueup.errors import ConfigError, NodeError

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
