"""No row is left out of a comparison: rows whose key is NULL, in spite of the catalog, and rows that no block has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

import trueup
from support.fixtures import Compare, Databases, FreshServer, OnAll
from trueup import CheckFailed
from trueup.engine.progress import Silent
from trueup.errors import Interrupted
from trueup.store import TaskStore
from trueup.testing.postgres import Database

DEBIAN = Path("/usr/lib/postgresql/15/bin")
SMALL: dict[str, Any] = {"block_size": 10, "override_block_size": True, "compare_unit_size": 5}
ROWS = "INSERT INTO @t SELECT i, 'v' || i FROM generate_series(1, 100) i"
# What the catalog says of the columns of a key, by a superuser's hand: the next hole of this kind.
LIE = "UPDATE pg_attribute SET attnotnull = true WHERE attrelid = '@t'::regclass AND attname IN ('k', 'l')"

# Tables @t whose key may be NULL in spite of the catalog, with such a row, whose value is @v.
NEW = {
    "not_valid": f"""CREATE TABLE @t (k int, v text); {ROWS}; INSERT INTO @t VALUES (NULL, '@v');
        ALTER TABLE @t ADD CONSTRAINT n NOT NULL k NOT VALID; CREATE UNIQUE INDEX ON @t (k)""",
    "no_inherit": f"""CREATE TABLE @t (k int, v text, CONSTRAINT n NOT NULL k NO INHERIT); {ROWS};
        CREATE UNIQUE INDEX ON @t (k); CREATE TABLE @t_child () INHERITS (@t);
        INSERT INTO @t_child VALUES (NULL, '@v')""",
    "composite": """CREATE TABLE @t (k int NOT NULL, l int, v text);
        INSERT INTO @t SELECT i / 10, nullif(i % 10, 5) FROM generate_series(0, 100) i;
        UPDATE @t SET v = '@v' WHERE l IS NULL;
        ALTER TABLE @t ADD CONSTRAINT n NOT NULL l NOT VALID; CREATE UNIQUE INDEX ON @t (k, l)""",
}
OLD = {
    "heir": f"""CREATE TABLE @t (k int PRIMARY KEY, v text); {ROWS}; CREATE TABLE @t_child () INHERITS (@t);
        ALTER TABLE @t_child ALTER k DROP NOT NULL; INSERT INTO @t_child VALUES (NULL, '@v')""",
    "heir_of_heir": f"""CREATE TABLE @t (k int PRIMARY KEY, v text); {ROWS}; CREATE TABLE @t_child () INHERITS (@t);
        CREATE TABLE @t_leaf () INHERITS (@t_child); ALTER TABLE @t_leaf ALTER k DROP NOT NULL;
        INSERT INTO @t_leaf VALUES (NULL, '@v')""",
}


def _create(nodes: list[Database], statement: str, table: str, values: tuple[str, str] = ("one", "two")) -> None:
    for node, value in zip(nodes, values, strict=True):
        node.execute(f"{statement}; ANALYZE @t".replace("@t", table).replace("@v", value))


@pytest.mark.parametrize("version", ["new", "old"] if DEBIAN.is_dir() else ["new"])
def test_a_key_that_may_be_null_is_no_key(
    databases: Databases, fresh_server: FreshServer, compare: Compare, version: str
) -> None:
    if version == "new":
        nodes = databases(2)
        is_new = nodes[0].execute("SELECT current_setting('server_version_num')::int >= 180000") == [(True,)]
        tables = NEW if is_new else {}
    else:
        server = fresh_server(name="old", bin_dir=DEBIAN)
        nodes, tables = [server.create_database(f"n{number}") for number in (1, 2)], OLD
    for table, statement in tables.items():
        _create(nodes, statement, table)
        for quick in (True, False):
            for sizes in ({}, SMALL):
                result = compare(nodes, table, quick=quick, **sizes)
                assert (result.verdict, result.rows) == ("DIFFER", {"n1": 101, "n2": 101}), (table, result)
                assert any("is no key on n1 and n2" in remark for remark in result.remarks)
        key = ["k", "l"] if table == "composite" else ["k"]
        with pytest.raises(CheckFailed, match="rows have NULL in"):
            compare(nodes, table, key=key)
        # With the same row on both nodes, all rows are equal.
        _create(nodes, statement, f"{table}_same", ("same", "same"))
        result = compare(nodes, f"{table}_same", **SMALL)
        assert (result.verdict, result.rows) == ("MATCH", {"n1": 101, "n2": 101}), (table, result)
        # Without such a row, a key that is named is one, and so is one whose constraint is valid.
        for node in nodes:
            node.execute(f"DELETE FROM {table} WHERE v IN ('one', 'two')")
        assert compare(nodes, table, key=key).verdict == "MATCH"
        if version == "new" and table != "no_inherit":
            for node in nodes:
                node.execute(f"ALTER TABLE {table} VALIDATE CONSTRAINT n")
            assert not compare(nodes, table).remarks


def test_foreign_partitions_are_compared_by_value(databases: Databases, compare: Compare) -> None:
    nodes = databases(2)
    for node, value in zip(nodes, ("one", "two"), strict=True):
        address = conninfo_to_dict(node.uri)
        node.execute(
            f"""CREATE EXTENSION postgres_fdw; CREATE TABLE remote (k int, v text);
            CREATE SERVER loop FOREIGN DATA WRAPPER postgres_fdw
                OPTIONS (host '{address["host"]}', port '{address["port"]}', dbname '{node.name}');
            CREATE USER MAPPING FOR CURRENT_USER SERVER loop OPTIONS (
                user '{address["user"]}', password '{address.get("password", "")}', password_required 'false');
            INSERT INTO remote SELECT i, 'v' || i FROM generate_series(100, 198) i;
            CREATE TABLE t (k int NOT NULL, v text) PARTITION BY RANGE (k);
            CREATE TABLE near PARTITION OF t FOR VALUES FROM (0) TO (100);
            CREATE FOREIGN TABLE far PARTITION OF t FOR VALUES FROM (100) TO (200) SERVER loop
                OPTIONS (table_name 'remote');
            INSERT INTO t SELECT i, 'v' || i FROM generate_series(0, 99) i"""
        )
        # Outside of the bounds of its partition.
        node.execute(f"INSERT INTO remote VALUES (-5, '{value}')")
        node.execute("ANALYZE t")
    for quick in (True, False):
        for options in ({}, {"key": ["k"]}, {"key": ["k"], "filter": "k < 50"}, {"filter": "k < 50"}):
            result = compare(nodes, "t", quick=quick, **SMALL, **options)
            rows = 51 if "filter" in options else 200
            assert (result.verdict, result.rows) == ("DIFFER", {"n1": rows, "n2": rows}), options
    # Many tables are not compared by value.
    addresses = {f"n{number}": node.uri for number, node in enumerate(nodes, 1)}
    many = trueup.check_many(tables=["public.t"], nodes=addresses)
    assert (many.verdict, "is foreign" in many.incomplete[0]) == ("INCOMPLETE", True)
    for node in nodes:
        node.execute("UPDATE remote SET v = 'same' WHERE k = -5")
    assert compare(nodes, "t", key=["k"], **SMALL).verdict == "MATCH"
    for node in nodes:
        node.execute("UPDATE remote SET k = NULL WHERE k = -5")
    assert compare(nodes, "t", **SMALL).verdict == "MATCH"
    with pytest.raises(CheckFailed, match="rows have NULL in the key"):
        compare(nodes, "t", key=["k"])


LEFT_OUT = {
    "single": f"CREATE TABLE @t (k int UNIQUE, v text); {ROWS}; INSERT INTO @t VALUES (NULL, '@v'); {LIE}",
    "double": f"""CREATE TABLE @t (k int, l int, v text, UNIQUE (k, l)); INSERT INTO @t VALUES (3, NULL, '@v'); {LIE};
        INSERT INTO @t SELECT i / 10, i % 10, 'v' FROM generate_series(1, 100) i""",
    # A partition that is attached without a scan, because a constraint is said to be valid.
    "parts": f"""CREATE TABLE @t (k int PRIMARY KEY, v text) PARTITION BY RANGE (k);
        CREATE TABLE near PARTITION OF @t FOR VALUES FROM (0) TO (50); CREATE TABLE far (LIKE @t INCLUDING ALL);
        INSERT INTO far VALUES (-5, '@v'); ALTER TABLE far ADD CONSTRAINT c CHECK (k >= 50 AND k < 200) NOT VALID;
        UPDATE pg_constraint SET convalidated = true WHERE conrelid = 'far'::regclass AND conname = 'c';
        ALTER TABLE @t ATTACH PARTITION far FOR VALUES FROM (50) TO (200); {ROWS}""",
}


@pytest.mark.parametrize("table", list(LEFT_OUT))
def test_rows_that_no_block_has_are_counted(databases: Databases, compare: Compare, table: str) -> None:
    holes = databases(2)
    _create(holes, LEFT_OUT[table], table)
    for quick in (True, False):
        for options in ({}, {"max_rows_per_second": 1_000_000}, {"filter": "v <> ''"}):
            result = compare(holes, table, quick=quick, **SMALL, **options)
            assert result.verdict == "INCOMPLETE", (options, result)
            assert "n1: 101 rows were counted, and 100 compared" in result.incomplete[0], options
    # Without a snapshot, rows without a key are counted.
    result = compare(holes, table, snapshot=False, **SMALL)
    assert (result.verdict == "INCOMPLETE") is (table != "parts")


class _StopAfter(Silent):
    """Interrupts the run after some blocks."""

    def __init__(self, blocks: int) -> None:
        self._left = blocks

    def advance(self, steps: int = 1, *, rows: int = 0, more: int = 0, stage: str = "") -> None:
        if not stage:
            self._left -= steps
        if self._left <= 0:
            raise KeyboardInterrupt


def test_a_resumed_run_counts_the_rows_of_its_own_blocks(databases: Databases, on_all: OnAll) -> None:
    nodes = databases(2)
    on_all(
        nodes,
        "CREATE TABLE t (k int, l int, v text, UNIQUE (k, l));"
        f"INSERT INTO t SELECT i / 10, i % 10, 'v' FROM generate_series(0, 999) i; ANALYZE t; {LIE.replace('@t', 't')}",
    )
    addresses = {f"n{number}": node.uri for number, node in enumerate(nodes, 1)}

    def resumed(added: int) -> trueup.DiffResult:
        with pytest.raises(Interrupted):
            trueup.diff("t", nodes=addresses, progress=_StopAfter(40), engine="local", recheck_wait=0, **SMALL)
        with TaskStore() as store:
            task = store.list(limit=1)[0].task_id
        # A finished block has more rows than when it was compared.
        on_all(nodes, f"INSERT INTO t SELECT 0, {added} + i, 'v' FROM generate_series(1, 7) i")
        return trueup.resume(task, nodes=addresses)

    assert (result := resumed(100)).verdict == "MATCH", result
    for node, value in zip(nodes, ("one", "two"), strict=True):
        node.execute("UPDATE pg_attribute SET attnotnull = false WHERE attrelid = 't'::regclass AND attname = 'l'")
        node.execute(f"INSERT INTO t VALUES (70, NULL, '{value}')")
        node.execute(LIE.replace("@t", "t"))
    assert "rows were counted" in (result := resumed(200)).incomplete[0], result


def test_rows_that_no_unit_of_a_scan_by_pages_has(
    databases: Databases, compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trueup.verbs.diff.compare.is_scattered", lambda controls, spec: True)
    nodes = databases(2)
    _create(nodes, LEFT_OUT["single"], "single")
    for quick in (True, False):
        assert "101 rows were counted, and 100 compared" in compare(nodes, "single", quick=quick, **SMALL).incomplete[0]


def test_a_row_that_an_index_lacks_is_missed_by_no_verdict(databases: Databases, compare: Compare) -> None:
    nodes = databases(2)
    # The last ones have no key, or are compared by value.
    keys = {
        "t": "PRIMARY KEY (k)",
        "pairs": "PRIMARY KEY (k, l)",
        "parts": "PRIMARY KEY (k)",
        "covered": "EXCLUDE USING btree (k WITH =) INCLUDE (l)",
        "viewed": "UNIQUE (k) INCLUDE (l)",
    }
    for node in nodes:
        for table, key in keys.items():
            cut = " PARTITION BY RANGE (k)" if table == "parts" else ""
            node.execute(f"CREATE TABLE {table} (k int, l int, v text, {key}){cut}")
        node.execute("CREATE TABLE part PARTITION OF parts DEFAULT; CREATE VIEW view AS SELECT k, l FROM viewed")
        for table in keys:
            # Rows so wide that it takes less time to count the entries of the index than the rows.
            rows = "SELECT i, i, repeat('v', 500) FROM generate_series(1, 5000) i"
            node.execute(f"INSERT INTO {table} {rows}")
    # As after a crash of the machine, or with an index whose order is that of another version of the collation.
    state = "UPDATE pg_index SET indislive = {0}, indisready = {0} WHERE indrelid = '{1}'::regclass;"
    # Sessions read the list of indexes again.
    state += "ALTER TABLE {1} SET (fillfactor = 100)"
    for table in keys:
        of_index = "part" if table == "parts" else table
        nodes[1].execute(state.format("false", of_index))
        nodes[1].execute(f"INSERT INTO {table} VALUES (30000, 0, 'v')")
        nodes[1].execute(state.format("true", of_index))
        for node in nodes:
            node.execute(f"VACUUM ANALYZE {table}")
        lost = nodes[1].execute(f"SET enable_seqscan = off; SELECT count(*) FROM {table} WHERE k = 30000")
        assert lost == [(0,)], table
    for quick in (True, False):
        for table in ("t", "pairs", "parts"):
            result = compare(nodes, table, quick=quick, block_size=1000, override_block_size=True)
            assert result.verdict == "INCOMPLETE", (table, result)
            assert "5,001 rows were counted, and 5,000 compared" in result.incomplete[0], (table, result)
        assert compare(nodes, "covered", quick=quick, exclude_columns=["v"]).verdict == "DIFFER"
        assert compare(nodes, "view", quick=quick, key=["k"]).verdict != "MATCH"
