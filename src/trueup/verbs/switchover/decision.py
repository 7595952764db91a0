"""The decision: the one commit that moves the pointer, the opening of the new database, and what follows a kill."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from psycopg import sql

from trueup.db.connection import Connection
from trueup.db.durable import FOR_TRANSACTION
from trueup.db.node import connect, error_from_server
from trueup.errors import CheckFailed, NodeError, TrueupError
from trueup.verbs.switchover import gate, pointer
from trueup.verbs.switchover.deadline import at_most
from trueup.verbs.switchover.ending import check_side
from trueup.verbs.switchover.fence import APPLICATION_NAME, Fence
from trueup.verbs.switchover.gate import GateClosed
from trueup.verbs.switchover.outcome import Outcome
from trueup.verbs.switchover.phases import BudgetSpent
from trueup.verbs.switchover.pointer import Pointer
from trueup.verbs.switchover.ready import Ready
from trueup.verbs.switchover.request import EXECUTE, REHEARSE, ROLLBACK, Route, SwitchoverRequest
from trueup.verbs.sync import state

# Seconds to wait for a node whose answer to the decision was lost.
_LOOKUP_SECONDS = 15.0
# Seconds to wait for an answer to the opening.
OPEN_SECONDS = 10.0


class ResultUnknown(NodeError):
    """The answer to the commit of the decision was lost, and the pointer cannot be read."""


def decide(sync: str, ready: Ready) -> None:
    """Commit the decision; if the answer to the commit is lost, read the pointer to learn its result."""
    fence = ready.fence
    try:
        pointer.decide(fence.connection, sync, ready.attempt, ready.token)
    except TrueupError:
        raise
    except Exception as error:
        raise error_from_server(error, fence.node) from None
    try:
        # A crash of the server must not take the decision back: the new database has been opened by then.
        fence.connection.execute(f"{FOR_TRANSACTION}; COMMIT", prepare=False)
    except BaseException as error:
        if not _was_decided(fence, sync, ready.token):
            if isinstance(error, Exception):
                raise error_from_server(error, fence.node) from None
            raise
    fence.is_held = False


def end_rehearsal(sync: str, ready: Ready) -> None:
    """Release the writers without a decision, and note who waited."""
    ready.waited = ready.fence.waiting()
    ready.fence.release()
    ready.hold.release()
    pointer.end_attempt(ready.fence.connection, sync, ready.attempt, "rehearsed")


def _was_decided(fence: Fence, sync: str, token: str) -> bool:
    """Return whether the decision was committed."""
    until = time.monotonic() + _LOOKUP_SECONDS
    while True:
        try:
            with connect(fence.node, application=APPLICATION_NAME, read_only=True) as connection:
                _end_session(connection, fence.session, until)
                stored = pointer.read(connection, sync)
                return stored is not None and not stored.is_in_use and stored.token == token
        except Exception as error:
            if time.monotonic() > until:
                raise ResultUnknown(
                    "the connection was lost during the commit of the decision, and its result is unknown"
                    f" ({error_from_server(error, fence.node).message})",
                    cure="run the same command when the node answers again: it completes a committed decision, and"
                    " otherwise starts again",
                    node=fence.node.name,
                ) from None
            time.sleep(0.2)


def _end_session(connection: Connection, session: tuple[int, datetime], until: float) -> None:
    """Terminate the session that made the decision, and wait until it has ended.

    Its commit may still be in progress, for example because it waits for a synchronous standby: what the pointer says
    is final only afterwards.
    """
    pid, since = session
    while connection.execute(pointer.statement("end_session"), {"pid": pid, "since": since}).fetchone() is not None:
        if time.monotonic() > until:
            raise TrueupError(f"process {pid}, which commits the decision, does not end", cure="terminate that process")
        time.sleep(0.02)


def open_target(route: Route, target: Connection, sync: str, token: str) -> None:
    """Open the new database for writes; the decision cannot be undone, so an error says how to continue."""
    try:
        with at_most(OPEN_SECONDS, target) as deadline:
            if pointer.open_database(target, sync, token):
                return
    except Exception as error:
        reason = error_from_server(error, route.target).message
        reason = f"no answer within {OPEN_SECONDS:g} s" if deadline.silent else reason
    else:
        old, new = route.source.name, route.target.name
        again = "UPDATE trueup.switchover SET state = 'idle', token = NULL, attempt = NULL WHERE sync = {}"
        raise CheckFailed(
            [
                f"switched to {new}, but {new} went back (a failover to a standby that was behind, or a restore): it"
                " lacks the last changes, and was not opened for writes"
            ],
            cure=f"start the server that has them; or, if no application has written to {new}, use {old} again. Run on"
            f" {old}: {again.format(sql.Literal(sync).as_string(target))}; then move the applications as before",
            node=new,
        )
    raise TrueupError(
        f"switched to {route.target.name}, but {route.target.name} could not be opened for writes: {reason}",
        cure="run the same command again; applications that use trueup.connect open it themselves",
        node=route.target.name,
    )


def repeated(request: SwitchoverRequest, route: Route, source: Connection, target: Connection) -> str:
    """Return why there is nothing to move: the database in question is in use already; "" if there is something.

    Raise if the switchover is finished and this would undo it.
    """
    current, other = pointer.read(source, request.sync), pointer.read(target, request.sync)
    pointer.refuse_split(current, other)
    if other is not None and other.is_closed:
        raise pointer.finished(request.sync, route.target.name, route.source.name)
    since = f" since {current.decided_at}" if current is not None and current.decided_at else ""
    if current is not None and current.is_closed:
        return f"the switchover is finished: {route.target.name} is in use{since}, and {route.source.name} is closed"
    # A crash of the new server may take back its opening, which does not wait for the disk: also after the report.
    if current is not None and not current.is_in_use and other is not None and other.is_in_use and not current.attempt:
        return f"{route.target.name} is in use{since}"
    if route.action == ROLLBACK and current is None and other is None and state.read(source, request.sync) is not None:
        return f"{route.target.name} is in use: no switchover was prepared"
    return ""


def known_to_target(request: SwitchoverRequest, route: Route, error: NodeError) -> str:
    """Return why there is nothing to move, if the source does not answer and the target is in use; "" if it is not."""
    with suppress(Exception), connect(route.target, application=APPLICATION_NAME) as target:
        stored = pointer.read(target, request.sync)
        check_side(request, route.target, target)
        if stored is not None and stored.is_in_use and not stored.attempt:
            lost = f"{route.source.name} does not answer, and was not checked ({error.message})"
            return f"{route.target.name} is in use; {lost}"
    return ""


def nothing_to_move(outcome: Outcome, route: Route, reason: str) -> Outcome:
    """Return the outcome of a call that has nothing to move; a rehearsal fails, because nothing was tried."""
    if route.decides:
        return replace(outcome, already=reason)
    is_back = outcome.rollback
    cure = "leave --rollback out: applications were not moved" if is_back else "--rollback rehearses the way back"
    raise CheckFailed([f"nothing to rehearse: {reason}"], cure=cure)


def complete(outcome: Outcome, route: Route, fence: Fence, current: Pointer, target: Connection) -> Outcome:
    """Complete an earlier call that was killed after its decision; raise if there was none."""
    other = pointer.read(target, outcome.sync)
    if not route.decides:
        raise CheckFailed(
            [f"{route.source.name} is not in use: {current.next_name} is in use"],
            cure="see trueup switchover status; --rollback rehearses the way back",
        )
    if other is None:
        raise CheckFailed(
            [f"{route.source.name} is closed: {current.next_name} is in use, but {route.target.name} has no pointer"],
            cure="see trueup switchover status; if the switchover was finished without this node: trueup switchover"
            " finish",
        )
    remark = "an earlier call made the decision, and an application opened the new database"
    if not other.is_in_use:
        if pointer.undecided(current, other):
            back = EXECUTE if route.action == ROLLBACK else ROLLBACK
            raise CheckFailed(
                [f"{route.source.name} is not in use yet: the move to it is decided, and it is not open"],
                cure=f"complete that move first: trueup switchover {back}",
            )
        remark = "an earlier call made the decision, and the new database was not open: it is open now"
        open_target(route, target, outcome.sync, current.token or "")
    outcome = replace(outcome, address=current.next_address, remarks=(remark,))
    keep_report(outcome, fence, target)
    return outcome


def release(sync: str, fence: Fence, attempt: str, error: BaseException) -> None:
    """Record that an attempt ended without a decision, if possible; the fence is released already."""
    text = _reason(error, attempt)
    with suppress(Exception):
        if not fence.connection.closed:
            pointer.end_attempt(fence.connection, sync, attempt, text)
            return
    with suppress(Exception), connect(fence.node, application=APPLICATION_NAME, read_only=False) as connection:
        pointer.end_attempt(connection, sync, attempt, text)


def _reason(error: BaseException, attempt: str) -> str:
    """Return why an attempt failed, without values of rows, which the text of an error may contain."""
    if isinstance(error, GateClosed):
        return f"not switched: the gate was closed ({', '.join(name for name in gate.ALL if name in error.message)})"
    if isinstance(error, BudgetSpent):
        return "not switched: the budget was spent"
    return f"not switched: the error is in the task {attempt}"


def keep_report(outcome: Outcome, fence: Fence, target: Connection) -> None:
    """Write the report into both pointers; the switchover is complete with or without it."""
    text = json.dumps(outcome.as_json())
    if outcome.action == REHEARSE:
        with suppress(Exception), at_most(OPEN_SECONDS, fence.connection):
            pointer.keep_report(fence.connection, outcome.sync, text, "rehearsed")
        return
    with suppress(Exception), at_most(OPEN_SECONDS, fence.connection, target):
        pointer.keep_report(fence.connection, outcome.sync, text, "moved")
        pointer.keep_report(target, outcome.sync, text, "in use")
