"""The link of a sync: one open session with each end, the plan, and the tables. Rounds and switchovers work on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from trueup.capture.log.publications import ensure_identities, refuse_column_lists
from trueup.capture.triggers.readers import Reader
from trueup.config.model import Node
from trueup.db.connection import Connection, node_of, one_row, one_value
from trueup.db.durable import warn_unsafe
from trueup.db.node import connect, error_from_server
from trueup.db.statements import load
from trueup.errors import CheckFailed, TrueupError
from trueup.verbs.sync import chain, changelog, history, state
from trueup.verbs.sync.check import check_plan
from trueup.verbs.sync.model import LOG_SCHEMA, STATE_SCHEMA, Plan, SyncTable
from trueup.verbs.sync.silence import silence
from trueup.verbs.sync.state import State

if TYPE_CHECKING:
    from typing_extensions import LiteralString


@dataclass(frozen=True)
class Link:
    """The open link of a sync; `source` and `target` are pinned sessions in autocommit mode."""

    name: str
    # Shared by the sync and its way back.
    id: str
    source_node: Node
    target_node: Node
    source: Connection
    target: Connection
    # A second session with the source, to write while the first one reads in a snapshot.
    marker: Connection
    plan: Plan
    # With their numbers in the change log, parents before children.
    tables: tuple[SyncTable, ...]
    epoch: int
    # The fingerprints of the source's tables with their triggers, and of their partitions, when the link was opened.
    shape: tuple[str, str]

    @property
    def log(self) -> sql.Identifier:
        """The table of the change log."""
        return log_table(self.name)

    @property
    def reader(self) -> Reader:
        """The rounds of the sync, as the change log knows them."""
        return history.reader(self.name)

    @property
    def application(self) -> str:
        """The `application_name` of its sessions."""
        return application(self.name)

    def error_from_server(self, error: BaseException) -> TrueupError:
        """Return an error of either session as a TrueupError with the node that raised it."""
        return error_of(error, (self.source_node, self.source), (self.target_node, self.target))

    def by_number(self) -> dict[int, SyncTable]:
        """Return the tables by their numbers in the change log."""
        return {table.number: table for table in self.tables}


def log_table(name: str) -> sql.Identifier:
    """Return the table of the change log of the sync `name`."""
    return sql.Identifier(LOG_SCHEMA, f"pods_{name}")


def application(name: str) -> str:
    """Return the `application_name` of the sessions of a sync. It is for people only: any session can set it."""
    return f"trueup sync {name}"


def open_session(node: Node, name: str, *, read_only: bool = False) -> Connection:
    """Open a session of a sync without time-outs."""
    connection = connect(node, application=application(name), read_only=read_only)
    connection.execute("SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0")
    return connection


def error_of(error: BaseException, *ends: tuple[Node, Connection]) -> TrueupError:
    """Return a driver's error as a TrueupError of the end whose session is broken or failed, else of the last end."""
    failed = [node for node, connection in ends if connection.broken or connection.info.transaction_status == 3]
    return error_from_server(error, node_of(error) or (failed[0] if failed else ends[-1][0]))


@contextmanager
def open_ends(
    source: Node, target: Node, name: str, *, read_only: tuple[bool, bool] = (False, False)
) -> Iterator[tuple[Connection, Connection]]:
    """Open a session with each end; driver errors that leave the block become TrueupErrors."""
    with ExitStack() as stack:
        first = stack.enter_context(open_session(source, name, read_only=read_only[0]))
        second = stack.enter_context(open_session(target, name, read_only=read_only[1]))
        try:
            yield first, second
        except psycopg.Error as error:
            raise error_of(error, (source, first), (target, second)) from error


@contextmanager
def open_link(source: Node, target: Node, name: str, *, phases: tuple[str, ...] = ("running",)) -> Iterator[Link]:
    """Open the link of a started sync; raise if a table was changed, or another process holds the sync lock."""
    with open_ends(source, target, name) as (from_source, to_target):
        stored = state.expect(to_target, name, state.identity(from_source), target.name)
        if stored.phase not in phases:
            raise CheckFailed(
                [f"the copy of the sync {name} is not finished (phase: {stored.phase})"],
                cure="continue it: trueup sync start",
                node=target.name,
            )
        with changelog.sync_lock(from_source, source, name), open_session(source, name) as marker:
            # Read again: another process may have written until the lock was taken.
            stored = state.expect(to_target, name, stored.source, target.name)
            history.refuse(from_source, stored, (source.name, target.name))
            yield _link(source, target, stored, from_source, to_target, marker)


def _link(
    source: Node, target: Node, stored: State, from_source: Connection, to_target: Connection, marker: Connection
) -> Link:
    name = stored.sync
    # Before the pointer is read: the opening of a database ends the epoch, so this process cannot write after it.
    epoch = state.take_over(to_target, name)
    if state.pointer_state(to_target, stored.id) not in (None, "use_next"):
        # Guards would refuse the rows, but not the values of sequences.
        raise CheckFailed(
            [f"applications were moved to {target.name}: the sync must not write to it any more"],
            cure="to move them back: trueup switchover rollback; to end the switchover: trueup switchover finish",
            node=target.name,
        )
    if state.pointer_state(from_source, stored.id) == "use_next":
        raise CheckFailed(
            [f"{source.name} is not in use any more: the switchover to {target.name} is decided"],
            cure="complete it: trueup switchover execute, or rollback",
            node=source.name,
        )
    plan = check_plan(from_source, to_target, stored, (source.name, target.name))
    silence(to_target, name, epoch, plan.tables, plan.mode)
    # Before the change log is checked: a partition that changes meanwhile ends the first round.
    partitions = one_row(from_source.execute(*shape_query(name, plan.tables)))[1]
    chain.record(to_target, name, epoch, chain.origins(from_source, to_target, stored.id, plan.tables, target.name))
    with changelog.open_log(source) as log:
        changelog.check_owner(log, name, stored.id)
        tables = changelog.attached(log, name, plan.tables)
    history.reader(name).done(marker, stored.mark)
    ensure_identities(to_target, STATE_SCHEMA)
    refuse_column_lists(from_source, LOG_SCHEMA)
    warn_unsafe(to_target, target.name)
    state.check_role(to_target, stored.id, target.name)
    definition = one_value(from_source.execute(*shape_query(name, tables)))
    if not plan.is_ordered:
        to_target.execute("SET session_replication_role = replica")
    shape = (definition, partitions)
    return Link(name, stored.id, source, target, from_source, to_target, marker, plan, tables, epoch, shape)


def shape_query(name: str, tables: Sequence[SyncTable]) -> tuple[LiteralString, dict[str, Any]]:
    """Return the query for the source's fingerprints (tables with triggers, partitions) and for nullable keys."""
    keys = [(table.oid, part.column.name) for table in tables for part in table.spec.key]
    return load("trueup.verbs.sync", "round.sql")["shape"], {
        "oids": [table.oid for table in tables],
        "prefix": f"{LOG_SCHEMA}_{name}_",
        "key_oids": [oid for oid, _ in keys],
        "key_names": [column for _, column in keys],
    }
