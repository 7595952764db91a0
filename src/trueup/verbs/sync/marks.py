"""What the target keeps of a sync: its phase, the pages that are copied, how far it is, what the last round did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import dict_row

from trueup.capture.log.publications import refuse_all_tables
from trueup.db.connection import Connection, one_row
from trueup.db.statements import load
from trueup.errors import CheckFailed
from trueup.verbs.sync.model import STATE_SCHEMA, SyncTable

if TYPE_CHECKING:
    from typing_extensions import LiteralString

    from trueup.verbs.sync.plan import Wanted


@dataclass(frozen=True)
class Status:
    """One sync, as the target knows it."""

    sync: str
    source: str
    phase: str
    made_schema: bool
    tables: tuple[str, ...]
    named: tuple[str, ...]
    left_out: tuple[str, ...]
    snapshots: int
    epoch: int
    started_at: datetime
    copied_at: datetime | None
    rounds: int
    keys: int
    last_keys: int
    last_ms: float
    lag_seconds: float | None
    pending_keys: int | None
    keys_per_second: float | None
    stop_asked_at: datetime | None
    source_lsn: str | None
    source_at: datetime | None
    applied_at: datetime | None


_LISTS = ("tables", "named", "left_out")


def block(name: str) -> LiteralString:
    """A statement of this module by name."""
    return load("trueup.verbs.sync", "marks.sql")[name]


def make(target: Connection) -> None:
    """Make the tables, if they are not there yet."""
    with target.transaction():
        target.execute("SELECT pg_advisory_xact_lock(hashtextextended('trueup marks', 0))")
        refuse_all_tables(target, "trueup.syncs")
        target.execute(block("make"))


def read(target: Connection, name: str) -> Status | None:
    """The sync of this name, or None."""
    found = one_row(target.execute("SELECT to_regclass('trueup.syncs') IS NOT NULL"))
    if not found[0]:
        return None
    with target.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(block("read"), [name]).fetchone()
    return Status(**{**row, **{each: tuple(row[each]) for each in _LISTS}}) if row else None


def begin(target: Connection, wanted: Wanted, source: str, tables: Sequence[SyncTable]) -> None:
    """Write down that a sync begins."""
    values = {
        "sync": wanted.name,
        "source": source,
        "made": wanted.create_schema,
        "tables": [str(table) for table in tables],
        "named": list(wanted.tables),
        "left_out": list(wanted.leave_out),
    }
    target.execute(block("begin"), values)


def set_phase(target: Connection, name: str, phase: str) -> None:
    """The sync is in another phase."""
    target.execute(
        "UPDATE trueup.syncs SET phase = %(phase)s,"
        " copied_at = CASE WHEN %(phase)s IN ('copied', 'running') THEN coalesce(copied_at, clock_timestamp()) END"
        " WHERE sync = %(sync)s",
        {"phase": phase, "sync": name},
    )


def take_over(target: Connection, name: str) -> int:
    """Be the one who writes: gives the number to show. Waits for who is still at it."""
    row = one_row(target.execute(block("take_over"), [name]))
    return int(row[0])


def check_ours(target: Connection, name: str, epoch: int) -> None:
    """Inside of a transaction: nobody else has taken over, and nobody can until it ends."""
    try:
        target.execute(block("still_ours"), {"sync": name, "epoch": epoch})
    except psycopg.errors.DivisionByZero:
        raise taken_over(name) from None


def taken_over(name: str) -> CheckFailed:
    """The error of one who came late."""
    return CheckFailed(
        [f"somebody else has taken over the sync {name}: nothing was written"], cure="let only one of them run"
    )


def expect(target: Connection, name: str, source: str, node: str) -> Status:
    """The sync of this name, which must be fed by this source."""
    found = read(target, name)
    if found is None:
        raise CheckFailed([f"there is no sync {name} into this database"], cure="trueup sync start", node=node)
    if found.source != source:
        raise CheckFailed(
            [f"the sync {name} into this database comes from another one"],
            cure="name the source that it was started with",
            node=node,
        )
    return found


def forget(target: Connection, name: str) -> bool:
    """Take the sync away, and the tables of trueup with the last one. Whether there was one."""
    if read(target, name) is None:
        return False
    with target.transaction():
        target.execute("DELETE FROM trueup.sync_mark WHERE sync = %s", [name])
        target.execute("DELETE FROM trueup.syncs WHERE sync = %s", [name])
        rest = one_row(target.execute("SELECT count(*) FROM trueup.syncs"))
        if not rest[0]:
            target.execute("DROP TABLE trueup.copied, trueup.syncs, trueup.sync_mark")
    drop_if_empty(target)
    return True


def drop_if_empty(node: Any) -> None:
    """Drop the schema of trueup's own tables, if nothing is in it any more."""
    try:
        with node.transaction():
            node.execute(f"DROP SCHEMA IF EXISTS {STATE_SCHEMA} RESTRICT")
    except psycopg.errors.DependentObjectsStillExist:
        return


def identity(node: Any) -> str:
    """Which database this is: it stays the same when the server is restarted, moves or changes its address.

    Some services hide the system's number; there the database's own must do.
    """
    try:
        with node.transaction():
            row = node.execute(
                "SELECT system_identifier::text || '/' || (SELECT oid FROM pg_database"
                " WHERE datname = current_database()) FROM pg_control_system()"
            ).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        row = node.execute(
            "SELECT oid || '/' || current_database() FROM pg_database WHERE datname = current_database()"
        ).fetchone()
    return str(row[0])
