"""Ranges of keys of several columns: the conditions select the rows of the range, and the planner finds an index."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import psycopg
import pytest
from psycopg import sql

import trueup
from support.fixtures import Compare, Databases, OnAll
from trueup.config.model import Node
from trueup.db import catalog
from trueup.db.connection import Connection
from trueup.db.node import connect
from trueup.rows.encode import column_spec, key_order
from trueup.rows.keys import Block, KeyValues, in_block, literals, order_by
from trueup.rows.spec import KeySpec, TableSpec
from trueup.testing.postgres import Database, Server

# Type and values of a column, all of which are compared with all others; NULL is in each of them.
COLUMNS = {
    "i": ("int", ["-1", "0", "7"]),
    "n": ("numeric", ["NaN", "1.0", "1.00", "-Infinity", "2"]),
    "f": ("float8", ["NaN", "-0", "0", "Infinity"]),
    "c": ('text COLLATE "C"', ["a", "B", "é", ""]),
    "d": ("text COLLATE public.ignoring", ["a", "A", "b", ""]),
    "p": ("char(3)", ["a", "a  ", "b"]),
    "u": ("uuid", ["00000000-0000-0000-0000-00000000000a", "ffffffff-0000-0000-0000-000000000000"]),
    "s": ("timestamptz", ["-infinity", "2024-02-29 12:00+00", "infinity"]),
    "m": ("interval", ["1 mon", "30 days", "31 days"]),
    "x": ("public.small", ["1", "5"]),
    "o": ("public.other", ["l", "k"]),
    "j": ("jsonb", ['{"a": 1}', "[]", "1.0", "1.00"]),
    "r": ("int4range", ["[1,5)", "[1,4)", "empty"]),
}
KEYS = ["in", "nif", "ci", "dx", "pui", "sm", "mi", "xo", "oi", "ujc", "rf", "fn", "idn", "jr"]


def _spec(connection: Connection, name: str) -> TableSpec:
    table = catalog.read_table(connection, "public", name)
    assert table is not None
    columns = [(column, column_spec(column)) for column in table.columns if column.name != "row"]
    return TableSpec(
        "public",
        name,
        tuple(KeySpec(spec, key_order([column])) for column, spec in columns),
        tuple(s for _, s in columns),
    )


def test_the_conditions_of_a_block_select_the_rows_of_the_comparison_of_rows(databases: Databases) -> None:
    """With NULL, NaN, values with several texts, nondeterministic collations, and indexes in any order."""
    (database,) = databases(1)
    try:
        database.execute(
            "CREATE COLLATION ignoring (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
        )
    except psycopg.errors.FeatureNotSupported:
        database.execute('CREATE COLLATION ignoring FROM "C"')
    database.execute("CREATE DOMAIN small AS int CHECK (value < 9); CREATE TYPE mood AS ENUM ('l', 'k')")
    database.execute("CREATE DOMAIN other AS mood")
    chosen = random.Random(28)
    with connect(Node("n1", database.uri), application="test", read_only=False) as connection:
        for key in KEYS:
            columns = ", ".join(f"{name} {COLUMNS[name][0]}" for name in key)
            connection.execute(f"CREATE TABLE public.t_{key} (row serial, {columns})".encode())
            rows = list(product(*([*COLUMNS[name][1], None] for name in key)))
            insert = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
                sql.Identifier("public", f"t_{key}"),
                sql.SQL(", ").join(map(sql.Identifier, key)),
                sql.SQL(", ").join(sql.Placeholder() * len(key)),
            )
            with connection.cursor() as cursor:
                cursor.executemany(insert, rows * 2)
            orders = ", ".join(
                f"{name} {chosen.choice(['', 'DESC', 'NULLS FIRST', 'DESC NULLS LAST'])}" for name in key
            )
            connection.execute(f"CREATE INDEX ON public.t_{key} ({orders}); ANALYZE public.t_{key}".encode())
            spec = _spec(connection, f"t_{key}")
            edges: list[KeyValues | None] = [None, *(tuple(map(str, row)) for row in rows if None not in row)]
            blocks = [Block(chosen.choice(edges), chosen.choice(edges)) for _ in range(50)]
            blocks += [Block(edge, edge) for edge in chosen.sample(edges, 3)]
            expected = None
            for on in ("seqscan", "indexscan", "bitmapscan"):
                for scan in ("seqscan", "indexscan", "bitmapscan"):
                    connection.execute(f"SET enable_{scan} = {'on' if scan == on else 'off'}".encode())
                expected = expected or [_rows(connection, spec, _comparison(spec, block)) for block in blocks]
                assert [_rows(connection, spec, in_block(spec, block)) for block in blocks] == expected, (key, on)
            assert sum(map(len, expected or [])) > len(rows)


def _comparison(spec: TableSpec, block: Block) -> list[sql.Composable]:
    return [
        sql.SQL("ROW({}) {} ROW({})").format(order_by(spec), sign, sql.SQL(", ").join(literals(spec.key, edge)))
        for sign, edge in ((sql.SQL(">="), block.start), (sql.SQL("<"), block.end))
        if edge is not None
    ]


def _rows(connection: Connection, spec: TableSpec, conditions: list[sql.Composable]) -> list[int]:
    query = sql.SQL("SELECT row FROM public.{} WHERE {} ORDER BY row").format(
        sql.Identifier(spec.table), sql.SQL(" AND ").join([sql.SQL("true"), *conditions])
    )
    return [row for (row,) in connection.execute(query)]


# A plan that the server wrote to its log.
_PLAN = re.compile(r"  plan:\n((?:\t.*\n)+)")
# Costs with which a quarter of a small table is scanned, and a block of it is read by the index, as in a large table.
_COSTS = (
    "session_preload_libraries = auto_explain",
    "auto_explain.log_min_duration = 0",
    "auto_explain.log_format = json",
    "cpu_index_tuple_cost = 0.03",
)
TABLES = {
    "t_scattered": ("a uuid, b int", "md5(i::text)::uuid, i % 4"),
    "t_one_tenant": ("a int, b int", "1, i"),
    "t_tenants": ("a text, b numeric, c date", "chr(97 + i % 3), i % 7, date '2024-01-01' + i"),
    "t_domain": ("a word, b small, c bigint", "md5((i / 9)::text), i % 3, i"),
}


Explained = tuple[list[Database], Callable[[], Iterator[tuple[str, list[dict[str, Any]]]]]]


@pytest.fixture
def explained(server: Server, databases: Databases, on_all: OnAll) -> Explained:
    """Two databases with the tables, and a function that returns the plans since its last call."""
    nodes = databases(2)
    on_all(nodes, 'CREATE DOMAIN word AS text COLLATE "C"; CREATE DOMAIN small AS int CHECK (value < 9)')
    for name, (columns, values) in TABLES.items():
        key = ", ".join(column.split()[0] for column in columns.split(","))
        on_all(
            nodes,
            f"CREATE TABLE {name} ({columns}, v text, w int DEFAULT 0, PRIMARY KEY ({key}));"
            f"INSERT INTO {name} SELECT {values}, repeat('v', 60), i FROM generate_series(1, 8000) i; ANALYZE {name}",
        )
    for node, setting in product(nodes, _COSTS):
        server.database("postgres").execute(f"ALTER DATABASE {node.name} SET {setting}")
    read = server.log.stat().st_size

    def plans() -> Iterator[tuple[str, list[dict[str, Any]]]]:
        nonlocal read
        log = server.log.read_bytes()[read:]
        read += len(log)
        for text in _PLAN.findall(log.decode()):
            plan = json.loads(text)
            yield plan["Query Text"], list(_parts(plan["Plan"]))

    return nodes, plans


def test_no_statement_over_a_range_of_keys_scans_the_table(explained: Explained, compare: Compare) -> None:
    """Each plan of a comparison and of a repair; the walk along the key reads only the rows it returns."""
    nodes, plans = explained
    options: dict[str, Any] = {"block_size": 1000, "compare_unit_size": 100, "override_block_size": True}
    for name in TABLES:
        changes = f"UPDATE {name} SET v = 'x' WHERE w % 1500 = 0 OR w BETWEEN 4000 AND 4600;"
        nodes[1].execute(f"{changes} DELETE FROM {name} WHERE w % 3000 = 7")
        list(plans())
        result = compare(nodes, f"public.{name}", **options)
        assert (result.verdict, result.pairs["n1/n2"].total) == ("DIFFER", 608)
        addresses = {"n1": nodes[0].uri, "n2": nodes[1].uri}
        repaired = trueup.repair(result.report, source_of_truth="n1", execute=True, nodes=addresses, engine="local")
        assert not repaired.failed
        assert compare(nodes, f"public.{name}", quick=True, gentle=True, **options).verdict == "MATCH"
        of_ranges = walks = 0
        for statement, parts in plans():
            scans = [part for part in parts if part.get("Relation Name") == name]
            # Only of a range with two edges: the last block may be most of the table.
            filters = [part.get("Filter", "") for part in scans if part["Node Type"] == "Seq Scan"]
            assert not any(">=" in each and "<" in each for each in filters), (name, statement)
            if "row_number" in statement:
                walks += 1
                assert [part["Node Type"] for part in scans] in (["Index Scan"], ["Index Only Scan"]), (name, parts)
            of_ranges += any("Recheck Cond" in part for part in scans)
        # Less often for a key whose sample cuts unevenly.
        assert of_ranges >= 5 <= walks, (name, of_ranges, walks)


def _parts(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from _parts(part)
