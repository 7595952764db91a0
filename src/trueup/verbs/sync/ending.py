"""The end of a sync: `stop` ends the running rounds, `drop` removes all that trueup put onto both ends."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta

from trueup.capture.triggers.session import Session
from trueup.config.model import Node
from trueup.db.connection import Connection
from trueup.db.node import connect
from trueup.errors import CheckFailed, ConfigError, NodeError, TrueupError
from trueup.verbs.sync import changelog, state
from trueup.verbs.sync.identity.naming import identified, identified_without
from trueup.verbs.sync.link import open_ends, open_session
from trueup.verbs.sync.request import SyncRequest
from trueup.verbs.sync.target_schema import create_schema
from trueup.verbs.sync.target_schema.created import check_created, drop_created


def stop(request: SyncRequest, *, timeout: float, is_short: bool = False) -> bool:
    """Ask the running sync to end after its round, and wait for it; return whether one was running.

    With `is_short`, a sync that follows waits until the sync lock is free again, and continues: see `turn`.
    """
    request = identified(request)
    until = timedelta(seconds=timeout if is_short else 0)
    with open_ends(request.source, request.target, request.name, read_only=(True, False)) as (source, target):
        if changelog.holder(source, request.name) is None:
            return False
        give_up = time.monotonic() + timeout
        while holder := changelog.holder(source, request.name):
            # Repeated: a process that has just started clears earlier requests.
            target.execute(state.statement("ask_to_stop"), {"sync": request.name, "ahead": until})
            if time.monotonic() > give_up:
                raise TrueupError(
                    f"{holder} did not stop within {timeout:g} s: a copy, a large round or a switchover runs to"
                    " its end",
                    cure="wait until it ends, or terminate that process",
                    node=request.source.name,
                )
            time.sleep(0.05)
        return True


@dataclass(frozen=True)
class Dropped:
    """What was dropped, and what could not be."""

    log: bool
    state: bool
    # What is left on a database that is lost, and of an unfinished start with --create-schema.
    left: str = ""
    # Whether objects were dropped that --create-schema had created for a copy that was not finished.
    schema: bool = False


def drop(
    request: SyncRequest, *, timeout: float, without_source: bool = False, without_target: bool = False
) -> Dropped:
    """Remove the change log and the state of a sync; the copied rows stay, unless an unfinished start made the tables.

    `without_source`, `without_target`: that database does not exist any more, and the other one is cleared.
    """
    if without_source and without_target:
        raise ConfigError("--without-source and --without-target exclude each other", cure="name the node that is lost")
    if without_source:
        return _drop_state(identified_without(request, request.source))
    if without_target:
        return _drop_log(identified_without(request, request.target), timeout=timeout)
    try:
        return _drop_both(identified(request), timeout=timeout)
    except NodeError as error:
        option = "--without-source" if error.node == request.source.name else "--without-target"
        error.cure += f"; if it is lost for good: trueup sync drop {option}"
        raise


def _drop_both(request: SyncRequest, *, timeout: float) -> Dropped:
    with (
        open_ends(request.source, request.target, request.name) as (source, target),
        changelog.sync_lock(source, request.source, request.name),
    ):
        known = state.read(target, request.name)
        if known is not None:
            state.check_source(known, state.identity(source), request.target.name)
            _refuse_switchover(request, request.source, source, known.id, "")
            _refuse_switchover(request, request.target, target, known.id, "")
            _check_schema(target, known)
        with changelog.open_log(request.source) as log:
            sync_id = known.id if known else _orphan(log, request.name, state.identity(target))
            had_log = changelog.drop(log, request.name, sync_id, timeout=timeout)
        had_schema, left = _drop_schema(request, target, known)
        return Dropped(had_log, state.remove(target, request.name, sync_id), left, had_schema)


def _check_schema(target: Connection, known: state.State) -> None:
    """End a restore that is still running, and raise if others use what an unfinished start has created."""
    create_schema.end_sessions(target, known)
    check_created(target, known)


def _drop_schema(request: SyncRequest, target: Connection, known: state.State | None) -> tuple[bool, str]:
    """Remove what an unfinished start has created on the target; return whether it did, and what stays of it."""
    if known is None:
        return False, ""
    had_schema, left = drop_created(target, known)
    return had_schema, f"{request.target.name}: these stay: {', '.join(left)}" if left else ""


def _drop_state(request: SyncRequest) -> Dropped:
    """Remove the state from the target; the source is lost."""
    with open_session(request.target, request.name) as target:
        known = state.read(target, request.name)
        if known is None:
            return Dropped(False, False)
        refuse_if_it_answers(request.source, known.source, "--without-source")
        _refuse_switchover(request, request.target, target, known.id, " --without-old")
        # Another process that still reaches the source writes nothing more.
        state.take_over(target, request.name)
        _check_schema(target, known)
        left = f"{request.source.name}: nothing was changed: it may have the change log and its triggers"
        had_schema, stays = _drop_schema(request, target, known)
        left = "\n".join(filter(None, (left, stays)))
        return Dropped(False, state.remove(target, request.name, known.id), left, had_schema)


def _drop_log(request: SyncRequest, *, timeout: float) -> Dropped:
    """Remove the change log from the source; the target is lost."""
    with (
        open_session(request.source, request.name) as source,
        changelog.sync_lock(source, request.source, request.name),
        changelog.open_log(request.source) as log,
    ):
        owner = changelog.owner(log, request.name)
        if owner is None:
            return Dropped(False, False)
        refuse_if_it_answers(request.target, owner.peer, "--without-target")
        _refuse_switchover(request, request.source, source, owner.id, " --without-new")
        left = f"{request.target.name}: nothing was changed: it may have the state of the sync, and the copied rows"
        return Dropped(changelog.drop(log, request.name, owner.id, timeout=timeout), False, left)


def _refuse_switchover(request: SyncRequest, node: Node, connection: Connection, sync_id: str, option: str) -> None:
    """Raise if a switchover of the sync is prepared in this database."""
    if state.pointer_state(connection, sync_id) is not None:
        either = f"finish{option}" if option else "reset, or trueup switchover finish"
        raise CheckFailed(
            [f"a switchover of the sync {request.name} is prepared, and needs the sync"],
            cure=f"end the switchover first: trueup switchover {either}",
            node=node.name,
        )


def refuse_if_it_answers(node: Node, identity: str, option: str) -> None:
    """Raise if the database that should be lost answers; another database at its address does not matter."""
    try:
        with connect(node, application="trueup") as connection:
            is_it = state.identity(connection) == identity
    except NodeError:
        return
    if is_it:
        raise CheckFailed(
            [f"{option}: the database answers, so it is not lost"],
            cure=f"run the command without {option}, so that this database is cleared too",
            node=node.name,
        )


def _orphan(log: Session, name: str, target: str) -> str:
    """Return the sync of a change log whose state on the target is gone; raise if its target is another database."""
    owner = changelog.owner(log, name)
    if owner is None or owner.peer == target:
        return owner.id if owner else ""
    raise CheckFailed(
        [f"the sync {name} into this target does not exist; the change log {name} belongs to another sync"],
        cure="name the target that the sync was started with: --to; if that database does not exist any more, add"
        " --without-target",
        node=log.node.name,
    )
