"""Every type: equal values match, and the smallest possible change is found.

One wide table has all types and a row per pair of values: row i differs only in column i.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psycopg
import pytest
from psycopg import sql

from support.fixtures import Compare, Databases, OnAll, ReportOf
from trueup import CheckFailed
from trueup.rows.encode import row_hash
from trueup.rows.spec import ColumnSpec, DigestKind, TableSpec
from trueup.testing.postgres import Database, Server

DIGESTS: list[DigestKind] = ["native", "portable"]

TYPES = """
    CREATE TYPE mood AS ENUM ({labels});
    CREATE TYPE pair AS (a int, b text);
    CREATE TYPE fold AS (p pair, d numeric[]);
    CREATE TYPE floatrange AS RANGE (subtype = float8);
    CREATE DOMAIN dtext AS text;
    CREATE DOMAIN dshort AS varchar(20) COLLATE "C";
    CREATE DOMAIN dnumeric AS numeric;
    CREATE DOMAIN dlayer AS dtext CHECK (VALUE <> 'x');
    CREATE DOMAIN dbig AS bigint;
    CREATE DOMAIN dblank AS bpchar;
    CREATE DOMAIN dstamp AS timestamptz;
    CREATE DOMAIN dbytes AS bytea;
    CREATE DOMAIN dmood AS mood;
    CREATE DOMAIN darray AS int[];
    CREATE DOMAIN dpair AS pair;
    CREATE TABLE one_table (a int);
    CREATE TABLE other_table (a int);
"""

# Types that no table can have, or without an input function.
NOT_STORABLE = {
    "gtsvector", "pg_node_tree", "pg_ndistinct", "pg_dependencies", "pg_mcv_list", "pg_brin_bloom_summary",
    "pg_brin_minmax_multi_summary", "pg_ddl_command",
}  # fmt: skip

# Type, a value, and another that is as similar as possible. Even if `=` or the hash of the server treat the two as
# equal, they must be reported as different.
PAIRS: list[tuple[str, str, str]] = [
    ("int2", "1", "2"),
    ("int2", "32767", "-32768"),
    ("int4", "2147483647", "2147483646"),
    ("int4", "0", "NULL"),
    ("int8", "9007199254740992", "9007199254740993"),
    ("int8", "-1", "0"),
    # The 64-bit hash of the server combines the halves.
    ("int8", "1", "4294967296"),
    ("int8", "4294967298", "8589934593"),
    ("int8", "-1", "-4294967296"),
    ("numeric", "0.1", "0.10000000000000000000000000000000000001"),
    ("numeric", "'NaN'", "'Infinity'"),
    ("numeric", "'Infinity'", "'-Infinity'"),
    ("numeric", "'NaN'", "NULL"),
    ("numeric", "1e100", "1e100 + 1"),
    ("numeric", "0", "-0.0000000000000000000001"),
    ("numeric", "100", "1"),
    ("numeric(10,2)", "3000.00", "3000.01"),
    ("float8", "0.1", "0.10000000000000002"),
    ("float8", "'0'", "'-0'"),
    ("float8", "'NaN'", "'Infinity'"),
    ("float8", "'Infinity'", "'-Infinity'"),
    ("float8", "'5e-324'", "'1e-323'"),
    ("float8", "'1.7976931348623157e308'", "'1.7976931348623155e308'"),
    ("float4", "'0.1'", "'0.10000001'"),
    ("float4", "'0'", "'-0'"),
    ("float4", "'NaN'", "'-Infinity'"),
    ("money", "'1.00'", "'1.01'"),
    ("money", "'-0.01'", "'0.01'"),
    ("text", "'a'", "'a '"),
    ("text", "''", "NULL"),
    ("text", "'NULL'", "NULL"),
    ("text", "'null'", "'NULL'"),
    ("text", "' '", "''"),
    ("text", "U&'\\00E9'", "U&'e\\0301'"),
    ("text", "'👍'", "'👍🏽'"),
    ("text", "E'a\\nb'", "E'a\\r\\nb'"),
    ("text", "E'a\\tb'", "'a    b'"),
    ("text", "E'\\\\n'", "E'\\n'"),
    ("text", "'a,b'", "'a;b'"),
    ("text", "'a\"b'", "'a\"\"b'"),
    ("text", "'\\\\'", "'\\'"),
    ("text", "'(,)'", "'(\"\",)'"),
    ("text", "'{}'", "'{ }'"),
    ("text", "'v'", "'h'"),
    ("text", "'h5:abc'", "'vh5:abc'"),
    ("text", "'%s'", "'%%s'"),
    ("text", "chr(1)", "chr(2)"),
    ('text COLLATE "C"', "'a'", "'A'"),
    ("varchar", "'x'", "'x '"),
    ("varchar(10)", "'x'", "'X'"),
    ("char(5)", "'a'", "'b'"),
    ("char(5)", "''", "NULL"),
    ("bpchar", "'a'", "'a '"),
    ("bpchar", "''", "' '"),
    ("name", "'n'", "'m'"),
    ('"char"', "'a'", "'b'"),
    ('"char"', "'\\200'", "'\\201'"),
    ('"char"', "''", "' '"),
    ("bytea", "'\\x'", "'\\x00'"),
    ("bytea", "'\\x00'", "'\\x0000'"),
    ("bytea", "'\\x5c'", "'\\x5c5c'"),
    ("bytea", "'\\x'", "NULL"),
    ("timestamp", "'2024-01-01'", "'2024-01-01 00:00:00.000001'"),
    ("timestamp", "'infinity'", "'-infinity'"),
    ("timestamp", "'4713-01-01 BC'", "'4713-01-01'"),
    ("timestamp", "'2000-01-01 00:00:00.000001'", "'2000-01-01 01:11:34.967296'"),
    ("timestamp(0)", "'2024-01-01 00:00:01'", "'2024-01-01 00:00:02'"),
    ("timestamptz", "'2024-03-31 01:00:00+01'", "'2024-03-31 01:00:00+00'"),
    ("timestamptz", "'infinity'", "'294276-12-31 23:59:59.999999+00'"),
    ("timestamptz", "'2000-01-01 00:00:00.000001+00'", "'2000-01-01 01:11:34.967296+00'"),
    ("date", "'2024-02-29'", "'2024-03-01'"),
    ("date", "'infinity'", "'-infinity'"),
    ("date", "'0001-01-01 BC'", "'0001-01-01'"),
    ("time", "'00:00'", "'24:00'"),
    ("time", "'00:00:00.000001'", "'01:11:34.967296'"),
    ("timetz", "'12:00+00'", "'13:00+01'"),
    ("timetz", "'12:00+00'", "'12:00:00.000001+00'"),
    ("interval", "'1 day'", "'24:00:00'"),
    ("interval", "'1 mon'", "'30 days'"),
    ("interval", "'0'", "'1 day -24:00'"),
    ("interval", "'1 us'", "'2 us'"),
    ("bool", "true", "false"),
    ("bool", "false", "NULL"),
    ("mood", "'sad'", "'ok'"),
    ("mood", "'ok'", "'OK'"),
    ("point", "'(1,2)'", "'(1,2.0000000000000004)'"),
    ("point", "'(0,0)'", "'(-0,0)'"),
    ("line", "'{1,2,3}'", "'{1,2,3.0000000000000004}'"),
    ("lseg", "'[(0,0),(1,1)]'", "'[(1,1),(0,0)]'"),
    ("box", "'(1,1),(0,0)'", "'(1.0000000000000002,1),(0,0)'"),
    ("box", "'(2,1),(0,0)'", "'(1,2),(0,0)'"),
    ("path", "'[(0,0),(1,1)]'", "'((0,0),(1,1))'"),
    ("path", "'[(0,0),(1,1)]'", "'[(0,0),(2,2)]'"),
    ("polygon", "'((0,0),(1,0),(1,1))'", "'((1,0),(1,1),(0,0))'"),
    ("circle", "'<(0,0),1>'", "'<(0,0),1.0000000000000002>'"),
    ("circle", "'<(0,0),1>'", "'<(5,5),1>'"),
    ("cidr", "'10.0.0.0/8'", "'10.0.0.0/9'"),
    ("inet", "'10.0.0.1'", "'10.0.0.1/24'"),
    ("inet", "'10.0.0.1'", "'::ffff:10.0.0.1'"),
    ("macaddr", "'08:00:2b:01:02:03'", "'08:00:2b:01:02:04'"),
    ("macaddr8", "'08:00:2b:01:02:03:04:05'", "'08:00:2b:01:02:03:04:06'"),
    ("bit(3)", "B'101'", "B'100'"),
    ("varbit", "B'1'", "B'10'"),
    ("varbit", "B''", "B'0'"),
    ("tsvector", "'cat:1'", "'cat:1A'"),
    ("tsvector", "'cat'", "'cat:1'"),
    ("tsquery", "'a & b'", "'a | b'"),
    ("tsquery", "'a'", "'a:*'"),
    ("uuid", "'6f9619ff-8b86-d011-b42d-00cf4fc964ff'", "'6f9619ff-8b86-d011-b42d-00cf4fc964fe'"),
    ("json", """'{"a":1}'""", """'{"a": 1}'"""),
    ("json", """'{"a":1,"b":2}'""", """'{"b":2,"a":1}'"""),
    ("json", """'{"a":1,"a":2}'""", """'{"a":2}'"""),
    ("json", "'null'", "NULL"),
    ("jsonb", "'1.0'", "'1.00'"),
    ("jsonb", "'1'", """'"1"'"""),
    ("jsonb", "'null'", "NULL"),
    ("jsonb", """'{"a": null}'""", "'{}'"),
    ("jsonb", "'[[1], 2]'", "'[1, [2]]'"),
    ("jsonb", """'{"a": ""}'""", """'{"a": null}'"""),
    ("jsonpath", "'$.a'", "'$.b'"),
    ("jsonpath", "'$.a'", "'strict $.a'"),
    ("int4[]", "'{1,2,3,4}'", "'{{1,2},{3,4}}'"),
    ("int4[]", "'{{1,2},{3,4}}'", "'{{1,2,3,4}}'"),
    ("int4[]", "'{{1,2,3},{4,5,6}}'", "'{{1,2},{3,4},{5,6}}'"),
    ("int4[]", "'{1,2}'", "'[0:1]={1,2}'"),
    ("int4[]", "'[0:1]={1,2}'", "'[-1:0]={1,2}'"),
    ("int4[]", "'{}'", "NULL"),
    ("int4[]", "'{NULL}'", "'{}'"),
    ("int8[]", "'{1}'", "'{4294967296}'"),
    ("text[]", "'{NULL}'", """'{"NULL"}'"""),
    ("text[]", """'{""}'""", "'{}'"),
    ("text[]", """'{"a,b"}'""", "'{a,b}'"),
    ("text[]", """'{"a","b c"}'""", """'{"a b","c"}'"""),
    ("bpchar[]", "'{a}'", """'{"a "}'"""),
    ("numeric[]", "'{1.0}'", "'{1.00}'"),
    ("float8[]", "'{0}'", "'{-0}'"),
    ("interval[]", """'{"1 day"}'""", "'{24:00:00}'"),
    ("timestamptz[]", """'{"2024-01-01 00:00+00"}'""", """'{"2024-01-01 00:00+01"}'"""),
    ("bool[]", "'{t,f}'", "'{f,t}'"),
    ("bytea[]", r"""'{"\\x00"}'""", r"""'{"\\x0000"}'"""),
    ("mood[]", "'{sad,ok}'", "'{ok,sad}'"),
    ("pair[]", "ARRAY[ROW(1, 'a')::pair]", "ARRAY[ROW(1, 'b')::pair]"),
    ("pair[]", "ARRAY[ROW(1, NULL)::pair]", "ARRAY[ROW(1, '')::pair]"),
    ("pair", "ROW(1, 'a')", "ROW(1, 'b')"),
    ("pair", "ROW(1, NULL)", "ROW(1, '')"),
    ("pair", "ROW(NULL, NULL)", "NULL"),
    ("pair", "ROW(1, 'NULL')", "ROW(1, NULL)"),
    ("pair", "ROW(1, 'a,b')", "ROW(1, 'a,\"b')"),
    ("fold", "ROW(ROW(1, 'x'), '{1.0}')", "ROW(ROW(1, 'x'), '{1.00}')"),
    ("fold", "ROW(NULL, NULL)", "ROW(ROW(NULL, NULL), NULL)"),
    ("one_table", "ROW(1)", "ROW(2)"),
    ("int4range", "'[1,5)'", "'[1,6)'"),
    ("int4range", "'empty'", "NULL"),
    ("int8range", "'[1,)'", "'[4294967296,)'"),
    ("numrange", "'[1.0,2]'", "'[1.00,2]'"),
    ("numrange", "'[1,2)'", "'[1,2]'"),
    ("tsrange", "'[2024-01-01,)'", "'[2024-01-01,infinity)'"),
    ("tstzrange", "'[2024-01-01 00:00+00,)'", "'(2024-01-01 00:00+00,)'"),
    ("daterange", "'[2024-01-01,2024-01-02)'", "'[2024-01-01,2024-01-03)'"),
    ("floatrange", "'[0,1]'", "'[-0,1]'"),
    ("dtext", "'a'", "'a '"),
    ("dshort", "'a'", "'A'"),
    ("dnumeric", "'NaN'", "'Infinity'"),
    ("dlayer", "'a'", "'A'"),
    ("dbig", "1", "4294967296"),
    ("dblank", "'a'", "'a '"),
    ("dstamp", "'2000-01-01 00:00:00.000001+00'", "'2000-01-01 01:11:34.967296+00'"),
    ("dbytes", "'\\x00'", "'\\x01'"),
    ("dmood", "'sad'", "'ok'"),
    ("darray", "'{1,2}'", "'[0:1]={1,2}'"),
    ("dpair", "ROW(1, NULL)", "ROW(1, '')"),
    ("oid", "1", "4294967295"),
    ("regclass", "'one_table'", "'other_table'"),
    ("regtype", "'mood'", "'pair'"),
    ("regproc", "'now'", "'version'"),
    ("regprocedure", "'abs(int4)'", "'abs(int8)'"),
    ("regoper", "'||/'", "'|/'"),
    ("regoperator", "'+(int4,int4)'", "'+(int8,int8)'"),
    ("regconfig", "'simple'", "'english'"),
    ("regdictionary", "'simple'", "'english_stem'"),
    ("regnamespace", "'public'", "'pg_catalog'"),
    ("regrole", "'postgres'", "'pg_monitor'"),
    ("regcollation", "'\"C\"'", "'\"POSIX\"'"),
    ("pg_lsn", "'0/1'", "'1/0'"),
    ("txid_snapshot", "'10:20:10,14'", "'10:20:10,15'"),
    ("pg_snapshot", "'10:20:10,14'", "'10:20:14'"),
    ("xid", "'1'", "'2'"),
    ("xid8", "'1'", "'4294967296'"),
    ("cid", "'1'", "'2'"),
    ("tid", "'(0,1)'", "'(1,0)'"),
    ("int2vector", "'1 2'", "'2 1'"),
    ("oidvector", "'1 2'", "'2 1'"),
    ("refcursor", "'a'", "'A'"),
    ("aclitem", "'postgres=r/postgres'", "'postgres=w/postgres'"),
]
SINCE_14 = [
    ("int4multirange", "'{[1,2)}'", "'{[1,3)}'"),
    ("int4multirange", "'{}'", "NULL"),
    ("int8multirange", "'{[1,2)}'", "'{[1,2),[5,6)}'"),
    ("nummultirange", "'{[1.0,2]}'", "'{[1.00,2]}'"),
    ("tsmultirange", "'{[2024-01-01,)}'", "'{[2024-01-02,)}'"),
    ("tstzmultirange", "'{[2024-01-01 00:00+00,)}'", "'{[2024-01-01 00:00+01,)}'"),
    ("datemultirange", "'{[2024-01-01,2024-01-02)}'", "'{[2024-01-01,2024-01-03)}'"),
]
# Optional types: a statement that creates the type, and pairs of values. Skipped if the statement fails.
OPTIONAL: list[tuple[str, list[tuple[str, str, str]]]] = [
    ("SELECT '<a/>'::xml", [("xml", "'<a/>'", "'<a></a>'"), ("xml", "'<a b=\"1\"/>'", "'<a b=\"2\"/>'")]),
    ("CREATE EXTENSION citext", [("citext", "'A'", "'a'"), ("citext[]", "'{A}'", "'{a}'")]),
    ("CREATE EXTENSION hstore", [("hstore", "'a=>NULL'", "'a=>\"NULL\"'"), ("hstore", "'a=>1'", "'a=>\"1 \"'")]),
    ("CREATE EXTENSION ltree", [("ltree", "'a.b'", "'a.c'")]),
    ("CREATE EXTENSION cube", [("cube", "'(1,2)'", "'(1,2),(1,3)'")]),
    ("CREATE EXTENSION seg", [("seg", "'1.0'", "'1.00'"), ("seg", "'1'", "'~1'")]),
    ("CREATE EXTENSION isn", [("isbn", "'978-0-393-04002-9'", "'978-0-11-000222-4'")]),
    ("CREATE EXTENSION vector", [("vector", "'[1,2]'", "'[1,2.0000002]'")]),
    (
        "CREATE COLLATION caseless (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
        [
            ("text COLLATE caseless", "'A'", "'a'"),
            ("varchar COLLATE caseless", "'É'", "'é'"),
            ("text[] COLLATE caseless", "'{A}'", "'{a}'"),
        ],
    ),
    ("SELECT 'infinity'::interval", [("interval", "'infinity'", "'-infinity'")]),
]


@dataclass
class Wide:
    """The wide table on two nodes: its pairs of values, pair i in column `c<i>` and different in row i."""

    nodes: list[Database]
    pairs: list[tuple[str, str, str]]


def _supported(node: Database, statement: str) -> bool:
    try:
        node.execute(statement)
    except psycopg.Error:
        return False
    return True


def _make_wide(nodes: Sequence[Database]) -> list[tuple[str, str, str]]:
    """Create the types (with different OIDs per node) and the table, equal on all nodes."""
    labels = ["'sad'", "'ok'", "'OK'"]
    pairs = list(PAIRS)
    if nodes[0].execute("SELECT current_setting('server_version_num')::int")[0][0] >= 140000:
        pairs += SINCE_14
    for number, node in enumerate(nodes):
        node.execute("; ".join(f"CREATE TYPE filler{each} AS (a int)" for each in range(3 * number + 1)))
        node.execute(TYPES.format(labels=", ".join(labels if number == 0 else reversed(labels))))
        has = [extra for statement, extra in OPTIONAL if _supported(node, statement)]
        if number == 0:
            pairs += [pair for extra in has for pair in extra]
    columns = ", ".join(f"c{number} {kind}" for number, (kind, _, _) in enumerate(pairs))
    values = ", ".join(f"({left})::{kind.split(' COLLATE')[0]}" for kind, left, _ in pairs)
    for node in nodes:
        node.execute(f"CREATE TABLE wide (id int PRIMARY KEY, {columns})")
        node.execute(f"INSERT INTO wide SELECT i, {values} FROM generate_series(0, {len(pairs) - 1}) i")
    return pairs


def _fresh(server: Server, name: str, count: int = 2) -> list[Database]:
    return [server.create_database(f"{name}_{os.getpid()}_{number}") for number in range(count)]


@pytest.fixture(scope="module")
def equal_wide(server: Server) -> Iterator[Wide]:
    """The wide table, equal on both nodes."""
    nodes = _fresh(server, "wide_equal")
    yield Wide(nodes, _make_wide(nodes))
    for node in nodes:
        node.drop()


@pytest.fixture(scope="module")
def wide(server: Server) -> Iterator[Wide]:
    """The wide table, different on the second node in column i of row i."""
    nodes = _fresh(server, "wide")
    pairs = _make_wide(nodes)
    updates = [
        f"UPDATE wide SET c{number} = ({right})::{kind.split(' COLLATE')[0]} WHERE id = {number}"
        for number, (kind, _, right) in enumerate(pairs)
    ]
    nodes[1].execute("; ".join(updates))
    yield Wide(nodes, pairs)
    for node in nodes:
        node.drop()


@pytest.mark.parametrize("digest", DIGESTS)
def test_equal_values_of_every_type_match(equal_wide: Wide, compare: Compare, report_of: ReportOf, digest: str) -> None:
    result = compare(equal_wide.nodes, "wide", digest=digest)
    assert (result.verdict, result.rows_checked) == ("MATCH", len(equal_wide.pairs))
    assert report_of(result)["proof"]["digest"] == digest
    assert compare(equal_wide.nodes, "wide", digest=digest, quick=True).verdict == "MATCH"


@pytest.mark.parametrize("numeric", ["value", "representation"])
@pytest.mark.parametrize("digest", DIGESTS)
def test_one_change_of_every_type_is_one_difference(
    wide: Wide, compare: Compare, report_of: ReportOf, digest: str, numeric: str
) -> None:
    result = compare(wide.nodes, "wide", digest=digest, numeric=numeric)
    found = {
        int(difference["key"]["id"]): difference for difference in report_of(result)["diffs"]["n1/n2"]["differences"]
    }
    unseen = [wide.pairs[number] for number in range(len(wide.pairs)) if number not in found]
    assert unseen == []
    for number, pair in enumerate(wide.pairs):
        assert found[number]["kind"] == "changed", pair
        assert found[number]["columns"] == [f"c{number}"], pair
        left, right = (found[number]["rows"][node][f"c{number}"] for node in ("n1", "n2"))
        assert left != right, pair
        assert (right is None) == (pair[2] == "NULL"), pair
    assert result.verdict == "DIFFER"
    counts = result.pairs["n1/n2"]
    assert (counts.missing, counts.extra, counts.changed) == (0, 0, len(wide.pairs))


@pytest.mark.parametrize("digest", DIGESTS)
def test_one_change_of_every_type_in_a_keyless_table(
    wide: Wide, compare: Compare, report_of: ReportOf, digest: str
) -> None:
    columns = ", ".join(f"c{number}" for number in range(len(wide.pairs)))
    for node in wide.nodes:
        node.execute(f"DROP TABLE IF EXISTS bare; CREATE TABLE bare AS SELECT {columns} FROM wide")
    result = compare(wide.nodes, "bare", digest=digest)
    # The first node has only copies of one row, the second has none of them.
    counts = result.pairs["n1/n2"]
    assert (result.verdict, counts.missing, counts.extra, counts.changed) == (
        "DIFFER", len(wide.pairs), len(wide.pairs), 0,
    )  # fmt: skip
    differences = report_of(result)["diffs"]["n1/n2"]["differences"]
    assert len(differences) == 1 + len(wide.pairs)


def test_single_columns_of_every_type(wide: Wide, compare: Compare, report_of: ReportOf) -> None:
    """`columns` limits the comparison: a change of another column is not found."""
    for number in (0, 8, 20, len(wide.pairs) - 1):
        result = compare(wide.nodes, "wide", columns=[f"c{number}"])
        found = report_of(result)["diffs"]["n1/n2"]["differences"]
        assert [(each["key"]["id"], each["columns"]) for each in found] == [(str(number), [f"c{number}"])]


def test_every_type_of_the_server_is_tested(wide: Wide) -> None:
    known = {
        name
        for (name,) in wide.nodes[0].execute(
            """SELECT typname::text FROM pg_type
                WHERE typnamespace = 'pg_catalog'::regnamespace AND typtype IN ('b', 'r', 'm') AND typcategory <> 'A'
                  AND typname NOT LIKE '\\_%'"""
        )
    }
    used = {
        name
        for (name,) in wide.nodes[0].execute(
            """SELECT t.typname::text FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
                WHERE attrelid = 'wide'::regclass"""
        )
    }
    lacking = set() if _supported(wide.nodes[0], "SELECT '<a/>'::xml") else {"xml"}
    assert known - used - NOT_STORABLE - lacking == set()


NEIGHBOURS: list[tuple[tuple[str | None, ...], tuple[str | None, ...], list[str]]] = [
    ((None, "a", "z"), ("a", None, "z"), ["a", "b"]),
    (("", "a", "z"), ("a", "", "z"), ["a", "b"]),
    ((None, "", "z"), ("", None, "z"), ["a", "b"]),
    ((None, None, ""), (None, "", None), ["b", "c"]),
    (("a,b", "c", "z"), ("a", "b,c", "z"), ["a", "b"]),
    (('a"', "b", "z"), ("a", '"b', "z"), ["a", "b"]),
    (('a","b', "c", "z"), ("a", 'b","c', "z"), ["a", "b"]),
    (("a\\", "b", "z"), ("a", "\\b", "z"), ["a", "b"]),
    (("a|", "b", "z"), ("a", "|b", "z"), ["a", "b"]),
    (("a\n", "b", "z"), ("a", "\nb", "z"), ["a", "b"]),
    (("a\t", "b", "z"), ("a", "\tb", "z"), ["a", "b"]),
    (("ab", "c", "z"), ("a", "bc", "z"), ["a", "b"]),
    (("a\x1f", "b", "z"), ("a", "\x1fb", "z"), ["a", "b"]),
    (("(a", "b)", "z"), ("(a,b)", "", "z"), ["a", "b"]),
    (("\\N", "b", "z"), (None, "b", "z"), ["a"]),
    (("NULL", "b", "z"), (None, "b", "z"), ["a"]),
    (("{}", "b", "z"), ("{NULL}", "b", "z"), ["a"]),
    (("same", "same", "z"), ("z", "same", "same"), ["a", "c"]),
]


@pytest.mark.parametrize("digest", DIGESTS)
def test_values_of_adjacent_columns_are_kept_apart(
    databases: Databases, on_all: OnAll, compare: Compare, report_of: ReportOf, digest: str
) -> None:
    nodes = databases(2)
    on_all(nodes, "CREATE TABLE split (id int PRIMARY KEY, a text, b text, c text)")
    for side, node in enumerate(nodes):
        node.executemany(
            "INSERT INTO split VALUES (%s, %s, %s, %s)",
            [(number, *each[side]) for number, each in enumerate(NEIGHBOURS)],
        )
    result = compare(nodes, "split", digest=digest)
    found = {
        int(difference["key"]["id"]): difference["columns"]
        for difference in report_of(result)["diffs"]["n1/n2"]["differences"]
    }
    assert found == {number: columns for number, (_, _, columns) in enumerate(NEIGHBOURS)}


@pytest.mark.parametrize("digest", DIGESTS)
def test_rows_that_swap_values_of_every_kind(
    databases: Databases, on_all: OnAll, compare: Compare, digest: str
) -> None:
    """The same values are in the same columns of other rows: a sum of column hashes would not change."""
    nodes = databases(2)
    on_all(nodes, "CREATE TABLE swap (id int PRIMARY KEY, a bigint, b text, c numeric, d timestamptz)")
    on_all(nodes, "INSERT INTO swap SELECT i, i, i, i, to_timestamp(i) FROM generate_series(1, 20) i")
    for number, column in enumerate("abcd"):
        first, second = 4 * number + 1, 4 * number + 3
        nodes[1].execute(
            f"UPDATE swap x SET {column} = y.{column} FROM swap y"
            f" WHERE (x.id, y.id) IN (({first}, {second}), ({second}, {first}))"
        )
    result = compare(nodes, "swap", digest=digest)
    assert (result.verdict, result.pairs["n1/n2"].changed) == ("DIFFER", 8)
    assert compare(nodes, "swap", digest=digest, quick=True).verdict == "DIFFER"


@pytest.mark.parametrize("digest", DIGESTS)
def test_row_hashes_have_64_bits(wide: Wide, digest: DigestKind) -> None:
    """With 32 bits, hundreds of these rows would have equal hashes."""
    column = ColumnSpec("i", '"pg_catalog"."int8"', "native")
    spec = TableSpec("public", "rows", (), (column,), digest=digest, seed=12345)
    query = sql.SQL("SELECT count(DISTINCT {}) FROM generate_series(1::int8, 1500000) i").format(row_hash(spec))
    assert wide.nodes[0].execute(query) == [(1500000,)]


@pytest.mark.parametrize("digest", DIGESTS)
def test_numbers_are_equal_by_value_or_by_representation(
    databases: Databases, on_all: OnAll, compare: Compare, report_of: ReportOf, digest: str
) -> None:
    nodes = databases(2)
    on_all(
        nodes,
        "CREATE DOMAIN amount AS numeric;CREATE TABLE prices (id int PRIMARY KEY, price numeric, other amount, t text)",
    )
    nodes[0].execute("INSERT INTO prices VALUES (1, 3000.00, 1.10, 'x'), (2, 0.000, 10, 'x'), (3, -5.0, 100, 'x')")
    nodes[1].execute("INSERT INTO prices VALUES (1, 3000.0, 1.1, 'x'), (2, 0, 10.0, 'x'), (3, -5.00, 100.000, 'x')")
    assert compare(nodes, "prices", digest=digest).verdict == "MATCH"
    result = compare(nodes, "prices", digest=digest, numeric="representation")
    assert (result.verdict, result.pairs["n1/n2"].changed) == ("DIFFER", 3)
    found = report_of(result)["diffs"]["n1/n2"]["differences"]
    assert {tuple(each["columns"]) for each in found} == {("price", "other")}
    assert found[0]["rows"]["n1"]["price"] == "3000.00"
    # If another column of the row changes, only that column is listed.
    nodes[1].execute("UPDATE prices SET t = 'y' WHERE id = 1")
    result = compare(nodes, "prices", digest=digest)
    assert [difference["columns"] for difference in report_of(result)["diffs"]["n1/n2"]["differences"]] == [["t"]]


@pytest.mark.parametrize("digest", DIGESTS)
def test_long_values_are_reported_as_length_and_sha256(
    databases: Databases, on_all: OnAll, compare: Compare, report_of: ReportOf, digest: str
) -> None:
    nodes = databases(2)
    on_all(nodes, "CREATE TABLE long (id int PRIMARY KEY, t text, b bytea, a text[], j jsonb, v varbit)")
    size = 2 * 1024 * 1024
    on_all(
        nodes,
        f"INSERT INTO long (id, t) SELECT i, repeat('é', {size // 2}) FROM unnest(ARRAY[1, 6]) i;"
        f"INSERT INTO long (id, b) VALUES (2, decode(repeat('ab', {size}), 'hex'));"
        f"INSERT INTO long (id, a) VALUES (3, ARRAY[repeat('x', {size})]);"
        f"INSERT INTO long (id, j) VALUES (4, to_jsonb(repeat('y', {size})));"
        f"INSERT INTO long (id, v) VALUES (5, repeat('10', {size // 2})::varbit)",
    )
    assert compare(nodes, "long", digest=digest).verdict == "MATCH"
    nodes[1].execute(
        "UPDATE long SET t = overlay(t placing 'e' from 1000000) WHERE id = 1;"
        "UPDATE long SET b = set_byte(b, 1000000, 1) WHERE id = 2;"
        "UPDATE long SET a[1] = a[1] || 'x' WHERE id = 3;"
        "UPDATE long SET j = to_jsonb((j #>> '{}') || 'y') WHERE id = 4;"
        "UPDATE long SET v = set_bit(v, 1000000, 0) WHERE id = 5;"
        "UPDATE long SET t = 'short' WHERE id = 6"
    )
    result = compare(nodes, "long", digest=digest)
    found = {difference["key"]["id"]: difference for difference in report_of(result)["diffs"]["n1/n2"]["differences"]}
    assert {key: each["columns"] for key, each in found.items()} == {
        "1": ["t"], "2": ["b"], "3": ["a"], "4": ["j"], "5": ["v"], "6": ["t"],
    }  # fmt: skip
    text = ("é" * (size // 2)).encode()
    assert found["1"]["rows"]["n1"]["t"] == {"length": size, "sha256": hashlib.sha256(text).hexdigest()}
    changed = b"\xab" * 1_000_000 + b"\x01" + b"\xab" * (size - 1_000_001)
    assert found["2"]["rows"]["n1"]["b"]["length"] == size
    assert found["2"]["rows"]["n2"]["b"] == {"length": size, "sha256": hashlib.sha256(changed).hexdigest()}
    assert found["3"]["rows"]["n2"]["a"]["length"] == size + 3
    assert found["5"]["rows"]["n2"]["v"]["length"] == size
    assert found["6"]["rows"]["n2"]["t"] == "short"


def test_the_limit_of_long_values_is_exact(
    databases: Databases, on_all: OnAll, compare: Compare, report_of: ReportOf
) -> None:
    nodes = databases(2)
    on_all(nodes, "CREATE TABLE limits (id int PRIMARY KEY, t text); INSERT INTO limits VALUES (1, 'x'), (2, 'x')")
    nodes[1].execute(
        "UPDATE limits SET t = repeat('é', 50) WHERE id = 1; UPDATE limits SET t = repeat('x', 101) WHERE id = 2"
    )
    result = compare(nodes, "limits", long_value=100)
    rows = {
        difference["key"]["id"]: difference["rows"]["n2"]["t"]
        for difference in report_of(result)["diffs"]["n1/n2"]["differences"]
    }
    assert rows == {"1": "é" * 50, "2": {"length": 101, "sha256": hashlib.sha256(b"x" * 101).hexdigest()}}


def test_generated_columns(databases: Databases, compare: Compare, report_of: ReportOf) -> None:
    """Generated columns are compared; here the two nodes generate different values."""
    nodes = databases(2)
    virtual = nodes[0].execute("SELECT current_setting('server_version_num')::int")[0][0] >= 180000
    for node, plus in zip(nodes, (1, 2), strict=True):
        node.execute(
            "CREATE TABLE made (id int PRIMARY KEY, a int, same int GENERATED ALWAYS AS (a * 2) STORED,"
            f" stored int GENERATED ALWAYS AS (a + {plus}) STORED"
            + (f", virt int GENERATED ALWAYS AS (a + {plus}) VIRTUAL" if virtual else "")
            + ", number int GENERATED ALWAYS AS IDENTITY)"
        )
        node.execute("INSERT INTO made (id, a) SELECT i, i FROM generate_series(1, 3) i")
    result = compare(nodes, "made")
    found = report_of(result)["diffs"]["n1/n2"]["differences"]
    expected = ["stored", "virt"] if virtual else ["stored"]
    assert [each["columns"] for each in found] == [expected] * 3
    assert compare(nodes, "made", exclude_columns=expected).verdict == "MATCH"
    nodes[1].execute("UPDATE made SET a = 7 WHERE id = 2")
    result = compare(nodes, "made", exclude_columns=expected)
    assert [difference["columns"] for difference in report_of(result)["diffs"]["n1/n2"]["differences"]] == [
        ["a", "same"]
    ]


def test_types_of_one_name_and_different_shape_are_refused(
    databases: Databases, on_all: OnAll, compare: Compare
) -> None:
    """`(1,2)` means something else if the fields of the type are in another order."""
    nodes = databases(2)
    nodes[0].execute("CREATE TYPE size AS (width int, height int)")
    nodes[1].execute("CREATE TYPE size AS (height int, width int)")
    on_all(nodes, "CREATE TABLE boxes (id int PRIMARY KEY, s size); INSERT INTO boxes VALUES (1, ROW(1, 2))")
    with pytest.raises(CheckFailed, match="size"):
        compare(nodes, "boxes")


@pytest.mark.parametrize("digest", ["auto", "portable"])
def test_an_encoding_without_western_letters(server: Server, compare: Compare, digest: str) -> None:
    nodes = []
    for number in (1, 2):
        name = f"cyrillic_{os.getpid()}_{number}"
        options = "ENCODING 'WIN1251' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        server.database("postgres").execute(f"CREATE DATABASE {name} {options}")
        nodes.append(server.database(name))
        nodes[-1].execute("CREATE TABLE t (id int PRIMARY KEY, x text)")
        nodes[-1].execute("INSERT INTO t VALUES (1, 'абв'), (2, %s)", ["где" if number == 1 else "ёж"])
    try:
        result = compare(nodes, "t", digest=digest)
        assert (result.verdict, result.pairs["n1/n2"].changed) == ("DIFFER", 1)
    finally:
        for node in nodes:
            node.drop()
