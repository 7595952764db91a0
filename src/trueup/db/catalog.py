"""Read a table from the catalog of a node: columns, types, keys, privileges, and the estimated number of rows.

All is read from `pg_catalog`: the views of `information_schema` hide keys from a role with SELECT privilege only.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from psycopg import sql
from psycopg.rows import dict_row

from trueup.db.connection import Connection, one_row
from trueup.db.foreign_code import FOREIGN_CODE_CURE, foreign_code_of
from trueup.db.foreign_keys import TableName
from trueup.db.names import display_name
from trueup.db.statements import load
from trueup.errors import CheckFailed

READABLE_KINDS = {"r": "table", "p": "partitioned table", "m": "materialized view"}
OTHER_KINDS = {
    "v": "view",
    "f": "foreign table",
    "S": "sequence",
    "i": "index",
    "I": "index",
    "c": "type",
    "t": "TOAST table",
}


@dataclass(frozen=True)
class Server:
    """Version, encoding, role and collation of a node."""

    version: int
    encoding: str
    role: str
    identity: str
    collation: str
    collation_version: str | None
    collation_actual: str | None


@dataclass(frozen=True)
class Column:
    """One column; `base_*` describe the type below any domain."""

    name: str
    type: str
    base_schema: str
    base_name: str
    base_type: str
    base_kind: str
    length: int
    # Whether the role may use the name of the type: it may lack USAGE on its schema.
    nameable: bool
    # Whether the owner of the type is trusted, see `trust`.
    trusted: bool
    is_domain: bool
    not_null: bool
    generated: str
    readable: bool
    collation: str | None
    collation_version: str | None
    collation_actual: str | None
    collation_is_default: bool
    labels: tuple[str, ...] = ()
    # The equality operator, with its schema; None for types of pg_catalog, enums and other types without their own.
    equality: str | None = None
    # Definitions of the composites, domains and ranges in the type; None without any.
    made_of: str | None = None
    # For an identity column: a (always) or d (by default).
    identity: str = ""
    # Whether no row has NULL in it, which `not_null` does not say: see `row_facts` in catalog.sql.
    never_null: bool = False


@dataclass(frozen=True)
class Key:
    """Columns that identify a row: the primary key, or a unique index, over columns in which no row has NULL."""

    columns: tuple[str, ...]
    is_primary: bool


@dataclass(frozen=True)
class Table:
    """One table on one node, as far as the role can see it."""

    schema: str
    name: str
    oid: int
    kind: str
    usage: bool
    secured: bool
    columns: tuple[Column, ...]
    keys: tuple[Key, ...]
    # Unique indexes over columns that are NOT NULL by their definition, although rows may have NULL.
    doubtful: tuple[Key, ...] = ()
    # Whether the table, a partition or a table that inherits is foreign: then nothing that is defined needs to be true.
    has_foreign: bool = False

    def column(self, name: str) -> Column | None:
        """Return the column with that name, or None."""
        return next((column for column in self.columns if column.name == name), None)


@dataclass(frozen=True)
class Listed:
    """A table or view in a list of all tables of a database."""

    schema: str
    name: str
    kind: str
    is_partition: bool
    # Tables of trueup itself, which differ between nodes.
    is_ours: bool
    # As the server remembers them: 0 before the first ANALYZE or VACUUM.
    pages: int


def read_server(connection: Connection) -> Server:
    """Return version, encoding, role and default collation of the database of a connection."""
    row = _rows(connection, "server", {})[0]
    actual = row["collation_version"]
    if row["version"] >= 150000:
        row_actual = connection.execute(
            "SELECT pg_database_collation_actual_version(oid) FROM pg_database WHERE datname = current_database()"
        ).fetchone()
        actual = row_actual[0] if row_actual else None
    return Server(collation_actual=actual, **row)


def same_databases(servers: Mapping[str, Server]) -> list[str]:
    """Return a remark per database that several nodes share: a comparison with itself always matches."""
    by_identity: dict[str, list[str]] = {}
    for name, server in servers.items():
        by_identity.setdefault(server.identity, []).append(name)
    shared = [names for names in by_identity.values() if len(names) > 1]
    return [f"{', '.join(first)} and {last} are one and the same database" for *first, last in shared]


def read_table(connection: Connection, schema: str, table: str) -> Table | None:
    """Return the table with exactly that name, or None.

    Raise CheckFailed if the planner of a query over the table would run code of another role with superuser rights.
    """
    read = read_tables(connection, [(schema, table)]).get((schema, table))
    if isinstance(read, CheckFailed):
        raise read
    return read


def read_tables(connection: Connection, names: Iterable[TableName]) -> dict[TableName, Table | CheckFailed]:
    """Return the tables with exactly these names that exist; the error of `read_table` instead of a table."""
    wanted = list(names)
    relations = _rows(
        connection, "relations", {"schemas": [schema for schema, _ in wanted], "tables": [table for _, table in wanted]}
    )
    foreign = foreign_code_of(connection, [(row["schema"], row["name"]) for row in relations], writes=False)
    read: dict[TableName, Table | CheckFailed] = {
        name: CheckFailed(reasons, cure=FOREIGN_CODE_CURE, table=display_name(*name))
        for name, reasons in foreign.items()
    }
    usable = [row for row in relations if (row["schema"], row["name"]) not in read]
    columns: dict[int, list[Column]] = {row["oid"]: [] for row in usable}
    unique: dict[int, list[Key]] = {row["oid"]: [] for row in usable}
    oids: dict[str, object] = {"oids": list(columns)}
    facts = {row["relation"]: row for row in _rows(connection, "row_facts", oids)} if usable else {}
    for relation, column in _columns(connection, list(columns)) if usable else ():
        may_be_null = facts[relation]["has_foreign"] or column.name in facts[relation]["may_be_null"]
        columns[relation].append(replace(column, never_null=not may_be_null))
    for row in _rows(connection, "keys", oids) if usable else ():
        unique[row["relation"]].append(Key(tuple(row["columns"]), row["is_primary"]))
    for row in usable:
        oid, name = row["oid"], (row["schema"], row["name"])
        keys, doubtful = _keys(columns[oid], unique[oid])
        read[name] = Table(
            *name,
            oid,
            row["relkind"],
            row["usage"],
            row["secured"],
            tuple(columns[oid]),
            keys,
            doubtful,
            facts[oid]["has_foreign"],
        )
    return read


def _keys(columns: Iterable[Column], unique: Iterable[Key]) -> tuple[tuple[Key, ...], tuple[Key, ...]]:
    """Return the keys of a table, and the unique indexes that are keys only if its rows have no NULL in them."""
    never_null = {column.name for column in columns if column.never_null}
    declared = {column.name for column in columns if column.not_null}
    declared_keys = [key for key in unique if declared.issuperset(key.columns)]
    keys = tuple(key for key in declared_keys if never_null.issuperset(key.columns))
    return keys, tuple(key for key in declared_keys if key not in keys)


def _columns(connection: Connection, oids: list[int]) -> list[tuple[int, Column]]:
    """Return the columns of tables, each with the table."""
    rows = _rows(connection, "columns", {"oids": oids})
    types = {row["declared"] for row in rows if row.pop("has_details")}
    details: dict[int, dict[str, Any]] = {
        row.pop("declared"): {**row, "labels": tuple(row["labels"] or ())}
        for row in (_rows(connection, "type_details", {"types": list(types)}) if types else ())
    }
    return [(row.pop("relation"), Column(**{**details.get(row.pop("declared"), {}), **row})) for row in rows]


def list_tables(connection: Connection) -> list[Listed]:
    """Return all tables and views of a database, without system tables."""
    return [Listed(**row) for row in _rows(connection, "tables_and_views", {})]


def schema_names(connection: Connection) -> tuple[str, ...]:
    """Return the schemas of a database, without system schemas."""
    query = "SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' ORDER BY 1"
    return tuple(row[0] for row in connection.execute(query))


def table_names(connection: Connection) -> list[tuple[str, str]]:
    """Return schema and name of all tables of a database, for suggestions."""
    return [(row["nspname"], row["relname"]) for row in _rows(connection, "similar_tables", {})]


def nearest_table(connection: Connection, shown: str) -> str:
    """Return " (did you mean …?)" with a similar name in the same schema, else with the same name in another schema."""
    schema, _, table = shown.rpartition(".")
    known = [(display_name(*pair).rpartition(".")) for pair in table_names(connection)]
    near = difflib.get_close_matches(table, [name for other, _, name in known if other == schema], n=1)
    similar = [f"{schema}.{name}" for name in near]
    similar = similar or [f"{other}.{name}" for other, _, name in known if name == table]
    return f" (did you mean {' or '.join(similar[:3])}?)" if similar else ""


def estimate_rows(connection: Connection, source: sql.Composed) -> int:
    """Return the planner's estimate of the rows of `source` (a FROM clause), which takes the current file size."""
    # No parameters: with them, a % in a name would be a placeholder.
    row = one_row(connection.execute(sql.SQL("EXPLAIN (FORMAT JSON) SELECT 1 FROM {}").format(source)))
    plan = row[0] if not isinstance(row[0], str) else json.loads(row[0])
    return int(plan[0]["Plan"]["Plan Rows"])


def correlation(connection: Connection, schema: str, table: str, column: str) -> float | None:
    """Return the correlation of a column with the order of rows on disk: 1 or -1 in order, 0 random; None: unknown."""
    row = connection.execute(
        "SELECT correlation FROM pg_stats WHERE schemaname = %s AND tablename = %s AND attname = %s AND NOT inherited",
        (schema, table, column),
    ).fetchone()
    return None if row is None or row[0] is None else float(row[0])


def _rows(connection: Connection, block: str, values: dict[str, object]) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(load("trueup.db", "catalog.sql")[block], values).fetchall()
