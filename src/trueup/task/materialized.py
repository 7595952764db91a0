"""Materialized views are refreshed, and statistics collected, before applications use the target."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from trueup.config.model import Node
from trueup.db.connection import Connection
from trueup.db.foreign_keys import TableName
from trueup.db.names import display_name
from trueup.db.node import ALLOW_VIEWS, connect, error_from_server
from trueup.db.statements import load
from trueup.engine.progress import Progress

# Since this version there is a privilege to refresh views and to analyze tables of others.
_MAINTAIN_SINCE = 170000


def refresh(source: Connection, node: Node, application: str, progress: Progress) -> list[str]:
    """Refresh the materialized views that the source has too, in the order of their dependencies; return what was not.

    A view that has rows already is refreshed without a lock against readers, if it has a unique index. Its query runs
    with the rights of its owner. A view without rows on the source stays empty.
    """
    wanted = {(row["schema"], row["name"]) for row in _rows(source, "populated")}
    if not wanted:
        return []
    left: list[str] = []
    with _session(node, application) as target:
        # Outside of a transaction: older servers do not know the setting.
        with suppress(psycopg.errors.UndefinedObject):
            target.execute(ALLOW_VIEWS)
        target.execute("SET lock_timeout = 0")
        known = target.info.server_version >= _MAINTAIN_SINCE
        values = {"maintain": known, "privilege": "MAINTAIN" if known else "SELECT"}
        for row in _rows(target, "views", values):
            name = (row["schema"], row["name"])
            if name not in wanted:
                continue
            shown = display_name(*name)
            if not row["may_refresh"]:
                left.append(f"{shown} was not refreshed on {node.name}: the role is not its owner")
                continue
            progress.say(f"refreshing {shown}")
            try:
                _refresh(target, name, is_concurrent=row["is_concurrent"])
            except psycopg.Error as error:
                raise error_from_server(error, node, table=shown) from None
    return left


def populated(connection: Connection) -> list[str]:
    """Return the materialized views that have rows."""
    return [display_name(row["schema"], row["name"]) for row in _rows(connection, "populated")]


def _refresh(target: Connection, name: TableName, *, is_concurrent: bool) -> None:
    word = sql.SQL("CONCURRENTLY " if is_concurrent else "")
    view = sql.Identifier(*name)
    target.execute(sql.SQL("REFRESH MATERIALIZED VIEW {}{}").format(word, view))
    target.execute(sql.SQL("ANALYZE {}").format(view))


def analyze(node: Node, tables: Sequence[TableName], application: str, *, slots: int) -> None:
    """Collect the statistics of tables; those that the role may not analyze are left to autovacuum."""

    def analyze_one(table: TableName) -> None:
        try:
            with _session(node, application) as target:
                target.execute(sql.SQL("ANALYZE {}").format(sql.Identifier(*table)))
        except psycopg.Error as error:
            if error.sqlstate != "42501":
                raise error_from_server(error, node, table=display_name(*table)) from None

    with ThreadPoolExecutor(max(1, min(slots, len(tables)))) as threads:
        list(threads.map(analyze_one, tables))


def analyze_stale(
    target: Connection, node: Node, tables: Sequence[TableName], application: str, progress: Progress
) -> None:
    """Collect the statistics of the tables that have none, or that changed much since."""
    names = {"schemas": [table[0] for table in tables], "names": [table[1] for table in tables]}
    stale = {(row["schema"], row["name"]) for row in _rows(target, "stale", names)}
    if stale:
        progress.say(f"collecting statistics of {', '.join(sorted(display_name(*name) for name in stale))}")
        analyze(node, [table for table in tables if table in stale], application, slots=2)


def _session(node: Node, application: str) -> Connection:
    connection = connect(node, application=application, read_only=False)
    connection.execute("SET statement_timeout = 0")
    return connection


def _rows(connection: Connection, statement: str, values: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(load("trueup.task", "materialized.sql")[statement], values).fetchall()
