"""A backfill: all keys of a table go into the tube, behind the live touches, in three steps and many transactions."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from psycopg import sql

from trueup.capture.triggers.model import Backfill
from trueup.capture.triggers.session import Session
from trueup.capture.triggers.tubes import backfills
from trueup.engine.progress import Progress
from trueup.errors import QueryError

# Keys of a transaction at least. Without an index on the order's column each one reads the whole table, so there are
# not many of them.
LEAST_KEYS = 250_000
MOST_PARTS = 20


def backfill(
    session: Session,
    tube: str,
    table: str,
    *,
    order_col: str,
    shard: int | None,
    timeout: float,
    restart: bool,
    part_keys: int,
    progress: Progress,
) -> Backfill:
    """Begin or go on, wait for the barrier, insert part by part; killed at any point it can be called again."""
    name = session.find_table(table)
    if restart:
        session.call("tube_backfill_cancel", tube, name, shard)
    begun = _unfinished(session, tube, name, shard)
    if begun is None:
        step1: dict[str, Any] = session.call("tube_backfill_step1")
        progress.say(f"backfill of {table} into {tube}: waiting for transactions that began before")
        session.call("tube_backfill_step2", timedelta(seconds=timeout))
    else:
        step1 = {"start_seq": begun.start_seq, "started_at": begun.started_at.isoformat()}
        order_col = order_col or begun.order_col
        progress.say(f"backfill of {table} into {tube}: going on after {begun.keys:,} keys")
    return _insert(session, tube, name, step1, order_col, shard, part_keys, begun.keys if begun else 0, progress)


def _insert(
    session: Session,
    tube: str,
    name: str,
    step1: dict[str, Any],
    order_col: str,
    shard: int | None,
    part_keys: int,
    done: int,
    progress: Progress,
) -> Backfill:
    total = _estimate(session, name)
    part_keys = part_keys or max(LEAST_KEYS, total // MOST_PARTS)
    progress.stage("backfill", max(total, done))
    progress.advance(done)
    while True:
        found: dict[str, Any] = session.call(
            "tube_backfill_step3", json.dumps(step1), tube, name, order_col or None, shard, part_keys
        )
        progress.advance(found["keys"] - done, rows=found["keys"] - done)
        done = found["keys"]
        if found["finished_at"] is not None:
            break
    return next(each for each in backfills(session) if each.start_seq == found["start_seq"])


def _unfinished(session: Session, tube: str, name: str, shard: int | None) -> Backfill | None:
    query = sql.SQL("SELECT (s).source, (s).shard FROM (SELECT {}(%s, %s) AS s) x").format(session.name("tube_source"))
    source, fixed = session.rows(query, [tube, name])[0]
    shard = fixed if shard is None else shard
    for each in backfills(session):
        if each.source == source and each.shard == shard and each.finished_at is None:
            same = session.rows(sql.SQL("SELECT %s::regclass = %s::regclass").format(), [each.table, name])
            if not same[0][0]:
                raise QueryError(
                    f"a backfill of {each.table} is not finished",
                    cure=f"trueup tube backfill {tube} {each.table}, or --restart",
                    node=session.node.name,
                    table=name,
                )
            return each
    return None


def _estimate(session: Session, name: str) -> int:
    """Rows of the table and its partitions, as the planner knows them."""
    query = sql.SQL(
        "SELECT coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint FROM {}(%s::regclass) t(place)"
        " JOIN pg_class c ON c.oid = t.place::oid WHERE c.relkind = 'r'"
    ).format(session.name("tube_relations"))
    return int(session.rows(query, [name])[0][0])
