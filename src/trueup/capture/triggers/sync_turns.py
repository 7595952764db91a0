"""Write to the target of a sync: as the sync, and while it runs no rounds.

The guards of a switchover refuse every writer of the target except the sync. A repair that takes its rows from the
source of the sync holds the lock of the sync from before the first row is read until the last one is written. So no
round brings a newer row in between, which a repair could take for the row that it has read. Rows that change on the
source meanwhile are in the change log: the next round copies them. Like a round, the transaction checks the epoch of
the sync first: if another process has taken over the sync, nothing is written. The guards and the change log of the way
back then recognize the sync, and check the role of the session as usual.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from trueup.config.model import Node
from trueup.db.connection import Connection, one_value
from trueup.db.node import connect, error_from_server
from trueup.db.snapshot import Control
from trueup.db.statements import load
from trueup.db.trust import check_schema
from trueup.errors import CheckFailed

if TYPE_CHECKING:
    from typing_extensions import LiteralString

_CLOSED = "use_next"
# The SQLSTATE of `trueup.sync_check_epoch`.
_TAKEN_OVER = "TU001"


@dataclass(frozen=True)
class SyncTurn:
    """The sync that a node is written as, and the epoch that its transactions check."""

    sync: str
    epoch: int


@dataclass(frozen=True)
class _Target:
    """A node that is the target of a sync, and the node that is its source, if it is among those of the repair."""

    node: Node
    sync: str
    id: str
    # Whether guards refuse other writers.
    is_closed: bool
    source: Node | None


@contextmanager
def sync_turns(
    controls: Sequence[Control],
    tables: Mapping[str, Sequence[str]],
    source_of_truth: str,
    application: str,
    *,
    execute: bool,
) -> Iterator[Mapping[str, SyncTurn]]:
    """Hold the locks of the syncs whose targets are repaired; return the syncs that nodes are written as.

    `tables` are the names of the tables by node.

    Raise CheckFailed if a sync is running, or if a target that only its sync may write would get other rows than those
    of its source. A dry run takes no lock.
    """
    targets = [
        target
        for control in controls
        if control.node.name != source_of_truth
        and (target := _target_on(control, tables[control.node.name], controls)) is not None
    ]
    _refuse_other_rows(targets, source_of_truth)
    _refuse_in_use(controls, tables, source_of_truth)
    with ExitStack() as stack:
        turns = {}
        for target in targets:
            if target.source is None or target.source.name != source_of_truth or not execute:
                continue
            _hold(stack.enter_context(_session(target.source, application)), target)
            with _session(target.node, application) as connection:
                epoch = one_value(connection.execute(_statement("take_over"), {"sync": target.sync, "id": target.id}))
            turns[target.node.name] = SyncTurn(target.sync, int(epoch))
        yield turns


def begin_as_sync(connection: Connection, turn: SyncTurn) -> None:
    """Begin the work of a transaction as the sync; raise CheckFailed if another process has taken over the sync."""
    check_schema(connection, "trueup")
    try:
        connection.execute(_statement("check_epoch"), {"sync": turn.sync, "epoch": turn.epoch})
    except psycopg.Error as error:
        if error.sqlstate != _TAKEN_OVER:
            raise
        raise CheckFailed(
            [f"the sync {turn.sync} was started while the repair ran"],
            cure="stop it (trueup sync stop), and run the command again",
        ) from None


def _target_on(control: Control, tables: Sequence[str], controls: Sequence[Control]) -> _Target | None:
    """Return the sync that writes to the tables on a node, if there is one and the node is not in use."""
    connection = control.connection
    try:
        if not _may_use(connection, "trueup") or not one_value(connection.execute(_statement("has_state"))):
            return None
        found = [
            (name, sync_id, state)
            for name, sync_id in connection.execute(_statement("syncs"), {"tables": list(tables)}).fetchall()
            if (state := _pointer(connection, sync_id)) in ("", _CLOSED)
        ]
        if not found:
            return None
        if len(found) > 1:
            raise CheckFailed(
                [f"several syncs write to these tables: {', '.join(name for name, _, _ in found)}"],
                cure="repair tables of one sync at a time",
                node=control.node.name,
            )
        name, sync_id, state = found[0]
        source = next(
            (other.node for other in controls if other is not control and _has_log(other, name, sync_id)), None
        )
    except psycopg.Error as error:
        raise error_from_server(error, control.node) from None
    return _Target(control.node, name, sync_id, state == _CLOSED, source)


def _pointer(connection: Connection, sync_id: str) -> str:
    """Return the state of the switchover pointer of a sync, or "" if there is none."""
    if not one_value(connection.execute(_statement("has_pointer"))):
        return ""
    row = connection.execute(_statement("pointer"), {"id": sync_id}).fetchone()
    return str(row[0]) if row else ""


def _has_log(control: Control, name: str, sync_id: str) -> bool:
    connection = control.connection
    try:
        return (
            _may_use(connection, "trueup_log")
            and bool(one_value(connection.execute(_statement("has_log"))))
            and bool(one_value(connection.execute(_statement("log"), {"sync": name, "id": sync_id})))
        )
    except psycopg.Error as error:
        raise error_from_server(error, control.node) from None


def _may_use(connection: Connection, schema: str) -> bool:
    """Return whether this role may use a schema of trueup; else guards refuse the role, and its sync does not wait."""
    query = "SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = %s"
    if not any(row[0] for row in connection.execute(query, [schema]).fetchall()):
        return False
    try:
        return check_schema(connection, schema)
    except CheckFailed:
        # It belongs to a role that is not trusted: nothing in it is read.
        return False


def _refuse_other_rows(targets: Sequence[_Target], source_of_truth: str) -> None:
    """Raise if a closed target would get rows that are not those of the source of its sync."""
    for target in targets:
        if not target.is_closed or (target.source is not None and target.source.name == source_of_truth):
            continue
        cure = (
            f"use --source-of-truth {target.source.name}"
            if target.source is not None
            else "compare it with the source of that sync, and repair with --source-of-truth"
        )
        raise CheckFailed(
            [f"only the sync {target.sync} may write to this node: a repair can write the rows of its source only"],
            cure=f"{cure}; or end the switchover: trueup switchover reset, or finish",
            node=target.node.name,
        )


def _refuse_in_use(controls: Sequence[Control], tables: Mapping[str, Sequence[str]], source_of_truth: str) -> None:
    """Raise if a database that applications use would get the rows of the other database of its switchover."""
    truth = next((control for control in controls if control.node.name == source_of_truth), None)
    if truth is None or not _has_pointers(truth):
        return
    known = {sync_id for (sync_id,) in _rows(truth, "switchovers", {})}
    for control in controls:
        if control is truth or not _has_pointers(control):
            continue
        for sync, sync_id in _rows(control, "in_use", {"tables": list(tables[control.node.name])}):
            if sync_id in known:
                node, other = control.node.name, truth.node.name
                raise CheckFailed(
                    [f"applications use this node (the switchover of the sync {sync}): {other} has older rows"],
                    cure=f"use --source-of-truth {node}; or, if {other} is right, end the switchover first:"
                    " see trueup switchover status",
                    node=node,
                )


def _rows(control: Control, name: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
    try:
        return control.connection.execute(_statement(name), values).fetchall()
    except psycopg.Error as error:
        raise error_from_server(error, control.node) from None


def _has_pointers(control: Control) -> bool:
    try:
        return _may_use(control.connection, "trueup") and bool(
            one_value(control.connection.execute(_statement("has_pointer")))
        )
    except psycopg.Error as error:
        raise error_from_server(error, control.node) from None


def _hold(connection: Connection, target: _Target) -> None:
    """Take the lock of the sync, which ends with the session."""
    values = {"sync": target.sync}
    if one_value(connection.execute(_statement("hold"), values)):
        return
    holder = one_value(connection.execute(_statement("holder"), values)) or "it has just ended"
    raise CheckFailed(
        [f"the sync {target.sync} into {target.node.name} is running ({holder}): it writes the same rows"],
        cure="stop it (trueup sync stop), repair, and start it again (trueup sync run)",
        node=target.source.name if target.source else None,
    )


@contextmanager
def _session(node: Node, application: str) -> Iterator[Connection]:
    """Open a session that may write; driver errors become errors of the node."""
    with connect(node, application=application, read_only=False) as connection:
        schemas = [schema for schema in ("trueup", "trueup_log") if check_schema(connection, schema, node=node.name)]
        assert schemas
        connection.execute("SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0")
        try:
            yield connection
        except psycopg.Error as error:
            raise error_from_server(error, node) from None


def _statement(name: str) -> LiteralString:
    return load("trueup.capture.triggers", "sync_turns.sql")[name]
