"""The table of types: pins the SQL and the types of every row, and checks that no other module lists types."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from datetime import date, datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from psycopg import sql

import trueup
from trueup.db.catalog import Column
from trueup.rows.encode import column_spec, hash_input, scalar_value, value_of
from trueup.rows.fetch import among
from trueup.rows.marks import is_whole_number, largest
from trueup.rows.spec import KeySpec, TableSpec
from trueup.rows.types import TYPES, arrow_type, type_from_sql, type_named, type_of
from trueup.sinks.base import Document, Mark, SourceTable
from trueup.sinks.columns import Columns
from trueup.spark.table.columns import fetched

HOME = Path(trueup.__file__).parent
TEXT = '("c"::text) COLLATE "C"'
OUTPUT = '(CASE WHEN "c" IS DISTINCT FROM NULL THEN concat("c") END)'
HASHED_OUTPUT = f'({OUTPUT}) COLLATE "C"'


@dataclass(frozen=True)
class Pin:
    """What a column `c` of one type is on every path. Changing `native` or `portable` changes every row hash."""

    base: str
    type: str
    length: int
    native: str = TEXT
    portable: str = TEXT
    spark: str = "string"
    spark_sql: str = '"c"::text'
    tube_sql: str = '"c"::text'
    arrow: str = "string"
    arrow_native: str = "string"
    arrow_key: str = "string"
    long: bool = False
    binary: bool = False
    integer: int = 0
    unquoted: bool = False
    pages: bool = False

    @property
    def column(self) -> Column:
        return Column(
            name="c",
            type=self.type,
            base_schema="public" if self.base == "citext" else "pg_catalog",
            base_name=self.base,
            base_type=self.type,
            base_kind="b",
            length=self.length,
            nameable=True,
            trusted=True,
            is_domain=False,
            not_null=False,
            generated="",
            readable=True,
            collation=None,
            collation_version=None,
            collation_actual=None,
            collation_is_default=False,
            labels=(),
        )


PINS = (
    Pin(
        "int2",
        "smallint",
        2,
        native='"c"',
        spark="smallint",
        spark_sql='"c"',
        tube_sql='"c"',
        arrow="int16",
        arrow_native="int16",
        arrow_key="int16",
        binary=True,
        integer=32767,
        unquoted=True,
        pages=True,
    ),
    Pin(
        "int4",
        "integer",
        4,
        native='"c"',
        spark="int",
        spark_sql='"c"',
        tube_sql='"c"',
        arrow="int32",
        arrow_native="int32",
        arrow_key="int32",
        binary=True,
        integer=2147483647,
        unquoted=True,
        pages=True,
    ),
    Pin(
        "int8",
        "bigint",
        8,
        native='int8send("c")',
        spark="bigint",
        spark_sql='"c"',
        tube_sql='"c"',
        arrow="int64",
        arrow_native="int64",
        arrow_key="int64",
        binary=True,
        integer=9223372036854775807,
        unquoted=True,
        pages=True,
    ),
    Pin(
        "oid",
        "oid",
        4,
        native='"c"',
        spark="bigint",
        spark_sql='"c"::int8',
        tube_sql='"c"::int8',
        arrow="int64",
        arrow_native="int64",
        arrow_key="int64",
    ),
    Pin(
        "float4",
        "real",
        4,
        spark="float",
        spark_sql='"c"',
        tube_sql='"c"',
        arrow="float",
        arrow_native="float",
        binary=True,
    ),
    Pin(
        "float8",
        "double precision",
        8,
        spark="double",
        spark_sql='"c"',
        tube_sql='"c"',
        arrow="double",
        arrow_native="double",
        binary=True,
    ),
    Pin(
        "numeric",
        "numeric",
        -1,
        native='(trim_scale("c")::text) COLLATE "C"',
        portable='(trim_scale("c")::text) COLLATE "C"',
        binary=True,
    ),
    Pin(
        "numeric",
        "numeric(10,2)",
        -1,
        native='(trim_scale("c")::text) COLLATE "C"',
        portable='(trim_scale("c")::text) COLLATE "C"',
        spark="decimal(10,2)",
        arrow_native="decimal128(10, 2)",
        binary=True,
    ),
    Pin(
        "bool",
        "boolean",
        1,
        native='"c"',
        spark="boolean",
        spark_sql='"c"',
        tube_sql='"c"',
        arrow="bool",
        arrow_native="bool",
        binary=True,
    ),
    Pin(
        "text",
        "text",
        -1,
        native='("c") COLLATE "C"',
        spark_sql='"c"',
        tube_sql='"c"',
        long=True,
        binary=True,
        pages=True,
    ),
    Pin(
        "varchar",
        "character varying(20)",
        -1,
        native='("c") COLLATE "C"',
        spark_sql='"c"',
        tube_sql='"c"',
        long=True,
        binary=True,
        pages=True,
    ),
    Pin(
        "bpchar",
        "character(3)",
        -1,
        native=HASHED_OUTPUT,
        portable=HASHED_OUTPUT,
        spark_sql=OUTPUT,
        tube_sql=OUTPUT,
        long=True,
        binary=True,
    ),
    Pin("name", "name", 64),
    Pin("char", '"char"', 1),
    Pin(
        "bytea",
        "bytea",
        -1,
        native='"c"',
        spark="binary",
        spark_sql='"c"',
        arrow="binary",
        arrow_native="binary",
        long=True,
        binary=True,
        pages=True,
    ),
    Pin("uuid", "uuid", 16, native='"c"', binary=True, unquoted=True, pages=True),
    Pin(
        "date",
        "date",
        4,
        native='"c"',
        spark="date",
        spark_sql='date_send("c")',
        arrow_native="date32[day]",
        binary=True,
    ),
    Pin("time", "time without time zone", 8, native='time_send("c")', binary=True),
    Pin("timetz", "time with time zone", 12, binary=True),
    Pin(
        "timestamp",
        "timestamp without time zone",
        8,
        native='timestamp_send("c")',
        spark="timestamp_ntz",
        spark_sql='timestamp_send("c")',
        arrow_native="timestamp[us]",
        binary=True,
    ),
    Pin(
        "timestamptz",
        "timestamp with time zone",
        8,
        native='timestamptz_send("c")',
        spark="timestamp",
        spark_sql='timestamptz_send("c")',
        arrow_native="timestamp[us, tz=UTC]",
        binary=True,
    ),
    Pin("interval", "interval", 16, binary=True),
    Pin("json", "json", -1, long=True, binary=True),
    Pin("jsonb", "jsonb", -1, long=True, binary=True),
    Pin("xml", "xml", -1, long=True),
    Pin("inet", "inet", -1, binary=True),
    Pin("cidr", "cidr", -1, binary=True),
    Pin("money", "money", 8),
    Pin("point", "point", 16),
    Pin("_int4", "integer[]", -1, spark="array<int>", spark_sql='"c"', long=True),
    Pin("_text", "text[]", -1, spark="array<string>", spark_sql='"c"', long=True),
    Pin("_numeric", "numeric[]", -1, long=True),
    Pin("int4range", "int4range", -1, long=True),
    Pin("citext", "public.citext", -1, HASHED_OUTPUT, HASHED_OUTPUT, spark_sql=OUTPUT, tube_sql=OUTPUT, long=True),
)
each_type = pytest.mark.parametrize("pin", PINS, ids=lambda pin: pin.type)


def plain(expression: sql.Composable) -> str:
    """Return an expression without the schemas of names, and the checks of a column's type that the planner removes."""
    checks = r'\(CASE WHEN (?:true|array_eq\([^)]*\) IS NULL) THEN ("c")(?: ELSE NULL::\S+)? END\)'
    return re.sub(checks, r"\1", re.sub(r"\bpg_catalog\.", "", expression.as_string(None)))


def test_every_row_of_the_table_is_pinned() -> None:
    assert {pin.base for pin in PINS} >= set(TYPES)


@each_type
def test_the_row_hash_of_a_type_does_not_change(pin: Pin) -> None:
    column = column_spec(pin.column)
    native = TableSpec("s", "t", (), (column,))
    portable = TableSpec("s", "t", (), (column,), digest="portable")
    assert plain(hash_input(column, native)) == pin.native
    assert plain(hash_input(column, portable)) == pin.portable


@each_type
def test_values_of_a_type_are_fetched_as_before(pin: Pin) -> None:
    column = column_spec(pin.column)
    spec = TableSpec("s", "t", (KeySpec(column),), (column,))
    assert ("sha256" in value_of(column, spec).as_string(None)) == pin.long
    assert ("ANY" in among(spec, [("1",), ("2",)]).as_string(None)) == pin.unquoted
    assert is_whole_number(spec) == bool(pin.integer)
    assert not pin.integer or largest(spec) == pin.integer
    assert plain(scalar_value(pin.column)) == pin.tube_sql
    assert (type_of(column).binary_copy, type_of(column).page_scan) == (pin.binary, pin.pages)


@each_type
def test_a_type_has_the_same_type_in_spark_and_in_sinks_as_before(pin: Pin) -> None:
    read = fetched(pin.column)
    assert read is not None
    assert (read.spark, plain(read.selected())) == (pin.spark, pin.spark_sql)
    assert arrow_type(read.arrow)
    source = SourceTable("t", (("k", "integer"), ("c", pin.type)), ("k",))
    assert str(Columns(source, False).schema().field("c").type) == pin.arrow
    assert str(Columns(source, False, native=True).schema().field("c").type) == pin.arrow_native
    key = SourceTable("t", (("c", pin.type),), ("c",))
    assert str(Columns(key, False).schema().field("c").type) == pin.arrow_key


MOMENT = datetime(2024, 2, 29, 12, 34, 56, 789012)
VALUES = {
    **dict.fromkeys(("int2", "int4", "int8"), -42),
    **dict.fromkeys(("float4", "float8"), 1.1),
    "oid": 7,
    "bool": True,
    "bytea": bytes.fromhex("deadbeef"),
    "date": date(2024, 2, 29),
    "timestamp": MOMENT,
    "timestamptz": MOMENT.replace(tzinfo=timezone.utc),
}


@pytest.mark.parametrize("name", TYPES)
def test_the_sample_of_every_row_can_be_written_to_a_sink(name: str) -> None:
    row = TYPES[name]
    value = {"bool": True}.get(name, row.sample)
    source = SourceTable("t", (("k", "integer"), ("c", row.sql_name)), ("k",))
    document = Document("t", 0, ("1",), "I", {"k": 1, "c": value})
    table = Columns(source, False, native=True).table([document], Mark(1, datetime.now(timezone.utc)))
    written = table.column("c")[0].as_py()
    assert written == pytest.approx(VALUES[name]) if row.is_float else written == VALUES.get(name, row.sample)
    assert pa.types.is_string(table.schema.field("c").type) == (name not in VALUES)


def test_types_are_found_by_each_of_their_names() -> None:
    assert type_named("pg_catalog", "_int4").spark == "array<int>"
    assert type_named("pg_catalog", "_uuid").spark == "string"
    assert type_named("public", "int4").hash == "text"
    assert type_from_sql("numeric(10,2)").name == "numeric"
    assert type_from_sql("integer[]").name == ""


DISTINCT = {"int2", "int4", "int8", "float4", "float8", "bpchar", "timestamptz", "timetz", "bytea", "jsonb", "inet"}
DISTINCT |= {"character varying", "double precision", "timestamp with time zone", "smallint", "boolean", "integer"}
# Names of types of Spark, ClickHouse and MySQL.
OTHER_SYSTEMS = {"engine/parquet_files.py", "verbs/difflog/clickhouse.py", "verbs/difflog/join.py"}
OTHER_SYSTEMS |= {"nodes/delta.py", "nodes/frame_columns.py", "nodes/databases/mysql.py", "nodes/parquet_parts.py"}


def test_no_other_module_lists_types() -> None:
    """In one test: there are hundreds of modules."""
    names = re.compile("|".join(rf"[\"']{name}[\"']" for name in DISTINCT))
    for path in sorted(HOME.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if str(path.relative_to(HOME)) in {"rows/types.py", *OTHER_SYSTEMS} or len(names.findall(text)) < 2:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Tuple | ast.List | ast.Set | ast.Dict):
                found = {item.value for item in ast.walk(node) if isinstance(item, ast.Constant)}
                assert len(found & DISTINCT) < 2, f"{path}:{node.lineno}: put this into rows/types.py"
