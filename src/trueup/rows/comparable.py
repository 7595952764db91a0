"""The checks before any work: can these tables be compared at all? All reasons at once, naming node and object."""

from __future__ import annotations

import difflib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from psycopg import sql

from trueup.db import catalog
from trueup.db.catalog import Column, Server, Table, same_databases
from trueup.db.names import display_name, parse_table_name
from trueup.db.snapshot import Control
from trueup.errors import CheckFailed
from trueup.rows.encode import column_spec, key_order
from trueup.rows.filter import problem_with, refusal
from trueup.rows.keys import source, where
from trueup.rows.probe import choose_digest
from trueup.rows.request import TableRequest
from trueup.rows.spec import KeySpec, TableSpec

OLDEST_VERSION = 130000


@dataclass(frozen=True)
class Checked:
    """A table that can be compared: how, and remarks worth telling."""

    spec: TableSpec
    # Key columns that may be NULL (only a key given by hand has such).
    nullable: Mapping[str, list[str]]
    remarks: tuple[str, ...]


def check(controls: Sequence[Control], request: TableRequest) -> Checked:
    """All checks; returns what will be compared, or raises CheckFailed with every reason found."""
    reasons: list[str] = []
    servers = {control.node.name: catalog.read_server(control.connection) for control in controls}
    reasons += check_servers(servers)
    tables = _find_tables(controls, request, reasons)
    if len(tables) < len(controls):
        raise CheckFailed(reasons, cure="name a table that is on all nodes")
    columns = _check_columns(tables, request, servers, reasons)
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
        seed=secrets.randbits(62),
        long_value=request.settings.long_value,
    )
    if not reasons:
        reasons += _check_filter(controls, spec)
    if reasons:
        raise CheckFailed(reasons, cure="nothing was compared; mend what is named and run again")
    digest = choose_digest([control.connection for control in controls], spec, request.settings.digest)
    if not request.settings.snapshot:
        remarks.append(
            "no snapshot: every statement saw its own moment; a row whose key changed meanwhile may be unseen"
        )
    nullable = {node: [name for name in spec.key_names if not _not_null(table, name)] for node, table in tables.items()}
    return Checked(replace(spec, digest=digest), nullable, tuple(remarks))


def check_servers(servers: Mapping[str, Server]) -> list[str]:
    """Why no table of these databases could be compared."""
    reasons = [
        f"node {name}: PostgreSQL {server.version // 10000} is too old for the row hash: 13 or newer is needed"
        for name, server in servers.items()
        if server.version < OLDEST_VERSION
    ]
    encodings = {name: server.encoding for name, server in servers.items()}
    if len(set(encodings.values())) > 1:
        reasons.append(f"the databases' encodings differ: {_listed(encodings)}")
    reasons += [
        f"node {name}: the encoding SQL_ASCII says nothing about its characters; no comparison can be trusted"
        for name, encoding in encodings.items()
        if encoding == "SQL_ASCII"
    ]
    return reasons


def _find_tables(controls: Sequence[Control], request: TableRequest, reasons: list[str]) -> dict[str, Table]:
    """The table on each node; what is missing or cannot be read is added to the reasons."""
    schema, table = parse_table_name(request.table)
    spellings = [(s, t) for s in schema.spellings() for t in table.spellings()]
    found: dict[str, Table] = {}
    for pair in spellings:
        found = {}
        for control in controls:
            seen = catalog.read_table(control.connection, *pair)
            if seen is not None:
                found[control.node.name] = seen
        if found:
            break
    shown = display_name(*(pair if found else spellings[0]))
    reasons += _by_node(
        {
            control.node.name: f"there is no table {shown}{catalog.nearest_table(control.connection, shown)}"
            for control in controls
            if control.node.name not in found
        }
    )
    for name in found:
        kind = found[name].kind
        if kind not in catalog.READABLE_KINDS:
            reasons.append(
                f"node {name}: {shown} is {_a(catalog.OTHER_KINDS.get(kind, kind))}; "
                f"tables, partitioned tables and materialized views can be compared"
            )
        if found[name].secured:
            reasons.append(f"node {name}: row security hides rows of {shown}; use its owner or a role with BYPASSRLS")
    return found


def _check_columns(
    tables: Mapping[str, Table], request: TableRequest, servers: Mapping[str, Server], reasons: list[str]
) -> list[Column]:
    """The columns to compare, in the order of the first node; disagreements are added to the reasons."""
    first_name, first = next(iter(tables.items()))
    shown = display_name(first.schema, first.name)
    reasons += _unknown_columns(tables, request)
    wanted = {name: None for table in tables.values() for name in (column.name for column in table.columns)}
    if request.columns:
        wanted = dict.fromkeys((*request.key, *_key_names(tables), *request.columns))
    chosen: list[Column] = []
    for name in wanted:
        if name in request.exclude_columns:
            continue
        seen = {node: table.column(name) for node, table in tables.items()}
        lacking = [node for node, column in seen.items() if column is None]
        if lacking:
            if len(lacking) < len(tables):
                reasons.append(
                    f"column {name} of {shown} is not on {_and(lacking)}; leave it out with --exclude-columns"
                )
            continue
        columns = {node: column for node, column in seen.items() if column is not None}
        types = {node: column.type for node, column in columns.items()}
        if len(set(types.values())) > 1:
            reasons.append(f"column {name} of {shown} has different types: {_listed(types)}")
        made = {node: column.made_of or "" for node, column in columns.items()}
        if len(set(types.values())) == 1 < len(set(made.values())):
            # (1,2) as text says nothing where the fields have other names.
            reasons.append(f"column {name} of {shown} has types of one name, made differently: {_listed(made)}")
        for node, column in columns.items():
            if not (column.readable and tables[node].usage):
                reasons.append(
                    f"node {node}: role {servers[node].role} may not SELECT column {name} of {shown};"
                    f" GRANT SELECT ON {shown} (and USAGE on its schema) to it"
                )
        chosen.append(columns[first_name])
    order = [column.name for column in first.columns]
    return sorted(chosen, key=lambda column: order.index(column.name))


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
                hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
                reasons.append(f"{option}: there is no column {name}{hint}")
    return reasons


def _key_names(tables: Mapping[str, Table]) -> tuple[str, ...]:
    """The key that all nodes share: the primary key, else a unique index over NOT NULL columns."""
    first, *others = tables.values()
    for key in first.keys:
        same = [
            any(set(mine.columns) == set(key.columns) and mine.is_primary == key.is_primary for mine in other.keys)
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
    if not names:
        has_key = {node: [key.columns for key in table.keys] for node, table in tables.items() if table.keys}
        if has_key:
            found = {node: " or ".join(f"({', '.join(key)})" for key in keys) for node, keys in has_key.items()}
            bare = [node for node in tables if node not in has_key]
            tail = f"; none on {_and(bare)}" if bare else ""
            reasons.append(f"the keys of {shown} differ: {_listed(found)}{tail}; say which to use with --key")
        else:
            remarks.append("the table has no key: its rows are compared as a multiset, in full scans")
        return (), remarks
    excluded = [name for name in names if name in request.exclude_columns]
    if excluded:
        reasons.append(f"--exclude-columns: {_and(excluded)} is part of the key")
    key: list[KeySpec] = []
    for name in names:
        chosen = next((column for column in columns if column.name == name), None)
        seen = {node: table.column(name) for node, table in tables.items()}
        here = {node: column for node, column in seen.items() if column is not None}
        if chosen is None or len(here) < len(tables):
            continue
        reasons += _check_collation(name, here, servers)
        order = key_order(list(here.values()))
        if order == "bytes":
            remarks.append(
                f"key column {name} is ordered by its text, for its type's order is not the same everywhere: slow"
            )
        key.append(KeySpec(column_spec(chosen), order))
    return tuple(key), remarks


def _check_collation(name: str, columns: Mapping[str, Column], servers: Mapping[str, Server]) -> list[str]:
    """Nodes that sort a key differently would put a row into different blocks."""
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
                f"node {node}: the collation of key column {name} was made with version {recorded} and is now {actual}:"
                f" its indexes may be out of order; REINDEX, then ALTER COLLATION (or DATABASE) … REFRESH VERSION"
            )
    if len(set(sorts.values())) > 1:
        reasons.append(f"the collations of key column {name} differ: {_listed(sorts)}")
    return reasons


def _check_filter(controls: Sequence[Control], spec: TableSpec) -> list[str]:
    if not spec.filter:
        return []
    problem = problem_with(spec.filter)
    if problem:
        return [f"--table-filter is not one expression: {problem}"]
    refused = {control.node.name: refusal(control.connection, control.node, spec) for control in controls}
    return _by_node({node: f"--table-filter: {reason}" for node, reason in refused.items() if reason})


def check_key_values(controls: Sequence[Control], spec: TableSpec, nullable: Mapping[str, list[str]]) -> None:
    """A key by hand over nullable columns: rows with a NULL in it would fall out of every block."""
    reasons = []
    for control in controls:
        names = nullable[control.node.name]
        if not names:
            continue
        test = sql.SQL(" OR ").join(sql.SQL("{} IS NULL").format(sql.Identifier(name)) for name in names)
        query = sql.SQL("SELECT EXISTS (SELECT FROM {}{})").format(
            source(spec), where(spec, sql.SQL("({})").format(test))
        )
        row: Any = control.connection.execute(query, binary=True).fetchone()
        if row[0]:
            reasons.append(
                f"node {control.node.name}: --key: there are rows with NULL in {_and(names)}; a key may not be NULL"
            )
    if reasons:
        raise CheckFailed(reasons, cure="name columns without NULLs with --key")


def _not_null(table: Table, name: str) -> bool:
    column = table.column(name)
    return column is not None and column.not_null


def _listed(by_node: Mapping[str, str]) -> str:
    return ", ".join(f"{value} on {node}" for node, value in by_node.items())


def _and(names: Sequence[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _a(thing: str) -> str:
    return f"{'an' if thing[0] in 'aeiou' else 'a'} {thing}"


def _by_node(told: Mapping[str, str]) -> list[str]:
    """What was found on some nodes, said once for all nodes of which it is true."""
    nodes: dict[str, list[str]] = {}
    for node, text in told.items():
        nodes.setdefault(text, []).append(node)
    return [f"node{'s' * (len(names) > 1)} {_and(names)}: {text}" for text, names in nodes.items()]
