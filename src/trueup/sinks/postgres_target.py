"""The target table of a PostgreSQL sink: created from the columns of the source, or checked and extended."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from trueup.db.casts import is_scalar
from trueup.db.catalog import Column, Table, read_table
from trueup.db.connection import Connection, one_value
from trueup.db.foreign_code import FOREIGN_CODE_CURE, foreign_code
from trueup.db.names import display_name, parse_table_name
from trueup.db.statements import load
from trueup.db.table_lock import in_short_attempts
from trueup.errors import CheckFailed
from trueup.rows.encode import base_value, column_spec, equality, text_of
from trueup.rows.spec import ColumnSpec
from trueup.rows.types import type_from_sql
from trueup.rows.write.target import identifier
from trueup.sinks.base import SourceTable

if TYPE_CHECKING:
    from typing_extensions import LiteralString

_log = logging.getLogger(__name__)

# Columns of each row: its shard, and number and time of its mark.
MARKS = ("trueup_shard", "trueup_seq", "trueup_at")


@dataclass(frozen=True)
class KeyColumn:
    """A key column of the target: its type as the server writes it, and how it is compared."""

    name: str
    type: str
    spec: ColumnSpec
    # The operator for literals of the base type; None: only the texts are compared.
    operator: str | None

    def equal(self, text: sql.Composable) -> sql.Composed:
        """Return the condition that finds rows of the table t by the text of the key, through the index.

        The text is compared too: numeric 1.0 and 1.00 are equal, but different documents.
        """
        same_text = sql.SQL("{} = {}").format(self.text, text)
        if self.operator is None:
            return same_text
        return sql.SQL("{} {} {}::{} AND {}").format(
            base_value(self.spec, "t"), sql.SQL(self.operator), text, sql.SQL(self.spec.type), same_text
        )

    @property
    def text(self) -> sql.Composed:
        """Return the text of the column in the table t."""
        if is_scalar(self.spec.type):
            return sql.SQL('{}::text COLLATE "C"').format(base_value(self.spec, "t"))
        return sql.SQL('{} COLLATE "C"').format(text_of(self.spec, "t"))

    @property
    def ordered(self) -> sql.Composable:
        """Return the order of pages: the column, or its text if its type is not built in."""
        return base_value(self.spec, "t") if is_scalar(self.spec.type) else self.text

    def edge(self, placeholder: str) -> sql.Composed:
        """Return a text parameter as a value that can be compared with `ordered`."""
        text = sql.SQL("{}::text").format(sql.Placeholder(placeholder))
        return sql.SQL("{}::{}").format(text, sql.SQL(self.spec.type)) if is_scalar(self.spec.type) else text


@dataclass(frozen=True)
class Target:
    """The target of a source table: its key, and source column, target column and type of all columns, key first."""

    source: SourceTable
    schema: str
    table: str
    columns: tuple[tuple[str, str, str], ...]
    key: tuple[KeyColumn, ...]
    routed: bool

    @property
    def name(self) -> sql.Composable:
        """Return the name for statements."""
        return identifier(self.schema, self.table)

    @property
    def staged(self) -> tuple[str, ...]:
        """The columns of the staging table: those that are copied, and the shard."""
        return (*(to for _, to, _ in self.columns), MARKS[0])

    @property
    def arbiter(self) -> tuple[str, ...]:
        """Return the columns that identify a row. The shard is last, so that pages can follow the index."""
        return (*(column.name for column in self.key), *((MARKS[0],) if self.routed else ()))


def ensure_target(
    connection: Connection, source: SourceTable, name: tuple[str, str], mapping: Mapping[str, str], *, routed: bool
) -> Target:
    """Create or check the target of a source table and return it."""
    schema, table = name
    columns = source_columns(source, mapping)
    _check_is_no_source(connection, source, schema, table)
    current = read_table(connection, schema, table)
    if current is None:
        _create(connection, source, schema, table, columns, routed=routed)
    elif current.kind not in ("r", "p"):
        raise _refused(schema, table, ["it is not a table"])
    else:
        _add_missing(connection, source, current, columns, may_add=not mapping)
    if reasons := foreign_code(connection, schema, table, writes=True):
        raise CheckFailed(reasons, cure=FOREIGN_CODE_CURE)
    current = read_table(connection, schema, table)
    assert current is not None
    return _checked(source, current, columns, routed=routed)


def statements() -> dict[str, LiteralString]:
    """Return the statements of the sink."""
    return load("trueup.sinks", "postgres.sql")


def target_name(source: SourceTable, pattern: str) -> tuple[str, str]:
    """Return schema and name of a target; `{schema}` and `{table}` of the pattern are those of the source."""
    schema, table = (part.text for part in parse_table_name(source.table))
    filled = [part.text.format(schema=schema, table=table) for part in parse_table_name(pattern)]
    return filled[0], filled[1]


def source_columns(source: SourceTable, mapping: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return source column, target column and source type, without the marks of a table that is itself a sink."""
    types = dict(source.columns)
    unknown = sorted(set(mapping) - set(types))
    lacking = sorted(set(source.key) - set(mapping)) if mapping else []
    if unknown or lacking:
        raise CheckFailed(
            [f"{source.table} has no column {name}" for name in unknown]
            + [f"the key column {name} is not mapped" for name in lacking],
            cure="use map=source:target,… with all key columns",
        )
    if mapping:
        return [(name, to, types[name]) for name, to in mapping.items()]
    return [(name, name, kind) for name, kind in source.columns if name not in MARKS]


def _check_is_no_source(connection: Connection, source: SourceTable, schema: str, table: str) -> None:
    """Raise CheckFailed if the target is attached to a tube: a sink that writes to its own source never ends."""
    if tuple(part.text for part in parse_table_name(source.table)) != (schema, table):
        return
    name = identifier(schema, table).as_string(connection)
    if one_value(connection.execute(statements()["is_attached"], {"table": name})):
        raise CheckFailed(
            [f"the target {display_name(schema, table)} is attached to a tube: it may be the source"],
            cure="use another table: ?table=copy.{table}",
        )


def _create(
    connection: Connection,
    source: SourceTable,
    schema: str,
    table: str,
    columns: list[tuple[str, str, str]],
    *,
    routed: bool,
) -> None:
    known = _known_types(connection, [kind for _, _, kind in columns])
    names = {column[0]: column[1] for column in columns}
    key = [names[name] for name in source.key] + ([MARKS[0]] if routed else [])
    # Without IF NOT EXISTS, which would accept anything of this name. Another worker of the tube may have been faster:
    # the caller checks the table in any case.
    with suppress(psycopg.errors.DuplicateSchema, psycopg.errors.UniqueViolation), connection.transaction():
        if not one_value(connection.execute("SELECT to_regnamespace(quote_ident(%s))", [schema])):
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
    with suppress(psycopg.errors.DuplicateTable, psycopg.errors.UniqueViolation), connection.transaction():
        connection.execute(
            sql.SQL(statements()["create"]).format(
                target=sql.Identifier(schema, table),
                columns=defined((to, known[kind]) for _, to, kind in columns),
                key=sql.SQL(", ").join(sql.Identifier(name) for name in key),
            )
        )


def _add_missing(
    connection: Connection, source: SourceTable, current: Table, columns: list[tuple[str, str, str]], *, may_add: bool
) -> None:
    existing = {column.name for column in current.columns}
    missing = [(to, kind) for _, to, kind in columns if to not in existing]
    if missing and (not may_add or {to for to, _ in missing} & set(source.key)):
        raise _refused(current.schema, current.name, [f"it has no column {to}" for to, _ in missing])
    known = _known_types(connection, [kind for _, kind in missing])
    name = sql.Identifier(current.schema, current.name)
    changes: list[sql.Composable] = [
        sql.SQL("ALTER TABLE {} ADD COLUMN IF NOT EXISTS {}").format(name, defined([(to, known[kind])]))
        for to, kind in missing
    ]
    if not existing.issuperset(MARKS):
        changes.append(sql.SQL(statements()["add_marks"]).format(target=name))
    for change in changes:
        in_short_attempts(connection, partial(connection.execute, change))
    for to, _ in missing:
        _log.info("column %s was added to the target %s", to, display_name(current.schema, current.name))


def _known_types(connection: Connection, types: list[str]) -> dict[str, str]:
    """Return the target types of source types; text for types that do not exist in the target (an enum, a domain)."""
    rows = connection.execute(statements()["types"], {"types": types}).fetchall()
    return {kind: kind if known else "text" for kind, (known,) in zip(types, rows, strict=True)}


def _checked(source: SourceTable, current: Table, columns: list[tuple[str, str, str]], *, routed: bool) -> Target:
    existing = {column.name: column for column in current.columns}
    places = {name: place for place, name in enumerate(source.key)}
    columns = sorted(columns, key=lambda column: places.get(column[0], len(places)))
    kept = [(name, to, existing[to].type) for name, to, _ in columns if not existing[to].generated]
    names, kinds = {name: to for name, to, _ in kept}, dict(source.columns)
    reasons = [f"its key column {name} is generated" for name in source.key if name not in names]
    key = tuple(_key_column(existing[names[name]]) for name in source.key if name in names)
    reasons += [
        f"its key column {column.name} is {column.type}, but {kinds[name]} in the source: the texts of keys may differ"
        for name, column in zip(source.key, key, strict=False)
        if not _same_text(kinds[name], column.type)
    ]
    reasons += [
        f"its column {to} is {kind}, but {kinds[name]} in the source: values would be rounded"
        for name, to, kind in kept
        if rounds(kinds[name], kind)
    ]
    target = Target(source, current.schema, current.name, tuple(kept), key, routed)
    if not any(set(unique_key.columns) == set(target.arbiter) for unique_key in current.keys):
        reasons.append(f"it has no unique index over exactly ({', '.join(target.arbiter)}), NOT NULL")
    if reasons:
        raise _refused(current.schema, current.name, reasons)
    return target


def _key_column(column: Column) -> KeyColumn:
    spec = column_spec(column)
    # In statements with parameters, a percent sign is doubled.
    quoted = replace(spec, name=spec.name.replace("%", "%%"), type=spec.type.replace("%", "%%"))
    return KeyColumn(column.name, column.type, quoted, (equality(column) or "").replace("%", "%%") or None)


def rounds(source: str, target: str) -> bool:
    """Whether the server rounds or cuts values of one type, without an error, when they are stored in the other."""
    (base, digits), (to, limit) = (_type_and_digits(name) for name in (source, target))
    if base == to:
        # Digits after the point; None: unlimited.
        return limit is not None and (digits is None or digits > limit)
    if base.startswith("timestamp"):
        return to in ("date", "timestamp without time zone")
    if not type_from_sql(to).is_float:
        return (base, to) == ("numeric", "money")
    # Integers of this many bytes fit into a floating point number.
    exact_bytes = 2 if to == "real" else 4
    kind = type_from_sql(base)
    return base == "numeric" or kind.integer_bytes > exact_bytes or (kind.is_float and to == "real")


def _type_and_digits(name: str) -> tuple[str, int | None]:
    """Return a type without its digits, and the digits after the point of a numeric or of seconds."""
    found = re.search(r"\(([\d, -]+)\)", name)
    base = re.sub(r"\([^)]*\)", "", name)
    if not re.match(r"numeric|time|interval", base) or found is None:
        return base, None
    numbers = [int(number) for number in found.group(1).split(",")]
    return base, numbers[-1] if len(numbers) == 2 or not base.startswith("numeric") else 0


def _same_text(source: str, target: str) -> bool:
    """Whether a key has the same text in both types. Rows to delete are found by this text."""
    if source.partition("(")[0] == target.partition("(")[0] or type_from_sql(target).hash == "collated":
        return True
    return all(type_from_sql(name).integer_bytes for name in (source, target))


def defined(columns: Iterable[tuple[str, str]]) -> sql.Composed:
    """Columns and their types, for a statement without parameters."""
    return sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind))  # type: ignore[arg-type, unused-ignore]
        for name, kind in columns
    )


def _refused(schema: str, table: str, reasons: list[str]) -> CheckFailed:
    name = display_name(schema, table)
    return CheckFailed(
        [f"the table {name} cannot store the rows: {reason}" for reason in reasons],
        cure="change the table, or use another one (?table=…), which trueup creates",
    )
