"""Take pods out of a tube: lock a partition, claim, read the same pods again, delete them by number.

Numbers are not in the order of commits: a lower number may become visible later. So no query asks for numbers above the
last one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from psycopg import sql

from trueup.capture.triggers.batch import Refused
from trueup.capture.triggers.model import Pod
from trueup.capture.triggers.session import Session, block
from trueup.db.statements import load
from trueup.db.storable import storable
from trueup.errors import CheckFailed

LOCK_PAUSE = 0.2


def claim(
    session: Session,
    tube: str,
    partition: int,
    *,
    limit: int,
    skip: Sequence[int],
    max_keys: int | None = None,
    aside: Sequence[int] = (),
) -> list[Pod]:
    """Return the next pods of a partition, live pods first, without the pods in `skip`, which are being processed.

    The caller must hold the lock of the partition. The control pod at the end of a backfill is returned only when all
    earlier backfill pods are deleted. With `max_keys`, the pod that reaches this number of keys is the last one.
    Pods of the sources in `aside` wait, except reports of capture problems.
    """
    partitions = partitions_of(session, tube)
    if not 0 <= partition < partitions:
        raise _no_partition(session, tube, partition, partitions)
    query = sql.SQL(load("trueup.capture.triggers", "pods.sql")["claim"]).format(
        columns=_columns(),
        pods=_pods(session, tube),
        mine=_in_partition("p", partitions, partition),
        same=_in_partition("b", partitions, partition),
    )
    return _read(session, query, {"skip": list(skip), "most": limit, "most_keys": max_keys, "aside": list(aside)})


def read(session: Session, tube: str, numbers: Sequence[int]) -> list[Pod]:
    """Return the pods with these numbers, live pods first; deleted pods are omitted."""
    query = sql.SQL("SELECT {} FROM {} p, {} WHERE {} ORDER BY (p.op = 'B'), p.seq").format(
        _columns(), _pods(session, tube), *_exactly(partitions_of(session, tube))
    )
    return _read(session, query, {"numbers": list(numbers)})


def delete(session: Session, tube: str, numbers: Sequence[int]) -> int:
    """Delete the pods with these numbers, whose keys are delivered; return how many existed."""
    query = sql.SQL("DELETE FROM {} p USING {} WHERE {}").format(
        _pods(session, tube), *_exactly(partitions_of(session, tube))
    )
    with session.errors():
        return session.connection.execute(query, {"numbers": list(numbers)}).rowcount


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


def _columns() -> sql.SQL:
    return sql.SQL("p.seq, p.shard, p.source, p.op::text, p.ids, p.keys, p.payload, p.at")


def _pods(session: Session, tube: str) -> sql.Identifier:
    return session.name(f"pods_{tube}")


def _read(session: Session, query: sql.Composed, values: dict[str, Any]) -> list[Pod]:
    with session.errors():
        rows = session.connection.execute(query, values).fetchall()
    return [
        Pod(seq, shard, source, op, tuple(ids), None if keys is None else tuple(keys), payload, written_at)
        for seq, shard, source, op, ids, keys, payload, written_at in rows
    ]
