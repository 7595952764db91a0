"""The path of a switchover: prepare, fence, final round, sequences, gate, pointer, open. A rollback is the same path.

A rehearsal is the path up to the gate, and then releases everything.

Until the commit of the pointer the old database is in use, and any failure releases everything. After that commit the
new database is in use, and any failure is completed by the same command, or by the first application that follows the
pointer. That one commit is the decision.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import psycopg

from trueup.config.model import Node
from trueup.db.connection import Connection
from trueup.db.node import error_from_server
from trueup.engine.failures import environment_errors
from trueup.engine.progress import Progress
from trueup.errors import NodeError, TrueupError
from trueup.store import TaskStore
from trueup.task.open import OpenTask, open_task
from trueup.verbs.switchover import decision, document, guard, pause, pointer
from trueup.verbs.switchover.deadline import at_most
from trueup.verbs.switchover.fence import Fence, open_session
from trueup.verbs.switchover.outcome import Outcome
from trueup.verbs.switchover.phases import AFTER, OPEN, PREPARE, Phases
from trueup.verbs.switchover.prepare import prepare
from trueup.verbs.switchover.request import EXECUTE, REHEARSE, ROLLBACK, Route, SwitchoverRequest

# Seconds for the guards per row, after the applications have moved.
_CLOSE_SECONDS = 10.0
TASK_TYPES = {EXECUTE: "SWITCHOVER", ROLLBACK: "SWITCHOVER_BACK", REHEARSE: "SWITCHOVER_REHEARSAL"}


def move(request: SwitchoverRequest, action: str, *, store: TaskStore, progress: Progress) -> Outcome:
    """Move the applications over, rehearse that, or complete an earlier call that was killed after its decision."""
    unreachable = None
    try:
        request = request.identified()
    except NodeError as error:
        # Nothing is moved then, but the other database may know that it is in use.
        request, unreachable = request.identified(both=False), error
    route = request.route(action)
    context = {"sync": request.sync, "from": route.source.name, "to": route.target.name, "proof": request.proof}
    with open_task(
        store,
        TASK_TYPES[action],
        context={**context, "budget": request.budget},
        on_interrupt="run `trueup switchover status` to see which database is in use",
    ) as task:
        outcome = document.begin(request, route, task.task_id)
        phases = Phases()
        try:
            outcome = _move(request, route, outcome, phases, task, progress, unreachable)
        except TrueupError as error:
            document.write_failed(outcome, request.report_dir, phases, error, is_decided=bool(task.written))
            raise
        outcome = document.write(outcome, request.report_dir)
        task.finish(outcome.as_json())
        return outcome


@environment_errors()
def _move(
    request: SwitchoverRequest,
    route: Route,
    outcome: Outcome,
    phases: Phases,
    task: OpenTask,
    progress: Progress,
    unreachable: NodeError | None,
) -> Outcome:
    with ExitStack() as stack:
        try:
            if unreachable:
                raise unreachable
            fence = Fence(route.source)
        except NodeError as error:
            if done := decision.known_to_target(request, route, error):
                return decision.nothing_to_move(outcome, route, done)
            raise
        stack.callback(fence.close)
        fence.claim(request.sync)
        target = stack.enter_context(open_session(route.target))
        # An earlier call may have been killed after its decision.
        _close(request, route.source, fence.connection)
        if done := decision.repeated(request, route, fence.connection, target):
            return decision.nothing_to_move(outcome, route, done)
        current = pointer.read(fence.connection, request.sync)
        if current is not None and not current.is_in_use:
            return decision.complete(outcome, route, fence, current, target)
        try:
            with phases.phase(PREPARE):
                ready = stack.enter_context(prepare(request, route, fence, target, task.task_id, progress))
            conditions, keys = pause.pause(request, ready, phases)
        except BaseException as error:
            fence.release()
            decision.release(request.sync, fence, task.task_id, error)
            _close(request, route.target, target)
            raise
        if route.decides:
            task.written.append(f"{route.target.name} is in use")
            with phases.phase(OPEN):
                decision.open_target(route, target, request.sync, ready.token)
        outcome = replace(document.complete(outcome, ready, phases), conditions=conditions, keys=keys)
        with phases.phase(AFTER):
            decision.keep_report(outcome, fence, target)
            outcome = replace(outcome, remarks=(*outcome.remarks, *_close(request, route.source, fence.connection)))
            _close(request, route.target, target)
        return replace(outcome, milliseconds=dict(phases.milliseconds))


def _close(request: SwitchoverRequest, node: Node, connection: Connection) -> list[str]:
    """Guard partitions that are created later, if the database is closed; return what is not closed.

    The database is moved or not whatever happens here: what failed is repeated by the next command.
    """
    timeout = min(_CLOSE_SECONDS, request.timeout)
    try:
        # The move may have failed because this database does not answer.
        with at_most(timeout + decision.OPEN_SECONDS, connection):
            if pointer.is_installed(connection):
                guard.close(connection, request.sync, timeout=timeout)
    except (psycopg.Error, TrueupError) as error:
        reason = error_from_server(error, node).message
        return [f"partitions that are created later on {node.name} accept writes: {reason}"]
    return []
