"""Check whether a table can be compared on all nodes; report all reasons at once, each with node and object."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from psycopg import sql

from trueup.config.settings import ExpressionSettings
from trueup.db import catalog
from trueup.db.catalog import Column, Server, Table, same_databases
from trueup.db.connection import one_value
from trueup.db.expressions import Expression, examine
from trueup.db.names import display_name, table_spellings
from trueup.db.snapshot import Control
from trueup.errors import CheckFailed
from trueup.rows.encode import column_spec, key_order
from trueup.rows.keys import has_null, source, where
from trueup.rows.probe import choose_digest
from trueup.rows.request import TableRequest
from trueup.rows.spec import KeySpec, TableSpec, new_seed

OLDEST_VERSION = 130000
_FIX = "nothing was compared; fix the problems listed above and run again"


class OnlyByValue(CheckFailed):
    """Columns have different types, or it is a view or (in parts) foreign: it can be compared by value, and only so."""


# Of pg_class.relkind.
_BY_VALUE = ("v", "f")


@dataclass(frozen=True)
class Checked:
    """A table that can be compared: its specification, and remarks for the report."""

    spec: TableSpec
    # Key columns per node that may be NULL; only a key set with --key has any.
    nullable: Mapping[str, list[Column]]
    remarks: tuple[str, ...]


def check(controls: Sequence[Control], request: TableRequest) -> Checked:
    """Return how the table will be compared, or raise CheckFailed with every reason why it cannot be."""
    reasons: list[str] = []
    servers = {control.node.name: catalog.read_server(control.connection) for control in controls}
    reasons += check_servers(servers)
    tables, differing = _find_tables(controls, request.table, reasons)
    if len(tables) < len(controls):
        raise CheckFailed(reasons, cure="name a table that exists on all nodes")
    if differing and not reasons:
        # The key and the columns of views are checked there.
        raise OnlyByValue(differing, cure=_FIX)
    columns = _check_columns(tables, request, servers, reasons, differing)
    key, remarks = _check_key(tables, servers, request, columns, reasons)
    remarks += same_databases(servers)
    first = next(iter(tables.values()))
    spec = TableSpec(
        schema=first.schema,
        table=first.name,
        key=key,
        columns=tuple(column_spec(column) for column in columns),
        filter=request.filter,
        numeric="value" if request.settings.numeric == "value" else "representation",
        seed=new_seed(),
        long_value=request.settings.long_value,
        left_out=_left_out(tables, columns),
    )
    if not reasons and spec.filter:
        spec = _check_filter(controls, spec, request.expressions, reasons)
    if reasons or differing:
        kind = CheckFailed if reasons else OnlyByValue
        raise kind([*differing, *reasons], cure=_FIX)
    digest = choose_digest([control.connection for control in controls], request.settings.digest)
    if not request.settings.snapshot:
        remarks.append(
            "no snapshot: every statement read the data of its own time; a row whose key changed may be missed"
        )
    nullable = {node: _nullable(table, spec.key_names) for node, table in tables.items()}
    return Checked(replace(spec, digest=digest), nullable, tuple(remarks))


def check_servers(servers: Mapping[str, Server]) -> list[str]:
    """Return the reasons why no table of these databases can be compared."""
    reasons = [
        f"node {name}: PostgreSQL {server.version // 10000} is too old for the row hash: 13 or newer is needed"
        for name, server in servers.items()
        if server.version < OLDEST_VERSION
    ]
    encodings = {name: server.encoding for name, server in servers.items()}
    if len(set(encodings.values())) > 1:
        reasons.append(f"the databases' encodings differ: {_listed(encodings)}")
    reasons += [
        f"node {name}: with the encoding SQL_ASCII the characters of a text are unknown; it cannot be compared"
        for name, encoding in encodings.items()
        if encoding == "SQL_ASCII"
    ]
    return reasons


def _find_tables(controls: Sequence[Control], name: str, reasons: list[str]) -> tuple[dict[str, Table], list[str]]:
    """Return the table of each node, and the nodes on which it is a view or a foreign table.

    Adds a reason per node on which it does not exist or cannot be read.
    """
    spellings = table_spellings(name)
    tables: dict[str, Table] = {}
    for pair in spellings:
        tables = {}
        for control in controls:
            if (read := catalog.read_table(control.connection, *pair)) is not None:
                tables[control.node.name] = read
        if tables:
            break
    shown = display_name(*(pair if tables else spellings[0]))
    reasons += _by_node(
        {
            control.node.name: f"there is no table {shown}{catalog.nearest_table(control.connection, shown)}"
            for control in controls
            if control.node.name not in tables
        }
    )
    only_by_value: list[str] = []
    for node, table in tables.items():
        kind = table.kind
        if kind not in catalog.READABLE_KINDS:
            (only_by_value if kind in _BY_VALUE else reasons).append(
                f"node {node}: {shown} is {_a(catalog.OTHER_KINDS.get(kind, kind))}; "
                f"tables, partitioned tables and materialized views can be compared"
            )
        elif table.has_foreign:
            # Its rows may have NULL in any column and be outside of the bounds of the partition: no key cuts them.
            only_by_value.append(
                f"node {node}: a partition of {shown}, or a table that inherits from it, is foreign: it can be compared"
                " by value, in a diff or check of this table only"
            )
        if table.secured:
            reasons.append(f"node {node}: row security hides rows of {shown}; use its owner or a role with BYPASSRLS")
    return tables, only_by_value


def _check_columns(
    tables: Mapping[str, Table],
    request: TableRequest,
    servers: Mapping[str, Server],
    reasons: list[str],
    differing: list[str],
) -> list[Column]:
    """Return the columns to compare, in the order of the first node; add a reason per column that differs.

    Columns with different types are listed apart.
    """
    first_name, first = next(iter(tables.items()))
    shown = display_name(first.schema, first.name)
    reasons += _unknown_columns(tables, request)
    names = dict.fromkeys(column.name for table in tables.values() for column in table.columns)
    if request.columns:
        names = dict.fromkeys((*request.key, *_key_names(tables), *request.columns))
    chosen: list[Column] = []
    for name in names:
        if name in request.exclude_columns:
            continue
        on_nodes = {node: table.column(name) for node, table in tables.items()}
        lacking = [node for node, column in on_nodes.items() if column is None]
        if lacking:
            if len(lacking) < len(tables):
                reasons.append(
                    f"column {name} of {shown} is not on {_and(lacking)}; {_cure_for(name, tables, request)}"
                )
            continue
        columns = {node: column for node, column in on_nodes.items() if column is not None}
        types = {node: column.type for node, column in columns.items()}
        if len(set(types.values())) > 1:
            differing.append(f"column {name} of {shown} has different types: {_listed(types)}")
        definitions = {node: column.made_of or "" for node, column in columns.items()}
        if len(set(types.values())) == 1 < len(set(definitions.values())):
            # The texts of two values may be equal although their fields have different names.
            reasons.append(
                f"column {name} of {shown} has types of the same name with different definitions:"
                f" {_listed(definitions)}"
            )
        for node, column in columns.items():
            if not (column.readable and tables[node].usage):
                reasons.append(
                    f"node {node}: role {servers[node].role} may not SELECT column {name} of {shown};"
                    f" GRANT SELECT ON {shown} (and USAGE on its schema) to it"
                )
        chosen.append(columns[first_name])
    order = [column.name for column in first.columns]
    return sorted(chosen, key=lambda column: order.index(column.name))


def _cure_for(name: str, tables: Mapping[str, Table], request: TableRequest) -> str:
    """Return the cure for a column that a node lacks: without its key, a row is not known to be the same."""
    if name in (request.key or _keys_of_nodes(tables)):
        return "it is part of the key: name the other column in [compare.NAME.nodes.NODE.columns] (--map)"
    return "leave it out with --exclude-columns"


def _keys_of_nodes(tables: Mapping[str, Table]) -> dict[str, str]:
    """Return the columns of the primary keys of all nodes, each with a node; without primary keys, of all keys."""
    keys = [(node, key) for node, table in tables.items() for key in table.keys]
    chosen = [(node, key) for node, key in keys if key.is_primary] or keys
    return {column: node for node, key in reversed(chosen) for column in key.columns}


def _left_out(tables: Mapping[str, Table], compared: Sequence[Column]) -> tuple[str, ...]:
    """Return the columns that a node has, and that are not compared."""
    names = {column.name for column in compared}
    every = dict.fromkeys(column.name for table in tables.values() for column in table.columns)
    return tuple(name for name in every if name not in names)


def _unknown_columns(tables: Mapping[str, Table], request: TableRequest) -> list[str]:
    known = sorted({column.name for table in tables.values() for column in table.columns})
    reasons = []
    for option, names in (
        ("--columns", request.columns),
        ("--exclude-columns", request.exclude_columns),
        ("--key", request.key),
    ):
        for name in names:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]}?" if near else f"; the columns are {', '.join(known)}"
                reasons.append(f"{option}: there is no column {name}{hint}")
    return reasons


def _key_names(tables: Mapping[str, Table]) -> tuple[str, ...]:
    """Return the key that all nodes have: the primary key, else a unique index without NULLs."""
    first, *others = tables.values()
    for key in first.keys:
        same = [
            any(set(own.columns) == set(key.columns) and own.is_primary == key.is_primary for own in other.keys)
            for other in others
        ]
        if all(same):
            return key.columns
    return ()


def _check_key(
    tables: Mapping[str, Table],
    servers: Mapping[str, Server],
    request: TableRequest,
    columns: Sequence[Column],
    reasons: list[str],
) -> tuple[tuple[KeySpec, ...], list[str]]:
    shown = display_name(next(iter(tables.values())).schema, next(iter(tables.values())).name)
    names = request.key or _key_names(tables)
    remarks: list[str] = []
    excluded = [name for name in request.exclude_columns if name in (names or _keys_of_nodes(tables))]
    if excluded:
        reasons.append(f"--exclude-columns: {_and(excluded)} is part of the key")
        return (), remarks
    if not names:
        has_key = {node: [key.columns for key in table.keys] for node, table in tables.items() if table.keys}
        if has_key:
            keys = {node: " or ".join(f"({', '.join(key)})" for key in keys) for node, keys in has_key.items()}
            keyless = [node for node in tables if node not in has_key]
            tail = f"; none on {_and(keyless)}" if keyless else ""
            reasons.append(f"the keys of {shown} differ: {_listed(keys)}{tail}; choose one with --key")
        else:
            remarks.append("the table has no key: its rows are compared as a multiset, with full table scans")
            remarks += _doubtful_keys(tables)
        return (), remarks
    key: list[KeySpec] = []
    for name in names:
        chosen = next((column for column in columns if column.name == name), None)
        on_nodes = {node: table.column(name) for node, table in tables.items()}
        present = {node: column for node, column in on_nodes.items() if column is not None}
        if chosen is None or len(present) < len(tables):
            continue
        reasons += _check_collation(name, present, servers)
        order = key_order(list(present.values()))
        if order == "bytes":
            remarks.append(
                f"key column {name} is ordered by its text, because nodes may order its type differently: slow"
            )
        key.append(KeySpec(column_spec(chosen), order))
    return tuple(key), remarks


def _check_collation(name: str, columns: Mapping[str, Column], servers: Mapping[str, Server]) -> list[str]:
    """Return the reasons why nodes sort the key differently, which would put a row into different blocks."""
    reasons: list[str] = []
    sorts: dict[str, str] = {}
    for node, column in columns.items():
        if column.collation is None:
            continue
        server = servers[node]
        default = column.collation_is_default
        collation = server.collation if default else column.collation
        actual = server.collation_actual if default else column.collation_actual
        recorded = server.collation_version if default else column.collation_version
        sorts[node] = f"{collation} (version {actual})" if actual else collation
        if recorded and actual and recorded != actual:
            reasons.append(
                f"node {node}: the collation of key column {name} has version {actual} and was created with {recorded}:"
                f" its indexes may be out of order; REINDEX, then ALTER COLLATION (or DATABASE) … REFRESH VERSION"
            )
    if len(set(sorts.values())) > 1:
        reasons.append(f"the collations of key column {name} differ: {_listed(sorts)}")
    return reasons


def _check_filter(
    controls: Sequence[Control], spec: TableSpec, allowed: ExpressionSettings, reasons: list[str]
) -> TableSpec:
    """Return the table with the guard of its filter; add the reasons why the filter cannot be used."""
    # On every node: functions of the same name may differ.
    examined = {it.node.name: examine(it.connection, it.node, filter_of(spec), allowed) for it in controls}
    reasons += _by_node({node: one.reason for node, one in examined.items() if one.reason})
    guards = {node: one.guard for node, one in examined.items()}
    guard = guards[controls[0].node.name]
    if not reasons and len(set(guards.values())) > 1:
        # The columns have other types there: they may differ only as the guard allows.
        guarded = replace(spec, filter=f"{guard} AND (\n{spec.filter}\n)")
        differing = {it.node.name: examine(it.connection, it.node, filter_of(guarded), allowed) for it in controls}
        reasons += _by_node({node: one.reason for node, one in differing.items() if one.reason})
    return replace(spec, filter_guard=guard)


def filter_of(spec: TableSpec) -> Expression:
    """Return the filter of a table for the check of its functions."""
    table = sql.Identifier(spec.schema, spec.table)
    return Expression("filter", spec.filter, table, table=table.as_string())


def check_key_values(controls: Sequence[Control], spec: TableSpec, nullable: Mapping[str, list[Column]]) -> None:
    """Raise CheckFailed if a key column that may be NULL contains one: such a row would be in no block."""
    reasons = []
    for control in controls:
        columns = nullable[control.node.name]
        if not columns:
            continue
        # The index of a column may answer IS NULL; not if the column is NOT NULL by its definition.
        tests = [
            has_null([column.name]) if column.not_null else sql.SQL("{} IS NULL").format(sql.Identifier(column.name))
            for column in columns
        ]
        query = sql.SQL("SELECT EXISTS (SELECT FROM {}{})").format(
            source(spec), where(spec, sql.SQL("({})").format(sql.SQL(" OR ").join(tests)))
        )
        if one_value(control.connection.execute(query, binary=True)):
            names = _and([column.name for column in columns])
            reasons.append(f"node {control.node.name}: --key: rows have NULL in {names}; a key may not be NULL")
    if reasons:
        raise CheckFailed(reasons, cure="choose columns without NULLs with --key")


def _nullable(table: Table, names: Sequence[str]) -> list[Column]:
    """Return those of these columns in which a row may have NULL."""
    return [column for name in names if (column := table.column(name)) is not None and not column.never_null]


def _doubtful_keys(tables: Mapping[str, Table]) -> list[str]:
    """Return a remark if a unique index would be the key, but rows may have NULL in it."""
    keys = {node: table.doubtful[0].columns for node, table in tables.items() if table.doubtful}
    if not keys:
        return []
    columns = next(iter(keys.values()))
    return [
        f"the unique index over ({', '.join(columns)}) is no key on {_and(list(keys))}: NOT NULL is NOT VALID there, or"
        f" does not hold in tables that inherit; name it with --key {','.join(columns)}, which asks all rows"
    ]


def _listed(by_node: Mapping[str, str]) -> str:
    return ", ".join(f"{value} on {node}" for node, value in by_node.items())


def _and(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _a(thing: str) -> str:
    return f"{'an' if thing[0] in 'aeiou' else 'a'} {thing}"


def _by_node(reasons: Mapping[str, str]) -> list[str]:
    """Return one line per reason, with all nodes that it applies to."""
    nodes: dict[str, list[str]] = {}
    for node, text in reasons.items():
        nodes.setdefault(text, []).append(node)
    return [f"node{'s' * (len(names) > 1)} {_and(names)}: {text}" for text, names in nodes.items()]
