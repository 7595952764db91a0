"""Take pods out of a tube: lock a partition, claim, read the same pods again, delete them by number.

Numbers are not in the order of commits: a lower number may become visible later. So no query asks for numbers above the
last one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from psycopg import sql

from trueup.capture.triggers.batch import Refused
from trueup.capture.triggers.model import Pod
from trueup.capture.triggers.session import Session, block
from trueup.db.statements import load
from trueup.db.storable import storable
from trueup.errors import CheckFailed, QueryError

LOCK_PAUSE = 0.2
# SQLSTATE of a text that cannot be sent: a database with the encoding SQL_ASCII stores any bytes.
_NOT_UTF8 = "22021"
_COLUMNS = sql.SQL("p.seq, p.shard, p.source, p.op::text, p.ids, p.keys, p.payload, p.at")
_COLUMNS_AS_BYTES = sql.SQL(
    "p.seq, p.shard, p.source, p.op::text, p.ids, (SELECT array_agg(convert_to(u.key, 'SQL_ASCII') ORDER BY u.n)"
    " FROM unnest(p.keys) WITH ORDINALITY u(key, n)), p.payload, p.at"
)


def claim(
    session: Session,
    tube: str,
    partition: int,
    *,
    limit: int,
    skip: Sequence[int],
    max_keys: int | None = None,
    aside: Sequence[int] = (),
    any_bytes: bool = False,
) -> list[Pod]:
    """Return the next pods of a partition, live pods first, without the pods in `skip`, which are being processed.

    The caller must hold the lock of the partition. The control pod at the end of a backfill is returned only when all
    earlier backfill pods are deleted. With `max_keys`, the pod that reaches this number of keys is the last one.
    Pods of the sources in `aside` wait, except reports of capture problems. With `any_bytes`, the caller processes
    `Pod.undecodable`; without, a key that is not UTF-8 is an error.
    """
    partitions = partitions_of(session, tube)
    if not 0 <= partition < partitions:
        raise _no_partition(session, tube, partition, partitions)
    parts = {
        "pods": _pods(session, tube),
        "mine": _in_partition("p", partitions, partition),
        "same": _in_partition("b", partitions, partition),
    }
    values = {"skip": list(skip), "most": limit, "most_keys": max_keys, "aside": list(aside)}
    text = sql.SQL(load("trueup.capture.triggers", "pods.sql")["claim"])
    claimed = _read(session, lambda columns: text.format(columns=columns, **parts), values, any_bytes=any_bytes)
    # Before the rows are read: the job may be killed before it deletes the pods.
    store_passing(session, {pod.source for pod in claimed})
    return claimed


def store_passing(session: Session, sources: Collection[int]) -> None:
    """Store the partitions of these sources that are not covered yet: their rows are in the copy, or will be."""
    if sources:
        parts = {"sources": session.name("sources"), "store": session.name("tube_passing_store")}
        partitioned = sql.SQL(load("trueup.capture.triggers", "pods.sql")["store_passing"]).format(**parts)
        session.rows(partitioned, {"sources": sorted(sources)})


def read(session: Session, tube: str, numbers: Sequence[int], *, any_bytes: bool = False) -> list[Pod]:
    """Return the pods with these numbers, live pods first; deleted pods are omitted. `any_bytes` is as for `claim`."""
    parts = _pods(session, tube), *_exactly(partitions_of(session, tube))
    text = sql.SQL("SELECT {} FROM {} p, {} WHERE {} ORDER BY (p.op = 'B'), p.seq")
    return _read(session, lambda columns: text.format(columns, *parts), {"numbers": list(numbers)}, any_bytes=any_bytes)


def delete(session: Session, tube: str, numbers: Sequence[int]) -> int:
    """Delete the pods with these numbers, whose keys are delivered; return how many existed."""
    query = sql.SQL(
        "WITH gone AS (DELETE FROM {} p USING {} WHERE {} RETURNING p.source)"
        " SELECT source, count(*) FROM gone GROUP BY source"
    ).format(_pods(session, tube), *_exactly(partitions_of(session, tube)))
    deleted: dict[int, int] = dict(session.rows(query, {"numbers": list(numbers)}))
    # A partition may have been attached after the pods were claimed, and before the rows were read.
    store_passing(session, deleted)
    return sum(deleted.values())


def put_back(session: Session, tube: str, numbers: Sequence[int], source: int) -> None:
    """Give the pods of a source among these numbers new numbers: for the worker that claimed them they are deleted.

    For batches that cannot forget a pod that they claimed. The pods keep their order and their time; reports of capture
    problems stay as they are.
    """
    query = sql.SQL(
        "WITH gone AS (DELETE FROM {0} p USING {1} WHERE {2} AND p.source = %(source)s AND p.op <> '!' RETURNING p.*)"
        " INSERT INTO {0} (shard, at, source, op, ids, keys, payload)"
        " SELECT g.shard, g.at, g.source, g.op, g.ids, g.keys, g.payload FROM gone g ORDER BY g.seq"
    ).format(_pods(session, tube), *_exactly(partitions_of(session, tube)))
    session.rows(query, {"numbers": list(numbers), "source": source})


def park(session: Session, tube: str, refused: Sequence[Refused], *, attempts: int = 1, pause: float = 0.0) -> int:
    """Record refused keys as dead letters; return how many are parked: unreadable ones, and those out of attempts."""
    values = {
        "tube": tube,
        "attempts": attempts,
        "pause": pause,
        "sources": [refusal.source for refusal in refused],
        "shards": [refusal.shard for refusal in refused],
        "keys": [refusal.key for refusal in refused],
        "ops": [refusal.op for refusal in refused],
        "errors": [storable(session.connection, refusal.error) for refusal in refused],
        "unreadable": [refusal.is_unreadable for refusal in refused],
    }
    return sum(is_parked for *_, is_parked in session.rows(block(session, "letter_refused"), values))


def _exactly(partitions: int) -> tuple[sql.Composable, sql.Composable]:
    """Return tables and a condition that find pods by number through the only index of the tube."""
    tables = sql.SQL("unnest(%(numbers)s::bigint[]) x(seq), (VALUES (true), (false)) y(later)")
    condition = sql.SQL("p.seq = x.seq AND (p.op = 'B') = y.later")
    if partitions == 1:
        return tables, condition
    return (
        sql.SQL("{}, generate_series(0, {}) z(partition)").format(tables, partitions - 1),
        sql.SQL("{} AND abs(p.shard %% {}) = z.partition").format(condition, partitions),
    )


@contextmanager
def lock(session: Session, tube: str, partition: int, *, wait: float) -> Iterator[None]:
    """Hold the lock of a partition: no other worker processes its shards. The lock ends with the session."""
    take_lock(session, tube, partition, wait=wait)
    try:
        yield
    finally:
        release_lock(session, tube, partition)


def take_lock(session: Session, tube: str, partition: int, *, wait: float) -> None:
    """Take the lock of a partition; raise CheckFailed, which names the holder, after `wait` seconds."""
    partitions_of(session, tube)
    give_up = time.monotonic() + wait
    while not session.call("tube_hold", tube, partition):
        if time.monotonic() >= give_up:
            holder = session.call("tube_holder", tube, partition) or "another session"
            raise CheckFailed(
                [f"partition {partition} of the tube {tube} is locked by {holder}"],
                cure="stop that worker first, or wait for it with --wait: two workers must not process the same keys",
                node=session.node.name,
            )
        time.sleep(LOCK_PAUSE)


def release_lock(session: Session, tube: str, partition: int) -> None:
    """Release the lock of a partition. If the session is closed, the lock is already released."""
    if session.is_open:
        session.call("tube_release", tube, partition)


def partitions_of(session: Session, tube: str) -> int:
    """Return the number of partitions of a tube; raise an error if it does not exist."""
    query = sql.SQL("SELECT (t).partitions FROM (SELECT {}(%s) AS t) x").format(session.name("tube_get"))
    return int(session.rows(query, [tube])[0][0])


def partitions_to_hold(session: Session, tube: str, partitions: Sequence[int]) -> list[int]:
    """Return the given partitions, sorted, or all partitions of the tube if none is given."""
    count = partitions_of(session, tube)
    if invalid := [partition for partition in partitions if not 0 <= partition < count]:
        raise _no_partition(session, tube, invalid[0], count)
    return sorted(set(partitions)) or list(range(count))


def _no_partition(session: Session, tube: str, partition: int, count: int) -> CheckFailed:
    return CheckFailed(
        [f"the tube {tube} has no partition {partition}: it has {count}"],
        cure=f"use a partition from 0 to {count - 1}",
        node=session.node.name,
    )


def _in_partition(alias: str, partitions: int, partition: int) -> sql.Composed:
    """Return the condition for one partition, in the form of the index expression."""
    if partitions == 1:
        return sql.SQL("true").format()
    return sql.SQL("abs({}.shard %% {}) = {}").format(sql.Identifier(alias), partitions, partition)


def _pods(session: Session, tube: str) -> sql.Identifier:
    return session.name(f"pods_{tube}")


def _read(
    session: Session, query: Callable[[sql.SQL], sql.Composed], values: dict[str, Any], *, any_bytes: bool
) -> list[Pod]:
    try:
        rows = session.rows(query(_COLUMNS), values)
    except QueryError as error:
        if not any_bytes or error.sqlstate != _NOT_UTF8:
            raise
        rows = session.rows(query(_COLUMNS_AS_BYTES), values)
    return [_pod(*row) for row in rows]


def _pod(
    seq: int,
    shard: int,
    source: int,
    op: str,
    ids: Sequence[int],
    keys: Sequence[Any] | None,
    payload: dict[str, Any] | None,
    written_at: datetime,
) -> Pod:
    """Return the pod of a row. Keys that are bytes are decoded; those that are not UTF-8 are listed apart."""
    undecodable: list[str] = []
    if keys is not None and any(isinstance(key, bytes) for key in keys):
        texts: list[Any] = []
        for key in keys:
            try:
                texts.append(key.decode() if isinstance(key, bytes) else key)
            except UnicodeDecodeError:
                undecodable.append(key.decode(errors="backslashreplace"))
        keys = texts
    texts_of_keys = None if keys is None else tuple(keys)
    return Pod(seq, shard, source, op, tuple(ids), texts_of_keys, payload, written_at, tuple(undecodable))
