"""The same drift has the same result for every type, position and name of the key."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from support.fixtures import Compare, Databases, OnAll, ReportOf
from trueup import CheckFailed
from trueup.testing.postgres import Database, Server

ROWS = 60
UNITS = [1, 2, 7]
ENUM = ", ".join(f"'label {number:02}'" for number in range(ROWS))
ENUM_BACKWARDS = ", ".join(f"'label {number:02}'" for number in reversed(range(ROWS)))
WORDS = (
    "(ARRAY['ä', 'A', 'a', 'é', 'e\u0301', 'ß', 'Z', 'z', '_', '👍', '%s', '{}', '''', '\"', '\\', ' '])[i % 16 + 1]"
)

# Key columns, and the key of row number i as an expression.
KEYS: dict[str, tuple[list[str], str]] = {
    "int": (["int"], "i"),
    "smallint": (["smallint"], "i - 30"),
    "bigint beyond 2^53": (["bigint"], "9007199254740992 + i"),
    "negative bigint": (["bigint"], "-9223372036854775808 + i"),
    "bigint with equal halves": (["bigint"], "(i::int8 << 32) | (59 - i)"),
    "uuid": (["uuid"], "md5(i::text)::uuid"),
    "text": (["text"], f"{WORDS} || i"),
    "text in C": (['text COLLATE "C"'], f"{WORDS} || i"),
    "text of blanks": (["text"], "repeat(' ', i)"),
    "mixed case": (["text"], "CASE i % 2 WHEN 0 THEN 'Key' ELSE 'kEY' END || i / 2"),
    "varchar": (["varchar(80)"], f"{WORDS} || i"),
    "char": (["char(12)"], "'k' || i"),
    "bpchar": (["bpchar"], "'k' || i || repeat(' ', i % 3)"),
    "name": (["name"], "'n' || i"),
    "timestamp": (["timestamp"], "'2024-01-01'::timestamp + i * interval '1 us'"),
    "timestamptz": (["timestamptz"], "'2024-03-31 00:00+00'::timestamptz + i * interval '3 min'"),
    "infinite timestamps": (
        ["timestamptz"],
        "CASE i WHEN 0 THEN '-infinity' WHEN 59 THEN 'infinity' ELSE to_timestamp(i) END",
    ),
    "date": (["date"], "'0001-01-20 BC'::date + i"),
    "time": (["time"], "'00:00'::time + i * interval '7 min'"),
    "timetz": (["timetz"], "('00:00'::time + i * interval '7 min')::text::timetz"),
    "interval": (["interval"], "i * interval '12:34:56'"),
    "numeric": (["numeric"], "i / 7.0"),
    "special numeric": (
        ["numeric"],
        "(ARRAY['-Infinity', '-0.5', 'Infinity', 'NaN']::numeric[] || array_agg(1.50 + i) OVER ())[i + 1]",
    ),
    "float8": (["float8"], "sin(i)"),
    "special float8": (
        ["float8"],
        "(ARRAY['-Infinity', '-0', '0.5', 'Infinity', 'NaN']::float8[] || array_agg(1e-300 * (i + 1)) OVER ())[i + 1]",
    ),
    "float4": (["float4"], "i / 7.0"),
    "money": (["money"], "(i - 30)::numeric::money"),
    "bytea": (["bytea"], "decode(md5(i::text), 'hex') || '\\x00'"),
    "short bytea": (["bytea"], "decode(repeat('00', i), 'hex')"),
    "boolean and int": (["bool", "int"], "i % 2 = 0, i / 2"),
    "bit": (["bit(8)"], "i::bit(8)"),
    "varbit": (["varbit"], "repeat('1', i)::varbit"),
    "inet": (["inet"], "'10.0.0.0'::inet + i"),
    "cidr": (["cidr"], "set_masklen('10.0.0.0'::cidr + i * 256, 24)"),
    "macaddr8": (["macaddr8"], "('08:00:2b:01:02:03:04:' || lpad(to_hex(i), 2, '0'))::macaddr8"),
    "oid": (["oid"], "4294967295::bigint - i"),
    "pg_lsn": (["pg_lsn"], "(i || '/0')::pg_lsn"),
    "jsonb": (["jsonb"], "jsonb_build_object('k', i)"),
    "int array": (["int[]"], "ARRAY[i % 3, i]"),
    "text array": (["text[]"], f"ARRAY[{WORDS}, i::text, NULL]"),
    "range": (["int4range"], "int4range(i, i + 5)"),
    "enum": (["same_enum"], "('label ' || lpad(i::text, 2, '0'))::same_enum"),
    "enum of another order": (["other_enum"], "('label ' || lpad(i::text, 2, '0'))::other_enum"),
    "array of an enum": (["other_enum[]"], "ARRAY[('label ' || lpad(i::text, 2, '0'))::other_enum]"),
    "composite type": (["two"], "ROW(i % 5, 'x' || i)::two"),
    "domain over int": (["d_int"], "i"),
    "domain over text": (["d_text"], f"{WORDS} || i"),
    "domain over domain": (["d_layer"], f"{WORDS} || i"),
    "domain over numeric": (["d_numeric"], "i / 7.0"),
    "domain over enum": (["d_enum"], "('label ' || lpad(i::text, 2, '0'))::other_enum"),
    "two columns": (["text", "int"], f"{WORDS}, i"),
    "two columns of text": (["text", "text"], "repeat('a', i % 8) , repeat('a', i / 8)"),
    "three columns": (["uuid", "timestamptz", "numeric"], "md5((i % 2)::text)::uuid, to_timestamp(i % 5), i"),
    "three mixed columns": (
        ["other_enum", "bool", "bytea"],
        "('label 0' || i % 3)::other_enum, i % 2 = 0, int4send(i)",
    ),
}
TYPES = """
    CREATE TYPE same_enum AS ENUM ({same}); CREATE TYPE other_enum AS ENUM ({other});
    CREATE TYPE two AS (a int, b text);
    CREATE DOMAIN d_int AS int; CREATE DOMAIN d_text AS text; CREATE DOMAIN d_layer AS d_text;
    CREATE DOMAIN d_numeric AS numeric; CREATE DOMAIN d_enum AS other_enum;
"""


@pytest.fixture(scope="module")
def pair(server: Server) -> Iterator[list[Database]]:
    """Two databases for all tests of this module that create tables with unique names."""
    nodes = [server.create_database(f"keys_{os.getpid()}_{number}") for number in (1, 2)]
    nodes[0].execute(TYPES.format(same=ENUM, other=ENUM))
    nodes[1].execute("CREATE TYPE filler AS ENUM ('a'); " + TYPES.format(same=ENUM, other=ENUM_BACKWARDS))
    yield nodes
    for node in nodes:
        node.drop()


def _small(unit: int) -> dict[str, Any]:
    """Return settings that force deep splits on small tables."""
    return {"block_size": 5 * unit, "override_block_size": True, "compare_unit_size": unit}


def _found(report: dict[str, Any], pair_name: str = "n1/n2") -> dict[str, set[int]]:
    """Return the numbers (column n) of differing rows, by kind."""
    found: dict[str, set[int]] = {"missing": set(), "extra": set(), "changed": set()}
    listed = report["diffs"][pair_name]["differences"]
    for each in listed:
        row = each["rows"]["n1"] or each["rows"]["n2"]
        found[each["kind"]].add(int(row["n"]))
    assert sum(len(numbers) for numbers in found.values()) == len(listed), "a row was reported twice"
    return found


def _drift(nodes: list[Database], table: str, order: str) -> dict[str, set[int]]:
    """Change a table with rows numbered by n; n1 has more rows, but not the first and the last."""
    numbers = [n for (n,) in nodes[0].execute(f"SELECT n FROM {table} ORDER BY {order}")]
    assert len(numbers) == ROWS
    extra = {numbers[0], numbers[-1], numbers[17]}
    missing = {numbers[at] for at in (1, 10, 11, 12, 30, 40, 58)}
    changed = {numbers[at] for at in (2, 15, 31, 57)}

    def among(found: set[int]) -> str:
        return f"n IN ({', '.join(map(str, found))})"

    nodes[0].execute(f"DELETE FROM {table} WHERE {among(extra)}; ANALYZE {table}")
    nodes[1].execute(
        f"DELETE FROM {table} WHERE {among(missing)}; UPDATE {table} SET v = 'changed' WHERE {among(changed)};"
        f" ANALYZE {table}"
    )
    return {"missing": missing, "extra": extra, "changed": changed}


@pytest.mark.parametrize("name", list(KEYS))
def test_the_same_drift_on_every_kind_of_key(
    pair: list[Database], compare: Compare, report_of: ReportOf, name: str
) -> None:
    types, value = KEYS[name]
    table = "key_" + "".join(char if char.isalnum() and char.isascii() else "_" for char in name)
    names = [f"k{number}" for number in range(len(types))]
    columns = ", ".join(f"{column} {kind}" for column, kind in zip(names, types, strict=True))
    key = ", ".join(names)
    for node in pair:
        # The key is not the first column, and its columns are in another order than in the table.
        node.execute(f"CREATE TABLE {table} (n int, v text, {columns}, PRIMARY KEY ({key}))")
        node.execute(
            f"INSERT INTO {table} (n, v, {key}) SELECT i, 'v' || i, {value} FROM generate_series(0, {ROWS - 1}) i"
        )
    unit = UNITS[sorted(KEYS).index(name) % len(UNITS)]
    if unit == 1:
        assert compare(pair, table, **_small(unit)).verdict == "MATCH"
    expected = _drift(pair, table, key)
    result = compare(pair, table, **_small(unit))
    report = report_of(result)
    assert report["summary"]["primary_key"] == names
    assert _found(report) == expected
    assert (result.verdict, result.mismatched_blocks > 1) == ("DIFFER", True)
    assert all(
        difference["columns"] == ["v"]
        for difference in report["diffs"]["n1/n2"]["differences"]
        if difference["kind"] == "changed"
    )
    for node in pair:
        node.execute(f"DROP TABLE {table}")


@pytest.mark.parametrize(
    ("block_size", "unit"), [(1, 1), (3, 1), (3, 2), (10, 2), (10, 7), (1000, 7), (1000, 10000), (1, 10000)]
)
def test_the_result_is_independent_of_block_and_unit_size(
    pair: list[Database], compare: Compare, report_of: ReportOf, block_size: int, unit: int
) -> None:
    for node in pair:
        node.execute(
            "DROP TABLE IF EXISTS sizes; CREATE TABLE sizes (k text PRIMARY KEY, n int, v text);"
            f"INSERT INTO sizes SELECT md5(i::text), i, 'v' FROM generate_series(0, {ROWS - 1}) i"
        )
    expected = _drift(pair, "sizes", "k")
    result = compare(pair, "sizes", block_size=block_size, override_block_size=True, compare_unit_size=unit)
    assert _found(report_of(result)) == expected


@pytest.mark.parametrize("digest", ["native", "portable"])
def test_many_rows_of_skewed_keys(pair: list[Database], compare: Compare, report_of: ReportOf, digest: str) -> None:
    """Most rows share the first part of the key and are at one end of it; statistics are outdated."""
    for node in pair:
        node.execute(
            "DROP TABLE IF EXISTS skewed; CREATE TABLE skewed (a int, b bigint, n int, v text, PRIMARY KEY (a, b));"
            "INSERT INTO skewed SELECT 1, i, i, 'v' FROM generate_series(1, 200) i; ANALYZE skewed;"
            "ALTER TABLE skewed SET (autovacuum_enabled = off);"
            "INSERT INTO skewed SELECT 7, 1000003::int8 * i * i * i, i, 'v' FROM generate_series(201, 9000) i;"
            "INSERT INTO skewed SELECT 1000000 + i, i, i, 'v' FROM generate_series(9001, 9050) i"
        )
    pair[1].execute(
        "DELETE FROM skewed WHERE n IN (1, 5000, 9050); UPDATE skewed SET v = 'x' WHERE n IN (201, 8999, 9000);"
        "INSERT INTO skewed VALUES (0, 0, -1, 'v'), (7, -1, -2, 'v'), (2000000000, 0, -3, 'v')"
    )
    expected = {"missing": {1, 5000, 9050}, "extra": {-1, -2, -3}, "changed": {201, 8999, 9000}}
    for sizes in ({"block_size": 1000, "compare_unit_size": 7}, _small(100)):
        result = compare(pair, "skewed", digest=digest, **sizes)
        assert _found(report_of(result)) == expected
        assert result.rows == {"n1": 9050, "n2": 9050}


def test_numeric_keys_are_the_same_by_value(pair: list[Database], compare: Compare, report_of: ReportOf) -> None:
    for node, scale in zip(pair, ("1.0", "1.00"), strict=True):
        node.execute(
            "CREATE TABLE scales (k numeric PRIMARY KEY, n int);"
            f"INSERT INTO scales SELECT i * {scale}, i FROM generate_series(-5, 30) i"
        )
    assert compare(pair, "scales", **_small(2)).verdict == "MATCH"
    result = compare(pair, "scales", numeric="representation", **_small(2))
    assert _found(report_of(result)) == {"missing": set(), "extra": set(), "changed": set(range(-5, 31))}
    pair[1].execute("DELETE FROM scales WHERE n = 10")
    result = compare(pair, "scales", **_small(2))
    assert _found(report_of(result)) == {"missing": {10}, "extra": set(), "changed": set()}


def test_boolean_keys(pair: list[Database], compare: Compare, report_of: ReportOf) -> None:
    for node in pair:
        node.execute("CREATE TABLE flags (k bool PRIMARY KEY, n int); INSERT INTO flags VALUES (true, 1), (false, 0)")
    assert compare(pair, "flags", **_small(1)).verdict == "MATCH"
    pair[0].execute("DELETE FROM flags WHERE NOT k")
    result = compare(pair, "flags", **_small(1))
    assert _found(report_of(result)) == {"missing": set(), "extra": {0}, "changed": set()}


def test_an_enum_label_that_is_missing_on_one_node(databases: Databases, compare: Compare, report_of: ReportOf) -> None:
    nodes = databases(2)
    nodes[0].execute("CREATE TYPE state AS ENUM ('new', 'done')")
    nodes[1].execute("CREATE TYPE state AS ENUM ('lost', 'done', 'new')")
    for node in nodes:
        node.execute("CREATE TABLE jobs (k state, m int, n int, v state, PRIMARY KEY (k, m))")
        node.execute(
            "INSERT INTO jobs SELECT (ARRAY['new', 'done'])[i % 2 + 1]::state, i, i, 'new'"
            " FROM generate_series(1, 20) i"
        )
    assert compare(nodes, "jobs", **_small(2)).verdict == "MATCH"
    nodes[1].execute("INSERT INTO jobs VALUES ('lost', 1, 21, 'new'); UPDATE jobs SET v = 'lost' WHERE n = 4")
    result = compare(nodes, "jobs", **_small(2))
    assert _found(report_of(result)) == {"missing": set(), "extra": {21}, "changed": {4}}


def test_citext_keys(databases: Databases, compare: Compare, report_of: ReportOf) -> None:
    """Keys that differ only in case are equal for the server, but different texts."""
    nodes = databases(2)
    for node in nodes:
        try:
            node.execute("CREATE EXTENSION citext")
            kind = "citext"
        except psycopg.Error:
            kind = "text"
        node.execute(f"CREATE TABLE mails (k {kind} PRIMARY KEY, n int, v text)")
        node.execute("INSERT INTO mails SELECT 'User' || i || '@example.com', i, 'v' FROM generate_series(1, 30) i")
    assert compare(nodes, "mails", **_small(2)).verdict == "MATCH"
    nodes[1].execute(
        "DELETE FROM mails WHERE n = 3; UPDATE mails SET v = 'x' WHERE n = 9;"
        "UPDATE mails SET k = lower(k::text) WHERE n = 20"
    )
    result = compare(nodes, "mails", **_small(2))
    counts = result.pairs["n1/n2"]
    assert (result.verdict, counts.missing, counts.extra, counts.changed) == ("DIFFER", 2, 1, 1)


@pytest.mark.parametrize(
    ("kind", "left", "right"),
    [
        ("float8", "0", "-0"),
        ("interval", "1 day", "24:00:00"),
        ("bpchar", "a", "a "),
        ("jsonb", "1.0", "1.00"),
        ("numrange", "[1.0,2]", "[1.00,2]"),
    ],
)
def test_keys_that_are_equal_but_print_differently(
    pair: list[Database], compare: Compare, kind: str, left: str, right: str
) -> None:
    for node, value in zip(pair, (left, right), strict=True):
        node.execute("DROP TABLE IF EXISTS alike")
        node.execute(f"CREATE TABLE alike (k {kind} PRIMARY KEY, n int); INSERT INTO alike VALUES ('{value}', 1)")
    for unit in (1, 10):
        result = compare(pair, "alike", **_small(unit))
        assert (result.verdict, result.pairs["n1/n2"].total > 0) == ("DIFFER", True)
    assert compare([pair[0], pair[0]], "alike").verdict == "MATCH"


NAMES = [
    ("Mixed Schema", "Mixed Table", "Mixed Key", "Mixed Value"),
    ("sch.ma", "ta.ble", "k.y", "v.l"),
    ('q"uote', 'q"u"ote', '"', '""'),
    ("схема", "テーブル", "ключ", "wért"),
    ("per%cent", "100%", "%s", "%(name)s"),
    ("bra{ces}", "{}", "{0}", "{name}"),
    ("apo'strophe", "it's", "'", "''"),
    ("back\\slash", "a\\", "\\n", "\\"),
    ("select", "table", "order", "user"),
    (" ", "  ", " k", "v "),
    ("public", "trueup_rows", "trueup_row", "trueup_bucket"),
    ("new\nline", "tab\t", ";", "--"),
    ("x" * 63, "y" * 63, "k" * 63, "v" * 63),
]


@pytest.mark.parametrize("names", NAMES, ids=range(len(NAMES)))
def test_names_with_special_characters(
    pair: list[Database], compare: Compare, report_of: ReportOf, names: tuple[str, ...]
) -> None:
    schema, table, key, value = ('"' + name.replace('"', '""') + '"' for name in names)
    for node in pair:
        node.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        node.execute(f"CREATE TABLE {schema}.{table} ({value} text, {key} int PRIMARY KEY, n int)")
        node.execute(f"INSERT INTO {schema}.{table} SELECT 'v', i, i FROM generate_series(1, 30) i")
    pair[1].execute(f"UPDATE {schema}.{table} SET {value} = 'x' WHERE n = 7; DELETE FROM {schema}.{table} WHERE n = 8")
    full_name = f"{schema}.{table}"
    result = compare(pair, full_name, **_small(2))
    report = report_of(result)
    assert _found(report) == {"missing": {8}, "extra": set(), "changed": {7}}
    assert report["summary"]["primary_key"] == [names[2]]
    changed = next(
        difference for difference in report["diffs"]["n1/n2"]["differences"] if difference["kind"] == "changed"
    )
    assert (changed["columns"], changed["key"]) == ([names[3]], {names[2]: "7"})
    assert compare(pair, full_name, columns=[names[3]], key=[names[2]]).verdict == "DIFFER"
    assert compare(pair, full_name, exclude_columns=[names[3]], filter=f"{key} <> 8").verdict == "MATCH"
    # The same without a key.
    for node in pair:
        node.execute(f"ALTER TABLE {full_name} DROP CONSTRAINT {_constraint(node, full_name)}")
    counts = compare(pair, full_name).pairs["n1/n2"]
    assert (counts.missing, counts.extra) == (2, 1)


def _constraint(node: Database, table: str) -> str:
    rows = node.execute(
        "SELECT quote_ident(conname) FROM pg_constraint WHERE contype = 'p' AND conrelid = %s::regclass", [table]
    )
    return str(rows[0][0])


FILTERS = [
    ("v LIKE '%7%'", {7, 17, 27}),
    ("v LIKE '%{}%' OR n = 3", {3}),
    ("n % 10 = 0", {10, 20, 30}),
    ("v = 'it''s %s' OR n IN (4)", {4}),
    ("n = 5 -- a comment", {5}),
    ("n = 6 /* ) */", {6}),
    ('"n" = 7 AND v <> $$;$$', {7}),
    ("v ~ E'\\\\d' AND n = 8 OR n = 9", {8, 9}),
    ("n BETWEEN 100 AND 200", set()),
    ("v = 'é' OR n = 11", {11}),
]


@pytest.mark.parametrize(("where", "numbers"), FILTERS)
def test_filters_with_quotes_and_comments(
    pair: list[Database], compare: Compare, report_of: ReportOf, where: str, numbers: set[int]
) -> None:
    for node, sign in zip(pair, ("+", "-"), strict=True):
        node.execute(
            "DROP TABLE IF EXISTS filtered; CREATE TABLE filtered (n int PRIMARY KEY, v text, w text);"
            f"INSERT INTO filtered SELECT i, 'value ' || i, '{sign}' FROM generate_series(1, 30) i"
        )
    result = compare(pair, "filtered", filter=where, **_small(2))
    assert _found(report_of(result)) == {"missing": set(), "extra": set(), "changed": numbers}
    assert (result.rows_checked, result.verdict) == (len(numbers), "DIFFER" if numbers else "INCOMPLETE")


def test_columns_in_another_order(databases: Databases, compare: Compare, report_of: ReportOf) -> None:
    nodes = databases(2)
    nodes[0].execute("CREATE TABLE moved (a int, b int, gone int, k1 int, k2 int, n int, PRIMARY KEY (k1, k2))")
    nodes[0].execute("ALTER TABLE moved DROP COLUMN gone")
    nodes[1].execute("CREATE TABLE moved (k2 int, n int, b int, k1 int, a int, PRIMARY KEY (k2, k1))")
    for node in nodes:
        node.execute("INSERT INTO moved (a, b, k1, k2, n) SELECT i, -i, i, 100 - i, i FROM generate_series(1, 50) i")
    assert compare(nodes, "moved", **_small(7)).verdict == "MATCH"
    nodes[1].execute("UPDATE moved SET a = b, b = a WHERE n = 9")
    result = compare(nodes, "moved", **_small(7))
    report = report_of(result)
    assert _found(report) == {"missing": set(), "extra": set(), "changed": {9}}
    assert report["diffs"]["n1/n2"]["differences"][0]["columns"] == ["a", "b"]


def test_a_unique_index_over_columns_that_are_not_null_is_the_key(
    pair: list[Database], compare: Compare, report_of: ReportOf
) -> None:
    for node in pair:
        node.execute(
            "CREATE TABLE indexed (n int, a text NOT NULL, b date NOT NULL, c int, v text);"
            "CREATE UNIQUE INDEX ON indexed (c); CREATE UNIQUE INDEX ON indexed (lower(a));"
            "CREATE UNIQUE INDEX ON indexed (n) WHERE v IS NULL; CREATE INDEX ON indexed (a);"
            "CREATE UNIQUE INDEX ON indexed (a, b) INCLUDE (v);"
            f"INSERT INTO indexed SELECT i, 'a' || i, '2024-01-01', i, 'v' FROM generate_series(0, {ROWS - 1}) i"
        )
    expected = _drift(pair, "indexed", "a, b")
    report = report_of(compare(pair, "indexed", **_small(7)))
    assert report["summary"]["primary_key"] == ["a", "b"]
    assert _found(report) == expected


@pytest.mark.parametrize(
    "index",
    ["(n)", "(lower(v))", "(n) WHERE v = 'v'", "(n, m)", "((m + 1))", "(m) WHERE m > 0", "(m, (n + 1))"],
)
def test_other_unique_indexes_are_not_a_key(
    pair: list[Database], compare: Compare, report_of: ReportOf, index: str
) -> None:
    """Partial, nullable and expression indexes cannot serve as a key."""
    for node in pair:
        node.execute(
            "DROP TABLE IF EXISTS unkeyed; CREATE TABLE unkeyed (n int, m int NOT NULL, v text);"
            f"CREATE UNIQUE INDEX ON unkeyed {index}; INSERT INTO unkeyed SELECT i, i, i FROM generate_series(1, 9) i"
        )
    pair[1].execute("UPDATE unkeyed SET m = 77 WHERE n = 3")
    result = compare(pair, "unkeyed")
    counts = result.pairs["n1/n2"]
    assert report_of(result)["summary"]["primary_key"] == []
    assert (counts.missing, counts.extra, counts.changed) == (1, 1, 0)
    assert "no key" in " ".join(result.remarks)


def test_a_given_key(databases: Databases, on_all: OnAll, compare: Compare, report_of: ReportOf) -> None:
    nodes = databases(2)
    on_all(
        nodes,
        "CREATE TABLE byhand (n int, m int, v text, maybe int);"
        f"INSERT INTO byhand SELECT i, i % 2, 'v', nullif(i, 3) FROM generate_series(0, {ROWS - 1}) i",
    )
    expected = _drift(nodes, "byhand", "n")
    result = compare(nodes, "byhand", key=["n"], **_small(2))
    assert _found(report_of(result)) == expected
    assert _found(report_of(compare(nodes, "byhand", key=["m", "n"], **_small(2)))) == expected
    with pytest.raises(CheckFailed, match=r"n1.*NULL in maybe"):
        compare(nodes, "byhand", key=["maybe"])
    # The filter excludes the rows with NULL.
    assert _found(report_of(compare(nodes, "byhand", key=["maybe"], filter="maybe > 0 OR n = 0"))) == expected
    with pytest.raises(CheckFailed, match="no column mm; did you mean m"):
        compare(nodes, "byhand", key=["mm"])


@pytest.mark.parametrize("unit", [1, 7, 10000])
def test_a_given_key_that_is_not_unique(databases: Databases, on_all: OnAll, compare: Compare, unit: int) -> None:
    nodes = databases(2)
    on_all(
        nodes, "CREATE TABLE twice (n int, v text); INSERT INTO twice SELECT i / 20, 'v' FROM generate_series(0, 199) i"
    )
    # Digests do not need a key: equal rows are equal.
    assert compare(nodes, "twice", key=["n"], **_small(unit)).verdict == "MATCH"
    nodes[1].execute("UPDATE twice SET v = 'x' WHERE ctid = '(0,50)'")
    result = compare(nodes, "twice", key=["n"], **_small(unit))
    assert (result.verdict, result.exit_code) == ("INCOMPLETE", 2)
    assert re.search(r"the key \(n\) is not unique: more than one row has \(\d\)", " ".join(result.incomplete))


PARTITIONS = {
    "range": (
        "BY RANGE (k)",
        "CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES FROM (MINVALUE) TO (20);"
        "CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES FROM (20) TO (40); CREATE TABLE {t}_d PARTITION OF {t} DEFAULT",
    ),
    "list": (
        "BY LIST (k)",
        "CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES IN (1, 2, 3, 40); CREATE TABLE {t}_d PARTITION OF {t} DEFAULT",
    ),
    "hash": (
        "BY HASH (k)",
        "CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES WITH (MODULUS 2, REMAINDER 0);"
        "CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
    ),
    "deep": (
        "BY RANGE (k)",
        "CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES FROM (MINVALUE) TO (30) PARTITION BY HASH (k);"
        "CREATE TABLE {t}_11 PARTITION OF {t}_1 FOR VALUES WITH (MODULUS 2, REMAINDER 0);"
        "CREATE TABLE {t}_12 PARTITION OF {t}_1 FOR VALUES WITH (MODULUS 2, REMAINDER 1);"
        "CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES FROM (30) TO (MAXVALUE)",
    ),
}


@pytest.mark.parametrize("key", ["PRIMARY KEY", "NOT NULL"])
@pytest.mark.parametrize("kind", list(PARTITIONS))
def test_partitioned_tables(pair: list[Database], compare: Compare, report_of: ReportOf, kind: str, key: str) -> None:
    """Partitioned on one node, and differently or not on the other."""
    how, parts = PARTITIONS[kind]
    table = f"part_{kind}_{key.lower().replace(' ', '_')}"
    pair[0].execute(f"CREATE TABLE {table} (k int {key}, n int, v text) PARTITION {how}; {parts.format(t=table)}")
    pair[1].execute(f"CREATE TABLE {table} (k int {key}, n int, v text)")
    for node in pair:
        node.execute(f"INSERT INTO {table} SELECT i, i, 'v' FROM generate_series(0, {ROWS - 1}) i")
    assert compare(pair, table, **_small(2)).verdict == "MATCH"
    expected = _drift(pair, table, "k")
    result = compare(pair, table, **_small(2))
    if key == "PRIMARY KEY":
        assert _found(report_of(result)) == expected
    else:
        counts = result.pairs["n1/n2"]
        changed = len(expected["changed"])
        assert (counts.missing, counts.extra) == (len(expected["missing"]) + changed, len(expected["extra"]) + changed)
    assert compare(pair, table, quick=True).verdict == "DIFFER"


def test_an_inheritance_parent_includes_its_children(
    pair: list[Database], compare: Compare, report_of: ReportOf
) -> None:
    for node in pair:
        node.execute(
            "CREATE TABLE parents (k int PRIMARY KEY, n int, v text); CREATE TABLE child (more int) INHERITS (parents);"
            "INSERT INTO parents SELECT i, i, 'v' FROM generate_series(0, 29) i;"
            f"INSERT INTO child SELECT i, i, 'v', 0 FROM generate_series(30, {ROWS - 1}) i"
        )
    expected = _drift(pair, "parents", "k")
    assert _found(report_of(compare(pair, "parents", **_small(2)))) == expected
    # A key that parent and child both have is none, whatever the parent's index says.
    pair[0].execute("INSERT INTO child VALUES (20, 20, 'v', 0)")
    result = compare(pair, "parents", **_small(2))
    assert result.verdict == "INCOMPLETE"
    assert "not unique: more than one row has (20)" in " ".join(result.incomplete)


def test_materialized_views(pair: list[Database], compare: Compare, report_of: ReportOf) -> None:
    for node in pair:
        node.execute(
            "CREATE TABLE base (k int PRIMARY KEY, n int, v text);"
            f"INSERT INTO base SELECT i, i, 'v' FROM generate_series(0, {ROWS - 1}) i"
        )
    expected = _drift(pair, "base", "k")
    for node in pair:
        node.execute("CREATE MATERIALIZED VIEW seen AS SELECT * FROM base; CREATE UNIQUE INDEX ON seen (k)")
    # Columns of a view are never NOT NULL: its unique index is taken only when it is named.
    assert _found(report_of(compare(pair, "seen", key=["k"], **_small(2)))) == expected
    counts = compare(pair, "seen").pairs["n1/n2"]
    changed = len(expected["changed"])
    assert (counts.missing, counts.extra) == (len(expected["missing"]) + changed, len(expected["extra"]) + changed)


def test_views_and_foreign_tables(pair: list[Database], compare: Compare, report_of: ReportOf) -> None:
    """They are compared by value; the key is that of the node that has one, or is named."""
    for node in pair:
        node.execute(
            "CREATE TABLE stored (k int PRIMARY KEY, n int, v text);"
            f"INSERT INTO stored SELECT i, i, 'v' FROM generate_series(0, {ROWS - 1}) i"
        )
    expected = _drift(pair, "stored", "k")
    other = pair[0]
    pair[0].execute("CREATE VIEW plain AS SELECT * FROM stored")
    pair[1].execute(
        f"""ALTER TABLE stored RENAME TO plain;
            CREATE EXTENSION postgres_fdw;
            CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw
                OPTIONS (host '127.0.0.1', port '{other.server.port}', dbname '{other.name}');
            CREATE USER MAPPING FOR CURRENT_USER SERVER far OPTIONS (user 'postgres');
            CREATE FOREIGN TABLE stored (k int, n int, v text) SERVER far OPTIONS (table_name 'stored')"""
    )
    assert _found(report_of(compare(pair, "plain"))) == expected
    assert _found(report_of(compare(pair, "plain", key=["k"]))) == expected
    result = compare(pair, "stored", key=["k"])
    assert result.verdict == "MATCH"
    assert "n2 was read without a snapshot" in " ".join(result.remarks)
    pair[0].execute("CREATE SEQUENCE counter")
    pair[1].execute("CREATE TABLE counter (k int)")
    with pytest.raises(CheckFailed, match="counter is a sequence"):
        compare(pair, "counter")


def test_tables_with_one_column(pair: list[Database], compare: Compare, report_of: ReportOf) -> None:
    for node in pair:
        node.execute("CREATE TABLE only_key (n int PRIMARY KEY); CREATE TABLE only_value (n int)")
        for table in ("only_key", "only_value"):
            node.execute(f"INSERT INTO {table} SELECT generate_series(1, 30)")
    for table in ("only_key", "only_value"):
        assert compare(pair, table, **_small(2)).verdict == "MATCH"
        pair[1].execute(f"DELETE FROM {table} WHERE n = 4; INSERT INTO {table} VALUES (31)")
        result = compare(pair, table, **_small(2))
        assert _found(report_of(result)) == {"missing": {4}, "extra": {31}, "changed": set()}
    pair[0].execute("INSERT INTO only_value VALUES (NULL), (NULL)")
    pair[1].execute("INSERT INTO only_value VALUES (NULL)")
    assert compare(pair, "only_value").pairs["n1/n2"].missing == 2


@pytest.mark.parametrize(("columns", "sizes"), [(300, _small(2)), (1590, {})])
def test_tables_with_many_columns(
    pair: list[Database], compare: Compare, report_of: ReportOf, columns: int, sizes: dict[str, Any]
) -> None:
    names = [f"c{number}" for number in range(columns)]
    for node in pair:
        listed = ", ".join(f"{name} smallint DEFAULT 1" for name in names)
        node.execute(f"DROP TABLE IF EXISTS many; CREATE TABLE many (id int PRIMARY KEY, {listed})")
        node.execute("INSERT INTO many (id) SELECT generate_series(1, 12)")
    assert compare(pair, "many", **sizes).verdict == "MATCH"
    pair[1].execute(f"UPDATE many SET c0 = 2, {names[-1]} = NULL WHERE id = 5")
    for digest in ("native", "portable"):
        found = report_of(compare(pair, "many", digest=digest, **sizes))["diffs"]["n1/n2"]["differences"]
        assert [(each["key"], each["columns"]) for each in found] == [({"id": "5"}, ["c0", names[-1]])]


def test_keys_that_disagree_are_refused_by_name(databases: Databases, compare: Compare, report_of: ReportOf) -> None:
    nodes = databases(2)
    nodes[0].execute("CREATE TABLE keys (a int PRIMARY KEY, b int NOT NULL); INSERT INTO keys VALUES (1, 1)")
    nodes[1].execute("CREATE TABLE keys (a int NOT NULL, b int PRIMARY KEY); INSERT INTO keys VALUES (1, 2)")
    with pytest.raises(CheckFailed, match=r"keys.*differ.*\(a\) on n1.*\(b\) on n2"):
        compare(nodes, "keys")
    result = compare(nodes, "keys", key=["a"])
    assert [difference["columns"] for difference in report_of(result)["diffs"]["n1/n2"]["differences"]] == [["b"]]


def test_collations_that_disagree_are_refused_only_for_keys(
    databases: Databases, on_all: OnAll, compare: Compare
) -> None:
    nodes = databases(2)
    for node, collation in zip(nodes, ("C", "POSIX"), strict=True):
        node.execute(f'CREATE TABLE sorted (k text COLLATE "{collation}" PRIMARY KEY, v int)')
        node.execute(f'CREATE TABLE valued (k int PRIMARY KEY, v text COLLATE "{collation}")')
    on_all(nodes, "INSERT INTO sorted VALUES ('a', 1); INSERT INTO valued VALUES (1, 'a')")
    with pytest.raises(CheckFailed, match="collations of key column k differ"):
        compare(nodes, "sorted")
    assert compare(nodes, "valued").verdict == "MATCH"
