"""SQL expressions for a column: what enters the row hash, what is fetched, and when two fetched values are equal.

How each type is treated is in `trueup.rows.types`.

No expression calls a cast that the owner of a type made: see `trueup.db.casts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from psycopg import sql

from trueup.db.bound import Bound
from trueup.db.casts import as_type, is_array, is_built_in, is_scalar, output_of
from trueup.db.catalog import Column
from trueup.rows.spec import ColumnSpec, KeyOrder, NumericRule, TableSpec
from trueup.rows.types import Transfer, type_named, type_of


@dataclass(frozen=True)
class LongValue:
    """A value above the setting `long_value`: its length in bytes, and its sha256."""

    length: int
    sha256: str


Value = str | LongValue | None


def column_spec(column: Column) -> ColumnSpec:
    """Return how a column of the catalog is compared."""
    row = type_named(column.base_schema, column.base_name)
    return ColumnSpec(
        name=column.name,
        type=sql.Identifier(column.base_schema, column.base_name).as_string(None),
        encoding=row.encoding,
        is_domain=column.is_domain,
        is_bytea=row.arrow == "binary",
        may_be_long=column.length == -1 and not row.short,
    )


def key_order(columns: Sequence[Column]) -> KeyOrder:
    """Return how a key column is ordered on all nodes, given the column of each node.

    By bytes: enums whose labels are not in the same order everywhere or whose owner is not trusted, and other types
    outside pg_catalog, whose operators are not looked up; domains over types that are not scalar.
    """
    first = columns[0]
    if first.base_kind == "e":
        same_labels = len({column.labels for column in columns}) == 1
        # A literal of the type would run the CHECK of a domain that its owner creates under the name of the enum.
        usable = all(column.nameable and column.trusted and not column.is_domain for column in columns)
        return "type" if same_labels and usable else "bytes"
    specs = [column_spec(column) for column in columns]
    usable = all(is_scalar(spec.type) or (is_built_in(spec.type) and not spec.is_domain) for spec in specs)
    return "type" if usable else "bytes"


def equality(column: Column) -> str | None:
    """Return the operator that finds a key by a literal of its base type; None: compare the texts instead."""
    spec = column_spec(column)
    if is_array(spec.type):
        return None
    if key_order([column]) == "type":
        return "="
    return column.equality if column.trusted and column.nameable and not column.is_domain else None


def base_value(column: ColumnSpec, row: str = "") -> sql.Composable:
    """Return the column, of the row `row`, as a value of its base type."""
    return as_type(_name(column, row), column.type, is_domain=column.is_domain)


def _name(column: ColumnSpec, row: str) -> sql.Identifier:
    return sql.Identifier(row, column.name) if row else sql.Identifier(column.name)


def transferred(column: ColumnSpec, transfer: Transfer) -> sql.Composable:
    """Return the expression that a client selects to fetch the value in this form."""
    if transfer == "text":
        return text_of(column)
    value = base_value(column)
    if transfer == "int8":
        return sql.SQL("{}::int8").format(value)
    return sql.SQL("{}({})").format(sql.SQL(type_of(column).send), value) if transfer == "bytes" else value


def scalar_value(column: Column) -> sql.Composable:
    """Return the expression that fetches the value as a Python scalar, or as text if Python has no equal scalar."""
    row = type_named(column.base_schema, column.base_name)
    return transferred(column_spec(column), row.transfer if row.scalar else "text")


def hash_input(column: ColumnSpec, spec: TableSpec) -> sql.Composable:
    """Return the expression that the row hash contains for the column."""
    if column.encoding == "numeric" and spec.numeric == "value":
        text: sql.Composable = sql.SQL("pg_catalog.trim_scale({})::pg_catalog.text").format(base_value(column))
    elif column.encoding == "native" and spec.digest == "native":
        row = type_of(column)
        if row.hash == "bytes":
            return sql.SQL("pg_catalog.{}({})").format(sql.SQL(row.send), base_value(column))
        if row.hash == "value":
            return base_value(column)
        text = base_value(column)
    else:
        text = text_of(column)
    return sql.SQL('({}) COLLATE pg_catalog."C"').format(text)


def row_hash(spec: TableSpec) -> sql.Composed:
    """Return the expression of the 64-bit hash of a row.

    A writer who knows the seed can find other rows with the same hash: see docs/design/row-hash.md.
    """
    if not spec.seed:
        raise ValueError(f"{spec.schema}.{spec.table}: no seed was drawn for the row hash")
    inputs = sql.SQL(", ").join(hash_input(column, spec) for column in spec.columns)
    if spec.digest == "portable":
        # The text of a record quotes its fields, so different rows have different texts. The seed comes first: two
        # texts with the same md5 keep it when the same text is appended to both.
        return sql.SQL(
            "('x' OPERATOR(pg_catalog.||) pg_catalog.substr(pg_catalog.md5({}"
            " OPERATOR(pg_catalog.||) ROW({})::pg_catalog.text), 1, 16))::bit(64)::pg_catalog.int8"
        ).format(Bound(f"{spec.seed}:"), inputs)
    seed = Bound(spec.seed)
    # The record hash is linear in its columns: without the outer hash, two rows that swap a value would have the same
    # sum. The outer hash takes the number as text, because the hash of an integer has only 32 bits.
    return sql.SQL(
        "pg_catalog.hashtextextended((pg_catalog.hash_record_extended(ROW({}), {})::pg_catalog.text)"
        ' COLLATE pg_catalog."C", {})'
    ).format(inputs, seed, seed)


def row_id_columns(columns: Iterable[ColumnSpec]) -> tuple[ColumnSpec, ...]:
    """Return the columns from which `row_id` is computed, in an order that does not depend on the table's.

    Left out are types whose text or hash can change without a write of the row (enums, names of objects, types of
    extensions), or depends on settings of the session.
    """
    return tuple(sorted((column for column in columns if _row_id_input(column, "")), key=lambda column: column.name))


def row_id(columns: Sequence[ColumnSpec], row: str) -> sql.Composable:
    """Return the expression of a number by which rows of a keyless table are found: equal rows have equal numbers.

    Different rows may have the same number. It is the same on all servers and with all settings of a session, and it
    calls no function of users, whatever type a column gets later.
    """
    inputs = [value for column in columns if (value := _row_id_input(column, row))]
    if not inputs:
        return sql.SQL("0::pg_catalog.int8")
    return sql.SQL("pg_catalog.hash_record_extended(ROW({}), 0)").format(sql.SQL(", ").join(inputs))


def _row_id_input(column: ColumnSpec, row: str) -> sql.Composable | None:
    kind = type_of(column)
    if kind.hash in ("value", "bytes") or kind.own_hash:
        return base_value(column, row)
    if kind.hash == "collated":
        return sql.SQL('{} COLLATE pg_catalog."C"').format(base_value(column, row))
    if kind.hash == "bpchar" or kind.json == "document":
        return sql.SQL('({}) COLLATE pg_catalog."C"').format(text_of(column, row))
    return None


def text_of(column: ColumnSpec, row: str = "") -> sql.Composed:
    """Return the expression of the exact text of the value, in the row `row`."""
    is_cast = is_scalar(column.type) or (is_built_in(column.type) and not column.is_domain)
    # The cast of bpchar to text would drop trailing blanks.
    if not is_cast or column.encoding == "bpchar":
        return output_of(_name(column, row))
    return sql.SQL("{}::pg_catalog.text").format(base_value(column, row))


def value_of(column: ColumnSpec, spec: TableSpec) -> sql.Composed:
    """Return the expression that fetches the value as text.

    If the value may be long, the text has a prefix: `v` and the value, or `h` and its length and sha256.
    """
    text = text_of(column)
    if not column.may_be_long:
        return text
    value = base_value(column) if column.is_bytea else text
    length = sql.SQL("octet_length({})").format(value)
    content = value if column.is_bytea else sql.SQL("convert_to({}, 'UTF8')").format(text)
    return sql.SQL(
        "CASE WHEN {length} > {limit} THEN 'h' || {length} || ':' || encode(sha256({content}), 'hex')"
        " ELSE 'v' || {text} END"
    ).format(length=length, limit=sql.Literal(spec.long_value), content=content, text=text)


def decode(column: ColumnSpec, fetched: str | None) -> Value:
    """Return the value of a text that `value_of` fetched."""
    if fetched is None or not column.may_be_long:
        return fetched
    if fetched[0] == "v":
        return fetched[1:]
    length, _, digest = fetched[1:].partition(":")
    return LongValue(int(length), digest)


def same(column: ColumnSpec, left: Value, right: Value, numeric: NumericRule) -> bool:
    """Return whether two fetched values are equal, as the row hash defines it."""
    if left == right:
        return True
    if column.encoding != "numeric" or numeric != "value":
        return False
    return isinstance(left, str) and isinstance(right, str) and trim_scale(left) == trim_scale(right)


def trim_scale(number: str) -> str:
    """Return the text of a number without trailing zeros after the decimal point."""
    return number.rstrip("0").rstrip(".") if "." in number else number
