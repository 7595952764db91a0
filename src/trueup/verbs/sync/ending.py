"""The end of a sync: `stop` ends the running rounds, `drop` removes all that trueup put onto both ends.

`accept` continues a sync after one of its databases went back.
"""

from __future__ import annotations

import time

from trueup.capture.triggers.session import Session
from trueup.errors import CheckFailed, TrueupError
from trueup.verbs.sync import changelog, history, state
from trueup.verbs.sync.link import open_ends
from trueup.verbs.sync.request import SyncRequest


def stop(request: SyncRequest, *, timeout: float) -> bool:
    """Ask the running sync to end after its round, and wait for it; return whether one was running."""
    with open_ends(request.source, request.target, request.name, read_only=(True, False)) as (source, target):
        if changelog.holder(source, request.name) is None:
            return False
        give_up = time.monotonic() + timeout
        while holder := changelog.holder(source, request.name):
            # Repeated: a process that has just started clears earlier requests.
            target.execute("UPDATE trueup.syncs SET stop_asked_at = clock_timestamp() WHERE sync = %s", [request.name])
            if time.monotonic() > give_up:
                raise TrueupError(
                    f"{holder} did not stop within {timeout:g} s: a copy, a large round or a switchover runs to"
                    " its end",
                    cure="wait until it ends, or terminate that process",
                    node=request.source.name,
                )
            time.sleep(0.05)
        return True


def accept(request: SyncRequest) -> str:
    """Continue a sync although a database went back; return what was accepted, or "" if none did.

    The caller has compared and repaired all tables since. Changes from before and during that are in the change log.
    """
    with (
        open_ends(request.source, request.target, request.name) as (source, target),
        changelog.sync_lock(source, request.source, request.name),
    ):
        stored = state.expect(target, request.name, state.identity(source), request.target.name)
        problem = history.problem(source, stored, request.node_names)
        if problem:
            if not history.can_accept(source, stored):
                history.refuse(source, stored, request.node_names)
            epoch = state.take_over(target, request.name)
            reader = history.reader(request.name)
            mark = reader.begin(source, after=stored.round)
            with state.writing(target, request.name, epoch):
                # The position is of a history that does not exist any more.
                target.execute(state.statement("clear_position"), {"sync": request.name})
                state.set_mark(target, request.name, mark)
            reader.done(source, mark)
        return problem


def drop(request: SyncRequest, *, timeout: float, force: bool = False) -> tuple[bool, bool]:
    """Remove the change log and the state of a sync; return whether each existed. The copied rows stay.

    With `force`, a change log whose sync does not exist on this target is removed too.
    """
    with (
        open_ends(request.source, request.target, request.name) as (source, target),
        changelog.sync_lock(source, request.source, request.name),
    ):
        known = state.read(target, request.name)
        if known is not None:
            state.check_source(known, state.identity(source), request.target.name)
        for node, connection in ((request.source, source), (request.target, target)):
            if known is not None and state.pointer_state(connection, known.id) is not None:
                raise CheckFailed(
                    [f"a switchover of the sync {request.name} is prepared, and needs the sync"],
                    cure="end the switchover first: trueup switchover reset, or trueup switchover finish",
                    node=node.name,
                )
        with changelog.open_log(request.source) as log:
            sync_id = known.id if known else _orphan(log, request.name, state.identity(target), force=force)
            had_log = changelog.drop(log, request.name, sync_id, timeout=timeout)
        return had_log, state.remove(target, request.name, sync_id)


def _orphan(log: Session, name: str, target: str, *, force: bool) -> str:
    """Return the sync of a change log whose state on the target is gone; raise if its target is another database."""
    owner = changelog.owner(log, name)
    if owner is None or owner.peer == target or force:
        return owner.id if owner else ""
    raise CheckFailed(
        [f"the sync {name} into this target does not exist; the change log {name} belongs to another sync"],
        cure="name the target that the sync was started with: --to; if that database does not exist any more: --force",
        node=log.node.name,
    )
