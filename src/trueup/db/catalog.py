"""What a table is on one node: columns, types, keys, rights, and the planner's idea of its size.

All of it is read from `pg_catalog`: the views of `information_schema` hide keys from a role that only may SELECT.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from psycopg import sql
from psycopg.rows import dict_row

from trueup.db.connection import Connection, one_row
from trueup.db.names import display_name
from trueup.db.statements import load

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
    """What a node's server and database are."""

    version: int
    encoding: str
    role: str
    identity: str
    collation: str
    collation_version: str | None
    collation_actual: str | None


@dataclass(frozen=True)
class Column:
    """One column; `base_*` speak of the type below any domain."""

    name: str
    type: str
    base_schema: str
    base_name: str
    base_type: str
    base_kind: str
    length: int
    # Whether the role may write a literal of the type: its schema may be closed while the table is open.
    nameable: bool
    is_domain: bool
    not_null: bool
    generated: str
    readable: bool
    collation: str | None
    collation_version: str | None
    collation_actual: str | None
    collation_is_default: bool
    labels: tuple[str, ...]
    # How composites, domains and ranges of the type are made; None where there are none.
    made_of: str | None = None
    # Of an identity column: a (always) or d (by default).
    identity: str = ""


@dataclass(frozen=True)
class Key:
    """Columns that name a row: the primary key, or a unique index over NOT NULL columns."""

    columns: tuple[str, ...]
    is_primary: bool


@dataclass(frozen=True)
class Table:
    """One table on one node, as far as the role may know it."""

    schema: str
    name: str
    oid: int
    kind: str
    usage: bool
    secured: bool
    columns: tuple[Column, ...]
    keys: tuple[Key, ...]

    def column(self, name: str) -> Column | None:
        """The column of that name, or None."""
        return next((column for column in self.columns if column.name == name), None)


@dataclass(frozen=True)
class Listed:
    """A table or view of a database, as a list of them shows it."""

    schema: str
    name: str
    kind: str
    is_partition: bool
    # Tables that trueup keeps for itself, which are never the same on two nodes.
    is_ours: bool
    bytes: int


def read_server(connection: Connection) -> Server:
    """Version, encoding, role and default collation of the database behind a connection."""
    row = _rows(connection, "server", {})[0]
    actual = row["collation_version"]
    if row["version"] >= 150000:
        found = connection.execute(
            "SELECT pg_database_collation_actual_version(oid) FROM pg_database WHERE datname = current_database()"
        ).fetchone()
        actual = found[0] if found else None
    return Server(collation_actual=actual, **row)


def same_databases(servers: Mapping[str, Server]) -> list[str]:
    """Two names for one database would match whatever is in it."""
    places: dict[str, list[str]] = {}
    for name, server in servers.items():
        places.setdefault(server.identity, []).append(name)
    shared = [names for names in places.values() if len(names) > 1]
    return [f"{', '.join(most)} and {last} are one and the same database" for *most, last in shared]


def read_table(connection: Connection, schema: str, table: str) -> Table | None:
    """The table of exactly that name, or None."""
    found = _rows(connection, "relation", {"schema": schema, "table": table})
    if not found:
        return None
    relation = found[0]
    oid = relation["oid"]
    columns = [
        Column(**{**row, "labels": tuple(row["labels"] or ())}) for row in _rows(connection, "columns", {"oid": oid})
    ]
    keys = [Key(tuple(row["columns"]), row["is_primary"]) for row in _rows(connection, "keys", {"oid": oid})]
    return Table(
        schema,
        table,
        oid,
        relation["relkind"],
        relation["usage"],
        relation["secured"],
        tuple(columns),
        tuple(keys),
    )


def list_tables(connection: Connection) -> list[Listed]:
    """Every table and view of a database but the system's."""
    return [Listed(**row) for row in _rows(connection, "tables_and_views", {})]


def schema_names(connection: Connection) -> tuple[str, ...]:
    """The schemas of a database, without the system's."""
    query = "SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' ORDER BY 1"
    return tuple(row[0] for row in connection.execute(query))


def table_names(connection: Connection) -> list[tuple[str, str]]:
    """Schema and name of the tables of a database, to suggest the one that was meant."""
    return [(row["nspname"], row["relname"]) for row in _rows(connection, "similar_tables", {})]


def nearest_table(connection: Connection, shown: str) -> str:
    """The table that was meant: a like name in the same schema, else the very name in another one."""
    schema, _, table = shown.rpartition(".")
    known = [(display_name(*pair).rpartition(".")) for pair in table_names(connection)]
    near = difflib.get_close_matches(table, [name for place, _, name in known if place == schema], n=1)
    meant = [f"{schema}.{name}" for name in near] or [f"{place}.{name}" for place, _, name in known if name == table]
    return f" (did you mean {' or '.join(meant[:3])}?)" if meant else ""


def estimate_rows(connection: Connection, source: sql.Composed) -> int:
    """The planner's estimate of the rows of `source` (what stands behind FROM), scaled to the file's size of now."""
    # Without parameters: with them, a % in a name would be read as a placeholder.
    row = one_row(connection.execute(sql.SQL("EXPLAIN (FORMAT JSON) SELECT 1 FROM {}").format(source)))
    plan = row[0] if not isinstance(row[0], str) else json.loads(row[0])
    return int(plan[0]["Plan"]["Plan Rows"])


def correlation(connection: Connection, schema: str, table: str, column: str) -> float | None:
    """How a column's order goes with the order of rows on disk: 1 or -1 in order, 0 at random; None: not known."""
    row = connection.execute(
        "SELECT correlation FROM pg_stats WHERE schemaname = %s AND tablename = %s AND attname = %s AND NOT inherited",
        (schema, table, column),
    ).fetchone()
    return None if row is None or row[0] is None else float(row[0])


def _rows(connection: Connection, block: str, values: dict[str, object]) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(load("trueup.db", "catalog.sql")[block], values).fetchall()
