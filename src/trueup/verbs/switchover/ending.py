"""The end of a switchover: `abort` and `reset`, and what they share with `finish`. Each can be repeated."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from trueup.config.model import Node
from trueup.config.wording import counted
from trueup.db.connection import Connection
from trueup.db.drop_schema import drop_schema_if_empty
from trueup.db.statements import load
from trueup.engine.failures import environment_errors
from trueup.errors import CheckFailed, NodeError, TrueupError
from trueup.verbs.switchover import guard, pointer
from trueup.verbs.switchover.fence import open_session
from trueup.verbs.switchover.request import SwitchoverRequest
from trueup.verbs.sync import changelog, state
from trueup.verbs.sync.model import STATE_SCHEMA

# Seconds for terminated sessions to end.
_END_SECONDS = 30.0


@dataclass(frozen=True)
class Ended:
    """What was done, as texts, and which database is in use."""

    sync: str
    in_use: str
    done: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the same as plain values."""
        return {"sync": self.sync, "in_use": self.in_use, "done": list(self.done)}


@environment_errors()
def abort(request: SwitchoverRequest) -> Ended:
    """Terminate the sessions of a running switchover; the server rolls back what was not decided.

    A database that does not answer is named.
    """
    request = request.identified(both=False)
    with ExitStack() as stack:
        sides, done = _open_what_answers(request, stack)
        pair = pointer.pair_of(sides[0][1], sides[1][1]) if len(sides) == 2 else ""
        for node, connection in sides:
            check_side(request, node, connection)
            if pair:
                pointer.check_pair(pointer.read(connection, request.sync), pair, node.name)
            done += _end_sessions(node, connection, request.sync)
        pointers = {node.name: pointer.read(connection, request.sync) for node, connection in sides}
        for node, connection in sides:
            if not pointer.is_installed(connection):
                continue
            undecided = load("trueup.verbs.switchover", "status.sql")["undecided"]
            if connection.execute(undecided, {"sync": request.sync}).rowcount:
                done.append(f"ended the attempt on {node.name}, which is still in use")
        in_use = [name for name, stored in pointers.items() if stored is not None and stored.is_in_use]
        closed = [stored for stored in pointers.values() if stored is not None and not stored.is_in_use]
        if len(closed) == 2 and any(stored.token for stored in closed):
            raise CheckFailed(
                ["the switchover is already decided, and the new database is not open yet: abort cannot undo that"],
                cure="run trueup switchover execute (or rollback) again to open it; then trueup switchover rollback can"
                " move back",
            )
        other = closed[0].next_name if closed else request.first.name
        return Ended(request.sync, in_use[0] if in_use else other, tuple(done) or ("no switchover was running",))


def _open_what_answers(request: SwitchoverRequest, stack: ExitStack) -> tuple[list[tuple[Node, Connection]], list[str]]:
    """Open sessions with the databases that answer; return them, and a text per database that does not."""
    sides, lost, errors = [], [], []
    for node in (request.first, request.second):
        try:
            sides.append((node, stack.enter_context(open_session(node))))
        except NodeError as error:
            errors.append(error)
            lost.append(f"{node.name} does not answer, and was not checked")
    if not sides:
        raise errors[0]
    return sides, lost


def check_side(request: SwitchoverRequest, node: Node, connection: Connection) -> None:
    """Raise if the pointer of one database belongs to another pair, as far as this database alone can tell."""
    stored = pointer.read(connection, request.sync)
    if stored is None:
        return
    mine = stored.pair.split(" ")[0 if node is request.first else 1]
    if stored.is_first != (node is request.first) or mine != state.identity(connection):
        raise pointer.other_switchover(stored, node.name)


def _end_sessions(node: Node, connection: Connection, sync: str) -> list[str]:
    """Terminate the session that executes the switchover of this sync, and wait until it has ended."""
    running = pointer.holders(connection, sync)
    until = time.monotonic() + _END_SECONDS
    for holder in running:
        connection.execute("SELECT pg_terminate_backend(%s)", [holder.pid])
    while left := pointer.holders(connection, sync):
        if time.monotonic() > until:
            raise TrueupError(
                f"{left[0]} did not end within {_END_SECONDS:g} s", cure="terminate that process", node=node.name
            )
        time.sleep(0.02)
    return [f"ended {len(running)} session of a switchover on {node.name}"] if running else []


@environment_errors()
def reset(request: SwitchoverRequest) -> Ended:
    """Remove pointers, guards and the way back of a sync from both databases; the sync and other syncs stay."""
    request = request.identified()
    with exclusive(request) as (first, second):
        stored = pointer.read(first, request.sync)
        if stored is not None and stored.is_closed:
            raise pointer.finished(request.sync, request.first.name, request.second.name)
        pointer.refuse_split(stored, pointer.read(second, request.sync))
        if is_moved(request, first, second):
            other = pointer.read(second, request.sync)
            if other is not None and not other.is_in_use:
                raise CheckFailed(
                    ["a move is decided, and the new database is not open"],
                    cure="complete it first: see trueup switchover status",
                )
            raise CheckFailed(
                [
                    f"{request.second.name} is in use: after a reset, {request.first.name} would accept writes at the"
                    " same time"
                ],
                cure="to move back: trueup switchover rollback; to stay on it: trueup switchover finish",
            )
        # The state of the sync itself is on the second database, and stays.
        sync_id = sync_identity(request, first, second)
        done = clear(request, sync_id, second, request.second, sync=False)
        # The state of the way back is on the first.
        done += clear(request, sync_id, first, request.first, log=False)
        return Ended(request.sync, request.first.name, tuple(done) or ("there was nothing to remove",))


def sync_identity(request: SwitchoverRequest, first: Connection, second: Connection) -> str:
    """Return the identity of the sync between the two databases, or ""; raise if there are two."""
    pointers = [pointer.read(connection, request.sync) for connection in (first, second)]
    ids = {stored.sync_id for stored in pointers if stored is not None}
    if not ids:
        known = state.read(second, request.sync)
        ids = {known.id} if known is not None and known.source == state.identity(first) else {""}
    if len(ids) > 1:
        raise CheckFailed(
            [f"{request.first.name} and {request.second.name} have pointers {request.sync} of different switchovers"],
            cure="name the two databases of one switchover: --from, --to",
        )
    return ids.pop()


def is_moved(request: SwitchoverRequest, first: Connection, second: Connection) -> bool:
    """Return whether the second database is in use, or the first one is not."""
    on_first, on_second = pointer.read(first, request.sync), pointer.read(second, request.sync)
    return (on_second is not None and on_second.is_in_use) or (on_first is not None and not on_first.is_in_use)


@contextmanager
def exclusive(request: SwitchoverRequest) -> Iterator[tuple[Connection, Connection]]:
    """Open sessions with both databases, as the only ones that change the switchover of this sync."""
    with ExitStack() as stack:
        first, second = (stack.enter_context(open_session(node)) for node in (request.first, request.second))
        pair = pointer.pair_of(first, second)
        for node, connection in ((request.first, first), (request.second, second)):
            pointer.check_pair(pointer.read(connection, request.sync), pair, node.name)
            pointer.claim(connection, request.sync, node.name)
            stack.callback(unclaim, connection, request.sync)
        yield first, second


def unclaim(connection: Connection, sync: str) -> None:
    if not connection.closed:
        pointer.unclaim(connection, sync)


def clear(
    request: SwitchoverRequest,
    sync_id: str,
    connection: Connection,
    node: Node,
    *,
    log: bool = True,
    sync: bool = True,
    guards: bool = True,
    pointers: bool = True,
) -> list[str]:
    """Remove parts of trueup from one database, and return them as texts; the guards are last."""
    done: list[str] = []
    if log:
        with changelog.open_log(node) as session:
            if changelog.drop(session, request.sync, sync_id, timeout=request.timeout):
                done.append("removed the change log")
    if sync and state.remove(connection, request.sync, sync_id):
        done.append("removed the state of the sync")
    if guards and (count := guard.remove(connection, request.sync, timeout=request.timeout)):
        done.append(f"removed {counted(count, 'guard')}")
    if pointers:
        if pointer.read(connection, request.sync) is not None:
            guard.remove_pointer(connection, request.sync, timeout=request.timeout)
            done.append("removed the pointer")
        drop_schema_if_empty(connection, STATE_SCHEMA)
    return [f"{node.name}: {text}" for text in done]
