"""Triggers and rules of the target that writes of a sync would fire: they are disabled while the sync writes.

With the right to set `session_replication_role`, those fire that are ENABLE ALWAYS or ENABLE REPLICA; without it, all
that are enabled. Their states are recorded in `trueup.sync_disabled` on the target, in the transaction that disables
them. The last transaction of a switchover on its new database sets them as on the old one and deletes the records, so a
database in use has none; dropping a sync sets them as they were. Triggers of foreign keys stay: only a superuser can
disable them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from trueup.db.connection import Connection, node_of, one_value
from trueup.db.foreign_keys import TableName
from trueup.db.names import display_name, display_part
from trueup.db.statements import load
from trueup.errors import QueryError

# How rows are written: with triggers and foreign keys of the target silenced, or in the order of foreign keys.
REPLICA = "replica"
ORDERED = "ordered"

if TYPE_CHECKING:
    from typing_extensions import LiteralString

# A session that waits for an autovacuum ends it after `deadlock_timeout` (1 s). Readers do not wait behind it.
_ATTEMPT = "1200ms"
_RESTORE_SECONDS = 60.0
# States as in pg_trigger, and what a comparison of schemas calls them.
STATES = {"O": "yes", "A": "always", "R": "replica", "D": "no"}
_CLAUSES: dict[str, LiteralString] = {"O": "ENABLE", "A": "ENABLE ALWAYS", "R": "ENABLE REPLICA", "D": "DISABLE"}

_KINDS: dict[str, LiteralString] = {"trigger": "TRIGGER", "rule": "RULE"}


@dataclass(frozen=True)
class Trigger:
    """A trigger or a rule of a table, and its state as in pg_trigger: O, A (always), R (replica), D (disabled)."""

    kind: str
    oid: int
    schema: str
    table: str
    name: str
    state: str
    is_owned: bool = True

    @property
    def place(self) -> tuple[str, str, str, str]:
        """What it is called; it has the same on the other database."""
        return self.kind, self.schema, self.table, self.name

    @property
    def item(self) -> tuple[str, str, str]:
        """Its name in a comparison of schemas."""
        return self.kind, self.schema, f"{display_part(self.table)}.{display_part(self.name)}"

    def __str__(self) -> str:
        return f"{self.kind} {display_part(self.name)} of {display_name(self.schema, self.table)}"


def _statement(name: str) -> LiteralString:
    return load("trueup.rows.write", "disabled_triggers.sql")[name]


def all_triggers(connection: Connection, tables: Iterable[TableName]) -> list[Trigger]:
    """Return the triggers and rules of tables and their partitions, parents first; without those of trueup."""
    names = list(tables)
    values = {"schemas": [schema for schema, _ in names], "names": [name for _, name in names]}
    with connection.cursor(row_factory=class_row(Trigger)) as cursor:
        return cursor.execute(_statement("triggers"), values).fetchall()


def firing(connection: Connection, tables: Iterable[TableName], mode: str) -> list[Trigger]:
    """Return the triggers and rules that writes of a sync would fire."""
    return [trigger for trigger in all_triggers(connection, tables) if fires(trigger, mode)]


def fires(trigger: Trigger, mode: str) -> bool:
    """Return whether writes of a sync would fire a trigger or a rule."""
    return trigger.state in (("O", "A") if mode == ORDERED else ("A", "R"))


def recorded(connection: Connection, sync: str | None) -> list[Trigger]:
    """Return the triggers and rules that a sync (None: any) has disabled, with the state that they had.

    Those that were dropped are left out.
    """
    if not one_value(connection.execute("SELECT to_regclass('trueup.sync_disabled') IS NOT NULL")):
        return []
    with connection.cursor(row_factory=class_row(Trigger)) as cursor:
        return cursor.execute(_statement("recorded"), {"sync": sync}).fetchall()


def disable(connection: Connection, sync: str, triggers: Sequence[Trigger]) -> None:
    """Record the states of triggers and disable them, in the caller's transaction."""
    for trigger in triggers:
        # It may have been enabled, or dropped and created again, since it was recorded.
        forget_one(connection, sync, trigger)
        values = {**vars(trigger), "sync": sync}
        connection.execute(_statement("record"), values)
    for statement in statements(replace(trigger, state="D") for trigger in triggers):
        connection.execute(statement)


def as_on(source: Connection, triggers: Sequence[Trigger], tables: Iterable[TableName]) -> list[Trigger]:
    """Return the triggers with the states that they have on the source; those that it lacks as they are.

    In a chain, the source is the target of another sync: then what that one has disabled counts as it was.
    """
    there = [*all_triggers(source, tables), *recorded(source, None)]
    states = {trigger.place: trigger.state for trigger in there}
    return [replace(trigger, state=states.get(trigger.place, trigger.state)) for trigger in triggers]


def statements(triggers: Iterable[Trigger]) -> list[sql.Composed]:
    """Return the statements that set the states, one per table; a partitioned table comes before its partitions."""
    return [
        sql.SQL("ALTER TABLE ONLY {} {}").format(
            sql.Identifier(*table),
            sql.SQL(", ").join(
                sql.SQL("{} {} {}").format(
                    sql.SQL(_CLAUSES[trigger.state]), sql.SQL(_KINDS[trigger.kind]), sql.Identifier(trigger.name)
                )
                for trigger in group
            ),
        )
        for table, group in groupby(triggers, lambda trigger: (trigger.schema, trigger.table))
    ]


def forget(connection: Connection, sync: str) -> None:
    """Delete the records of a sync, in the transaction that sets the states."""
    connection.execute(_statement("forget"), {"sync": sync})


def restore(connection: Connection, sync: str) -> None:
    """Set the triggers that the sync has disabled to the states that they had, and delete their records."""
    triggers = recorded(connection, sync)

    def set_states() -> None:
        enable_again(connection, triggers)
        forget(connection, sync)

    if one_value(connection.execute("SELECT to_regclass('trueup.sync_disabled') IS NOT NULL")):
        with_short_locks(connection, set_states, _RESTORE_SECONDS)


def enable_again(connection: Connection, triggers: Sequence[Trigger]) -> None:
    """Set triggers to their recorded states, in the caller's transaction; one that was enabled meanwhile stays so."""
    tables = dict.fromkeys((trigger.schema, trigger.table) for trigger in triggers)
    disabled = {trigger.oid for trigger in all_triggers(connection, tables) if trigger.state == "D"}
    for statement in statements(trigger for trigger in triggers if trigger.oid in disabled):
        connection.execute(statement)


def forget_one(connection: Connection, sync: str, trigger: Trigger) -> None:
    """Delete the record of one trigger."""
    connection.execute(_statement("forget_one"), {**vars(trigger), "sync": sync})


def with_short_locks(connection: Connection, action: Callable[[], object], timeout: float) -> None:
    """Run an action in its own transaction; see `begin`."""
    begin(connection, action, timeout)
    connection.execute("COMMIT")


def begin(connection: Connection, action: Callable[[], object], timeout: float) -> None:
    """Begin a transaction with an action, in attempts of about a second while other sessions lock the tables."""
    until = time.monotonic() + timeout
    while True:
        try:
            connection.execute(f"BEGIN; SET LOCAL lock_timeout = '{_ATTEMPT}'")
            action()
            return
        except BaseException as error:
            if not connection.closed:
                connection.execute("ROLLBACK")
            if not isinstance(error, (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)):
                raise
            if time.monotonic() > until:
                node = node_of(error)
                raise QueryError(
                    f"no lock to enable or disable triggers within {timeout:g} s: {error.diag.message_primary}",
                    cure="find the holder of the lock in pg_locks, and run the command again when it has ended",
                    sqlstate=error.sqlstate or "",
                    node=node.name if node else None,
                ) from None
            time.sleep(0.1)
