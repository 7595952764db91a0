"""Connections are counted before a run, and resolved addresses are valid on other machines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from support.fixtures import Compare, Databases
from trueup import CheckFailed
from trueup.config.model import Node
from trueup.db.snapshot import Control
from trueup.task.connections import as_connected, check_free
from trueup.testing.postgres import Database, Server
from trueup.testing.processes import wait_until

TABLE = "CREATE TABLE items AS SELECT 1 AS id; ALTER TABLE items ADD PRIMARY KEY (id); GRANT SELECT ON items TO modest"
PASSWORD = "p'w \\ 1"


@pytest.fixture
def limited_nodes(databases: Databases, server: Server) -> Iterator[list[Database]]:
    """Two databases of one server, with a role that has a low connection limit."""
    nodes = databases(2)
    server.database("postgres").execute("CREATE ROLE modest LOGIN PASSWORD 'p''w \\ 1' CONNECTION LIMIT 5")
    try:
        for node in nodes:
            node.execute(TABLE)
        yield [Database(node.name, server.uri(node.name, user="modest", password=PASSWORD), server) for node in nodes]
    finally:
        for node in nodes:
            node.execute("DROP OWNED BY modest")
        server.database("postgres").execute("DROP ROLE modest")


def test_too_few_connections_are_reported_before_the_run(
    limited_nodes: list[Database], compare: Compare, server: Server
) -> None:
    options = {"concurrency_factor": 4.0}
    with pytest.raises(CheckFailed) as caught:
        compare(limited_nodes, "items", **options)
    # Of five connections, the driver uses one per node; the other three are for both nodes.
    assert "nodes n1, n2: " in caught.value.message
    assert "parallel tasks need" in caught.value.message
    assert "--max-connections 2" in caught.value.cure
    # The server ends sessions a moment after they are closed.
    left = "SELECT FROM pg_stat_activity WHERE usename = 'modest'"
    assert wait_until(lambda: server.database("postgres").execute(left) == [], 60)
    assert compare(limited_nodes, "items", max_connections=2, **options).verdict == "MATCH"


def test_the_limit_of_a_database(limited_nodes: list[Database], server: Server) -> None:
    server.database("postgres").execute(f"ALTER DATABASE {limited_nodes[1].name} CONNECTION LIMIT 1")
    controls = [Control(Node(f"n{n}", node.uri), application="trueup test") for n, node in enumerate(limited_nodes, 1)]
    try:
        with pytest.raises(CheckFailed, match=r"node n2: 1 parallel tasks need .* only 0 are free"):
            check_free(controls, 1)
    finally:
        for control in controls:
            control.close()


def test_addresses_contain_what_the_driver_resolved(
    limited_nodes: list[Database], server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "services").write_text(f"[shop]\nhost=127.0.0.1\nport={server.port}\ndbname={limited_nodes[0].name}\n")
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    monkeypatch.setenv("PGUSER", "modest")
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    control = Control(Node("n1", "service=shop"), application="trueup test")
    found = as_connected(control)
    control.close()
    assert PASSWORD not in repr(found)
    for name in ("PGSERVICEFILE", "PGUSER", "PGPASSWORD"):
        monkeypatch.delenv(name)
    with psycopg.connect(found.conninfo) as connection:
        assert connection.execute("SELECT current_user, current_database()").fetchone() == (
            "modest",
            limited_nodes[0].name,
        )


def test_all_lines_of_a_copy_are_read_or_an_error_is_raised(databases: Databases) -> None:
    """An error during the copy is not taken for its end; the session is usable, or is reopened."""
    from psycopg import sql

    from trueup.config.model import Node
    from trueup.db.reader import Reader, ResultTooLarge, timed_out
    from trueup.errors import QueryError

    reader = Reader(Node("n1", databases(1)[0].uri), None, application="trueup test", retries=1)
    copy = "COPY (SELECT {} FROM generate_series(1, {}) i) TO STDOUT"
    try:
        for count in (0, 1, 50_000):
            lines = reader.lines(sql.SQL(copy).format(sql.SQL("i, repeat('x', 100)"), sql.Literal(count)))
            assert [int(line.split(b"\t")[0]) for line in lines] == list(range(1, count + 1))
        with pytest.raises(QueryError, match="division by zero"):
            reader.lines(sql.SQL(copy).format(sql.SQL("1 / (40000 - i)"), sql.Literal(50_000)))
        with pytest.raises(ResultTooLarge):
            reader.lines(sql.SQL(copy).format(sql.SQL("i"), sql.Literal(50_000)), max_bytes=1000)
        with pytest.raises(QueryError) as slow:
            reader.lines(sql.SQL(copy).format(sql.SQL("pg_sleep(0.2)"), sql.Literal(500)), timeout=0.3)
        assert timed_out(slow.value)
        assert reader.lines(sql.SQL(copy).format(sql.SQL("i"), sql.Literal(2))) == [b"1\n", b"2\n"]
    finally:
        reader.close()
