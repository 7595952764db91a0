"""Materialized views are refreshed, and statistics collected, before applications use the target."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from trueup.config.model import Node
from trueup.config.wording import shown_names
from trueup.db.connection import Connection
from trueup.db.foreign_keys import TableName
from trueup.db.names import display_name
from trueup.db.node import ALLOW_VIEWS, connect, error_from_server
from trueup.db.statements import load
from trueup.engine.progress import Progress

# Since this version there is a privilege to refresh views and to analyze tables of others.
_MAINTAIN_SINCE = 170000


def refresh(
    source: Connection, node: Node, application: str, progress: Progress, denied: list[str] | None = None
) -> list[str]:
    """Refresh the materialized views that the source has too, in the order of their dependencies; return what was not.

    A view that has rows already is refreshed without a lock against readers, if it has a unique index. Its query runs
    with the rights of its owner: if these do not suffice, a text is added to `denied`, without which that is an error.
    A view without rows on the source stays empty.
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
                if denied is None or not isinstance(error, psycopg.errors.InsufficientPrivilege):
                    raise error_from_server(error, node, table=shown) from None
                reason = error_from_server(error, node).message
                denied.append(f"materialized view {shown} cannot be refreshed on {node.name} by its owner: {reason}")
    return left


def populated(connection: Connection) -> list[str]:
    """Return the materialized views that have rows."""
    return [display_name(row["schema"], row["name"]) for row in _rows(connection, "populated")]


def _refresh(target: Connection, name: TableName, *, is_concurrent: bool) -> None:
    word = sql.SQL("CONCURRENTLY " if is_concurrent else "")
    view = sql.Identifier(*name)
    target.execute(sql.SQL("REFRESH MATERIALIZED VIEW {}{}").format(word, view))
    target.execute(sql.SQL("ANALYZE {}").format(view))


def analyze(target: Connection, node: Node, tables: Sequence[TableName], application: str, *, slots: int) -> list[str]:
    """Collect the statistics of tables; return what the role may not do, for which the server may only warn."""

    left: SimpleQueue[TableName] = SimpleQueue()
    for table in tables:
        left.put(table)
    count = max(1, min(slots, len(tables)))
    with ThreadPoolExecutor(count) as threads:
        sessions = [threads.submit(_analyze_next, node, application, left) for _ in range(count)]
        failed = [text for session in sessions for text in session.result()]
    return failed + _not_analyzed(target, node, tables)


def _analyze_next(node: Node, application: str, left: SimpleQueue[TableName]) -> list[str]:
    """Analyze tables in one session until none is left; return why some were not."""
    failed: list[str] = []
    with _session(node, application) as session, suppress(Empty):
        while True:
            table = left.get_nowait()
            try:
                session.execute(sql.SQL("ANALYZE {}").format(sql.Identifier(*table)))
            except psycopg.errors.InsufficientPrivilege as error:
                # Of the schema, or of a function that an index calls as the owner of the table.
                failed.append(f"no statistics of {display_name(*table)} were collected on {node.name}: {error}")
            except psycopg.Error as error:
                raise error_from_server(error, node, table=display_name(*table)) from None
    return failed


def analyze_stale(
    target: Connection, node: Node, tables: Sequence[TableName], application: str, progress: Progress
) -> list[str]:
    """Collect the statistics of the tables that have none, or that changed much since; return those that it may not."""
    found = {(row["schema"], row["name"]) for row in _rows(target, "stale", _names(tables))}
    stale = [table for table in tables if table in found]
    if not stale:
        return []
    progress.say(f"collecting statistics of {shown_names([display_name(*name) for name in sorted(stale)])}")
    return analyze(target, node, stale, application, slots=2)


def _not_analyzed(target: Connection, node: Node, tables: Sequence[TableName]) -> list[str]:
    """Return the tables and partitions of which the role may not collect statistics, as one text with the cure."""
    is_new = target.info.server_version >= _MAINTAIN_SINCE
    values = {**_names(tables), "maintain": is_new, "privilege": "MAINTAIN" if is_new else "SELECT"}
    rows = _rows(target, "not_analyzed", values)
    if not rows:
        return []
    names = shown_names([display_name(row["schema"], row["name"]) for row in rows])
    cure = "run ANALYZE there as their owner" + (", or GRANT MAINTAIN on them to the role" if is_new else "")
    return [f"no statistics were collected on {node.name}, because the role may not analyze: {names}; {cure}"]


def _names(tables: Sequence[TableName]) -> dict[str, list[str]]:
    return {"schemas": [schema for schema, _ in tables], "names": [name for _, name in tables]}


def _session(node: Node, application: str) -> Connection:
    connection = connect(node, application=application, read_only=False)
    connection.execute("SET statement_timeout = 0")
    return connection


def _rows(connection: Connection, statement: str, values: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(load("trueup.task", "materialized.sql")[statement], values).fetchall()
