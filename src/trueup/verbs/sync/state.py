"""The state of a sync, kept on the target: its phase, the copied pages, how far it is, what the last round did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from trueup.capture.log.publications import ensure_identities, refuse_all_tables
from trueup.capture.triggers.readers import Mark
from trueup.db.connection import Connection, one_value
from trueup.db.database_identity import identity as identity
from trueup.db.drop_schema import drop_schema_if_empty
from trueup.db.durable import durable_transaction
from trueup.db.private import install_privately
from trueup.db.statements import load
from trueup.db.trust import check_schema
from trueup.errors import CheckFailed
from trueup.rows.write import disabled_triggers as triggers
from trueup.verbs.sync.model import STATE_SCHEMA, Outdated, Problem, SyncTable
from trueup.verbs.sync.request import Scope

if TYPE_CHECKING:
    from typing_extensions import LiteralString

# The SQLSTATE of `trueup.sync_check_epoch`.
TAKEN_OVER = "TU001"
# The SQLSTATEs of `trueup.sync_check_tables`.
RESHAPED = "TU002"
FIRES = "TU003"


@dataclass(frozen=True)
class State:
    """One sync, as the target knows it."""

    sync: str
    # Shared by the sync and its way back, and by nothing else.
    id: str
    source: str
    phase: str
    made_schema: bool
    no_owner: bool
    tables: tuple[str, ...]
    named: tuple[str, ...]
    left_out: tuple[str, ...]
    # What is not up to date, and why.
    aside: tuple[Problem, ...]
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
    round: int
    token: str
    source_lsn: str | None
    source_at: datetime | None
    applied_at: datetime | None

    @property
    def is_claimed_by_start(self) -> bool:
        """Whether a start creates the change log as its first step: nothing is copied yet."""
        return self.phase in ("making", "copying") and not self.snapshots

    @property
    def mark(self) -> Mark:
        """The last round that the target has."""
        return Mark(self.round, self.token)


_LISTS = ("tables", "named", "left_out")


def statement(name: str) -> LiteralString:
    """Return a statement of state.sql."""
    return load("trueup.verbs.sync", "state.sql")[name]


def install(target: Connection) -> None:
    """Create the tables and functions of the state if they do not exist."""

    def create_objects() -> None:
        refuse_all_tables(target, "trueup.syncs")
        target.execute(statement("install"))
        ensure_identities(target, STATE_SCHEMA)

    install_privately(target, STATE_SCHEMA, create_objects)


def read(target: Connection, name: str) -> State | None:
    """Return the state of the sync `name`, or None if it does not exist."""
    if not check_schema(target, STATE_SCHEMA):
        return None
    if not one_value(target.execute("SELECT to_regclass('trueup.syncs') IS NOT NULL")):
        return None
    with target.cursor(row_factory=dict_row) as cursor:
        try:
            row = cursor.execute(statement("read"), [name]).fetchone()
            if row is not None and one_value(target.execute("SELECT to_regclass('trueup.sync_tables') IS NULL")):
                raise psycopg.errors.UndefinedColumn
        except psycopg.errors.UndefinedColumn:
            raise CheckFailed(
                ["the syncs into this database were started by an earlier version of trueup"],
                cure="run trueup sync drop with that version, then trueup sync start with this one",
            ) from None
    if row is None:
        return None
    aside = tuple(Problem(**problem) for problem in row["aside"])
    return State(**{**row, **{column: tuple(row[column]) for column in _LISTS}, "aside": aside})


def expect(target: Connection, name: str, source: str, node: str) -> State:
    """Return the state of the sync `name`; raise if it does not exist or comes from another source."""
    stored = read(target, name)
    if stored is None:
        raise CheckFailed([f"the sync {name} into this database does not exist"], cure="trueup sync start", node=node)
    check_source(stored, source, node)
    return stored


def check_source(state: State, source: str, node: str) -> None:
    """Raise if the sync was started from another database than `source`."""
    if state.source != source:
        raise CheckFailed(
            [f"the sync {state.sync} into this database comes from another source"],
            cure="name the source that the sync was started with: --from; a second sync needs another name: --name",
            node=node,
        )


def check_finished(state: State, node: str, phases: Sequence[str] = ("running",)) -> None:
    """Raise if the copy of a sync is in none of the phases."""
    if state.phase not in phases:
        raise CheckFailed(
            [f"the copy of the sync {state.sync} is not finished (phase: {state.phase})"],
            cure="continue it: trueup sync start; or remove it: trueup sync drop",
            node=node,
        )


def create(
    target: Connection, scope: Scope, sync_id: str, source: str, tables: Sequence[SyncTable], *, phase: str
) -> None:
    """Record a new sync; raise if another one has its name since it was looked for."""
    values = {
        "sync": scope.name,
        "id": sync_id,
        "source": source,
        "phase": phase,
        "made": scope.create_schema,
        "no_owner": scope.no_owner,
        "tables": [str(table) for table in tables],
        "named": list(scope.tables),
        "left_out": list(scope.exclude_tables),
    }
    if not target.execute(statement("create"), values).rowcount:
        raise CheckFailed(
            [f"a sync {scope.name} into this database was started at the same time"], cure="run the same command again"
        )


def set_phase(target: Connection, name: str, epoch: int, phase: str) -> None:
    """Record that the sync has reached a phase."""
    with writing(target, name, epoch):
        target.execute(
            "UPDATE trueup.syncs SET phase = %(phase)s,"
            " copied_at = CASE WHEN %(phase)s IN ('copied', 'building', 'running')"
            " THEN coalesce(copied_at, clock_timestamp()) END"
            " WHERE sync = %(sync)s",
            {"phase": phase, "sync": name},
        )


def set_tables(target: Connection, name: str, tables: Sequence[str], left_out: Sequence[str]) -> None:
    """Record the names of the tables, and the option --exclude-tables; call it in a transaction of the sync."""
    values = {"tables": list(tables), "left_out": list(left_out)}
    target.execute(statement("set_tables"), {"sync": name, **values})


def set_aside(target: Connection, name: str, problems: Sequence[Problem]) -> None:
    """Record what is set aside, for `trueup sync status`; call it in a transaction of the sync."""
    values = {"sync": name, "aside": Jsonb([asdict(problem) for problem in problems])}
    target.execute(statement("set_aside"), values)


def set_mark(target: Connection, name: str, mark: Mark) -> None:
    """Record the last round that the target has, in the transaction of its rows."""
    target.execute(statement("set_mark"), {"sync": name, "round": mark.round, "token": mark.token})


def take_over(target: Connection, name: str) -> int:
    """Become the only writer of the sync and return the new epoch; wait for transactions of the former writer."""
    if not one_value(target.execute(statement("is_complete"))):
        # Something was dropped, or the sync was started by a version of trueup that did not have it.
        install(target)
    return int(one_value(target.execute(statement("take_over"), [name])))


@contextmanager
def writing(target: Connection, name: str, epoch: int) -> Iterator[None]:
    """Run the block in a transaction of the sync; no other process can take over the sync before its end."""
    try:
        with durable_transaction(target):
            check_epoch(target, name, epoch)
            yield
    except psycopg.Error as error:
        raise_if_refused(error, name)
        raise


def check_epoch(target: Connection, name: str, epoch: int) -> None:
    """Begin a transaction of the sync: raise if another process has taken over; none can until the transaction ends.

    Triggers of trueup recognize the sync until the end of the transaction.
    """
    try:
        target.execute(statement("check_epoch"), {"sync": name, "epoch": epoch})
    except psycopg.Error as error:
        raise_if_refused(error, name)
        raise


def check_table(target: Connection, sync: str, table: SyncTable) -> None:
    """Lock a table before a task writes to it; raise if it is not as it was when it was checked.

    The lock keeps other sessions from creating or enabling a trigger, a rule or a constraint, which would run with the
    rights of this session.
    """
    names = [table.quoted_name]
    try:
        values = {"sync": "", "names": names, "shape": table.shape, "written": names}
        target.execute(statement("check_tables"), values)
    except psycopg.Error as error:
        raise_if_refused(error, sync)
        raise


def raise_if_refused(error: psycopg.Error, name: str) -> None:
    """Raise CheckFailed if an error of the target means that the epoch or the tables are others, or are not checked."""
    if error.sqlstate == RESHAPED:
        raise Outdated(
            ["a synced table was altered or replaced on the target since the sync opened it"],
            cure="run the same command again; nothing was written",
        ) from None
    if error.sqlstate == FIRES:
        raise Outdated(
            [f"{error.diag.message_primary} was created or enabled on the target since the sync opened it"],
            cure="run the same command again, which disables it; nothing was written",
        ) from None
    if error.sqlstate == TAKEN_OVER:
        raise CheckFailed(
            [f"another process has taken over the sync {name}: nothing was written"],
            cure="run a sync in only one process at a time",
        ) from None
    for function in ("sync_check_epoch", "sync_check_tables", "sync_check_names", "sync_shape"):
        if not isinstance(error, psycopg.errors.UndefinedFunction) or f"trueup.{function}(" not in str(error):
            continue
        raise CheckFailed(
            [f"the function trueup.{function} was dropped on the target: nothing was written"],
            cure="run the same command again: it creates the function",
        ) from None


def remove(target: Connection, name: str, sync_id: str) -> bool:
    """Remove the sync, and the tables of the state with the last one; return whether it existed.

    The triggers that it has disabled are set as before. Another sync with this name stays.
    """
    stored = read(target, name)
    if stored is None or stored.id != sync_id:
        return False
    triggers.restore(target, name)
    with target.transaction():
        target.execute("DELETE FROM trueup.sync_mark WHERE sync = %s", [name])
        target.execute("DELETE FROM trueup.syncs WHERE sync = %s", [name])
        if not one_value(target.execute("SELECT count(*) FROM trueup.syncs")):
            target.execute(statement("uninstall"))
    drop_schema_if_empty(target, STATE_SCHEMA)
    return True


def check_role(target: Connection, sync_id: str, node: str) -> None:
    """Raise if triggers of trueup would not recognize writes of the sync, because another role created them."""
    values = {"id": sync_id, "guarded": pointer_state(target, sync_id) is not None}
    roles = [str(row[0]) for row in target.execute(statement("other_roles"), values).fetchall()]
    if roles:
        raise CheckFailed(
            [f"triggers of trueup on the target belong to {', '.join(roles)} and do not recognize this role"],
            cure="connect to the target as that role, or as a member of it",
            node=node,
        )


SPLIT = "{} and {} both accept writes: a failover or a restore took back the decision of a switchover"


def pointer_state(connection: Connection, sync_id: str) -> str | None:
    """Return the state in the switchover pointer of a sync in this database, or None if it has no pointer."""
    if not _has_pointers(connection):
        return None
    row = connection.execute("SELECT state FROM trueup.switchover WHERE sync_id = %s", [sync_id]).fetchone()
    return str(row[0]) if row else None


def refuse_opening(connection: Connection, name: str) -> None:
    """Delete the hash of the token of an attempt to open this database, in the caller's transaction."""
    if one_value(connection.execute("SELECT to_regclass('trueup.switchover') IS NOT NULL")):
        connection.execute(statement("refuse_opening"), {"sync": name})


def closed_by(connection: Connection, tables: Sequence[str]) -> list[tuple[str, str, bool]]:
    """Return the switchovers that closed one of the tables here: sync, node in use, and whether it is finished."""
    if not _has_pointers(connection):
        return []
    rows = connection.execute(statement("closed_by"), {"tables": list(tables)}).fetchall()
    return [(name, in_use, is_finished) for name, in_use, is_finished in rows]


def _has_pointers(connection: Connection) -> bool:
    exists = "SELECT to_regclass('trueup.switchover') IS NOT NULL"
    return check_schema(connection, STATE_SCHEMA) and bool(one_value(connection.execute(exists)))
