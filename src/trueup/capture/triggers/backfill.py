"""Backfill: puts all keys of a table into the tube, behind the live touches, in three steps and many transactions."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from psycopg import sql

from trueup.capture.triggers.expressions import check_stored
from trueup.capture.triggers.model import Backfill
from trueup.capture.triggers.session import Session, check_shard
from trueup.capture.triggers.tubes import backfills
from trueup.config.wording import counted
from trueup.engine.progress import Progress, Silent
from trueup.errors import CheckFailed, QueryError

# Minimum keys per transaction. Without an index on the order column each transaction reads the whole table, so the
# number of transactions is limited.
_MIN_KEYS = 250_000
_MAX_PARTS = 20


def backfill(
    session: Session,
    tube: str,
    table: str,
    *,
    order_col: str = "",
    shard: int | None = None,
    timeout: float = 300.0,
    restart: bool = False,
    part_keys: int = 0,
    since: datetime | None = None,
    progress: Progress | None = None,
) -> Backfill:
    """Start a backfill or continue an interrupted one; return its final state.

    It waits at most `timeout` seconds for older transactions, then inserts `part_keys` keys per transaction. After an
    interruption at any point it can be called again. One that was interrupted before `since` is finished, and a new one
    follows: the former has passed rows, and its end checks fewer documents.
    """
    progress = progress or Silent()
    check_shard(shard)
    name = session.find_table(table)
    source, fixed_shard = _source(session, tube, name)
    check_stored(session, tube, source)
    shard = fixed_shard if shard is None else shard
    if order_col:
        _check_column(session, name, table, order_col)
    if restart:
        session.call("tube_backfill_cancel", tube, name, shard)
    unfinished = _unfinished(session, tube, name, source, shard)
    if unfinished is not None and since is not None and unfinished.started_at < since:
        backfill(session, tube, table, shard=shard, timeout=timeout, part_keys=part_keys, progress=progress)
        unfinished = None
    if unfinished is None:
        start: dict[str, Any] = session.call("tube_backfill_step1")
        progress.say(f"backfill of {table} into {tube}: waiting for older transactions")
        session.call("tube_backfill_step2", timedelta(seconds=timeout))
        done = 0
    else:
        start = {"start_seq": unfinished.start_seq, "started_at": unfinished.started_at.isoformat()}
        order_col = order_col or unfinished.order_col
        done = unfinished.keys
        progress.say(f"backfill of {table} into {tube}: continuing after {counted(done, 'key')}")
    total = _estimate(session, name)
    part_keys = part_keys or max(_MIN_KEYS, total // _MAX_PARTS)
    progress.stage("backfill", max(total, done))
    progress.advance(done)
    while True:
        state: dict[str, Any] = session.call(
            "tube_backfill_step3", json.dumps(start), tube, name, order_col or None, shard, part_keys
        )
        progress.advance(state["keys"] - done, rows=state["keys"] - done)
        done = state["keys"]
        if state["finished_at"] is not None:
            return next(row for row in backfills(session) if row.start_seq == state["start_seq"])


def schedule(session: Session, tube: str, table: str, *, order_col: str = "", shard: int | None = None) -> int:
    """Request a backfill from the worker of the tube; return the number of the control pod."""
    check_shard(shard)
    number: int = session.call("tube_backfill_schedule", tube, session.find_table(table), order_col or None, shard)
    return number


def _check_column(session: Session, name: str, table: str, column: str) -> None:
    """Raise CheckFailed if the column does not exist: before the wait for older transactions, not after it."""
    query = sql.SQL(
        "SELECT attname::text FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
    ).format()
    columns = [row[0] for row in session.rows(query, [name])]
    if column not in columns:
        raise CheckFailed(
            [f"column {column} does not exist in {table}"],
            cure=f"use one of its columns: {', '.join(columns)}",
            node=session.node.name,
        )


def _source(session: Session, tube: str, name: str) -> tuple[int, int | None]:
    """Return the number of an attached table, and its shard if it is fixed; raise if it is not attached."""
    query = sql.SQL("SELECT (s).source, (s).shard FROM (SELECT {}(%s, %s) AS s) x").format(session.name("tube_source"))
    source, shard = session.rows(query, [tube, name])[0]
    return source, shard


def _unfinished(session: Session, tube: str, name: str, source: int, shard: int | None) -> Backfill | None:
    """Return the interrupted backfill of this table and shard; raise if one of another table has the same source."""
    for row in backfills(session):
        if row.source == source and row.shard == shard and row.finished_at is None:
            query = sql.SQL(
                'SELECT b.t = %s::regclass, EXISTS (SELECT FROM {}(s."table") r(t) WHERE r.t = b.t)'
                " FROM {} s, (SELECT %s::regclass AS t) b WHERE s.source = %s"
            ).format(session.name("tube_relations"), session.name("sources"))
            [(is_same, exists)] = session.rows(query, [name, row.table, source])
            if not exists:
                # A partition that was dropped or detached: this backfill can never be finished.
                session.call("tube_backfill_cancel", tube, name, shard)
                return None
            if not is_same:
                raise QueryError(
                    f"a backfill of {row.table} is not finished",
                    cure=f"finish it with trueup tube backfill {tube} {row.table}, or use --restart",
                    node=session.node.name,
                    table=name,
                )
            return row
    return None


def _estimate(session: Session, name: str) -> int:
    """Return the planner's estimate of the rows of a table and its partitions."""
    query = sql.SQL(
        "SELECT coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint FROM {}(%s::regclass) t(place)"
        " JOIN pg_class c ON c.oid = t.place::oid WHERE c.relkind = 'r'"
    ).format(session.name("tube_relations"))
    return int(session.rows(query, [name])[0][0])
