"""The pause, from the locks before it to the decision. It is repeated if an application needs a table."""

from __future__ import annotations

import time

import psycopg

from trueup.verbs.switchover import decision, gate
from trueup.verbs.switchover.deadline import Deadline
from trueup.verbs.switchover.hold import GaveWay
from trueup.verbs.switchover.phases import (
    FENCE,
    FINAL_ROUND,
    GATE,
    POINTER,
    PREPARE,
    RELEASE,
    SEQUENCES,
    SERVER_LIMITS,
    Budget,
    BudgetSpent,
    Phases,
    spent,
)
from trueup.verbs.switchover.ready import Ready
from trueup.verbs.switchover.request import SwitchoverRequest
from trueup.verbs.sync.round import TooLarge

# Seconds after the end of the budget at which sessions that do not answer are cut.
GRACE = 1.0
_CANCELED = "57014"


def pause(request: SwitchoverRequest, ready: Ready, phases: Phases) -> tuple[tuple[gate.Condition, ...], int]:
    """Run the pause up to the decision; return the conditions of the gate and the keys of the final round.

    It is released and repeated if an application needs a table that it holds.
    """
    budget, until = Budget(request.budget), time.monotonic() + request.timeout
    with Deadline(ready.sessions).watch(lambda: budget.left + GRACE) as deadline:
        while True:
            began, left = time.monotonic(), budget.left
            try:
                conditions, keys = _prove(ready, budget, phases)
                break
            except (GaveWay, TooLarge) as error:
                ready.give_way(budget)
                if time.monotonic() > until:
                    raise spent(request.budget, phases.current, error.message) from None
            except (BudgetSpent, gate.GateClosed):
                raise
            except Exception as error:
                if deadline.silent:
                    silent = " and ".join(sorted(set(deadline.silent)))
                    cure = "check that the server answers, and run the same command again"
                    raise spent(budget.seconds, phases.current, f"{silent} did not answer", cure=cure) from None
                is_late = time.monotonic() - began >= left
                if budget.left <= 0 or (is_late and _ended_by_server(error)):
                    raise spent(budget.seconds, phases.current) from None
                raise
        if not ready.token:
            with phases.phase(RELEASE):
                decision.end_rehearsal(request.sync, ready)
            return conditions, keys
        with phases.phase(POINTER):
            ready.fence.show_phase(POINTER, budget)
            decision.decide(request.sync, ready)
    return conditions, keys


def _ended_by_server(error: BaseException | None) -> bool:
    """Return whether the server ended a session because the budget, which it knows too, was spent."""
    while error is not None:
        if getattr(error, "sqlstate", None) in (*SERVER_LIMITS, _CANCELED):
            return True
        # The reason is lost if a statement was sent while the server closed the session.
        if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
            return True
        error = error.__cause__ or error.__context__
    return False


def _prove(ready: Ready, budget: Budget, phases: Phases) -> tuple[tuple[gate.Condition, ...], int]:
    """Run the pause up to the gate."""
    fence = ready.fence
    with phases.phase(PREPARE):
        ready.hold_tables(budget)
    with phases.phase(FENCE):
        ready.acquire_fence(budget)
    with phases.phase(FINAL_ROUND):
        fence.show_phase(FINAL_ROUND, budget)
        ready.write_marker(budget)
        final = ready.rounds.final(held=ready.hold.is_held)
    with phases.phase(SEQUENCES):
        fence.show_phase(SEQUENCES, budget)
        ready.set_sequences()
    with phases.phase(GATE):
        fence.show_phase(GATE, budget)
        conditions = ready.conditions(final, budget)
        gate.refuse(conditions)
    return conditions, final.keys
