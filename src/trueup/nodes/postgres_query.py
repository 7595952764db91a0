"""A query as a relation of a PostgreSQL node: its columns, and its check before it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import psycopg
from psycopg import pq, sql

from trueup.config.model import Node
from trueup.config.settings import ExpressionSettings
from trueup.db.catalog import Column, Table
from trueup.db.connection import Connection
from trueup.db.expressions import Expression, examine
from trueup.db.node import error_from_server
from trueup.errors import CheckFailed

# The kind of a relation that is a query.
QUERY = "q"
_TYPES = """
    SELECT t.oid, format_type(t.oid, nullif(m.mod, -1)), n.nspname, t.typname, format_type(t.oid, NULL), t.typtype,
           t.typlen
      FROM unnest(%s::oid[], %s::int4[]) m(oid, mod)
      JOIN pg_type t USING (oid) JOIN pg_namespace n ON n.oid = t.typnamespace
"""


def check_query(connection: Connection, node: Node, text: str, allowed: ExpressionSettings) -> None:
    """Raise CheckFailed if a query of the user calls functions that are not allowed; views are looked into."""
    examined = examine(connection, node, Expression("the query", text, form="query"), allowed)
    if examined.reason:
        cure = "change the query, or allow its functions with --allow-functions"
        raise CheckFailed([f"node {node.name}: {examined.reason}"], cure=cure)


def read_query(connection: Connection, node: Node, text: str) -> Table:
    """Return a query that was checked as a relation; only parses it."""
    # On its own line, because it may end with a comment.
    statement = sql.SQL("SELECT * FROM (\n{}\n) q").format(sql.SQL(text))
    for result in (
        connection.pgconn.prepare(b"", statement.as_bytes(connection)),
        described := connection.pgconn.describe_prepared(b""),
    ):
        if result.status != pq.ExecStatus.COMMAND_OK:
            error: psycopg.Error = psycopg.errors.error_from_result(result, encoding="utf-8")
            raise error_from_server(error, node)
    encoding = connection.info.encoding
    names = [(described.fname(number) or b"").decode(encoding) for number in range(described.nfields)]
    oids = [described.ftype(number) for number in range(described.nfields)]
    mods = [described.fmod(number) for number in range(described.nfields)]
    types = {row[0]: row[1:] for row in connection.execute(_TYPES, [oids, mods]).fetchall()}
    if twice := {name for name in names if names.count(name) > 1}:
        reason = f"node {node.name}: the query has several columns with the name {min(twice)}"
        raise CheckFailed([reason], cure="name them with AS")
    columns = tuple(_column(name, types[oid]) for name, oid in zip(names, oids, strict=True))
    return Table("", "query", 0, QUERY, True, False, columns, ())


def _column(name: str, kind: Sequence[str | int]) -> Column:
    shown, schema, base_name, base, base_kind, length = kind
    return Column(
        name=name,
        type=str(shown),
        base_schema=str(schema),
        base_name=str(base_name),
        base_type=str(base),
        base_kind=str(base_kind),
        length=int(length),
        nameable=True,
        trusted=False,
        is_domain=False,
        not_null=False,
        generated="",
        readable=True,
        collation=None,
        collation_version=None,
        collation_actual=None,
        collation_is_default=True,
        labels=(),
    )


def with_expressions(table: Table, expressions: Mapping[str, str]) -> str:
    """Return the query of a table with expressions as columns; they replace columns of the same name."""
    kept = [sql.Identifier("t", column.name) for column in table.columns if column.name not in expressions]
    made = [sql.SQL("(\n{}\n) AS {}").format(sql.SQL(text), sql.Identifier(name)) for name, text in expressions.items()]
    statement = sql.SQL("SELECT {} FROM {} t").format(
        sql.SQL(", ").join([*kept, *made]), sql.Identifier(table.schema, table.name)
    )
    return statement.as_string(None)
