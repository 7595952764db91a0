"""The switchover, the whole path: prepare, fence, last round, sequences, gate, pointer, open. The way back is the same.

Up to the commit of the pointer the old database is in use, and whatever goes wrong releases everything. From that
commit on the new one is, and whatever goes wrong is completed: by the same command, or by the first application that
follows the pointer. Nothing but that one commit decides.
"""

from __future__ import annotations

import json
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trueup.db.connection import Connection
from trueup.db.node import connect, error_from_server
from trueup.errors import CheckFailed, NodeError, TrueupError
from trueup.store import Task, TaskStore
from trueup.task.open import open_task
from trueup.verbs.switchover import gate, pointer
from trueup.verbs.switchover.fence import Fence
from trueup.verbs.switchover.outcome import Asked, Outcome
from trueup.verbs.switchover.phases import (
    AFTER,
    FENCE,
    FINAL_ROUND,
    GATE,
    OPEN,
    POINTER,
    PREPARE,
    SEQUENCES,
    Budget,
    Phases,
)
from trueup.verbs.switchover.pointer import Pointer
from trueup.verbs.switchover.prepare import Ready, prepare, reach

if TYPE_CHECKING:
    from trueup.config.model import Node
    from trueup.engine.progress import Progress

EXECUTE = "execute"
ROLLBACK = "rollback"
TASK_TYPES = {EXECUTE: "SWITCHOVER", ROLLBACK: "SWITCHOVER_BACK"}
_PATIENCE_FOR_THE_TRUTH = 15.0


@dataclass(frozen=True)
class Route:
    """One direction of a switchover: from the database in use to the other one."""

    action: str
    source: Node
    target: Node


def route(asked: Asked, action: str) -> Route:
    """From where to where."""
    if action == ROLLBACK:
        return Route(action, asked.second, asked.first)
    return Route(action, asked.first, asked.second)


def move(asked: Asked, action: str, *, store: TaskStore, progress: Progress) -> Outcome:
    """Move the applications over; or finish what an earlier call had decided and not finished."""
    way = route(asked, action)
    context = {"sync": asked.sync, "from": way.source.name, "to": way.target.name, "proof": asked.proof}
    with open_task(
        store,
        TASK_TYPES[action],
        context={**context, "budget": asked.budget},
        on_interrupt="run `trueup switchover status` to see which database is in use",
    ) as task:
        outcome = _move(asked, way, task.task, store, progress)
        task.finish(outcome.as_json())
        return outcome


def _move(asked: Asked, way: Route, task: Task, store: TaskStore, progress: Progress) -> Outcome:
    phases = Phases()
    with ExitStack() as stack:
        fence = Fence(way.source)
        stack.callback(fence.close)
        fence.be_the_only_one()
        target = stack.enter_context(reach(way.target))
        mine = pointer.read(fence.connection, asked.sync)
        if mine is not None and not mine.is_in_use:
            return _complete(asked, way, fence, mine, target, task)
        attempt = task.task_id
        try:
            with phases.phase(PREPARE):
                ready = stack.enter_context(prepare(asked, way.source, way.target, fence, target, attempt, progress))
            conditions, keys = _pause(asked, ready, phases)
        except BaseException as error:
            fence.lower()
            _release(asked, way, fence, attempt, error)
            raise
        with phases.phase(OPEN):
            _open(way, target, asked.sync, ready.token)
        outcome = Outcome(
            sync=asked.sync,
            action=way.action,
            source=way.source.name,
            target=way.target.name,
            proof=asked.proof,
            budget=asked.budget,
            pause_ms=phases.pause_ms,
            milliseconds=phases.milliseconds,
            conditions=conditions,
            keys=keys,
            rounds=ready.rounds.count,
            address=ready.address,
            task_id=task.task_id,
            remarks=ready.remarks,
        )
        with phases.phase(AFTER):
            _keep(asked.sync, outcome, fence, target)
        return replace(outcome, milliseconds=dict(phases.milliseconds))


def _pause(asked: Asked, ready: Ready, phases: Phases) -> tuple[tuple[gate.Condition, ...], int]:
    """What applications wait through, up to the decision; gives the conditions and the keys of the last round."""
    fence, budget = ready.fence, Budget(asked.budget)
    with phases.phase(FENCE):
        fence.raise_it(budget)
    with phases.phase(FINAL_ROUND):
        fence.say(FINAL_ROUND, budget)
        if ready.validated is not None:
            ready.validated.mark(budget)
        final = ready.rounds.last(budget)
    with phases.phase(SEQUENCES):
        fence.say(SEQUENCES, budget)
        ready.set_sequences()
    with phases.phase(GATE):
        fence.say(GATE, budget)
        conditions = ready.conditions(final, budget)
        gate.refuse(conditions)
    with phases.phase(POINTER):
        fence.say(POINTER, budget)
        _decide(asked.sync, ready)
    return conditions, final.keys


def _decide(sync: str, ready: Ready) -> None:
    """The one commit. Where its answer is lost, the pointer itself is asked what it says."""
    fence = ready.fence
    try:
        pointer.decide(fence.connection, sync, ready.attempt, ready.token)
    except TrueupError:
        raise
    except Exception as error:
        raise error_from_server(error, fence.node) from None
    try:
        fence.connection.execute("COMMIT")
    except BaseException as error:
        if not _was_decided(fence.node, sync, ready.token):
            if isinstance(error, Exception):
                raise error_from_server(error, fence.node) from None
            raise
    fence.is_up = False


def _was_decided(node: Node, sync: str, token: str) -> bool:
    """Whether the decision is in the database, after an answer that never came."""
    until = time.monotonic() + _PATIENCE_FOR_THE_TRUTH
    while True:
        try:
            with connect(node, application="trueup switchover", read_only=True) as connection:
                found = pointer.read(connection, sync)
                return found is not None and not found.is_in_use and found.token == token
        except Exception as error:
            if time.monotonic() > until:
                raise NodeError(
                    f"the connection was lost in the moment of the decision, and it is not known what came of it"
                    f" ({error_from_server(error, node).message})",
                    cure="when the node answers again, run the same command: it completes what was decided, and"
                    " otherwise tries anew",
                    node=node.name,
                ) from None
            time.sleep(0.2)


def _open(way: Route, target: Connection, sync: str, token: str) -> None:
    """Open the new database; it cannot be undone any more, so an error says how to go on."""
    try:
        if pointer.open_next(target, sync, token):
            return
        why = "it expects another token"
    except Exception as error:
        why = error_from_server(error, way.target).message
    raise TrueupError(
        f"it was decided that {way.target.name} is in use, and it could not be opened: {why}",
        cure="run the same command again; applications that use trueup.connect open it themselves",
        node=way.target.name,
    )


def _complete(asked: Asked, way: Route, fence: Fence, mine: Pointer, target: Connection, task: Task) -> Outcome:
    """An earlier call decided and died: open what it did not open. Or nothing is left to do."""
    theirs = pointer.read(target, asked.sync)
    if not mine.attempt or theirs is None:
        raise CheckFailed(
            [f"{way.source.name} is not in use: {mine.next_name} is, since {mine.decided_at or 'the beginning'}"],
            cure="the way back is trueup switchover rollback, the way on is execute; see trueup switchover status",
        )
    remark = "an earlier call had decided it, and applications opened it: it is completed now"
    if not theirs.is_in_use:
        remark = "an earlier call had decided it, and died before it opened the new database: it is open now"
        _open(way, target, asked.sync, mine.token or "")
    places = (way.source.name, way.target.name)
    outcome = Outcome(
        asked.sync, way.action, *places, asked.proof, asked.budget, 0.0, {}, (), 0, 0, mine.next_address, task.task_id,
        (remark,),
    )  # fmt: skip
    _keep(asked.sync, outcome, fence, target)
    return outcome


def _release(asked: Asked, way: Route, fence: Fence, attempt: str, error: BaseException) -> None:
    """An attempt is over: say so where it can be said. The lock is gone already, and the database in use."""
    text = f"not switched: {error}"[:500] if isinstance(error, TrueupError) else "not switched"
    with suppress(Exception):
        if not fence.connection.closed:
            pointer.release(fence.connection, asked.sync, attempt, text)
            return
    with suppress(Exception), connect(way.source, application="trueup switchover", read_only=False) as connection:
        pointer.release(connection, asked.sync, attempt, text)


def _keep(sync: str, outcome: Outcome, fence: Fence, target: Connection) -> None:
    """The report beside both pointers; the switchover is done, with or without it."""
    text = json.dumps(outcome.as_json())
    with suppress(Exception):
        pointer.keep_report(fence.connection, sync, text, "moved")
        pointer.keep_report(target, sync, text, "in use")
