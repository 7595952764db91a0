"""The format trueup: values of every type are exact, or the read fails.

The values in Spark are compared with those of another driver: as Python values if the type is native on both sides, as
the text of the server if it is a string in Spark.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import DecimalType, StructField, StructType

from support.fixtures import Databases, Spark
from trueup.errors import TrueupError
from trueup.rows.types import TYPES as TYPE_ROWS
from trueup.spark.table.datasource import TrueupSource
from trueup.testing.postgres import Database

TYPES = """
    CREATE TYPE mood AS ENUM ('sad', 'ok', 'it''s "fine"');
    CREATE TYPE pair AS (a int, b text);
    CREATE DOMAIN dtext AS text;
    CREATE DOMAIN dbig AS bigint CHECK (VALUE <> 7);
    CREATE DOMAIN dprice AS numeric(8,3);
    CREATE DOMAIN dlayer AS dprice;
    CREATE DOMAIN dstamp AS timestamptz;
    CREATE DOMAIN dlist AS int[];
    CREATE DOMAIN dmood AS mood;
"""
# Type of the column, its Spark type, and values; NULL is added to each.
NATIVE: list[tuple[str, str, list[str]]] = [
    ("int2", "smallint", ["-32768", "32767", "0"]),
    ("int4", "int", ["-2147483648", "2147483647"]),
    ("int8", "bigint", ["-9223372036854775808", "9223372036854775807"]),
    ("dbig", "bigint", ["9007199254740993"]),
    ("oid", "bigint", ["4294967295", "2147483648"]),
    ("float4", "float", ["NaN", "Infinity", "-Infinity", "-0", "1e-45", "3.4028235e38", "0.1"]),
    ("float8", "double", ["NaN", "Infinity", "-Infinity", "-0", "5e-324", "1.7976931348623157e308", "0.1"]),
    ("bool", "boolean", ["true", "false"]),
    ("text", "string", ["", " ", "NULL", "a\nb\t\\", 'it\'s "quoted"', "é👍🏽", "\x01", "x" * 100_000]),
    ("varchar(5)", "string", ["", "a  ", "ÄÖÜäö"]),
    ("dtext", "string", ["", "d"]),
    ("bytea", "binary", ["", "\\x00", "\\x00ff5c27"]),
    ("date", "date", ["0001-01-01", "1582-10-10", "1969-12-31", "2024-02-29", "9999-12-31"]),
    ("timestamp", "timestamp_ntz", ["0001-01-01", "1969-12-31 23:59:59.999999", "9999-12-31 23:59:59.999999"]),
    ("timestamp(0)", "timestamp_ntz", ["2024-02-29 12:34:56"]),
    ("numeric(10,2)", "decimal(10,2)", ["-99999999.99", "99999999.99", "0", "1.5"]),
    ("numeric(38,0)", "decimal(38,0)", ["9" * 38, "-" + "9" * 38]),
    ("numeric(38,38)", "decimal(38,38)", ["0." + "9" * 38, "0." + "0" * 37 + "1"]),
    ("numeric(3,-2)", "decimal(5,0)", ["99900", "-100"]),
    ("numeric(2,4)", "decimal(4,4)", ["0.0099", "0.0001"]),
    ("dprice", "decimal(8,3)", ["12345.678"]),
    ("dlayer", "decimal(8,3)", ["-0.001"]),
    ("int2[]", "array<smallint>", ["{}", "{1,NULL,-32768}"]),
    ("int4[]", "array<int>", ["{1}"]),
    ("dlist", "array<int>", ["{NULL}"]),
    ("int8[]", "array<bigint>", ["{9223372036854775807}"]),
    ("float8[]", "array<double>", ["{Infinity,0.1,NULL}"]),
    ("float4[]", "array<float>", ["{0.5,-0}"]),
    ("bool[]", "array<boolean>", ["{t,NULL,f}"]),
    ("text[]", "array<string>", ["{}", '{"a,b","NULL",NULL,"","\\"{}\\""}']),
    ("varchar[]", "array<string>", ["{x}"]),
    ("bytea[]", "array<binary>", ['{"\\\\x00ff",""}']),
]
# Types that are text in Spark, as the server prints them.
AS_TEXT: list[tuple[str, list[str]]] = [
    ("numeric", ["NaN", "Infinity", "-Infinity", "1e100", "0.10", "-0.0000000000000000000000000000000000000001"]),
    ("numeric(39,0)", ["9" * 39]),
    ("numeric(50,45)", ["1." + "0" * 44 + "1"]),
    ("char(4)", ["a", "", "ab c"]),
    ("bpchar", ["a  "]),
    ("name", ["n"]),
    ('"char"', ["c", "\\200"]),
    ("uuid", ["6F9619FF-8b86-d011-b42d-00cf4fc964ff"]),
    ("money", ["-1234.56", "92233720368547758.07"]),
    ("time", ["24:00", "00:00:00.000001"]),
    ("timetz", ["12:00:00.5+05:30"]),
    ("interval", ["1 year 2 mons -3 days 04:05:06.789", "0", "-1 us"]),
    ("json", ['{"a" :1,  "a":2}', "null"]),
    ("jsonb", ['{"b": 1.10, "a": ["é", null]}']),
    ("inet", ["10.0.0.1/8", "::1"]),
    ("cidr", ["10.0.0.0/8"]),
    ("macaddr", ["08:00:2b:01:02:03"]),
    ("bit(3)", ["101"]),
    ("varbit", ["", "0000000011"]),
    ("point", ["(1,2.0000000000000004)"]),
    ("box", ["(2,1),(0,0)"]),
    ("int4range", ["[1,5)", "empty"]),
    ("tstzrange", ["[2024-01-01 00:00:00+00,)"]),
    ("int4multirange", ["{[1,3),[5,8)}"]),
    ("tsvector", ["'a':1 'b':2"]),
    ("mood", ["sad", 'it\'s "fine"']),
    ("dmood", ["ok"]),
    ("pair", ['(1,"a,b")', "(,)"]),
    ("mood[]", ["{sad,NULL}"]),
    ("pair[]", ['{"(1,x)"}']),
    ("numeric(10,2)[]", ["{1.10,NULL}"]),
    ("date[]", ["{infinity,2024-01-01}"]),
    ("timestamptz[]", ["{infinity}"]),
    ("uuid[]", ["{6f9619ff-8b86-d011-b42d-00cf4fc964ff}"]),
    ("pg_lsn", ["16/B374D848"]),
    ("xid8", ["18446744073709551615"]),
    ("int2vector", ["1 2"]),
    ("regclass", ["pg_class"]),
    ("jsonpath", ['$."a"']),
]


def _make(database: Database, columns: list[tuple[str, list[str]]]) -> None:
    """Create a table with a row per value; all other columns of the row are NULL."""
    database.execute(TYPES)
    names = [f"c{number}" for number in range(len(columns))]
    listed = ", ".join(f"{name} {kind}" for name, (kind, _) in zip(names, columns, strict=True))
    database.execute(f"CREATE TABLE every (id int PRIMARY KEY, {listed})")
    rows = [(name, value) for name, (_, values) in zip(names, columns, strict=True) for value in values]
    with psycopg.connect(database.uri) as connection:
        for number, (name, value) in enumerate(rows):
            connection.execute(f"INSERT INTO every (id, {name}) VALUES (%s, %s)", (number, value))


def _read(spark: Spark, database: Database, table: str = "every", **options: Any) -> DataFrame:
    frame = spark.read.format("trueup").option("address", database.uri)
    return frame.options(**options).load(table)


def _comparable(value: object) -> object:
    """Return a form in which -0 and 0 differ, and NaN equals NaN."""
    if isinstance(value, list):
        return [_comparable(each) for each in value]
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else (value, math.copysign(1, value))
    return bytes(value) if isinstance(value, bytearray) else value


def test_native_types(spark: Spark, databases: Databases) -> None:
    [database] = databases(1)
    _make(database, [(kind, values) for kind, _, values in NATIVE])
    frame = _read(spark, database, partitions=2)
    assert [field.dataType.simpleString() for field in frame.schema.fields[1:]] == [kind for _, kind, _ in NATIVE]
    assert all(field.nullable for field in frame.schema)
    rows = frame.orderBy("id").collect()
    # Binary results are exact for floats.
    with psycopg.connect(database.uri) as connection:
        expected = connection.execute("SELECT * FROM every ORDER BY id", binary=True).fetchall()
    assert len(rows) == sum(len(values) for _, _, values in NATIVE)
    for at, (kind, _, _) in enumerate(NATIVE, 1):
        for row, right in zip(rows, expected, strict=True):
            assert _comparable(row[at]) == _comparable(right[at]), (kind, right[at])


def test_timestamps_with_a_time_zone_are_exact_moments(spark: Spark, databases: Databases) -> None:
    [database] = databases(1)
    moments = [
        "0001-01-01 00:00+00",
        "1969-12-31 23:59:59.999999+00",
        "2024-03-31 01:30:00.123456+01",
        "9999-12-31 23:59+00",
    ]
    _make(database, [("timestamptz", moments), ("dstamp", moments[:1])])
    frame = _read(spark, database)
    assert [field.dataType.simpleString() for field in frame.schema.fields[1:]] == ["timestamp", "timestamp"]
    found = frame.orderBy("id").selectExpr("unix_micros(c0)", "unix_micros(c1)").collect()
    micros = "(extract(epoch FROM c{}) * 1000000)::int8"
    expected = database.execute(f"SELECT {micros.format(0)}, {micros.format(1)} FROM every ORDER BY id")
    assert [tuple(row) for row in found] == expected


def test_the_sample_of_every_row_of_the_table_of_types_is_read(spark: Spark, databases: Databases) -> None:
    [database] = databases(1)
    rows = [row for row in TYPE_ROWS.values() if row.sample]
    _make(database, [(f'pg_catalog."{row.name}"', [row.sample]) for row in rows])
    frame = _read(spark, database)
    assert [field.dataType.simpleString() for field in frame.schema.fields[1:]] == [row.spark for row in rows]
    for number, record in enumerate(frame.orderBy("id").collect()):
        assert record[number + 1] is not None
        if rows[number].spark == "string" and rows[number].name not in ("interval", "timetz"):
            assert record[number + 1] == rows[number].sample


def test_all_other_types_are_exact_text(spark: Spark, databases: Databases) -> None:
    [database] = databases(1)
    _make(database, AS_TEXT)
    frame = _read(spark, database)
    assert {field.dataType.simpleString() for field in frame.schema.fields[1:]} == {"string"}
    rows = frame.orderBy("id").collect()
    texts = ", ".join(
        f"textin(bpcharout(c{at}))" if "char(" in kind or kind == "bpchar" else f"c{at}::text"
        for at, (kind, _) in enumerate(AS_TEXT)
    )
    pinned = "SET lc_monetary = 'C'; SET TimeZone = 'UTC'; SET IntervalStyle = 'postgres'; SET extra_float_digits = 3;"
    expected = database.execute(f"{pinned} SELECT id, {texts} FROM every ORDER BY id")
    assert [tuple(row) for row in rows] == expected
    assert ("a   ",) in [tuple(row) for row in frame.select("c3").collect()]


UNFIT = [
    ("date", "infinity", "infinity, or a time"),
    ("date", "-infinity", "infinity, or a time"),
    ("date", "0001-12-31 BC", "outside the years 1 to 9999"),
    ("date", "10000-01-01", "outside the years 1 to 9999"),
    ("date", "5874897-12-31", "outside the years 1 to 9999"),
    ("timestamp", "infinity", "infinity, or a time"),
    ("timestamp", "0001-12-31 23:59:59.999999 BC", "outside the years 1 to 9999"),
    ("timestamp", "10000-01-01", "outside the years 1 to 9999"),
    ("timestamp", "294276-12-31 23:59:59.999999", "outside the years 1 to 9999"),
    ("timestamptz", "-infinity", "infinity, or a time"),
    ("timestamptz", "4713-01-01 00:00+00 BC", "outside the years 1 to 9999"),
    ("numeric(6,2)", "NaN", "NaN, infinity"),
    ("int4[]", "{{1,2},{3,4}}", "more than one dimension"),
    ("text[]", "[0:1]={a,b}", "does not start at 1"),
]


def test_values_that_spark_cannot_represent_are_an_error_null_or_text(spark: Spark, databases: Databases) -> None:
    [database] = databases(1)
    _make(database, [(kind, [value]) for kind, value, _ in UNFIT])
    nulls = _read(spark, database, unfit="null").drop("id").collect()
    assert len(nulls) == len(UNFIT)
    assert all(value is None for row in nulls for value in row)
    for at, (kind, value, reason) in enumerate(UNFIT):
        # As Spark's workers call it, without the time that its retries take.
        source = TrueupSource({"address": database.uri, "table": "every", "columns": f"c{at}"})
        reader = source.reader(source.schema())
        with pytest.raises(TrueupError, match=f"column c{at} contains.*{reason}.*as_text=c{at}") as caught:
            list(reader.read(reader.partitions()[0]))
        assert caught.value.table == "public.every", (kind, value)
    names = [f"c{at}" for at in range(len(UNFIT))]
    rows = _read(spark, database, as_text=",".join(names)).orderBy("id").collect()
    listed = ", ".join(f"{name}::text" for name in names)
    assert [tuple(row) for row in rows] == database.execute(
        f"SET TimeZone = 'UTC'; SELECT id, {listed} FROM every ORDER BY id"
    )


def test_a_schema_of_the_user_chooses_columns_and_types(spark: Spark, databases: Databases) -> None:
    [database] = databases(1)
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, n numeric, secret text, seen date);"
        "INSERT INTO items VALUES (1, 1.50, 'x', 'infinity'), (2, 0.123456789, 'y', '2024-01-01')"
    )

    def read(schema: str, **options: str) -> list[tuple[Any, ...]]:
        reader = spark.read.format("trueup").option("address", database.uri).schema(schema).options(**options)
        return [tuple(row) for row in reader.load("items").orderBy("id").collect()]

    assert read("seen string, n decimal(38,9), id string") == [
        ("infinity", Decimal("1.500000000"), "1"),
        ("2024-01-01", Decimal("0.123456789"), "2"),
    ]
    short = StructType([StructField("n", DecimalType(10, 2))])
    reader = TrueupSource({"address": database.uri, "table": "items"}).reader(short)
    with pytest.raises(TrueupError, match="column n contains NaN, infinity, or a number with more digits"):
        list(reader.read(reader.partitions()[0]))
    assert read("id int, n decimal(10,2)", unfit="null") == [(1, Decimal("1.50")), (2, None)]
    with pytest.raises(Exception, match=r"column id of public\.items \(integer\) cannot be read as bigint"):
        read("id bigint")
    with pytest.raises(Exception, match=r'no column nn\. Did you mean "n"'):
        read("id int, nn string")
