"""Throw-away PostgreSQL servers for the demo and the tests, from the programs of a wheel or a folder.

A server has a folder with its log and its state file; its data folder is `data` in it. PostgreSQL does not run as
root, so root starts it as an unprivileged user. If that user cannot access the folder, `data` is a link into the
system's temporary folder; if it cannot access the programs, they are copied there.

A server ends with the Python process, even if that is killed: see the watchdog in `processes`. With `keep=True` it
keeps running, and `Server.attach(folder)` returns it.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import ctypes
import hashlib
import hmac
import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import psycopg
from psycopg import sql

from trueup.errors import NodeError
from trueup.testing.account import Account, environment, temp_folder
from trueup.testing.binaries import bin_in, borrow_copy, find_bin, return_copy
from trueup.testing.processes import (
    dismiss_watchdog,
    has_ended,
    is_postmaster,
    read_pid_file,
    remove_stale_pid_file,
    start_watchdog,
    wait_until,
    with_children,
)

__all__ = ["SETTINGS", "Database", "Server", "find_bin", "initialize"]

Statement = str | sql.SQL | sql.Composed

SETTINGS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    # No socket file: its path is limited to 107 bytes, and temporary folders are often longer.
    "unix_socket_directories": "",
    "wal_level": "logical",
    "max_prepared_transactions": "10",
    "max_connections": "200",
    "fsync": "off",
    # Shared memory in files of the data folder: a killed server leaves nothing in /dev/shm.
    "dynamic_shared_memory_type": "mmap",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_min_messages": "warning",
    "log_line_prefix": "%m [%p] %u@%d ",
}
# The password of servers that are started without one; None: each has a random one.
PASSWORD: str | None = None
STOP_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}


def last_rows(cursor: psycopg.Cursor[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the rows of the last statement that returns rows."""
    rows: list[tuple[Any, ...]] = []
    more: bool | None = True
    while more:
        if cursor.description is not None:
            rows = cursor.fetchall()
        more = cursor.nextset()
    return rows


@dataclass
class Database:
    """A database of a server, for short statements of demos and tests."""

    name: str
    uri: str
    server: Server

    def execute(
        self, statement: Statement, params: Sequence[Any] | Mapping[str, Any] | None = None
    ) -> list[tuple[Any, ...]]:
        """Run statements with autocommit, and return the rows of the last one that returns rows."""
        with psycopg.connect(self.uri, autocommit=True) as connection:
            return last_rows(connection.execute(statement, params))

    def executemany(self, statement: Statement, rows: Iterable[Sequence[Any] | Mapping[str, Any]]) -> None:
        """Run a statement once per row, in one transaction."""
        with psycopg.connect(self.uri) as connection, connection.cursor() as cursor:
            cursor.executemany(statement, rows)

    def drop(self) -> None:
        """Drop the database, and terminate its connections."""
        drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(self.name))
        self.server.database("postgres").execute(drop)


@dataclass(eq=False)
class Server:
    """A PostgreSQL server: created by `start` or `attach`, ended by `stop`, `kill` or `remove`."""

    name: str
    port: int
    folder: Path
    data_dir: Path
    bin_dir: Path
    password: str = field(repr=False)
    keep: bool = False
    pid: int | None = None
    # Folders that `start` created; `remove` and the end of the process delete them.
    created: list[Path] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _watchdog: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    bin_copy: Path | None = field(default=None, repr=False)

    @classmethod
    def start(
        cls,
        folder: Path | None = None,
        *,
        name: str = "pg",
        bin_dir: str | os.PathLike[str] | None = None,
        settings: Mapping[str, str] | None = None,
        password: str | None = None,
        keep: bool = False,
    ) -> Server:
        """Start a server in the folder (default: a temporary folder); initialize the data if there is none.

        All roles need a password. That of the superuser `postgres` is `password`, by default a random one: every user
        of the machine can connect, and a superuser runs programs.
        """
        programs = find_bin(bin_dir)
        account = Account.choose()
        home, data_dir, created = _prepare_folders(folder, name, account)
        if password is None:
            password = _password_in(home) or PASSWORD or secrets.token_urlsafe(24)
        server = cls(name, 0, home, data_dir, programs, password, keep, created=created, settings=dict(settings or {}))
        try:
            server._prepare_start(account)
            if not (data_dir / "PG_VERSION").exists():
                initialize(server, account)
            server._start_on_a_free_port(account)
        except BaseException:
            server.remove()
            raise
        return server

    @classmethod
    def attach(cls, folder: Path) -> Server:
        """Return the server that was started with `keep=True` in this folder, running or not."""
        try:
            state = json.loads((folder / "server.json").read_text())
            data_dir = (folder / "data").resolve(strict=True)
        except (OSError, ValueError) as error:
            raise NodeError(
                f"{folder} contains no server: {error}", cure="Name the folder in which it was started."
            ) from error
        place = folder.resolve()
        server = cls(state["name"], state["port"], place, data_dir, Path(state["bin_dir"]), state["password"])
        server.keep = True
        server.created = [Path(path) for path in state["made"]]
        server.settings = state["settings"]
        server.bin_copy = Path(state["copy"]) if state["copy"] else None
        pid = read_pid_file(data_dir)[0]
        server.pid = pid if pid is not None and is_postmaster(pid, data_dir) else None
        return server

    @property
    def log(self) -> Path:
        return self.folder / "postgres.log"

    @property
    def running(self) -> bool:
        if self._process is not None:
            return self._process.poll() is None
        return self.pid is not None and is_postmaster(self.pid, self.data_dir)

    def uri(self, dbname: str = "postgres", user: str = "postgres", password: str | None = None) -> str:
        if password is None and user == "postgres":
            password = self.password
        secret = f":{quote(password, safe='')}" if password is not None else ""
        return f"postgresql://{quote(user, safe='')}{secret}@127.0.0.1:{self.port}/{quote(dbname, safe='')}"

    def database(self, name: str) -> Database:
        return Database(name, self.uri(name), self)

    def create_database(self, name: str) -> Database:
        # Copied files take half the processor time of copied pages, which is the default since PostgreSQL 15.
        is_new = int((self.data_dir / "PG_VERSION").read_text()) >= 15
        how = sql.SQL(" STRATEGY file_copy" if is_new else "")
        self.database("postgres").execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)) + how)
        return self.database(name)

    def stop(self, mode: str = "fast", timeout: float = 60) -> None:
        """Stop the server in order and keep the data. Does nothing if it is not running."""
        if self.running and self.pid is not None:
            processes = with_children(self.pid)[:1]
            os.kill(self.pid, STOP_SIGNALS[mode])
            # The server removes its pid file some time before its process ends.
            if not wait_until(lambda: not self.running and all(map(has_ended, processes)), timeout):
                self.kill()
        self.pid = self._process = None

    def kill(self) -> None:
        """Kill the server and its children with SIGKILL, to simulate a crash."""
        if self.running and self.pid is not None:
            # Suspended first, so that it starts no child after they are listed.
            os.kill(self.pid, signal.SIGSTOP)
            processes = with_children(self.pid)
            segment = read_pid_file(self.data_dir)[2]
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            if self._process is not None:
                self._process.wait()
            wait_until(lambda: all(has_ended(process) for process in processes), 30)
            if segment is not None:
                # The next start would free the segment, but there is none if the data are removed.
                ctypes.CDLL(None).shmctl(segment, 0, None)
            # The pid in the file may soon belong to another process.
            (self.data_dir / "postmaster.pid").unlink(missing_ok=True)
        self.pid = self._process = None

    def cancel(self) -> None:
        """Stop the server at once; running statements fail. Called from another thread to interrupt a demo."""
        self.stop("immediate")

    def restart(self, mode: str = "fast") -> None:
        """Stop the server if it is running, and start it again with the same port and data."""
        self.stop(mode)
        self._launch(Account.choose())

    def remove(self) -> None:
        """Stop the server, and remove the folders that were created for it."""
        self.stop("immediate")
        for path in self.created:
            # The last process of the server may still write a file into it.
            wait_until(lambda path=path: _removed(path), 10)  # type: ignore[misc]
        if self.created:
            # These refer to data that no longer exist.
            for leftover in (self.folder / "data", self.folder / "server.json"):
                with contextlib.suppress(OSError):
                    leftover.unlink()
        self.created = []
        if self.bin_copy is not None:
            return_copy(self.bin_copy, self.bin_dir, self.data_dir)
            self.bin_copy = None
        if self in _servers:
            _servers.remove(self)
        if self._watchdog is not None:
            dismiss_watchdog(self._watchdog)
            self._watchdog = None

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc: object) -> None:
        if not self.keep:
            self.remove()

    def _prepare_start(self, account: Account) -> None:
        """Make the programs accessible, and start the watchdog before the server exists."""
        if not account.can_run([str(self.bin_dir / "postgres"), "--version"]):
            self.bin_copy = borrow_copy(self.bin_dir, account, None if self.keep else self.data_dir)
        if not self.keep:
            _servers.append(self)
            copy = [self.bin_copy] if self.bin_copy else []
            self._watchdog = start_watchdog(self.data_dir, [*self.created, *copy])

    def _program(self, name: str) -> str:
        return str((bin_in(self.bin_copy, self.bin_dir) if self.bin_copy else self.bin_dir) / name)

    def _start_on_a_free_port(self, account: Account) -> None:
        for attempt in range(10):
            self.port = free_port()
            try:
                return self._launch(account)
            except _PortTaken:
                if attempt == 9:
                    raise

    def _launch(self, account: Account) -> None:
        remove_stale_pid_file(self.data_dir)
        config = _write_settings(self)
        written = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                account.command([self._program("postgres"), "-D", str(self.data_dir), "-c", f"config_file={config}"]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=environment(),
                umask=0o077,
                # Its own session: Ctrl-C in the terminal reaches only this process, which stops the servers in order.
                start_new_session=True,
                **account.popen_args(),
            )
        self.pid = self._process.pid
        wait_until(lambda: not self.running or _is_ready(self), 60)
        if not self.running or not _is_ready(self):
            message = self.log.read_bytes()[written:].decode(errors="replace").strip()
            self.kill()
            kind = _PortTaken if "could not bind" in message else NodeError
            raise kind(f"PostgreSQL did not start: {message}", node=self.name)
        self._write_state()

    def _write_state(self) -> None:
        state = {
            "name": self.name,
            "port": self.port,
            "bin_dir": str(self.bin_dir),
            "password": self.password,
            "settings": self.settings,
            "made": [str(path) for path in self.created],
            "copy": str(self.bin_copy) if self.bin_copy else None,
        }
        path = self.folder / "server.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(state))


class _PortTaken(NodeError):
    """Another process took the port before the server started."""


# The servers that end with this process.
_servers: list[Server] = []


def _removed(path: Path) -> bool:
    shutil.rmtree(path, ignore_errors=True)
    return not path.exists()


def _after_fork() -> None:
    """Disown the servers in a forked child: it must not keep the pipes open or remove the data."""
    for server in _servers:
        if server._watchdog is not None and server._watchdog.stdin is not None:
            server._watchdog.stdin.close()
            server._watchdog = None
    _servers.clear()


@atexit.register
def _remove_all() -> None:
    for server in list(_servers):
        server.remove()


os.register_at_fork(after_in_child=_after_fork)


def _prepare_folders(folder: Path | None, name: str, account: Account) -> tuple[Path, Path, list[Path]]:
    """Create and return the folder of the server and its data folder, and return the folders to remove at the end."""
    created: list[Path] = []
    if folder is None:
        home = temp_folder(f"trueup-{name}-", account)
        created.append(home)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        home = folder.resolve()
    data_dir = home / "data"
    if data_dir.exists():
        return home, data_dir.resolve(), created
    if not account.can_enter(home):
        elsewhere = temp_folder(f"trueup-{name}-", account)
        created.append(elsewhere)
        # A link to data that no longer exist.
        data_dir.unlink(missing_ok=True)
        data_dir.symlink_to(elsewhere / "data")
        data_dir = elsewhere / "data"
    data_dir.mkdir(mode=0o700)
    account.own(data_dir)
    return home, data_dir, created or [data_dir]


def initialize(server: Server, account: Account) -> None:
    """Create the data: run initdb with encoding UTF-8 and locale C.UTF-8, or C if the system does not have it."""
    command = [
        server._program("initdb"),
        "-D",
        str(server.data_dir),
        "--username=postgres",
        "--encoding=UTF8",
    ]
    command += ["--no-sync", "--auth=scram-sha-256"]
    # Beside the data: the watchdog removes it too.
    secret = server.data_dir.parent / "secret"
    secret.unlink(missing_ok=True)
    try:
        with open(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(_verifier(server.password) + "\n")
        account.own(secret)
        for locale in ("C.UTF-8", "C"):
            done = account.run([*command, f"--pwfile={secret}", f"--locale={locale}"])
            if done.returncode == 0 or "locale" not in done.stderr:
                break
    finally:
        secret.unlink(missing_ok=True)
    if done.returncode != 0:
        raise NodeError(f"initdb failed: {done.stderr.strip()}", node=server.name)
    lines = [f"host {base} all 127.0.0.1/32 scram-sha-256\n" for base in ("all", "replication")]
    _write_for_all(server.data_dir.parent / "pg_hba.conf", "".join(lines))


def _verifier(password: str) -> str:
    """Return what the server stores of a password, made with one iteration: a session begins ten times faster.

    Iterations protect passwords that can be guessed. A password that cannot be a part of SCRAM as it is, is hashed by
    the server.
    """
    if not (password.isascii() and password.isprintable()):
        return password
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 1)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    keys = (base64.b64encode(key).decode() for key in (stored, hmac.digest(salted, b"Server Key", "sha256")))
    return f"SCRAM-SHA-256$1:{base64.b64encode(salt).decode()}${':'.join(keys)}"


def _password_in(folder: Path) -> str:
    """Return the password of the data of a server that was started in this folder before, or ''."""
    with contextlib.suppress(OSError, ValueError, LookupError):
        return str(json.loads((folder / "server.json").read_text())["password"])
    return ""


def _write_settings(server: Server) -> Path:
    """Write the settings next to the data folder: in it, the user of the server could replace the file by a link."""
    place = server.data_dir.parent
    settings = {
        "hba_file": str(place / "pg_hba.conf"),
        **SETTINGS,
        **server.settings,
        "port": str(server.port),
    }
    lines = [f"include '{_escaped(str(server.data_dir / 'postgresql.conf'))}'\n"]
    lines += [f"{name} = '{_escaped(value)}'\n" for name, value in settings.items()]
    _write_for_all(place / "server.conf", "".join(lines))
    return place / "server.conf"


def _escaped(value: str) -> str:
    return value.replace("'", "''")


def _write_for_all(path: Path, text: str) -> None:
    """Write a file that the user of the server can read, independent of the umask."""
    path.write_text(text)
    path.chmod(0o644)


def free_port() -> int:
    """Return a free port below the range of ephemeral ports, so that it stays free."""
    for _ in range(100):
        port = random.randint(20000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise NodeError("no free port found on 127.0.0.1")


def _is_ready(server: Server) -> bool:
    pid, status, _ = read_pid_file(server.data_dir)
    return pid == server.pid and status in ("ready", "standby")
