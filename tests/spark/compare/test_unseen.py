"""What a run must notice while it reads without Spark: files that are replaced, results that are cut, a stop."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import trueup
from support import mariadb
from support.fixtures import Databases, FreshServer
from support.mariadb import MariaDb
from trueup.config.model import Node
from trueup.db.clickhouse import Embedded
from trueup.errors import CheckFailed, QueryError, TrueupError
from trueup.nodes import parquet_parts, postgres_hash
from trueup.nodes.base import Plan
from trueup.nodes.block_digests import BlockDigests
from trueup.nodes.postgres_rows import TaskSource, read_at_once
from trueup.store import TaskStore
from trueup.testing.postgres import Database
from trueup.verbs.compare.digests import all_digests
from trueup.verbs.compare.local_rows import LocalFound

DEBIAN = Path("/usr/lib/postgresql/15/bin")
ROWS = {"id": [1, 2, 3], "v": ["a", "b", "c"]}


@pytest.fixture
def pg(databases: Databases) -> Database:
    database = databases(1)[0]
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    return database


def diff(nodes: dict[str, Any], **options: Any) -> Any:
    return trueup.diff("t", nodes=nodes, recheck=0, engine="local", **options)


def replacing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace a file by one of the same size, after it was read."""
    digests = parquet_parts.Work.digests

    def read(self: parquet_parts.Work, part: parquet_parts.Part) -> tuple[BlockDigests, int]:
        answer = digests(self, part)
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
        os.utime(path, ns=(1, 1))
        return answer

    monkeypatch.setattr(parquet_parts.Work, "digests", read)


def test_a_file_that_is_replaced(pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deltalake import write_deltalake

    write_deltalake(str(tmp_path / "delta"), pa.table(ROWS))
    (tmp_path / "files").mkdir()
    pq.write_table(pa.table(ROWS), tmp_path / "files" / "x.parquet")
    for kind, folder in (("delta", "delta"), ("parquet", "files")):
        nodes = {"pg": pg.uri, "lake": f"{kind}:{tmp_path / folder}"}
        assert diff(nodes).verdict == "MATCH"
        with monkeypatch.context() as patch:
            replacing(next((tmp_path / folder).glob("*.parquet")), patch)
            result = diff(nodes)
        assert result.verdict == "INCOMPLETE"
        assert "while" in result.incomplete[0]


def test_a_server_without_the_short_hash(fresh_server: FreshServer, tmp_path: Path) -> None:
    if not DEBIAN.exists():
        pytest.skip("Debian's PostgreSQL 15 is not installed")
    old = fresh_server(bin_dir=DEBIAN).database("postgres")
    old.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'C')")
    pq.write_table(pa.table(ROWS), tmp_path / "x.parquet")
    result = diff({"pg": old.uri, "lake": f"parquet:{tmp_path / 'x.parquet'}"})
    assert (result.verdict, result.pairs["pg/lake"].changed) == ("DIFFER", 1)


def test_a_file_that_cannot_be_decoded(pg: Database, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(
        pa.table({"id": [1, 2, 3], "v": ["a" * 500, "b", "c"]}), path, compression="none", use_dictionary=False
    )
    data = bytearray(path.read_bytes())
    data[4:60] = bytes(56)
    path.write_bytes(data)
    with pytest.raises(TrueupError, match=r"node lake: .*x\.parquet cannot be read") as caught:
        diff({"pg": pg.uri, "lake": f"parquet:{path}"})
    assert caught.value.cure


def test_a_key_that_is_null_although_it_must_not_be(databases: Databases, tmp_path: Path) -> None:
    near, far = databases(2)
    far.execute("CREATE TABLE t (id int, v text); INSERT INTO t VALUES (1, 'a'), (NULL, 'b')")
    port = far.execute("SHOW port")[0][0]
    near.execute(
        "CREATE EXTENSION postgres_fdw; CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw"
        f" OPTIONS (host '127.0.0.1', port '{port}', dbname '{far.name}');"
        "CREATE USER MAPPING FOR CURRENT_USER SERVER far OPTIONS (user 'postgres', password_required 'false');"
        "CREATE FOREIGN TABLE t (id int NOT NULL, v text) SERVER far"
    )
    pq.write_table(pa.table({"id": [1], "v": ["a"]}), tmp_path / "x.parquet")
    with pytest.raises(TrueupError, match="node pg: 1 rows have NULL in the key"):
        diff({"pg": near.uri, "lake": f"parquet:{tmp_path}/x.parquet"}, key=["id"])


def test_settings_that_cut_results_of_clickhouse(pg: Database, tmp_path: Path) -> None:
    backend = Embedded(tmp_path / "ch")
    backend.execute("CREATE DATABASE shop")
    backend.execute("CREATE TABLE shop.t (id Int32, v String) ENGINE = MergeTree ORDER BY id")
    backend.execute("INSERT INTO shop.t VALUES (1, 'a'), (2, 'b'), (3, 'x')")
    backend.execute("SET limit = 1")
    # A node of the same process uses the same engine, and its settings.
    assert len(backend.arrow("SELECT id FROM shop.t")) == 1
    backend.close()
    result = diff({"pg": pg.uri, "ch": f"chdb:{tmp_path}/ch?database=shop"}, key=["id"])
    assert (result.rows, result.pairs["pg/ch"].changed) == ({"pg": 3, "ch": 3}, 1)


def test_settings_that_cut_results_of_mysql(maria: MariaDb) -> None:
    for name in ("one", "two"):
        maria.execute(f"CREATE OR REPLACE DATABASE {name}")
        maria.execute(f"CREATE TABLE {name}.t (id int PRIMARY KEY, v int)")
        maria.execute(f"INSERT INTO {name}.t SELECT seq, seq FROM seq_1_to_300")
    maria.execute("UPDATE two.t SET v = 0 WHERE id = 7")
    maria.execute("SET GLOBAL sql_select_limit = 1")
    try:
        result = diff({name: maria.uri.replace("/shop", f"/{name}") for name in ("one", "two")})
    finally:
        maria.execute(f"SET GLOBAL sql_select_limit = {2**64 - 1}")
    assert (result.rows, result.pairs["one/two"].changed) == ({"one": 300, "two": 300}, 1)


def test_a_server_that_is_killed(pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not mariadb.is_installed():
        pytest.skip("MariaDB is not installed")
    with mariadb.started(tmp_path / "maria") as server:
        server.execute("CREATE TABLE t (id int PRIMARY KEY, v varchar(9))")
        server.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')")

        def digests(*arguments: Any) -> Any:
            computed = all_digests(*arguments)
            server.stop()
            return computed

        monkeypatch.setattr("trueup.verbs.compare.run.all_digests", digests)
        result = diff({"pg": pg.uri, "my": server.uri})
    assert (result.verdict, result.exit_code) == ("INCOMPLETE", 2)
    assert "node my: the connection that holds the snapshot was lost" in result.incomplete[0]


def test_a_session_that_is_ended(pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table(ROWS), tmp_path / "x.parquet")

    def digests(*arguments: Any) -> Any:
        computed = all_digests(*arguments)
        pg.execute("SELECT pg_terminate_backend(pid, 9000) FROM pg_stat_activity WHERE state ~ '^idle in'")
        return computed

    monkeypatch.setattr("trueup.verbs.compare.run.all_digests", digests)
    result = diff({"pg": pg.uri, "lake": f"parquet:{tmp_path}/x.parquet"})
    assert (result.verdict, result.exit_code) == ("INCOMPLETE", 2)
    assert "node pg: the connection that holds the snapshot was lost" in result.incomplete[0]


@pytest.mark.parametrize(("is_short", "since"), [(True, 0), (False, postgres_hash.BYTES_SINCE), (False, 999999)])
def test_hashes_of_all_servers_are_the_same_as_those_of_files(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_short: bool, since: int
) -> None:
    pg.execute("INSERT INTO t SELECT g, 'n' || g FROM generate_series(4, 900) g")
    # Rows at the length from which on they are replaced by their md5.
    pg.execute("INSERT INTO t SELECT g, repeat('x', g) FROM generate_series(1970, 2030) g")
    pg.execute("CREATE TABLE k AS SELECT * FROM t")
    rows = pg.execute("SELECT id, v FROM t")
    written = pa.table({"id": [row[0] for row in rows], "v": [row[1] if row[0] != 7 else "other" for row in rows]})
    pq.write_table(written, tmp_path / "x.parquet")
    nodes = {"pg": pg.uri, "lake": f"parquet:{tmp_path}/x.parquet"}
    plans: list[Plan] = []

    def digests(nodes: Any, plan: Plan) -> Any:
        plans.append(plan)
        return all_digests(nodes, plan)

    monkeypatch.setattr("trueup.verbs.compare.run.all_digests", digests)
    monkeypatch.setattr(postgres_hash, "BYTES_SINCE", since)
    if not is_short:
        # As a server that computes another hash.
        monkeypatch.setattr("trueup.nodes.postgres.hash_row", lambda *row: (0, 0))
    # By ranges of the key, and by hash: a text has no number.
    for table, key, found in (("t", ["id"], (1, 0)), ("k", ["v", "id"], (0, 1))):
        result = trueup.diff(table, nodes=nodes, key=key, recheck=0, engine="local")
        counts = result.pairs["pg/lake"]
        assert (counts.changed, counts.missing, counts.extra) == (found[0], found[1], found[1])
        # The seeds of the hash are random: the two keys of a renamed row can fall into one block.
        assert 1 <= result.mismatched_blocks <= 1 + found[1]
    assert [plan.is_short for plan in plans] == [is_short, is_short]


def test_many_columns_with_a_small_stack(pg: Database, tmp_path: Path) -> None:
    """The expression of the short hash is as deep as there are columns."""
    names = [f"c{number}" for number in range(150)]
    pg.execute(f"DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, {' int, '.join(names)} int)")
    pg.execute("INSERT INTO t (id, c149) SELECT g, g FROM generate_series(1, 3) g")
    pg.execute(f'ALTER DATABASE "{pg.name}" SET max_stack_depth = 100')
    nothing = pa.nulls(3, pa.int32())
    columns = {"id": [1, 2, 3], **dict.fromkeys(names, nothing), "c149": [1, 2, 4]}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    assert diff({"pg": pg.uri, "lake": f"parquet:{tmp_path}/x.parquet"}).pairs["pg/lake"].changed == 1


@pytest.mark.parametrize("first", [-(2**63), 2**63 - 20])
def test_keys_at_the_ends_of_the_integers(pg: Database, tmp_path: Path, first: int) -> None:
    """A range that begins with the smallest integer, which is none without its sign, or that ends with the largest."""
    pg.execute("DROP TABLE t; CREATE TABLE t (id bigint PRIMARY KEY, v int)")
    pg.execute("INSERT INTO t SELECT %s::int8 + g, g FROM generate_series(0, 19) g", [first])
    pg.execute("ANALYZE t")
    numbers = list(range(1, 20))
    pq.write_table(pa.table({"id": [first + number for number in numbers], "v": numbers}), tmp_path / "x.parquet")
    counts = diff({"pg": pg.uri, "lake": f"parquet:{tmp_path}/x.parquet"}).pairs["pg/lake"]
    assert (counts.missing, counts.changed, counts.extra) == (1, 0, 0)


def test_rows_that_do_not_fit_into_memory_are_compared_by_parts(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pg.execute("INSERT INTO t SELECT g, 'n' || g FROM generate_series(4, 3000) g; ANALYZE t")
    rows = pg.execute("SELECT id, v FROM t ORDER BY id")
    changed = [(key, f"{text}!" if key % 3 == 0 else text) for key, text in rows if key % 100]
    pq.write_table(
        pa.table({"id": [row[0] for row in changed], "v": [row[1] for row in changed]}), tmp_path / "x.parquet"
    )
    monkeypatch.setattr("trueup.verbs.compare.local_rows.WAITING_BYTES", 1000)
    counts = diff({"pg": pg.uri, "lake": f"parquet:{tmp_path}/x.parquet"}).pairs["pg/lake"]
    assert (counts.missing, counts.changed, counts.extra) == (30, 990, 0)
    # The rows of one node only are too many.
    monkeypatch.setattr("trueup.verbs.compare.local_rows.WAITING_BYTES", 20_000)
    few = pa.table({"id": [row[0] for row in rows[:20]], "v": ["x", *(row[1] for row in rows[1:20])]})
    pq.write_table(few, tmp_path / "y.parquet")
    counts = diff({"pg": pg.uri, "lake": f"parquet:{tmp_path}/y.parquet"}).pairs["pg/lake"]
    assert (counts.missing, counts.changed, counts.extra) == (2980, 1, 0)


def test_a_stop_while_rows_are_compared(pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pg.execute("INSERT INTO t SELECT g, 'x' FROM generate_series(4, 900) g; ANALYZE t")
    keys = list(range(1, 901))
    pq.write_table(pa.table({"id": keys, "v": ["y"] * len(keys)}), tmp_path / "x.parquet")
    add = LocalFound.add

    def stopping(self: LocalFound, *found: Any) -> None:
        add(self, *found)
        with TaskStore() as store:
            store.ask(store.list(limit=1)[0].task_id, "stop")

    monkeypatch.setattr(LocalFound, "add", stopping)
    monkeypatch.setattr("trueup.task.steering.ASK_SECONDS", 0)
    result = diff({"pg": pg.uri, "lake": f"parquet:{tmp_path}/x.parquet"})
    assert (result.verdict, result.exit_code) == ("INCOMPLETE", 2)
    assert "stopped with `trueup tasks stop`" in result.incomplete[0]


def test_rows_that_several_sessions_read(pg: Database) -> None:
    source = TaskSource(Node("pg", pg.uri), None, "t", is_view=False)
    queries = [f"SELECT g FROM generate_series({start}, {start + 99}) g" for start in range(0, 1000, 100)]
    found = [number for batch in read_at_once(source, queries, 3) for number in batch.column(0).to_pylist()]
    assert sorted(found) == list(range(1000))
    for place in (0, 5, 10):
        failing = [*queries[:place], "SELECT 1 / 0", *queries[place:]]
        with pytest.raises(QueryError, match="division by zero"):
            list(read_at_once(source, failing, 2))


def test_one_long_key_among_rows_that_do_not_fit_into_memory(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a key are in the same part on all nodes, whatever other keys are read together with them."""
    keys = ["long" * 1000, *(f"k{number}" for number in range(600))]
    pg.execute("CREATE TABLE texts (k text PRIMARY KEY, v int)")
    pg.execute("INSERT INTO texts SELECT k, 1 FROM unnest(%s::text[]) k", [keys])
    pg.execute("ANALYZE texts")
    pq.write_table(pa.table({"k": keys, "v": [2] * len(keys)}), tmp_path / "x.parquet", row_group_size=50)
    monkeypatch.setattr("trueup.verbs.compare.local_rows.WAITING_BYTES", 1000)
    nodes = {"pg": pg.uri, "lake": f"parquet:{tmp_path}/x.parquet"}
    counts = trueup.diff("texts", nodes=nodes, key=["k"], recheck=0, engine="local").pairs["pg/lake"]
    assert (counts.missing, counts.changed, counts.extra) == (0, len(keys), 0)


def test_a_primary_key_that_an_inheriting_table_does_not_have(databases: Databases) -> None:
    nodes = databases(2)
    for number, node in enumerate(nodes):
        place = f"host '127.0.0.1', port '{node.server.port}', dbname '{node.name}'"
        node.execute("CREATE EXTENSION postgres_fdw")
        node.execute(f"CREATE SERVER me FOREIGN DATA WRAPPER postgres_fdw OPTIONS ({place})")
        node.execute("CREATE USER MAPPING FOR current_user SERVER me OPTIONS (user 'postgres')")
        node.execute(f"CREATE TABLE stored (k int, l int, v text); INSERT INTO stored VALUES (5, NULL, 'v{number}')")
        node.execute("CREATE TABLE t (k int, l int, v text, PRIMARY KEY (k, l)); INSERT INTO t VALUES (1, 1, 'x')")
        node.execute("CREATE FOREIGN TABLE child () INHERITS (t) SERVER me OPTIONS (table_name 'stored')")
    # By value, because of the rule.
    with pytest.raises(CheckFailed, match="rows without a key are matched by all their values"):
        diff({"a": nodes[0].uri, "b": nodes[1].uri}, map={"rules": {"v": {"trim": True}}})
    with pytest.raises(CheckFailed, match="rows have NULL in"):
        diff({"a": nodes[0].uri, "b": nodes[1].uri}, map={"rules": {"v": {"trim": True}}}, key=["k", "l"])


def test_a_database_whose_sessions_quote_all_names(pg: Database, tmp_path: Path) -> None:
    """The driver that reads rows finds types by their names before the setting can be changed."""
    pq.write_table(pa.table({**ROWS, "v": ["a", "b", "x"]}), tmp_path / "x.parquet")
    pg.execute(f'ALTER DATABASE "{pg.name}" SET quote_all_identifiers = on')
    assert diff({"pg": pg.uri, "lake": f"parquet:{tmp_path}/x.parquet"}).pairs["pg/lake"].changed == 1
