"""Plan a read: find the table, choose its columns, split it into parts, and build the query of each part."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import psycopg
from psycopg import sql

from trueup.config.model import Node
from trueup.config.wording import suggest
from trueup.db import catalog
from trueup.db.arrow import View, check_replaced, snapshot_error
from trueup.db.catalog import Table
from trueup.db.connection import Connection, address_of, one_value
from trueup.db.expressions import examine
from trueup.db.names import display_name, table_spellings
from trueup.db.node import ALLOW_VIEWS, connect, error_from_server
from trueup.errors import CheckFailed, TrueupError
from trueup.rows.comparable import filter_of
from trueup.rows.cuts import first_keys, sampling
from trueup.rows.encode import column_spec, key_order
from trueup.rows.keys import chain, in_block, source, where
from trueup.rows.pages import on_pages, page_count
from trueup.rows.spec import KeySpec, TableSpec
from trueup.spark.table.columns import Fetched, fetched
from trueup.spark.table.options import SourceOptions

APPLICATION = "trueup source"
_VIEW_KINDS = {"v", "f"}
_MAX_PARTS = 10_000
_REPLACED = """SELECT count(*) FROM pg_class c
 WHERE c.oid IN (SELECT {oid}::oid UNION SELECT relid FROM pg_partition_tree({oid}::oid))
   AND c.relfilenode <> 0 AND c.relfilenode IS DISTINCT FROM pg_relation_filenode(c.oid)"""


@dataclass(frozen=True)
class Scan:
    """What all parts of a read share; it is pickled for the executors, with the address of the node."""

    node: Node
    table: str
    columns: tuple[Fetched, ...]
    view: View | None
    # Whether the user named a view or a foreign table.
    is_view: bool
    unfit: str
    batch_bytes: int


@dataclass(frozen=True)
class Part:
    """One partition of a read: its query, and its name in messages."""

    query: str
    name: str


def columns_of(options: SourceOptions) -> tuple[Fetched, ...]:
    """Return the columns of a read with their default types, or as text for the option `as_text`."""
    with _opened(options) as (_, table):
        return _columns(table, options, None)


def plan(options: SourceOptions, types: Mapping[str, str]) -> tuple[Scan, list[Part]]:
    """Return the read of the columns of `types` with these Spark types, and its parts."""
    with _opened(options) as (connection, table):
        columns = _columns(table, options, types)
        spec = _spec(table, options)
        spec = _check_filter(connection, options, spec)
        scan = Scan(
            node=Node(options.node.name, address_of(connection, application=APPLICATION)),
            table=display_name(table.schema, table.name),
            columns=columns,
            view=_view(options, table),
            is_view=table.kind in _VIEW_KINDS,
            unfit=options.unfit,
            batch_bytes=options.batch_bytes,
        )
        parts = _parts(connection, options, table, spec)
        return scan, [Part(_query(columns, spec, conditions), name) for name, conditions in parts]


@contextmanager
def _opened(options: SourceOptions) -> Iterator[tuple[Connection, Table]]:
    """Yield a session with the same snapshot as the read, and the table."""
    connection = connect(options.node, application=APPLICATION)
    shown: str | None = None
    try:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        if options.snapshot not in ("", "true"):
            try:
                connection.execute(f"SET TRANSACTION SNAPSHOT '{options.snapshot}'")
            except Exception as error:
                raise snapshot_error(options.snapshot, error_from_server(error, options.node)) from None
        table = _table(connection, options)
        shown = display_name(table.schema, table.name)
        if table.kind in _VIEW_KINDS:
            # Older servers do not have the setting.
            with suppress(psycopg.Error), connection.transaction():
                connection.execute(ALLOW_VIEWS)
        if (view := _view(options, table)) is not None:
            connection.execute(view.lock)
            check_replaced(one_value(connection.execute(view.replaced)), options.node, shown)
        yield connection, table
    except TrueupError:
        raise
    except Exception as error:
        raise error_from_server(error, options.node, table=shown) from None
    finally:
        connection.close()


def _table(connection: Connection, options: SourceOptions) -> Table:
    spellings = table_spellings(options.table)
    table = next((read for pair in spellings if (read := catalog.read_table(connection, *pair))), None)
    shown = display_name(*((table.schema, table.name) if table else spellings[0]))
    reason = ""
    if table is None:
        reason = f"there is no table {shown}{catalog.nearest_table(connection, shown)}"
    elif table.kind not in {*catalog.READABLE_KINDS, *_VIEW_KINDS}:
        reason = f"{shown} is not a table but a {catalog.OTHER_KINDS.get(table.kind, table.kind)}"
    elif not table.usage:
        reason = f"the role has no USAGE privilege on the schema of {shown}: GRANT USAGE ON SCHEMA to it"
    elif table.secured:
        reason = f"row security hides rows of {shown}; use its owner or a role with BYPASSRLS"
    elif catalog.read_server(connection).encoding == "SQL_ASCII":
        reason = "with the encoding SQL_ASCII of the database the characters of a text are unknown"
    if reason or table is None:
        raise CheckFailed([reason], cure="name a readable table", node=options.node.name)
    return table


def _columns(table: Table, options: SourceOptions, types: Mapping[str, str] | None) -> tuple[Fetched, ...]:
    names = list(types) if types is not None else options.columns or [column.name for column in table.columns]
    known = [column.name for column in table.columns]
    shown = display_name(table.schema, table.name)
    reasons: list[str] = []
    chosen: list[Fetched] = []
    for name in [*names, *options.as_text, *options.key]:
        if name not in known:
            reasons.append(f"{shown} has no column {name}. {suggest(name, known)}")
    for name in [name for name in names if name in known]:
        column = table.column(name)
        assert column is not None
        if not column.readable:
            reasons.append(f"the role may not SELECT column {name} of {shown}: grant it, or use the option columns")
        spark_type = types[name] if types is not None else None
        read = fetched(column, spark=spark_type, as_text=types is None and name in options.as_text)
        if read is None:
            default = fetched(column)
            assert default is not None
            reasons.append(
                f"column {name} of {shown} ({column.type}) cannot be read as {spark_type};"
                f" use the Spark type {default.spark} or string"
            )
        else:
            chosen.append(read)
    if reasons or not chosen:
        raise CheckFailed(reasons or [f"{shown} has no columns"], cure="see docs/datasource.md", node=options.node.name)
    return tuple(chosen)


def _spec(table: Table, options: SourceOptions) -> TableSpec:
    """Return the table with the key to split it by, or without a key if no index could be used for its ranges."""
    names = options.key or (table.keys[0].columns if table.keys else ())
    key: list[KeySpec] = []
    for name in names:
        column = table.column(name)
        assert column is not None
        if not column.never_null:
            raise CheckFailed(
                [f"option key: column {name} may be NULL, and rows with NULL would be in no key range"],
                cure="name columns whose NOT NULL is valid, also in tables that inherit, or remove the option",
                node=options.node.name,
            )
        if key_order([column]) == "type":
            key.append(KeySpec(column_spec(column)))
    if len(key) < len(names) or table.kind in _VIEW_KINDS or table.has_foreign:
        key = []
    return TableSpec(table.schema, table.name, tuple(key), columns=(), filter=options.filter)


def _check_filter(connection: Connection, options: SourceOptions, spec: TableSpec) -> TableSpec:
    """Return the table with the guard of its filter; raise CheckFailed if the filter cannot be used."""
    if not spec.filter:
        return spec
    examined = examine(connection, options.node, filter_of(spec), options.expressions)
    if examined.reason:
        cure = "write one SQL expression of PostgreSQL; allow its functions with the option allow_functions"
        raise CheckFailed([f"option {examined.reason}"], cure=cure, node=options.node.name)
    return replace(spec, filter_guard=examined.guard)


def _view(options: SourceOptions, table: Table) -> View | None:
    if options.snapshot in ("", "true"):
        return None
    lock = sql.SQL("SELECT 1 FROM {} LIMIT 0").format(sql.Identifier(table.schema, table.name))
    return View(options.snapshot, lock.as_string(None), _REPLACED.format(oid=table.oid))


_Conditions = Sequence[sql.Composable]


def _parts(
    connection: Connection, options: SourceOptions, table: Table, spec: TableSpec
) -> list[tuple[str, _Conditions]]:
    """Return name and conditions of each part: key ranges; without a key, pages within a snapshot; else one part."""
    one_part: list[tuple[str, _Conditions]] = [("", ())]
    if options.snapshot == "true" or options.partitions == 1:
        return one_part
    rows = catalog.estimate_rows(connection, source(spec) + where(spec))
    count = options.partitions or min(_MAX_PARTS, math.ceil(rows / options.rows_per_partition))
    if count <= 1:
        return one_part
    if spec.key:
        cuts = first_keys(connection, spec, count, sampling(connection, spec, rows, count))
        return [(str(block), in_block(spec, block)) for block in chain(dict.fromkeys(cuts[1:]))]
    has_pages = table.kind not in _VIEW_KINDS and not table.has_foreign
    if options.snapshot and has_pages and connection.info.server_version >= 140000:
        pages = page_count(connection, spec)
        edges = sorted({pages * number // count for number in range(1, count)} - {0})
        return [
            (f"pages from {first}", on_pages(first, end))
            for first, end in zip([0, *edges], [*edges, None], strict=True)
        ]
    return one_part


def _query(columns: Sequence[Fetched], spec: TableSpec, conditions: _Conditions) -> str:
    expressions: list[sql.Composable] = [column.selected() for column in columns]
    expressions += [column.misfit() for column in columns if column.kind == "array"]
    selected = sql.SQL(", ").join(
        sql.SQL("{} AS {}").format(expression, sql.Identifier(f"c{number}"))
        for number, expression in enumerate(expressions)
    )
    query = sql.SQL("SELECT {} FROM {}{}").format(selected, source(spec), where(spec, *conditions))
    return query.as_string(None)
