"""Functions on tubes and the tables attached to them: create, drop, attach, detach, touch, list, statistics."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from psycopg import sql

from trueup.capture.log.publications import ensure_identities, published_problem, refuse_all_tables, refuse_column_lists
from trueup.capture.triggers.batch import written
from trueup.capture.triggers.expressions import check_new
from trueup.capture.triggers.install import installed_version, uninstall
from trueup.capture.triggers.model import Attached, Backfill, Ensured, Stats, TubeInfo
from trueup.capture.triggers.problems import find_problems, unreadable
from trueup.capture.triggers.session import Session, block, check_range, check_shard
from trueup.capture.triggers.shape import Shapes
from trueup.config.wording import counted
from trueup.db.connection import one_value
from trueup.db.expressions import Expression, check
from trueup.db.lock_holders import LOCK_NOT_AVAILABLE
from trueup.db.names import parse_table_name
from trueup.db.scan import problem_with
from trueup.errors import CheckFailed, QueryError

# Seconds to keep trying for the lock on a table in use.
PATIENCE = 30.0


def ensure(
    session: Session,
    tube: str,
    *,
    partitions: int | None = None,
    predicate: str | None = None,
    pod_size: int | None = None,
    allow_functions: Sequence[str] = (),
) -> Ensured:
    """Create a tube, or change the settings of an existing one; functions of the predicate may have to be allowed.

    An existing tube keeps what is None; an empty predicate removes its predicate.
    """
    check_range("the number of partitions", 1 if partitions is None else partitions, 1, 1024)
    check_range("the pod size", 1 if pod_size is None else pod_size, 1, 10_000)
    with session.errors():
        refuse_all_tables(session.connection, f"{session.schema}.pods_{tube}")
    problem = problem_with(predicate) if predicate else None
    if problem:
        raise CheckFailed([f"predicate: it is not one expression: {problem}"], cure="write one condition")
    with session.errors(), session.connection.transaction():
        is_new = not _settings(session, tube)
        # First the row of the tube, as `attach` does: otherwise they could wait for each other.
        session.call("tube_ensure_exists", tube)
        before = {} if is_new else _settings(session, tube)
        of_tube, stored_functions = _predicate(session, tube)
        if predicate is None:
            kept, allow_functions = of_tube or "", [*stored_functions, *allow_functions]
        else:
            kept = predicate
        allowed = list(session.expressions.with_functions(allow_functions).functions)
        # The tables of a new tube are checked when they are attached.
        for source, table, of_table, routing, stored in _attached_tables(session, tube):
            texts = {"predicate of the tube": kept, "predicate": of_table, "routing": routing}
            _store(session, source, *check_new(session, table, texts, [*stored, *allow_functions]))
        session.call("tube_ensure_exists", tube, partitions, predicate, pod_size)
        query = sql.SQL("UPDATE {} SET allow_functions = %s WHERE tube = %s").format(session.name("tubes"))
        session.rows(query, [allowed if kept else [], tube])
        after = _settings(session, tube)
    changed = [
        f"{name}: {was or 'none'} -> {after[name] or 'none'}" for name, was in before.items() if was != after[name]
    ]
    return Ensured(tube, is_new, **after, changed=tuple(changed))


def skip_applied(session: Session, tube: str) -> None:
    """Let statement triggers be enough for tables that a subscription fills: what it applies is not captured."""
    query = sql.SQL("UPDATE {} SET skips_applied = true WHERE tube = %s AND NOT skips_applied")
    session.rows(query.format(session.name("tubes")), [tube])


def drop(session: Session, tube: str, *, force: bool = False, patience: float = PATIENCE) -> bool:
    """Drop a tube and return whether it existed. Raise CheckFailed if pods are waiting, unless `force` is set."""
    partitions = [row for row in stats(session) if row.tube == tube]
    waiting = sum(row.live_pods + row.backfill_pods + row.control_pods for row in partitions)
    if waiting and not force:
        raise CheckFailed(
            [f"{counted(waiting, 'waiting pod')} in the tube {tube} would be lost"],
            cure="process them with trueup tube run, or use --force",
            node=session.node.name,
        )
    session.call("tube_ensure_absent", tube, timedelta(seconds=patience))
    return bool(partitions)


def drop_with_schema(session: Session, tube: str, *, patience: float = PATIENCE) -> bool:
    """Drop a tube with its pods, and the schema if this was its last tube; return whether the tube existed."""
    if installed_version(session) is None:
        return False
    existed = drop(session, tube, force=True, patience=patience)
    if not list_tubes(session):
        uninstall(session, force=True)
    return existed


def attach(
    session: Session,
    tube: str,
    table: str,
    *,
    shard: int | None = None,
    routing: str = "",
    predicate: str | None = None,
    capture: str | None = None,
    allow_functions: Sequence[str] = (),
    patience: float = PATIENCE,
) -> Attached:
    """Attach a table to a tube: its triggers record the key of every changed row from now on.

    A table that is attached already keeps what is not given; an empty predicate removes its predicate.
    Raise CheckFailed if an expression calls a function that is not allowed: see `db.expressions`.
    """
    check_shard(shard)
    name = session.find_table(table)
    with session.errors(), session.connection.transaction():
        of_tube, allowed_by_tube = _predicate(session, tube)
        kept, kept_routing, kept_functions = _kept(session, tube, name)
        allowed, guard = check_new(
            session,
            name,
            {
                "predicate of the tube": of_tube,
                "predicate": kept if predicate is None else predicate,
                "routing": routing or (kept_routing if shard is None else None),
            },
            [*allowed_by_tube, *kept_functions, *allow_functions],
        )
        source = session.call(
            "tube_table_ensure_attached",
            tube,
            name,
            shard,
            routing or None,
            predicate,
            capture,
            timedelta(seconds=patience),
        )
        _store(session, source, allowed, guard)
        if guard:
            session.call("tube_trigger_functions", source)
        # Within the transaction: a table whose rows cannot be read is not attached.
        if reason := unreadable(session, Shapes(session, tube).get([source])[source]):
            raise CheckFailed([f"{name} cannot be attached: {reason}"], cure="fix the table", node=session.node.name)
    attached = _attached(session, source)
    query = sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE source = %s AND op = '{{')").format(
        session.name(f"pods_{tube}")
    )
    return replace(attached, backfill_is_scheduled=session.rows(query, [source])[0][0])


def detach(session: Session, tube: str, table: str, *, patience: float = PATIENCE) -> bool:
    """Detach a table, also a dropped one by its name; keep its pods, and return whether it was attached."""
    dropped = _dropped(session, tube, table)
    name = dropped or session.find_table(table, is_read=False)
    detached: bool = session.call("tube_table_ensure_detached", tube, name, timedelta(seconds=patience))
    return detached


def touch(session: Session, tube: str, table: str, keys: Sequence[object], *, shard: int | None = None) -> int:
    """Put keys into a tube and return the number of pods; raise QueryError if no row can have one of them."""
    check_shard(shard)
    texts = [None if key is None else written(key) for key in keys]
    pods: int = session.call("tube_touch", tube, session.find_table(table), texts, shard)
    return pods


def touch_query(
    session: Session,
    tube: str,
    table: str,
    query: str,
    *,
    shard: int | None = None,
    allow_functions: Sequence[str] = (),
) -> int:
    """Put the keys that a query returns into a tube and return the number of pods.

    Raise CheckFailed if it is not one SELECT, or calls a function that is not allowed.
    """
    check_shard(shard)
    with session.errors():
        expression = Expression("query", query, form="query")
        check(session.connection, session.node, expression, session.expressions.with_functions(allow_functions))
    pods: int = session.call("tube_pods_insert", tube, session.find_table(table), query, shard)
    return pods


def cover(session: Session, tube: str | None = None, *, patience: float = PATIENCE) -> int:
    """Notice new and removed partitions and create triggers; return the number of tables whose partitions changed.

    Tables of the tubes that have lost their replica identity get it back.
    """
    changed, errors = _cover(session, tube, patience)
    for error in errors.values():
        raise error
    return changed


def cover_each(session: Session, tube: str, *, patience: float) -> dict[int, str]:
    """Do the same, and return the errors by source: one table does not stop the others."""
    return {source: error.message for source, error in _cover(session, tube, patience)[1].items()}


def _cover(session: Session, tube: str | None, patience: float) -> tuple[int, dict[int, QueryError]]:
    """Return the number of tables whose partitions changed, and the errors of the others by source.

    Each attempt is a transaction: while a table is waited for, no other one is locked, and DETACH CONCURRENTLY has no
    old snapshot to wait for.
    """
    with session.errors():
        ensure_identities(session.connection, session.schema)
    waiting, errors, changed = _changed(session, tube), dict[int, QueryError](), 0
    give_up, pause = time.monotonic() + patience, 0.05
    while waiting:
        # In another order each time: a few tables in use must not use up the time of all others.
        random.shuffle(waiting)
        for source in waiting:
            if errors and time.monotonic() > give_up:
                return changed, errors
            errors.pop(source, None)
            try:
                changed += session.call("tube_partitions_ensure_attached", tube, timedelta(), source)
            except QueryError as error:
                errors[source] = error
        waiting = [source for source, error in errors.items() if error.sqlstate == LOCK_NOT_AVAILABLE]
        if waiting:
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(1.0, pause * 1.5)
    return changed, errors


def _changed(session: Session, tube: str | None) -> list[int]:
    """Return the tables with new or removed partitions; if that fails for one table, all tables."""
    names = [session.name(name) for name in ("tube_partitions_changed", "sources")]
    try:
        rows = session.rows(sql.SQL("SELECT {}(%s)").format(names[0]), [tube])
    except QueryError:
        query = sql.SQL("SELECT source FROM {} WHERE detached_at IS NULL AND tube = coalesce(%s, tube)")
        rows = session.rows(query.format(names[1]), [tube])
    return [source for (source,) in rows]


def published(session: Session, tube: str) -> str:
    """Return which publication contains the pods of a tube, and the cure; an empty text if none does.

    Raise CheckFailed if pods cannot be deleted because of a publication.
    """
    with session.errors():
        refuse_column_lists(session.connection, session.schema)
        return published_problem(session.connection, f"{session.schema}.pods_{tube}")


def find(session: Session, tube: str) -> TubeInfo | None:
    """Return a tube with its tables; None if it does not exist or nothing is installed in the schema."""
    if installed_version(session) is None:
        return None
    return next((info for info in list_tubes(session) if info.tube == tube), None)


def list_tubes(session: Session) -> tuple[TubeInfo, ...]:
    """Return all tubes of the schema with their tables."""
    settings: dict[str, tuple[int, str | None, int]] = {}
    tables: dict[str, list[Attached]] = {}
    problems = find_problems(session)
    for row in session.records(sql.SQL("SELECT * FROM {}()").format(session.name("tube_list"))):
        name = row["tube"]
        settings[name] = row["partitions"], row["tube_predicate"], row["pod_size"]
        if row["source"] is not None:
            fields = ("source", "table", "shard", "routing", "predicate", "capture", "attached_at")
            found = problems.get(row["source"])
            tables.setdefault(name, []).append(
                Attached(
                    **{field: row[field] for field in fields},
                    key=tuple(row["key"]),
                    problem=found.text if found else None,
                    stale_columns=tuple(row["stale_columns"]),
                )
            )
    return tuple(TubeInfo(name, *values, tuple(tables.get(name, ()))) for name, values in settings.items())


def _attached(session: Session, source: int) -> Attached:
    """Return one attached table; the others, which may be many, are not checked."""
    (row,) = session.records(block(session, "attached_table"), {"source": source})
    found = find_problems(session, row.pop("tube"), source=source).get(source)
    key, stale = tuple(row.pop("key")), tuple(row.pop("stale_columns"))
    return Attached(**row, key=key, problem=found.text if found else None, stale_columns=stale)


def stats(session: Session) -> tuple[Stats, ...]:
    """Return the statistics of each partition of each tube."""
    rows = session.records(sql.SQL("SELECT * FROM {}()").format(session.name("tube_stats")))
    engines = {(tube, partition): engine for tube, partition, engine in session.rows(block(session, "engines"))}
    return tuple(
        Stats(**row, engine=(engines.get((row["tube"], row["partition"])) or {}) if row["worker"] else {})
        for row in rows
    )


def backfills(session: Session) -> tuple[Backfill, ...]:
    """Return the last backfill of each table and shard."""
    names = {row[0] for row in session.rows(sql.SQL("SELECT tube FROM {}").format(session.name("tubes")))}
    rows = session.records(block(session, "backfills"))
    waiting: dict[int, int] = {}
    for name in {row["tube"] for row in rows} & names:
        waiting.update(session.rows(block(session, "waiting_backfill", pods=session.name(f"pods_{name}"))))
    return tuple(Backfill(**row, waiting_keys=waiting.get(row["source"], 0)) for row in rows)


def _attached_tables(session: Session, tube: str) -> list[tuple[int, str, str | None, str | None, list[str]]]:
    """Return source, quoted name, predicate, routing and allowed functions of the tables of a tube that exist."""
    query = sql.SQL(
        'SELECT s.source, s."table"::text, s.predicate, s.routing, s.allow_functions FROM {} s'
        ' JOIN pg_class c ON c.oid = s."table" WHERE s.tube = %s AND s.detached_at IS NULL'
    ).format(session.name("sources"))
    return session.rows(query, [tube])


def _dropped(session: Session, tube: str, table: str) -> str:
    """Return the OID of an attached table that does not exist any more, by its former name; "" if there is none."""
    if table.strip().isdigit():
        return table.strip()
    schema, name = parse_table_name(table)
    query = sql.SQL(
        'SELECT s."table"::oid::text FROM {} s WHERE s.tube = %s AND s.detached_at IS NULL AND s.name = ANY (%s)'
        ' AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = s."table")'
    ).format(session.name("sources"))
    names = [
        one_value(session.connection.execute("SELECT format('%%I.%%I', %s::text, %s::text)", [first, second]))
        for first in schema.spellings()
        for second in name.spellings()
    ]
    rows = session.rows(query, [tube, names])
    return str(rows[0][0]) if rows else ""


def _predicate(session: Session, tube: str) -> tuple[str | None, list[str]]:
    """Return the predicate of a tube, and the functions that are allowed in it."""
    query = sql.SQL("SELECT predicate, allow_functions FROM {} WHERE tube = %s").format(session.name("tubes"))
    rows = session.rows(query, [tube])
    return rows[0] if rows else (None, [])


def _settings(session: Session, tube: str) -> dict[str, Any]:
    """Return the settings of a tube; empty if it does not exist."""
    query = sql.SQL("SELECT partitions, predicate, pod_size FROM {} WHERE tube = %s").format(session.name("tubes"))
    return next(iter(session.records(query, [tube])), {})


def _kept(session: Session, tube: str, table: str) -> tuple[str | None, str | None, list[str]]:
    """Return predicate, routing and allowed functions of a table that is attached; else nothing."""
    query = sql.SQL(
        'SELECT predicate, routing, allow_functions FROM {} WHERE tube = %s AND "table" = %s::regclass'
        " AND detached_at IS NULL"
    ).format(session.name("sources"))
    rows = session.rows(query, [tube, table])
    return rows[0] if rows else (None, None, [])


def _store(session: Session, source: int, allowed: Sequence[str], guard: str | None) -> None:
    query = sql.SQL("UPDATE {} SET allow_functions = %s, guard = %s WHERE source = %s").format(session.name("sources"))
    session.rows(query, [list(dict.fromkeys(allowed)), guard, source])
