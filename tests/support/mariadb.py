"""A MariaDB server for tests, from Debian's packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def is_installed() -> bool:
    """Return whether the programs of the server exist."""
    return all(shutil.which(name) for name in ("mariadbd", "mariadb-install-db"))


class MariaDb:
    """A server that listens on a socket in its folder."""

    def __init__(self, folder: Path, options: Sequence[str] = ()) -> None:
        import pymysql

        self.socket = folder / "sock"
        account = ["--user=root"] if os.getuid() == 0 else []
        data = folder / "data"
        install = ["mariadb-install-db", "--no-defaults", "--auth-root-authentication-method=normal", *account]
        # A server deletes temporary tables that it finds when it starts, also those of another server.
        own = {**os.environ, "TMPDIR": str(folder)}
        # A name server may not answer.
        command = [*install, "--skip-name-resolve", f"--datadir={data}"]
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=own)
        assert done.returncode == 0, done.stdout + done.stderr
        self._process = subprocess.Popen(
            [
                *("mariadbd", "--no-defaults", f"--datadir={data}", f"--socket={self.socket}", "--skip-networking"),
                *("--innodb-buffer-pool-size=32M", "--innodb-log-file-size=8M", "--innodb-flush-log-at-trx-commit=0"),
                *("--performance-schema=off", "--skip-log-bin", *account, *options),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=own,
        )
        until = time.monotonic() + 60
        while True:
            try:
                self.execute("CREATE DATABASE IF NOT EXISTS shop", database="")
                return
            except pymysql.Error:
                assert self._process.poll() is None, "MariaDB has ended"
                assert time.monotonic() < until, "MariaDB does not start"
                time.sleep(0.05)

    @property
    def uri(self) -> str:
        """The address of its database."""
        return f"mysql://root@localhost/shop?unix_socket={self.socket}"

    def execute(self, statement: str, values: Sequence[Any] = (), database: str = "shop") -> None:
        """Run a statement; with a list of lists, once per list."""
        import pymysql

        connection = pymysql.connect(
            unix_socket=str(self.socket),
            user="root",
            database=database or None,
            charset="utf8mb4",
            autocommit=True,
            # Otherwise the certificates of the system are read each time.
            ssl_disabled=True,
        )
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET SESSION time_zone = '+00:00', sql_mode = ''")
                if values and isinstance(values[0], list | tuple):
                    cursor.executemany(statement, values)
                else:
                    cursor.execute(statement, values or None)
        finally:
            connection.close()

    def stop(self) -> None:
        """Stop the server."""
        self._process.kill()
        self._process.wait()


@contextmanager
def started(folder: Path, options: Sequence[str] = ()) -> Iterator[MariaDb]:
    """Yield a server with more options, which is stopped at the end of the block."""
    server = MariaDb(folder, options)
    try:
        yield server
    finally:
        server.stop()
