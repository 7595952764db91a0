"""Parts of a table by page number, for tables without a key; valid within a snapshot, in which rows do not move."""

from __future__ import annotations

from psycopg import sql

from trueup.db.connection import Connection, one_value
from trueup.rows.spec import TableSpec


def on_pages(first: int, end: int | None) -> list[sql.Composable]:
    """Return the conditions that select the rows on the pages from `first` up to `end` (None: to the last)."""
    conditions: list[sql.Composable] = []
    if first:
        conditions.append(sql.SQL("ctid >= {}::tid").format(sql.Literal(f"({first},0)")))
    if end is not None:
        conditions.append(sql.SQL("ctid < {}::tid").format(sql.Literal(f"({end},0)")))
    return conditions


def page_count(connection: Connection, spec: TableSpec) -> int:
    """Return the number of pages of the table, or of its largest partition: a part has the same pages of each."""
    pages = one_value(
        connection.execute(
            """SELECT max(pg_relation_size(p.relid)) / current_setting('block_size')::int8
             FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace,
                  LATERAL (SELECT c.oid AS relid UNION SELECT relid FROM pg_partition_tree(c.oid) WHERE isleaf) p
            WHERE n.nspname = %s AND c.relname = %s""",
            (spec.schema, spec.table),
        )
    )
    return int(pages or 0)
