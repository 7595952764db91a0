"""A pgbouncer in front of databases of tests."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.switchover import wait_until
from trueup.testing import postgres
from trueup.testing.account import Account, temp_folder
from trueup.testing.postgres import Database

PROGRAM = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin:/usr/local/sbin")
needs_pgbouncer = pytest.mark.skipif(PROGRAM is None, reason="no pgbouncer (as root: apt-get install pgbouncer)")


class Bouncer:
    """A running pgbouncer; `uri(name)` is the address of a database behind it."""

    def __init__(self, folder: Path, port: int) -> None:
        self.config = folder / "pgbouncer.ini"
        self.log = folder / "pgbouncer.log"
        self.port = port

    def uri(self, name: str = "shop", user: str = "postgres") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{name}"

    def admin(self, command: str) -> list[tuple[Any, ...]]:
        """Run a command of the admin console."""
        # The console knows the simple protocol only, and no transactions.
        with psycopg.connect(self.uri("pgbouncer"), autocommit=True) as console:
            cursor = console.execute(command)
            return cursor.fetchall() if cursor.description else []

    def query(self, statement: str, name: str = "shop") -> list[tuple[Any, ...]]:
        """Run one statement in a server session of the pool."""
        with psycopg.connect(self.uri(name), autocommit=True) as client:
            return client.execute(statement).fetchall()


def line_of(database: Database) -> str:
    """Return where pgbouncer finds a database."""
    return (
        f"host=127.0.0.1 port={database.server.port} dbname={database.name} user=postgres password={postgres.PASSWORD}"
    )


@contextmanager
def bouncer(databases: Mapping[str, Database], **settings: str) -> Iterator[Bouncer]:
    """Run a pgbouncer with these databases; it pools transactions unless `pool_mode` says otherwise."""
    assert PROGRAM is not None
    account = Account.choose()
    folder = temp_folder("trueup-pgbouncer-", account)
    account.own(folder)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    running = Bouncer(folder, port)
    lines = {
        "listen_addr": "127.0.0.1",
        "listen_port": str(port),
        "unix_socket_dir": "",
        "auth_type": "any",
        "admin_users": "postgres",
        "pool_mode": "transaction",
        "default_pool_size": "4",
        "logfile": str(running.log),
        **settings,
    }
    running.config.write_text(
        "\n".join(
            (
                "[databases]",
                *(f"{name} = {line_of(database)}" for name, database in databases.items()),
                "[pgbouncer]",
                *(f"{key} = {value}" for key, value in lines.items()),
                "",
            )
        )
    )
    running.config.chmod(0o600)
    account.own(running.config)
    process = subprocess.Popen(account.command([PROGRAM, "-q", str(running.config)]), cwd="/", **account.popen_args())
    try:
        wait_until(lambda: _answers(running, process), 30)
        yield running
    finally:
        process.terminate()
        process.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def _answers(running: Bouncer, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, running.log.read_text()
    with suppress(psycopg.OperationalError):
        return running.admin("SHOW VERSION") != []
    return False
