"""Tubes and the tables attached to them: make, drop, attach, detach, touch, list, and what waits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from psycopg import sql

from trueup.capture.log.publications import refuse_all_tables
from trueup.capture.triggers.model import Attached, Backfill, Stats, Tube
from trueup.capture.triggers.session import Session, block
from trueup.errors import CheckFailed


def ensure(session: Session, tube: str, *, partitions: int, predicate: str, pod_size: int) -> None:
    """Make a tube, or give the one that is there these partitions, this predicate and this size of pods."""
    with session.errors():
        refuse_all_tables(session.connection, f"{session.schema}.pods_{tube}")
    session.call("tube_ensure_exists", tube, partitions, predicate or None, pod_size)


def drop(session: Session, tube: str, *, force: bool, patience: float) -> bool:
    """Drop a tube; with pods that wait only by force. Whether there was one."""
    found = [each for each in stats(session) if each.tube == tube]
    waiting = sum(each.live_pods + each.backfill_pods + each.control_pods for each in found)
    if waiting and not force:
        raise CheckFailed(
            [f"{waiting:,} pods wait in the tube {tube}, and would be lost"],
            cure="work them off, or say --force",
            node=session.node.name,
        )
    session.call("tube_ensure_absent", tube, timedelta(seconds=patience))
    return bool(found)


def attach(
    session: Session,
    tube: str,
    table: str,
    *,
    shard: int | None,
    routing: str,
    predicate: str,
    capture: str,
    patience: float,
) -> Attached:
    """Attach a table: from now on every touched key is recorded."""
    source = session.call(
        "tube_table_ensure_attached",
        tube,
        session.find_table(table),
        shard,
        routing or None,
        predicate or None,
        capture,
        timedelta(seconds=patience),
    )
    return next(each for found in tubes(session) for each in found.tables if each.source == source)


def detach(session: Session, tube: str, table: str, *, patience: float) -> bool:
    """Detach a table; pods that wait stay. Whether it was attached."""
    found: bool = session.call(
        "tube_table_ensure_detached", tube, session.find_table(table), timedelta(seconds=patience)
    )
    return found


def touch(session: Session, tube: str, table: str, keys: Sequence[str], *, shard: int | None) -> int:
    """Touch keys by hand; gives the number of pods."""
    pods: int = session.call("tube_touch", tube, session.find_table(table), list(keys), shard)
    return pods


def touch_query(session: Session, tube: str, table: str, query: str, *, shard: int | None) -> int:
    """Touch all keys that a query finds; gives the number of pods."""
    pods: int = session.call("tube_pods_insert", tube, session.find_table(table), query, shard)
    return pods


def cover(session: Session, tube: str | None, *, patience: float) -> int:
    """Give new partitions their triggers; the number of tables that had some."""
    changed: int = session.call("tube_partitions_ensure_attached", tube, timedelta(seconds=patience))
    return changed


def tubes(session: Session) -> tuple[Tube, ...]:
    """All tubes with their tables."""
    found: dict[str, Tube] = {}
    tables: dict[str, list[Attached]] = {}
    for row in session.records(sql.SQL("SELECT * FROM {}()").format(session.name("tube_list"))):
        name = row["tube"]
        found[name] = Tube(name, row["partitions"], row["tube_predicate"], row["pod_size"])
        if row["source"] is not None:
            fields = ("source", "table", "shard", "routing", "predicate", "capture")
            tables.setdefault(name, []).append(
                Attached(
                    **{field: row[field] for field in fields},
                    key=tuple(row["key"]),
                    attached_at=row["attached_at"],
                    problem=row["problem"],
                )
            )
    return tuple(
        Tube(each.tube, each.partitions, each.predicate, each.pod_size, tuple(tables.get(each.tube, ())))
        for each in found.values()
    )


def stats(session: Session) -> tuple[Stats, ...]:
    """What waits, partition by partition."""
    return tuple(
        Stats(**row) for row in session.records(sql.SQL("SELECT * FROM {}()").format(session.name("tube_stats")))
    )


def backfills(session: Session) -> tuple[Backfill, ...]:
    """The last backfill of each table and shard."""
    names = {row[0] for row in session.rows(sql.SQL("SELECT tube FROM {}").format(session.name("tubes")))}
    found = session.records(block(session, "backfills"))
    waiting: dict[int, int] = {}
    for name in {row["tube"] for row in found} & names:
        waiting.update(session.rows(block(session, "waiting_backfill", pods=session.name(f"pods_{name}"))))
    return tuple(Backfill(**row, waiting_keys=waiting.get(row["source"], 0)) for row in found)
