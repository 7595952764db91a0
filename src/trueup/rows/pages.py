"""Parts of a table by its pages, where no key can cut it; only within a snapshot do rows stay on their pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg import sql

from trueup.rows.spec import TableSpec

if TYPE_CHECKING:
    from psycopg import sql

    from trueup.db.connection import Connection


def on_pages(first: int, end: int | None) -> list[sql.Composable]:
    """The conditions that hold for the rows on the pages from `first` up to `end` (None: to the last)."""
    conditions: list[sql.Composable] = []
    if first:
        conditions.append(sql.SQL("ctid >= {}::tid").format(sql.Literal(f"({first},0)")))
    if end is not None:
        conditions.append(sql.SQL("ctid < {}::tid").format(sql.Literal(f"({end},0)")))
    return conditions


def page_count(connection: Connection, spec: TableSpec) -> int:
    """The pages of the table, or of its largest partition: a part covers the same pages of every partition."""
    row: Any = connection.execute(
        """SELECT max(pg_relation_size(p.relid)) / current_setting('block_size')::int8
             FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace,
                  LATERAL (SELECT c.oid AS relid UNION SELECT relid FROM pg_partition_tree(c.oid) WHERE isleaf) p
            WHERE n.nspname = %s AND c.relname = %s""",
        (spec.schema, spec.table),
    ).fetchone()
    return int(row[0] or 0)
